"""Kinds of directions: closed forms, theorems and references, each with a control."""

from typing import Any

import numpy as np
import pytest
from caches import Cache
from scipy import stats
from sklearn.covariance import LedoitWolf
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression

from interp.direction import (
    FITTED_KINDS,
    class_mean_difference,
    fit_direction,
    fit_eraser,
    orthogonal_draw,
    paired_component,
    shrunk_covariance,
    shuffle_labels,
    unembedding_difference,
    unit_direction,
    whitened_difference,
    writer_direction,
)
from interp.errors import SteeringError
from steering import fold_direction

PLACE: dict[str, Any] = {
    "layer": 1,
    "median_norm": 2.0,
    "model_id": "m",
    "token_rule": "last_prompt",
}


def correlated(
    n: int = 120, width: int = 12, gap: float = 2.0, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Twins in groups of two whose topics and noise have a few strong axes."""
    rng = np.random.default_rng(seed)
    mixing = rng.normal(size=(width, width)) * np.geomspace(5, 0.1, width)[:, None]
    labels = np.arange(n) % 2 == 0
    topic = np.repeat(rng.normal(size=(n // 2, width)) * 4, 2, axis=0)
    truth = rng.normal(size=width)
    signal = gap * labels[:, None] * truth / np.linalg.norm(truth)
    noise = rng.normal(size=(n, width)) @ mixing
    return (
        (noise + topic + signal).astype(np.float32),
        labels,
        [f"g{index // 2}" for index in range(n)],
    )


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize(("n", "width"), [(200, 10), (30, 80)])
def test_the_shrunk_covariance_is_ledoit_and_wolfs(n: int, width: int) -> None:
    rows, _, _ = correlated(n, width)
    centred = rows.astype(np.float64) - rows.astype(np.float64).mean(axis=0)
    found = shrunk_covariance(centred)
    reference = LedoitWolf(assume_centered=True).fit(centred)
    assert found.shrinkage == pytest.approx(reference.shrinkage_, rel=1e-9)
    assert 0 < found.shrinkage < 1
    vector = np.random.default_rng(1).normal(size=width)
    expected = np.linalg.solve(reference.covariance_, vector)
    np.testing.assert_allclose(found.solve(vector), expected, rtol=1e-8, atol=1e-10)
    pseudo = np.linalg.pinv(centred.T @ centred / n, rcond=1e-12, hermitian=True) @ vector
    plain = shrunk_covariance(centred, 0.0)
    np.testing.assert_allclose(plain.solve(vector), pseudo, rtol=1e-6, atol=1e-8)
    assert np.abs(plain.solve(vector) - expected).max() > 1e-3
    identity = shrunk_covariance(centred, 1.0)
    np.testing.assert_allclose(identity.solve(vector), vector / identity.scale)


def test_the_whitened_direction_is_the_linear_discriminants() -> None:
    rows, labels, _ = correlated(300, 10)
    reference = LinearDiscriminantAnalysis(solver="lsqr").fit(rows, labels)
    vector, shrinkage = whitened_difference(rows, labels, 0.0)
    assert shrinkage == 0
    assert cosine(vector, reference.coef_[0]) > 1 - 1e-9
    # Control: the class mean points elsewhere where the noise has strong axes.
    assert cosine(class_mean_difference(rows, labels), reference.coef_[0]) < 0.9
    # The more it is shrunk, the nearer it comes to the class mean.
    mean = class_mean_difference(rows, labels)
    near = [cosine(whitened_difference(rows, labels, s)[0], mean) for s in (0.0, 0.1, 0.9, 1.0)]
    assert near == sorted(near)
    assert near[-1] == pytest.approx(1)


def test_erasure_leaves_a_linear_probe_nothing() -> None:
    rows, labels, _ = correlated(400, 12, gap=20.0)
    eraser = fit_eraser(rows, labels, 0.0)
    erased = eraser.erase(rows)
    # The theorem: equal class means, so the best affine predictor is a constant.
    np.testing.assert_allclose(erased[labels].mean(axis=0), erased[~labels].mean(axis=0), atol=1e-9)
    np.testing.assert_allclose(erased.mean(axis=0), rows.mean(axis=0), atol=1e-4)
    np.testing.assert_allclose(eraser.erase(erased), erased, atol=1e-9)

    def probe(x: np.ndarray) -> LogisticRegression:
        return LogisticRegression(C=1e6, max_iter=5000, tol=1e-8).fit(x / 10, labels)

    before, after = probe(rows.astype(np.float64)), probe(erased)
    assert before.score(rows / 10, labels) > 0.85  # control: there was something to erase
    assert np.abs(after.coef_).max() < 1e-3
    proba = after.predict_proba(erased / 10)[:, 1]
    np.testing.assert_allclose(proba, 0.5, atol=1e-3)
    # Control: taking out another direction of the same rank leaves the probe what it reads.
    axis = np.linalg.svd(rows - rows.mean(axis=0))[2][-1]
    other = rows - (rows @ axis)[:, None] * axis
    assert probe(other).score(other / 10, labels) > 0.8


def test_erasure_is_the_theorems_projection_and_the_smallest_edit() -> None:
    rows, labels, _ = correlated(400, 12)
    exact = rows.astype(np.float64)
    sigma = np.cov(exact.T, bias=True)
    values, axes = np.linalg.eigh(sigma)
    whiten, colour = (
        axes @ np.diag(values**-0.5) @ axes.T,
        axes @ np.diag(values**0.5) @ axes.T,
    )
    cross = ((exact - exact.mean(axis=0)) * (labels - labels.mean())[:, None]).mean(axis=0)
    u = whiten @ cross / np.linalg.norm(whiten @ cross)
    projection = np.eye(12) - colour @ np.outer(u, u) @ whiten
    expected = (exact - exact.mean(axis=0)) @ projection.T + exact.mean(axis=0)
    eraser = fit_eraser(rows, labels, 0.0)
    np.testing.assert_allclose(eraser.erase(rows), expected, atol=1e-8)
    # No other rank-one edit that equalises the means moves the items less.
    moved = ((eraser.erase(rows) - exact) ** 2).sum(axis=1).mean()
    difference = class_mean_difference(rows, labels)
    for shrinkage in (0.01, 0.3, 1.0):
        other = fit_eraser(rows, labels, shrinkage)
        erased = other.erase(rows)
        np.testing.assert_allclose(erased[labels].mean(0), erased[~labels].mean(0), atol=1e-8)
        assert ((erased - exact) ** 2).sum(axis=1).mean() > moved
    assert cosine(eraser.write, difference) == pytest.approx(1)
    # What it reads is the whitened direction.
    assert cosine(eraser.read, whitened_difference(rows, labels, 0.0)[0]) > 1 - 1e-9


def test_erasure_is_the_one_of_concept_erasure() -> None:
    reference = pytest.importorskip("concept_erasure", reason="concept-erasure is not installed")
    import torch

    rows, labels, _ = correlated(400, 12)
    x, z = torch.from_numpy(rows).double(), torch.from_numpy(labels).long()
    fitted = reference.LeaceEraser.fit(x, z, shrinkage=False, constrain_cov_trace=False)
    np.testing.assert_allclose(
        fit_eraser(rows, labels, 0.0).erase(rows), fitted(x).numpy(), atol=1e-6
    )


def test_the_paired_component_by_hand() -> None:
    # Differences True − False of the groups: (3, 0), (1, 2), (1, -2); `c` has one class only.
    rows = np.array([[3, 5], [0, 5], [7, 8], [6, 6], [1, 0], [0, 2], [9, 9]], dtype=np.float32)
    labels = np.array([True, False, True, False, True, False, True])
    groups = ["a", "a", "b", "b", "d", "d", "c"]
    component, share, n_pairs = paired_component(rows, labels, groups)
    # Second moments: 9 + 1 + 1 = 11 along x, 0 + 4 + 4 = 8 along y, 0 + 2 − 2 across.
    np.testing.assert_allclose(component, [1, 0], atol=1e-12)
    assert share == pytest.approx(11 / 19)
    assert n_pairs == 3
    flipped, _, _ = paired_component(rows, ~labels, groups)
    np.testing.assert_allclose(flipped, [-1, 0], atol=1e-12)
    with pytest.raises(SteeringError, match="No group holds both"):
        paired_component(rows, labels, list("abcdefg"))


def test_what_twins_share_does_not_move_their_component() -> None:
    rows, labels, groups = correlated(gap=8.0)
    rng = np.random.default_rng(5)
    shared = np.repeat(rng.normal(size=(60, 12)) * 50, 2, axis=0).astype(np.float32)
    plain, _, _ = paired_component(rows, labels, groups)
    moved, _, _ = paired_component(rows + shared, labels, groups)
    assert cosine(plain, moved) > 1 - 1e-6
    # Control: grouped otherwise, what is shared does not cancel.
    across = [f"g{index % 60 // 2 * 2 + index // 60}" for index in range(120)]
    other, _, _ = paired_component(rows + shared, labels, across[1:] + across[:1])
    assert cosine(plain, other) < 0.9


def test_shuffled_labels_keep_their_counts_and_stay_in_their_groups() -> None:
    rng = np.random.default_rng(0)
    labels = np.array([1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 0], dtype=bool)
    groups = ["a", "a", "b", "b", "c", "c", "d", "d", "e", "e", "e"]
    seen = set()
    for _ in range(200):
        found = shuffle_labels(labels, rng, groups)
        assert [found[s].sum() for s in (slice(0, 2), slice(2, 4), slice(8, 11))] == [1, 1, 1]
        assert found[4] == found[5] != found[6] == found[7]
        seen.add(tuple(found))
    assert len(seen) == 2 * 2 * 3 * 2
    free = {tuple(shuffle_labels(labels, rng)) for _ in range(50)}
    assert all(sum(found) == labels.sum() for found in free)
    assert len(free) > 24


def test_a_shuffled_direction_is_unremarkable_among_its_like() -> None:
    """Class means follow the strong axes, so isotropic directions are the wrong company."""
    rows, labels, groups = correlated(n=80, width=40, gap=0.0)
    axis = np.linalg.svd(rows - rows.mean(axis=0))[2][0]

    def along(kind: Any, seed: int) -> float:
        found = fit_direction(kind, rows, labels, groups=groups, seed=seed, **PLACE)
        return abs(float(found.vector @ axis))

    shuffled = np.array([along("shuffled", seed) for seed in range(200)])
    isotropic = np.array([along("random", seed) for seed in range(200)])
    assert np.median(shuffled) > 2 * np.median(isotropic)
    # Ranked among 20 others, each has every rank equally often.
    ranks = [(shuffled[i : i + 20] < shuffled[i + 20]).sum() for i in range(0, 180, 21)]
    assert 0 < np.mean(ranks) < 20
    assert stats.ks_2samp(shuffled[:100], shuffled[100:]).pvalue > 0.01
    assert stats.ks_2samp(shuffled, isotropic).pvalue < 1e-6


def test_orthogonal_draws_have_the_covariance_of_the_activations() -> None:
    rows, labels, _ = correlated(n=100, width=6)
    difference = class_mean_difference(rows, labels)
    unit = difference / np.linalg.norm(difference)
    rng = np.random.default_rng(0)
    draws = np.stack(
        [orthogonal_draw(rows, difference, rng.standard_normal(100)) for _ in range(20_000)]
    )
    assert np.abs(draws @ unit).max() < 1e-9
    centred = rows.astype(np.float64) - rows.astype(np.float64).mean(axis=0)
    outside = np.eye(6) - np.outer(unit, unit)
    expected = outside @ (centred.T @ centred / 100) @ outside
    np.testing.assert_allclose(
        draws.T @ draws / 20_000, expected, atol=0.05 * np.abs(expected).max()
    )
    # Control: isotropic draws do not.
    assert np.abs(np.eye(6) * np.trace(expected) / 6 - expected).max() > 0.3 * expected.max()


def test_the_writer_raises_true_over_false_fastest() -> None:
    """Against numerical gradients of a head with RMSNorm, LayerNorm and no norm."""
    rng = np.random.default_rng(0)
    head, weight = rng.normal(size=(9, 7)), rng.uniform(0.2, 3, size=7)
    stream = rng.normal(size=7)

    def logits_of(kind: str, h: np.ndarray) -> np.ndarray:
        if kind == "none":
            return head @ h
        centred = h - h.mean() if kind == "layer" else h
        return head @ (weight * centred / np.sqrt((centred**2).mean()))

    for kind in ("none", "rms", "layer"):
        options: dict[str, Any] = {
            "none": {},
            "rms": {"norm_weight": weight},
            "layer": {"norm_weight": weight, "centred": True},
        }[kind]
        found = unembedding_difference(head, 3, 5, **options)
        step = 1e-6 * np.eye(7)
        gradient = np.array(
            [
                np.subtract(*(logits_of(kind, stream + s)[[3, 5]] for s in (d, -d)))
                @ np.array([1, -1])
                for d in step
            ]
        )
        base = stream - stream.mean() if kind == "layer" else stream
        if kind != "none":  # at a fixed norm: the radial part does not count
            found = found - base * (base @ found) / (base @ base)
        assert cosine(found, gradient) > 1 - 1e-6
    plain, weighed = (
        unembedding_difference(head, 3, 5),
        unembedding_difference(head, 3, 5, norm_weight=weight),
    )
    assert cosine(plain, weighed) < 0.99
    writer = writer_direction(head, 3, 5, norm_weight=weight, **PLACE)
    assert writer.details == {
        "true_id": 3,
        "false_id": 5,
        "final_norm": "weight",
        "centred": "false",
    }
    with pytest.raises(SteeringError, match="outside the head's 9 rows"):
        writer_direction(head, 9, 5, **PLACE)
    with pytest.raises(SteeringError, match="the head reads 7"):
        writer_direction(head, 3, 5, norm_weight=weight[:3], **PLACE)
    with pytest.raises(SteeringError, match="writer vector is zero"):
        writer_direction(head, 3, 3, **PLACE)


@pytest.mark.parametrize("kind", FITTED_KINDS)
def test_every_kind_is_seeded_and_recorded(kind: Any) -> None:
    rows, labels, groups = correlated()
    options = PLACE | {"groups": groups}
    first, again = (fit_direction(kind, rows, labels, seed=4, **options) for _ in range(2))
    assert np.array_equal(first.vector, again.vector)
    assert np.linalg.norm(first.vector) == pytest.approx(1, abs=1e-6)
    assert first.method == kind
    assert (first.layer, first.median_norm, first.token_rule) == (1, 2.0, "last_prompt")
    other = fit_direction(kind, rows, labels, seed=(4, 1), **options)
    drawn = kind in ("shuffled", "orthogonal", "random")
    assert drawn == (not np.array_equal(first.vector, other.vector))
    assert ("seed" in first.details) == drawn
    # Units do not matter to any of them, nor do entries beyond the range of squares.
    for factor in (1e-3, 1e15):
        scaled = fit_direction(kind, rows * np.float32(factor), labels, seed=4, **options)
        np.testing.assert_allclose(scaled.vector, first.vector, atol=1e-4)


def test_fitted_kinds_point_to_true_on_items_they_have_not_seen() -> None:
    rows, labels, groups = correlated(400, 12, gap=8.0)
    half = np.arange(400) < 200
    inside = [group for group, kept in zip(groups, half, strict=True) if kept]
    for kind in ("class_mean", "whitened", "pca", "leace"):
        found = fit_direction(kind, rows[half], labels[half], groups=inside, **PLACE)  # type: ignore[arg-type]
        score = rows[~half] @ found.vector
        assert score[labels[~half]].mean() > score[~labels[~half]].mean()


def test_a_folds_direction_uses_its_training_items_only() -> None:
    rows, labels, groups = correlated()
    cache: Any = Cache(rows[:, None, :], labels, groups)
    training = np.arange(120) >= 20
    for kind in FITTED_KINDS:
        found = fold_direction(cache, 0, training=training, kind=kind, seed=2)
        expected = fit_direction(
            kind, rows[training], labels[training], groups=groups[20:], seed=2, **PLACE
        )
        assert np.array_equal(found.vector, expected.vector)


def test_what_has_no_direction_is_refused() -> None:
    rows, labels, groups = correlated(8, 4)
    with pytest.raises(SteeringError, match="Did you mean class_mean"):
        fit_direction("class_men", rows, labels, **PLACE)  # type: ignore[arg-type]
    with pytest.raises(SteeringError, match="8 True and 0 False"):
        fit_direction("pca", rows, labels | True, groups=groups, **PLACE)
    with pytest.raises(SteeringError, match="needs groups"):
        fit_direction("pca", rows, labels, **PLACE)
    with pytest.raises(SteeringError, match="one label an item"):
        fit_direction("class_mean", rows, labels[:5], **PLACE)
    with pytest.raises(SteeringError, match="expected a number from 0 to 1"):
        fit_direction("whitened", rows, labels, shrinkage=1.5, **PLACE)
    broken = rows.copy()
    broken[3, 1] = np.nan
    with pytest.raises(SteeringError, match=r"1 of 8 activations are not finite"):
        fit_direction("leace", broken, labels, **PLACE)
    same = np.ones_like(rows)
    for kind, words in (
        ("class_mean", "class_mean vector is zero"),
        ("whitened", "do not vary"),
        ("leace", "do not vary"),
        ("pca", "differences are zero"),
        ("orthogonal", "no direction"),
    ):
        with pytest.raises(SteeringError, match=words):
            fit_direction(kind, same, labels, groups=groups, **PLACE)  # type: ignore[arg-type]
    line = np.arange(8, dtype=np.float32)[:, None] * rows[:1]
    with pytest.raises(SteeringError, match="along the direction alone"):
        fit_direction("orthogonal", line, labels, **PLACE)
    equal = np.concatenate([rows[:4], rows[:4]])
    with pytest.raises(SteeringError, match="nothing to erase"):
        fit_eraser(equal, np.arange(8) < 4)
    with pytest.raises(SteeringError, match="not finite"):
        unit_direction(np.array([np.inf, 1]), method="file", **PLACE)
