"""Closed-form probes against scikit-learn and against the formulas written out."""

from typing import Any

import numpy as np
import pytest
from caches import Cache
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from interp.errors import ProbeError
from probes import C_GRID, probe_direction, sweep_layers
from probes.closed import closed_decisions
from probes.layer import probe_named
from probes.summary import summarise

STRENGTHS = (0.001, 0.1, 10.0)
SHAPES = st.sampled_from([(12, 40), (30, 60), (24, 24), (60, 10), (50, 3)])


def problem(n: int, d: int, seed: int, share: float = 0.5) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n + 7, d)) / np.arange(1, d + 1) ** 0.5 @ rng.normal(size=(d, d)) + 3
    x *= rng.uniform(0.1, 20, size=d)
    x[:, 0] = 2.0  # a constant feature
    y = rng.random(n) < share
    y[:4] = [True, False, True, False]
    return x.astype(np.float32), y


def both(x: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    scaler = StandardScaler().fit(x[:n].astype(float))
    return scaler.transform(x[:n].astype(float)), scaler.transform(x[n:].astype(float))


@settings(max_examples=30)
@given(shape=SHAPES, share=st.sampled_from([0.5, 0.2]), seed=st.integers(0, 10**6))
def test_ridge_is_that_of_scikit_learn(shape, share, seed) -> None:
    n, d = shape
    x, y = problem(n, d, seed, share)
    labels = np.stack([y, np.roll(y, 1)], axis=1)
    got = closed_decisions("ridge", x[:n], x[n:], labels, STRENGTHS)
    train, shown = both(x, n)
    for index, c in enumerate(STRENGTHS):
        for column in range(2):
            model = Ridge(alpha=1 / c).fit(train, np.where(labels[:, column], 1.0, -1.0))
            np.testing.assert_allclose(
                got[:, index, column], model.predict(shown), rtol=1e-6, atol=1e-6
            )


@settings(max_examples=30)
@given(shape=SHAPES, share=st.sampled_from([0.5, 0.3]), seed=st.integers(0, 10**6))
def test_lda_is_that_of_scikit_learn(shape, share, seed) -> None:
    n, d = shape
    x, y = problem(n, d, seed, share)
    got = closed_decisions("lda", x[:n], x[n:], y[:, None], (1.0, 2.0))
    train, shown = both(x, n)
    keep = slice(1, None)  # scikit-learn's covariance of a constant feature is singular
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(train[:, keep], y)
    expected = model.decision_function(shown[:, keep])
    scale = np.abs(expected).max()
    # The constant feature counts as a dimension in the shrinkage target, so compare without it too.
    alone = closed_decisions("lda", x[:n, keep], x[n:, keep], y[:, None], (1.0,))
    np.testing.assert_allclose(alone[:, 0, 0], expected, atol=1e-6 * scale)
    np.testing.assert_array_equal(got[:, 0], got[:, 1])


@settings(max_examples=30)
@given(shape=SHAPES, seed=st.integers(0, 10**6))
def test_mass_mean_is_the_formula_written_out(shape, seed) -> None:
    n, d = shape
    x, y = problem(n, d, seed)
    got = closed_decisions("mass_mean", x[:n], x[n:], y[:, None], STRENGTHS)
    z, shown = both(x, n)
    z[:, 0] = shown[:, 0] = 0
    means = z[y].mean(axis=0), z[~y].mean(axis=0)
    centred = z - np.where(y[:, None], *means)
    for index, c in enumerate(STRENGTHS):
        sigma = (centred.T @ centred + np.eye(d) / c) / n
        weight = np.linalg.solve(sigma, means[0] - means[1])
        expected = (shown - (means[0] + means[1]) / 2) @ weight
        np.testing.assert_allclose(got[:, index, 0], expected, rtol=1e-5, atol=1e-6)


def test_mass_mean_goes_from_the_plain_difference_to_the_unshrunk_discriminant() -> None:
    x, y = problem(200, 6, 0)
    z, shown = both(x, 200)
    z, shown = z[:, 1:], shown[:, 1:]
    train, held = x[:200, 1:], x[200:, 1:]
    weak, strong = (
        closed_decisions("mass_mean", train, held, y[:, None], (c,))[:, 0, 0] for c in (1e-9, 1e9)
    )
    plain = (shown - (z[y].mean(axis=0) + z[~y].mean(axis=0)) / 2) @ (
        z[y].mean(axis=0) - z[~y].mean(axis=0)
    )
    assert np.corrcoef(weak, plain)[0, 1] > 1 - 1e-6
    model = LinearDiscriminantAnalysis(solver="lsqr").fit(z, y)
    odds = np.log(y.mean() / (1 - y.mean()))
    np.testing.assert_allclose(strong, model.decision_function(shown) - odds, rtol=1e-4)
    assert np.corrcoef(strong, plain)[0, 1] < 0.999


@pytest.mark.parametrize("kind", ["mass_mean", "ridge", "lda"])
def test_closed_forms_go_through_the_same_sweep(kind: Any) -> None:
    rng = np.random.default_rng(1)
    labels = np.tile([True, False, True, False], 30)
    groups = [f"g{index}" for index in np.repeat(np.arange(30), 4)]
    cache = Cache(rng.normal(size=(120, 3, 20)), labels, groups)
    cache.layers[:, 1, :3] += 2 * (labels[:, None] - 0.5)
    found = sweep_layers(cache, C="auto", probe=kind, n_permutations=19)  # type: ignore[arg-type]
    assert found.layers_nested == (1,) * 5
    assert found.correct_nested.mean() > 0.85
    assert found.probe == kind
    assert found.C_grid == (() if kind == "lda" else C_GRID)
    summary = summarise(found)
    assert (summary["C"] is None) == (kind == "lda")
    if kind == "lda":
        with pytest.raises(ProbeError, match="LDA has no C"):
            sweep_layers(cache, C="auto", probe=kind, one_standard_error=True)  # type: ignore[arg-type]
    assert abs(found.null_scores.mean() - 0.5) < 0.05
    direction = probe_direction(cache, 1, C=0.1, kind=kind)  # type: ignore[arg-type]
    assert direction.method == f"probe_{kind}"
    # It points along the three features that hold the label, to True.
    assert (direction.vector[:3] > 0.3).all()
    assert np.linalg.norm(direction.vector[3:]) < 0.6


def test_what_has_no_closed_form_is_refused() -> None:
    with pytest.raises(ProbeError, match="--solver sklearn goes with --probe logistic"):
        probe_named("ridge", "sklearn")
    x = np.eye(6, dtype=np.float32)
    for kind in ("mass_mean", "ridge", "lda"):
        with pytest.raises(ProbeError, match="one class only"):
            closed_decisions(kind, x, x, np.ones((6, 1), bool), (1.0,))  # type: ignore[arg-type]
        with pytest.raises(ProbeError, match="positive number"):
            closed_decisions(kind, x, x, np.arange(6)[:, None] < 3, (0.0,))  # type: ignore[arg-type]
