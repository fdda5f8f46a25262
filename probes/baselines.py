"""What the wording alone gives away: probes on text, under the folds of the activation probes."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression

from interp.errors import ProbeError
from interp.items import Item
from probes.layer import decide_layer, one_by_one, solver_named

__all__ = ["text_baselines"]

_STRENGTHS: Final = (0.1, 1.0, 10.0, 100.0)
_WORD: Final = r"(?u)\w+|[^\w\s]"
_MAX_ITERATIONS: Final = 10_000


def text_baselines(
    items: Sequence[Item], labels: NDArray[np.bool_], folds: NDArray[np.int64]
) -> dict[str, NDArray[np.float64]]:
    """Out-of-fold decision values of probes that see the text only.

    `statement` and `prompt`: L2 logistic regression on the TF-IDF of words and word pairs, C chosen
    inside each training part; `length`: logistic regression on the numbers of characters and words
    of both. The vocabulary is taken from all texts, which says nothing of labels: a word that no
    training item has gets no weight.

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
            decide = one_by_one(_decide_by_tfidf)
            fit = decide_layer(counts, labels[:, None], folds, _STRENGTHS, decide)
            found[name] = fit.decisions[:, 0]
    lengths = np.array(
        [
            [len(p), len(p.split()), len(s), len(s.split())]
            for p, s in zip(prompts, statements, strict=True)
        ],
        dtype=np.float32,
    )
    fit = decide_layer(lengths, labels[:, None], folds, (1.0,), solver_named("batched"))
    return found | {"length": fit.decisions[:, 0]}


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
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        for column in range(labels.shape[1]):
            for index, strength in enumerate(strengths):
                model = LogisticRegression(C=strength, max_iter=_MAX_ITERATIONS)
                try:
                    model.fit(seen, labels[:, column])
                except ConvergenceWarning as error:
                    raise ProbeError(
                        f"A text baseline at C = {strength:g} did not converge in "
                        f"{_MAX_ITERATIONS} iterations. Use --no-text-baselines."
                    ) from error
                values[:, index, column] = model.decision_function(shown)
    return values
