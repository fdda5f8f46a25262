"""The batched solver against scikit-learn's converged solution, and its certificate."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from interp.errors import ProbeError
from probes import fit_probe, many
from probes.batched import Decisions, Split, decide_held_out
from probes.products import Items
from probes.scaling import standardise_together
from probes.sets import SetsSpace
from probes.spaces import FeatureSpace

STRENGTHS = (0.001, 0.01, 1.0, 100.0)


def problem(
    rng: np.random.Generator, n: int, d: int, *, share: float, twist: str
) -> tuple[np.ndarray, np.ndarray]:
    """Features with a decaying spectrum and unequal scales, and labels of both classes."""
    spectrum = 1 / np.arange(1, d + 1) ** 0.5
    x = rng.normal(size=(n, d)) * spectrum @ rng.normal(size=(d, d)) + 3
    x *= rng.uniform(0.1, 20, size=d)
    y = rng.random(n) < share
    y[:2] = [True, False]
    if twist == "constant feature":
        x[:, 0] = 7.0
    elif twist == "duplicated rows":
        x[n // 2 :] = x[: n - n // 2]
    elif twist == "separable":
        x[:, -1] = np.where(y, 5.0, -5.0) + 0.1 * rng.normal(size=n)
    return x.astype(np.float32), y


def batched(
    train: np.ndarray, held: np.ndarray, labels: np.ndarray, strengths: tuple[float, ...]
) -> np.ndarray:
    return decide(train, held, labels, strengths).values


def decide(
    train: np.ndarray, held: np.ndarray, labels: np.ndarray, strengths: tuple[float, ...]
) -> Decisions:
    """One training set, which has no part in the items shown."""
    kept = np.arange(len(train) + len(held)) < len(train)
    unknown = np.zeros((len(held), labels.shape[1]), dtype=bool)
    items, known = np.concatenate([train, held]), np.concatenate([labels, unknown])
    (found,) = decide_held_out(items, [Split(kept, ~kept)], known, strengths)
    return found


@settings(max_examples=40)
@given(
    shape=st.sampled_from([(12, 40), (30, 60), (24, 24), (40, 10), (70, 30), (16, 1)]),
    share=st.sampled_from([0.5, 0.15, 0.85]),
    twist=st.sampled_from(["plain", "constant feature", "duplicated rows", "separable"]),
    columns=st.sampled_from([1, 3, 9]),
    seed=st.integers(0, 10**6),
)
# Here scikit-learn's L-BFGS stops at a line search that rounding defeats.
@example(shape=(30, 60), share=0.15, twist="separable", columns=1, seed=1249)
# Here a start from the solution at a smaller C leaves no weight to any item.
@example(shape=(12, 40), share=0.5, twist="plain", columns=9, seed=71)
# Here twins of both labels leave a gradient whose norm cancels to nothing in float32.
@example(shape=(12, 40), share=0.85, twist="duplicated rows", columns=9, seed=2253)
def test_decisions_are_those_of_scikit_learn_converged(shape, share, twist, columns, seed) -> None:
    n, d = shape
    rng = np.random.default_rng(seed)
    x, y = problem(rng, n + 8, d, share=share, twist=twist)
    train, held = x[:n], x[n:]
    labels = np.stack([y[:n]] + [rng.permutation(y[:n]) for _ in range(columns - 1)], axis=1)
    got = batched(train, held, labels, STRENGTHS)
    assert got.shape == (8, 4, columns)
    for column in {0, columns - 1}:
        for index, strength in enumerate(STRENGTHS):
            expected = fit_probe(train, labels[:, column], C=strength).decide(held)
            difference = np.abs(got[:, index, column] - expected).max()
            assert difference <= 1e-3 * np.abs(expected).max() + 1e-7


def test_the_tolerance_of_the_comparison_can_fail() -> None:
    # The control: scikit-learn's own default tolerance is farther from its solution than we are.
    rng = np.random.default_rng(0)
    x, y = problem(rng, 90, 120, share=0.5, twist="plain")
    train, held, labels = x[:80], x[80:], y[:80]
    expected = fit_probe(train, labels, C=100.0).decide(held)
    scaler = StandardScaler().fit(train.astype(np.float64))
    model = LogisticRegression(C=100.0, max_iter=10_000)
    model.fit(scaler.transform(train.astype(np.float64)), labels)
    loose = model.decision_function(scaler.transform(held.astype(np.float64)))
    ours = batched(train, held, labels[:, None], (100.0,))[:, 0, 0]
    scale = np.abs(expected).max()
    assert np.abs(ours - expected).max() <= 1e-4 * scale
    assert np.abs(loose - expected).max() > 1e-3 * scale


def newton(z: np.ndarray, y: np.ndarray, strength: float) -> tuple[np.ndarray, float]:
    """Weights and intercept by damped Newton steps in float64, until they no longer change."""
    n = len(z)
    kernel, sign = z @ z.T, np.where(y, 1.0, -1.0)
    a, b = np.zeros(n), 0.0

    def loss(a: np.ndarray, b: float) -> float:
        return a @ kernel @ a / 2 + strength * np.logaddexp(0, -sign * (kernel @ a + b)).sum()

    for _ in range(100):
        slope = -sign * expit(-sign * (kernel @ a + b))
        w = strength * np.abs(slope) * (1 - np.abs(slope))
        system = np.block([[np.eye(n) + w[:, None] * kernel, w[:, None]], [w @ kernel, w.sum()]])
        step = np.linalg.solve(system, -np.append(a + strength * slope, strength * slope.sum()))
        length = 1.0
        while length > 1e-9 and loss(a + length * step[:n], b + length * step[n]) > loss(a, b):
            length /= 2
        a, b = a + length * step[:n], b + length * step[n]
    return z.T @ a, float(b)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_twins_of_both_labels_at_a_large_strength_are_solved_beyond_scikit_learn(seed: int) -> None:
    # There scikit-learn's L-BFGS stops short even at a tolerance of 1e-10, and does not say so.
    rng = np.random.default_rng(seed)
    x, y = problem(rng, 92, 480, share=0.5, twist="plain")
    x[40:80] = x[:40]
    train, held, labels = x[:80], x[80:], y[:80]
    scaler = StandardScaler().fit(train.astype(np.float64))
    weights, intercept = newton(scaler.transform(train.astype(np.float64)), labels, 400.0)
    exact = scaler.transform(held.astype(np.float64)) @ weights + intercept
    scale = np.abs(exact).max()
    ours = batched(train, held, labels[:, None], (400.0,))[:, 0, 0]
    theirs = fit_probe(train, labels, C=400.0).decide(held)
    assert np.abs(ours - exact).max() <= 1e-6 * scale
    assert np.abs(ours - exact).max() < np.abs(theirs - exact).max()


@pytest.mark.parametrize(("shape", "seed"), [((72, 360), 12), ((90, 20), 18)])
def test_steps_that_lead_up_the_other_side_are_shortened(
    shape: tuple[int, int], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One item far out, and a large strength: whole Newton steps of some folds lead far beyond the
    # solution, after others are done.
    n, d = shape
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) * np.exp(3 * rng.normal(size=d))
    y = rng.random(n) < 0.5
    x[seed % n] *= 1e3
    x, folds = x.astype(np.float32), rng.permutation(n) % 5
    splits = [Split(folds != fold, folds == fold) for fold in range(5)]
    settled, shortened = many._settled, []

    def watched(*given: Any) -> Any:
        length, at_first = given[4:6]
        found = settled(*given)
        # Never higher than where it was found.
        assert (found[1] <= at_first[1] + 1e-9 * np.abs(at_first[1])).all()
        shortened.append(len(length))
        return found

    monkeypatch.setattr(many, "_settled", watched)
    results = list(decide_held_out(x, splits, y[:, None], (0.001, 0.01, 800.0, 810.0)))
    assert min(shortened) < 5 == max(shortened)
    for split, result in zip(splits, results, strict=True):
        scaler = StandardScaler().fit(x[split.training].astype(np.float64))
        train, held = (scaler.transform(x[k].astype(np.float64)) for k in split)
        weights, intercept = newton(train, y[split.training], 810.0)
        exact = held @ weights + intercept
        everywhere = np.abs(scaler.transform(x.astype(np.float64)) @ weights + intercept).max()
        assert np.abs(result.values[:, 3, 0] - exact).max() <= 2e-4 * everywhere


@pytest.mark.parametrize("shape", [(60, 100), (90, 40)])
def test_many_label_vectors_are_each_solved_as_alone(shape: tuple[int, int]) -> None:
    n, d = shape
    rng = np.random.default_rng(1)
    x, y = problem(rng, n + 20, d, share=0.5, twist="plain")
    labels = np.stack([rng.permutation(y[:n]) for _ in range(50)], axis=1)
    together = batched(x[:n], x[n:], labels, (0.01, 1.0))
    for column in (0, 17, 49):
        alone = batched(x[:n], x[n:], labels[:, [column]], (0.01, 1.0))
        np.testing.assert_allclose(together[:, :, [column]], alone, atol=1e-4 * np.abs(alone).max())


@pytest.mark.parametrize(("decay", "made"), [(1.0, True), (0.0, False)])
def test_a_preconditioner_is_made_where_it_saves_products(
    decay: float, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    n, d = 900, 300
    x = (rng.normal(size=(n, d)) / np.arange(1, d + 1) ** decay) @ rng.normal(size=(d, d))
    # Labels of unlike difficulty, so that columns finish one after another.
    noise = rng.normal(size=(n, 6)) * np.array([0.1, 0.3, 1, 3, 10, 30])
    labels = x @ rng.normal(size=(d, 1)) / np.sqrt(d) + noise > 0
    x = x.astype(np.float32)
    products, around = [], Items.around

    def counted(self: Items, *factors: np.ndarray) -> object:
        products.append(factors[0].shape[1])
        return around(self, *factors)

    monkeypatch.setattr(Items, "around", counted)
    chosen = batched(x[:800], x[800:], labels[:800], (1.0,))
    taken = len(products)
    monkeypatch.setattr(FeatureSpace, "inverse", lambda *_: lambda r: r)
    products.clear()
    without = batched(x[:800], x[800:], labels[:800], (1.0,))
    assert taken < 0.5 * len(products) if made else taken == len(products)
    # Columns that are done are not multiplied further.
    assert min(products) < 6 == max(products)
    np.testing.assert_allclose(chosen, without, rtol=0, atol=1e-4 * np.abs(without).max())
    for column in range(6):
        expected = fit_probe(x[:800], labels[:800, column], C=1.0).decide(x[800:])
        found = chosen[:, 0, column]
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4 * np.abs(expected).max())


def test_features_that_say_nothing_give_the_log_odds_of_the_classes() -> None:
    labels = np.array([True] * 15 + [False] * 5)
    got = batched(
        np.full((20, 30), 2.0, np.float32), np.ones((3, 30), np.float32), labels[:, None], (1.0,)
    )
    np.testing.assert_allclose(got, np.log(3), rtol=1e-5)


def test_the_certificate_is_reported_and_a_fit_that_does_not_converge_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng = np.random.default_rng(2)
    x, y = problem(rng, 60, 80, share=0.5, twist="plain")
    train, held, labels = x[:50], x[50:], y[:50, None]
    assert decide(train, held, labels, (1.0,)).relative_gradient <= 1e-7
    # The quick way hands over what it cannot solve; the robust one gives up loudly.
    monkeypatch.setattr("probes.many._MAX_STEPS", 2)
    handed_over = decide(train, held, labels, (1.0,))
    assert handed_over.relative_gradient <= 1e-7
    monkeypatch.setattr("probes.newton._MAX_STEPS", 3)
    with pytest.raises(ProbeError, match=r"C = 1 did not converge.*smaller C"):
        decide(train, held, labels, (1.0,))


@pytest.mark.parametrize("shape", [(60, 100), (90, 40)])
@pytest.mark.parametrize("columns", [1, 9])
def test_the_quick_ways_are_taken_and_agree_with_the_robust_one(
    shape: tuple[int, int], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    n, d = shape
    rng = np.random.default_rng(6)
    x, y = problem(rng, n + 10, d, share=0.3, twist="plain")
    labels = np.stack([y[:n], *(rng.permutation(y[:n]) for _ in range(columns - 1))], axis=1)
    with monkeypatch.context() as patched:
        patched.delattr("probes.batched.minimise")
        quick = decide(x[:n], x[n:], labels, STRENGTHS)
    monkeypatch.setattr("probes.batched._solve", lambda *_: [])
    robust = decide(x[:n], x[n:], labels, STRENGTHS)
    assert max(quick.relative_gradient, robust.relative_gradient) <= 1e-7
    for index in range(len(STRENGTHS)):
        ours, theirs = quick.values[:, index], robust.values[:, index]
        assert 0 < np.abs(ours - theirs).max() <= 3e-4 * np.abs(theirs).max()


@pytest.mark.parametrize(
    ("strengths", "apart", "shares"),
    [((0.01,), 1.0, True), ((0.01,), 1e-3, False), ((10.0,), 1.0, False), ((0.01, 1), 1.0, False)],
)
def test_folds_that_are_solved_together_are_each_solved_as_by_scikit_learn(
    strengths: tuple[float, ...], apart: float, shares: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(7)
    x, y = problem(rng, 60, 90, share=0.3, twist="constant feature")
    folds = rng.permutation(60) % 4
    # A feature that hardly varies outside the first fold: no scale is common to all sets.
    x[folds > 0, 3] *= apart
    labels = np.stack([y, rng.permutation(y)], axis=1)
    splits = [Split(folds != fold, folds == fold) for fold in range(4)]
    spaces = []

    class Watched(SetsSpace):
        def __init__(self, *args: object, own: bool) -> None:
            super().__init__(*args, own=own)  # type: ignore[arg-type]
            spaces.append(self)

    monkeypatch.setattr("probes.batched.SetsSpace", Watched)
    with monkeypatch.context() as patched:
        patched.delattr("probes.batched.minimise")
        together = list(decide_held_out(x, splits, labels, strengths))
    assert [space.common is not None for space in spaces] == [shares]
    # As many matrices as fit: here one training set at a time.
    monkeypatch.setattr("probes.batched._TOGETHER", 45**2 * 3)
    alone = list(decide_held_out(x, splits, labels, strengths))
    assert len(spaces) == 5
    for split, found, other in zip(splits, together, alone, strict=True):
        assert found.relative_gradient <= 1e-7
        scale = np.abs(found.values).max()
        assert np.abs(found.values - other.values).max() <= 1e-4 * scale
        for column in range(2):
            train, known = x[split.training], labels[split.training, column]
            expected = fit_probe(train, known, C=strengths[-1]).decide(x[split.shown])
            assert np.abs(found.values[:, -1, column] - expected).max() <= 1e-4 * scale


def test_the_matrix_that_sets_share_is_no_larger_than_theirs() -> None:
    rng = np.random.default_rng(7)
    x = rng.choice(np.array([-1, 1], dtype=np.float32), (200, 90))  # of one scale in every set
    y = rng.random(200) < 0.5
    kept = rng.random((200, 3)) < 0.3
    # The control: sets that hold most of the items share one.
    for training, shares in ((kept, False), (~kept, True)):
        common = standardise_together(x, training)
        space = SetsSpace(common, training, y[:, None], own=False)
        assert (space.common is not None) == shares


@pytest.mark.parametrize("strength", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_strengths_and_one_class_are_refused(strength: float) -> None:
    x, labels = np.eye(4, dtype=np.float32), np.array([[True], [False], [True], [False]])
    with pytest.raises(ProbeError, match="positive number"):
        decide(x, x, labels, (strength,))
    with pytest.raises(ProbeError, match="one class only"):
        decide(x, x, np.ones((4, 1), dtype=bool), (1.0,))


# Large enough for several parts of a few rows; and small enough for a float64 copy.
@pytest.mark.parametrize("shape", [(700, 900), (520, 500)])
@pytest.mark.parametrize("columns", [1, 5, 20])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_products_in_parts_are_products(shape: tuple[int, int], columns: int, kind: type) -> None:
    rng = np.random.default_rng(8)
    n, d = shape
    z = rng.normal(size=(n, d)).astype(np.float32)
    w, r = (rng.normal(size=(size, columns)).astype(kind) for size in (d, n))
    items, exact = Items(z), z.astype(np.float64)
    near = {"rtol": 0, "atol": 1e-9 if kind == np.float64 else 1e-3}
    assert items.times(w).dtype == items.pulled(r).dtype == kind
    np.testing.assert_allclose(items.times(w), exact @ w, **near)
    np.testing.assert_allclose(items.pulled(r), exact.T @ r, **near)
    if kind == np.float32:
        lifted, pulled = items.around(w, r)
        np.testing.assert_allclose(lifted, exact @ w, **near)
        np.testing.assert_allclose(pulled, exact.T @ (r * (exact @ w)), rtol=0, atol=0.05)
        assert np.abs(pulled).max() > 100


def test_the_activations_are_left_as_they_are() -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(30, 5)).astype(np.float32)
    before, labels = x.copy(), np.arange(20)[:, None] % 2 == 0
    kept = np.arange(30) < 20
    shown = np.concatenate([labels, labels[:10]])
    list(decide_held_out(x, [Split(kept, ~kept)], shown, (1.0,)))
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("columns", [1, 9])
def test_a_strength_beyond_float32_is_still_solved_or_refused(columns: int) -> None:
    # At such C the matrix of a step is indefinite by rounding; the path must not end in a number
    # that has not converged.
    rng = np.random.default_rng(4)
    x, y = problem(rng, 70, 100, share=0.5, twist="plain")
    labels = np.stack([rng.permutation(y[:60]) for _ in range(columns)], axis=1)
    found = decide(x[:60], x[60:], labels, (1e6,))
    assert found.relative_gradient <= 1e-7
    assert np.isfinite(found.values).all()
