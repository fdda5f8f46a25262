"""Text baselines are the solution: converged, and 0 where the texts tell nothing apart."""

import warnings

import numpy as np
import pytest
from caches import Cache
from probe_sweeps import items_of, twins
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from interp import load_items, open_source
from interp.errors import ProbeError
from interp.items import Item
from probes import make_folds
from probes.baselines import text_baselines


def in_order(
    items: list[Item], labels: np.ndarray, folds: np.ndarray, order: np.ndarray
) -> dict[str, np.ndarray]:
    """The baselines of reordered items, back in the order they came in."""
    found = text_baselines([items[k] for k in order], labels[order], folds[order])
    back = np.argsort(order)
    return {name: values[back] for name, values in found.items()}


def test_lengths_that_tell_nothing_apart_decide_nothing_in_any_order() -> None:
    # True texts of 10 and 20 characters, False ones of 15: the means of every group are equal, so
    # the gradient is 0 at zero weights and the solution is exactly 0.
    cache: Cache = twins(np.random.default_rng(0), n_groups=30)
    rng = np.random.default_rng(1)
    lengths = np.tile([10, 15, 20, 15], 30)
    texts = ["".join(rng.choice(list("abcdefgh"), size=size)) for size in lengths]
    labels, folds = cache.label.astype(bool), np.repeat(np.arange(30) % 5, 4)
    items = list(items_of(cache, texts))
    found = text_baselines(items, labels, folds)
    assert (found["length"] == 0).all()
    assert roc_auc_score(labels, found["length"]) == 0.5
    for seed in range(3):
        shuffled = in_order(items, labels, folds, np.random.default_rng(seed).permutation(120))
        assert (shuffled["length"] == 0).all()
        for name in ("statement", "prompt"):
            np.testing.assert_array_equal(shuffled[name] > 0, found[name] > 0)
    # The control: one character more in one text, and the lengths do decide.
    longer = list(items_of(cache, [texts[0] + "a", *texts[1:]]))
    assert (text_baselines(longer, labels, folds)["length"] != 0).mean() > 0.7


def test_tfidf_baselines_are_converged() -> None:
    items = load_items(open_source("facts"), n=160)
    labels = np.array([item.label for item in items])
    folds = make_folds(labels, [item.group_id for item in items], n_folds=5, seed=0)
    found = text_baselines(items, labels, folds)
    counts = CountVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\w+|[^\w\s]").fit_transform(
        [item.statement or "" for item in items]
    )
    strengths = (0.1, 1.0, 10.0, 100.0)

    def decide(training: np.ndarray, shown: np.ndarray, c: float, tol: float) -> np.ndarray:
        weighting = TfidfTransformer(sublinear_tf=True).fit(counts[training])
        model = LogisticRegression(
            C=c, tol=tol, solver="newton-cholesky" if tol < 1e-6 else "lbfgs", max_iter=1000
        )
        model.fit(weighting.transform(counts[training]).toarray(), labels[training])
        return model.decision_function(weighting.transform(counts[shown]).toarray())

    def by_hand(tol: float) -> np.ndarray:
        """The whole procedure, C chosen on the other folds alone, at a tolerance."""
        values = np.empty(len(items))
        for fold in range(5):
            right = np.zeros(len(strengths))
            for judged in sorted({*range(5)} - {fold}):
                training, inside = (folds != fold) & (folds != judged), folds == judged
                right += [
                    ((decide(training, inside, c, tol) > 0) == labels[inside]).sum()
                    for c in strengths
                ]
            best = strengths[int(right.argmax())]
            values[folds == fold] = decide(folds != fold, folds == fold, best, tol)
        return values

    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        exact, loose = by_hand(1e-14), by_hand(1e-4)
    size = np.abs(exact).max()
    np.testing.assert_allclose(found["statement"], exact, atol=1e-6 * size)
    # The control: scikit-learn's default tolerance is nowhere near.
    assert np.abs(loose - exact).max() > 0.3 * size


def test_a_line_search_that_rounding_ends_is_no_warning_and_no_error() -> None:
    # Texts that nearly separate the labels; pytest makes every warning an error.
    rng = np.random.default_rng(20)
    labels, folds = np.arange(20) % 2 == 0, (np.arange(20) // 2) % 5
    cache = Cache(np.zeros((20, 1, 1)), labels, [f"g{index}" for index in range(20)])
    texts = [("yes " if label ^ (rng.random() < 0.05) else "no ") * 3 for label in labels]
    items = list(items_of(cache, texts))
    found = text_baselines(items, labels, folds)
    assert ((found["statement"] > 0) == labels).mean() >= 0.9
    shuffled = in_order(items, labels, folds, rng.permutation(20))
    np.testing.assert_allclose(shuffled["statement"], found["statement"], rtol=1e-6)


def test_a_text_baseline_that_is_not_converged_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("probes.baselines._MAX_ITERATIONS", 1)
    cache = twins(np.random.default_rng(0))
    items = items_of(cache, [f"it is {'so' if label else 'not'}" for label in cache.label])
    with pytest.raises(ProbeError, match=r"A text baseline at C = .* did not converge: a gradient"):
        text_baselines(items, cache.label.astype(bool), np.repeat(np.arange(20) % 5, 4))
