"""What the wording alone gives away: probes on text, under the folds of the activation probes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression

from interp.errors import ProbeError
from interp.items import Item
from probes.batched import Split
from probes.layer import Decide, decide_layer, one_by_one, solver_named

__all__ = ["text_baselines"]

_STRENGTHS: Final = (0.1, 1.0, 10.0, 100.0)
_WORD: Final = r"(?u)\w+|[^\w\s]"
_MAX_ITERATIONS: Final = 10_000

_TOLERANCE: Final = 1e-12
"""Largest gradient component at a solution, of the mean loss. At scikit-learn's default of 1e-4 the
decisions are off by as much as their size, and another C is chosen."""

_LARGEST_GRADIENT: Final = 1e-9
"""Above this a fit is an error; rounding leaves up to 1e-10 where texts nearly separate labels."""

_LINE_SEARCH: Final = "Line Search failed|The line search|Rounding errors prevent the line search"

_ROUNDING: Final = 1e-7
"""Log odds below this are what rounding leaves of 0. Fits are in float64 and converge to 1e-8 of
the largest decision and less, and the probability of True is one half up to 3e-8 there.
"""


def text_baselines(
    items: Sequence[Item], labels: NDArray[np.bool_], folds: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """Out-of-fold decision values of probes that see the text only.

    `statement` and `prompt`: L2 logistic regression on the TF-IDF of words and word pairs, C chosen
    inside each training part; `length`: logistic regression on the numbers of characters and words
    of both. The vocabulary is taken from all texts, which says nothing of labels: a word that no
    training item has gets no weight.

    Where nothing in the texts tells labels apart, the solution is 0 for every item, and what a fit
    returns is rounding, whose sign depends on the order of the items. Such decisions are set to 0,
    which says False and is a tie for the AUROC.

    Args:
        items: in the order of the labels; items without a statement have no `statement` baseline.
        labels: (n_items,) of bool.
        folds: (n_items,) from 0.

    Returns:
        (n_items,) log odds of True by name.
    """
    prompts = ["\n".join(message.content for message in item.messages) for item in items]
    statements = [item.statement or "" for item in items]
    found: dict[str, NDArray[np.float64]] = {}
    for name, texts in (("statement", statements), ("prompt", prompts)):
        counts = _counts(texts)
        if counts is not None:
            decide = _settled(one_by_one(_decide_by_tfidf))
            fit = decide_layer(counts, labels[:, None], folds, _STRENGTHS, decide)
            found[name] = fit.decisions[:, 0]
    lengths = np.array(
        [
            [len(p), len(p.split()), len(s), len(s.split())]
            for p, s in zip(prompts, statements, strict=True)
        ],
        dtype=np.float32,
    )
    # Four features: the reference solver costs nothing, and it is float64 throughout.
    decide = _settled(solver_named("sklearn"))
    fit = decide_layer(lengths, labels[:, None], folds, (1.0,), decide)
    return found | {"length": fit.decisions[:, 0]}


def _settled(decide: Decide) -> Decide:
    """The same decisions, with those that are rounding set to 0."""

    def settled(
        features: Any,
        splits: Sequence[Split],
        labels: NDArray[np.bool_],
        strengths: Sequence[float],
    ) -> Iterator[tuple[NDArray[np.float64], float | None]]:
        for values, gradient in decide(features, splits, labels, strengths):
            yield np.where(np.abs(values) < _ROUNDING, 0.0, values), gradient

    return settled


def _counts(texts: Sequence[str]) -> Any:
    """Sparse (n_items, vocabulary) counts of words and word pairs; None without any word."""
    # Single characters and digits may be what tells statements apart.
    vectorizer = CountVectorizer(ngram_range=(1, 2), token_pattern=_WORD)
    try:
        return vectorizer.fit_transform(texts)
    except ValueError:
        return None


def _decide_by_tfidf(
    train: Any, held_out: Any, labels: NDArray[np.bool_], strengths: Sequence[float]
) -> NDArray[np.float64]:
    weighting = TfidfTransformer(sublinear_tf=True).fit(train)
    seen, shown = weighting.transform(train), weighting.transform(held_out)
    values = np.empty((held_out.shape[0], len(strengths), labels.shape[1]))
    for column in range(labels.shape[1]):
        for index, strength in enumerate(strengths):
            model = _converged(seen, labels[:, column], strength)
            values[:, index, column] = model.decision_function(shown)
    return values


def _converged(seen: Any, labels: NDArray[np.bool_], strength: float) -> LogisticRegression:
    # Newton steps converge where L-BFGS stops short, and take less time.
    model = LogisticRegression(
        C=strength, solver="newton-cg", tol=_TOLERANCE, max_iter=_MAX_ITERATIONS
    )
    with warnings.catch_warnings():
        # Rounding may end the last line search early; the gradient says what is left.
        warnings.filterwarnings("ignore", message=_LINE_SEARCH)
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(seen, labels)
    residual = expit(model.decision_function(seen)) - labels
    weights = model.coef_[0]
    slopes = (seen.T @ residual + weights / strength) / len(labels)
    worst = max(float(np.abs(slopes).max()), abs(float(residual.mean())))
    if worst > _LARGEST_GRADIENT:
        raise ProbeError(
            f"A text baseline at C = {strength:g} did not converge: a gradient of {worst:.1e} is "
            f"left, above {_LARGEST_GRADIENT:g}. Use --no-text-baselines."
        )
    return model
