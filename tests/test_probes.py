from pathlib import Path
from typing import Any

import numpy as np
import pytest
from caches import Cache
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.errors import ProbeError, ResultError
from probes import fit_probe, make_folds, read_sweep, sweep_layers, write_sweep


def noise_cache(
    rng: np.random.Generator, n_groups: int = 25, size: int = 4, layers: int = 3
) -> Cache:
    """Balanced groups (as in `facts`), no signal anywhere."""
    labels = np.tile([True, False] * (size // 2), n_groups)
    groups = [f"g{index}" for index in np.repeat(np.arange(n_groups), size)]
    return Cache(rng.normal(size=(len(labels), layers, 8)), labels, groups)


def sweep(cache: Cache, **options: Any):
    return sweep_layers(cache, **options)  # type: ignore[arg-type]


@given(
    sizes=st.lists(st.integers(1, 6), min_size=8, max_size=30),
    n_folds=st.integers(3, 5),
    seed=st.integers(0, 1000),
    data=st.data(),
)
def test_folds_keep_groups_whole_and_cover_every_item(sizes, n_folds, seed, data) -> None:
    groups = [f"g{index}" for index, size in enumerate(sizes) for _ in range(size)]
    labels = np.array(
        data.draw(st.lists(st.booleans(), min_size=len(groups), max_size=len(groups)))
    )
    try:
        folds = make_folds(labels, groups, n_folds=n_folds, seed=seed)
    except ProbeError:
        return
    assert set(folds) == set(range(n_folds))
    by_group: dict[str, set[int]] = {}
    for group, fold in zip(groups, folds, strict=True):
        by_group.setdefault(group, set()).add(int(fold))
    assert all(len(found) == 1 for found in by_group.values())
    for fold in range(n_folds):
        assert 0 < labels[folds == fold].sum() < (folds == fold).sum()


def test_balanced_groups_give_balanced_folds_of_equal_size() -> None:
    cache = noise_cache(np.random.default_rng(0))
    folds = make_folds(cache.label.astype(bool), cache.group_id, n_folds=5, seed=0)
    assert np.bincount(folds).tolist() == [20] * 5
    assert all(cache.label[folds == fold].mean() == 0.5 for fold in range(5))
    again = make_folds(cache.label.astype(bool), cache.group_id, n_folds=5, seed=0)
    other = make_folds(cache.label.astype(bool), cache.group_id, n_folds=5, seed=1)
    assert (folds == again).all()
    assert (folds != other).any()


def test_ungrouped_folds_cut_groups() -> None:
    cache = noise_cache(np.random.default_rng(0))
    labels = cache.label.astype(bool)
    folds = make_folds(labels, cache.group_id, n_folds=5, seed=0, grouping="none")
    cut = [len(set(folds[np.array(cache.group_id) == g])) > 1 for g in set(cache.group_id)]
    assert sum(cut) > 10


@pytest.mark.parametrize(
    ("labels", "groups", "n_folds", "message"),
    [
        ([True] * 20, None, 5, "All 20 labels are True"),
        ([False] * 20, None, 5, "All 20 labels are False"),
        ([True, False] * 10, ["a", "b", "c", "d"] * 5, 5, "4 groups and 5 folds"),
        ([True] * 18 + [False] * 2, None, 5, "2 False items and 5 folds"),
        ([True, False] * 10, None, 2, "--folds is 2"),
    ],
)
def test_data_that_cannot_be_split_is_refused(labels, groups, n_folds, message) -> None:
    groups = groups or [f"g{index}" for index in range(len(labels))]
    with pytest.raises(ProbeError, match=message):
        make_folds(np.array(labels), groups, n_folds=n_folds, seed=0)


@settings(max_examples=30)
@given(
    n=st.integers(6, 40),
    d=st.integers(1, 30),
    strength=st.sampled_from([0.001, 0.01, 1.0, 10.0]),
    seed=st.integers(0, 10**6),
)
def test_the_solution_is_where_the_gradient_vanishes(
    n: int, d: int, strength: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    activations = (rng.normal(size=(n, d)) * rng.uniform(0.1, 50, size=d) + 5).astype(np.float32)
    activations[:, 0] = 3.0  # a constant feature
    labels = rng.random(n) < 0.6
    labels[:2] = [True, False]
    probe = fit_probe(activations, labels, C=strength)
    exact = activations.astype(np.float64)
    deviation = exact.std(axis=0)
    deviation[0] = 1.0
    features = (exact - exact.mean(axis=0)) / deviation
    weight = probe.weight * deviation
    error = 1 / (1 + np.exp(-probe.decide(activations))) - labels
    gradient = weight + strength * features.T @ error
    # The solver stops at a gradient of 1e-6 of its own, averaged, objective.
    assert np.abs(gradient).max() <= 1e-5 * max(1.0, strength * n)
    assert abs(error.sum()) <= 1e-4 * n


def test_the_probe_stands_in_raw_activation_space() -> None:
    rng = np.random.default_rng(0)
    activations = (rng.normal(size=(50, 4)) * [1, 10, 100, 0.1] + 7).astype(np.float32)
    labels = activations[:, 1] > 7
    probe = fit_probe(activations, labels, C=1.0)
    by_hand = activations.astype(np.float64) @ probe.weight + probe.bias
    np.testing.assert_allclose(probe.decide(activations), by_hand)
    assert (probe.decide(activations) > 0).mean() == pytest.approx(labels.mean(), abs=0.05)


@pytest.mark.parametrize("strength", [0.0, -1.0, float("nan"), float("inf")])
def test_a_strength_that_is_no_strength_is_refused(strength: float) -> None:
    with pytest.raises(ProbeError, match="positive number"):
        fit_probe(np.eye(4, dtype=np.float32), np.array([True, False] * 2), C=strength)


def test_a_planted_signal_is_found_where_it_is() -> None:
    cache = noise_cache(np.random.default_rng(0), n_groups=40, layers=5)
    cache.layers[:, 3, 2] += 3 * (cache.label - 0.5)
    found = sweep(cache)
    assert found.layers_nested == (3,) * 5
    assert found.best_layer == 3
    assert found.correct_nested.mean() > 0.85
    others = [layer for layer in range(5) if layer != 3]
    assert abs(found.correct[:, others].mean() - 0.5) < 0.08


def test_decisions_and_layers_of_a_fold_never_see_its_labels() -> None:
    # The theorem of cross-validation, tested as such: whatever the labels of a fold are, nothing
    # that is said about its items changes.
    cache = noise_cache(np.random.default_rng(1), n_groups=30, layers=4)
    cache.layers[:, 2, 0] += cache.label - 0.5
    before = sweep(cache)
    for fold in range(5):
        inside = before.fold == fold
        swapped = Cache(cache.layers, cache.label.copy(), list(cache.group_id))
        # Within twins the labels change places, so that the folds stay the same.
        swapped.label[inside] = 1 - swapped.label[inside]
        after = sweep(swapped)
        assert (after.fold == before.fold).all()
        assert after.layers_nested[fold] == before.layers_nested[fold]
        np.testing.assert_allclose(after.inner_accuracy[fold], before.inner_accuracy[fold])
        np.testing.assert_allclose(
            after.decision_values[inside], before.decision_values[inside], atol=1e-6
        )
        # The control: the other folds were trained on these labels.
        assert not np.allclose(after.decision_values[~inside], before.decision_values[~inside])


def test_decisions_of_a_fold_do_not_depend_on_its_other_items() -> None:
    # Standardising before the split would let the fold's items in.
    cache = noise_cache(np.random.default_rng(2))
    before = sweep(cache)
    inside = np.flatnonzero(before.fold == 0)
    moved = Cache(cache.layers.copy(), cache.label, list(cache.group_id))
    moved.layers[inside[1:]] += 100
    after = sweep(moved)
    np.testing.assert_allclose(
        after.decision_values[inside[0]], before.decision_values[inside[0]], atol=1e-5
    )


def test_group_signatures_do_not_help_when_groups_are_whole() -> None:
    # Labels are constant within a group and random between groups; items of a group look alike.
    rng = np.random.default_rng(3)
    n_groups, size = 60, 4
    labels = np.repeat(np.arange(n_groups) % 2 == 0, size)
    signature = np.repeat(rng.normal(size=(n_groups, 1, 40)), size, axis=0)
    layers = signature + 0.1 * rng.normal(size=(len(labels), 1, 40))
    groups = [f"g{index}" for index in np.repeat(np.arange(n_groups), size)]
    cache = Cache(layers, labels, groups)
    honest = sweep(cache, C=1.0).correct_nested.mean()
    leaking = sweep(cache, C=1.0, grouping="none").correct_nested.mean()
    assert abs(honest - 0.5) < 0.15
    assert leaking > 0.9


def test_the_best_layer_flatters_and_the_nested_one_does_not() -> None:
    nested, best = [], []
    for seed in range(20):
        found = sweep(noise_cache(np.random.default_rng(100 + seed), n_groups=15, layers=10))
        nested.append(found.correct_nested.mean())
        best.append(found.correct[:, found.best_layer].mean())
    # 20 repetitions of 60 items: the mean has a standard error of about 0.015.
    assert abs(np.mean(nested) - 0.5) < 0.05
    assert np.mean(best) > 0.55


def test_labels_that_are_missing_and_activations_that_are_not_finite_are_named() -> None:
    cache = noise_cache(np.random.default_rng(0))
    cache.layers[7, 1, 0] = np.nan
    with pytest.raises(ProbeError, match=r"not finite at layer 1: 'i7'\. Extract"):
        sweep(cache)
    cache = noise_cache(np.random.default_rng(0))
    cache.label[3] = -1
    with pytest.raises(ProbeError, match=r"1 of 100 items have no label \(first: 'i3'\)"):
        sweep(cache)


def test_a_sweep_survives_its_folder(tmp_path: Path) -> None:
    found = sweep(noise_cache(np.random.default_rng(0)), C=0.5, seed=4)
    summary = write_sweep(tmp_path / "probe", found)
    read = read_sweep(tmp_path / "probe")
    for name in found.__slots__:
        np.testing.assert_array_equal(getattr(read, name), getattr(found, name), err_msg=name)
    assert summary["accuracy_nested"] == pytest.approx(found.correct_nested.mean())
    assert summary["accuracy_best_layer"] == max(row["accuracy"] for row in summary["layers"])
    assert "optimistic" in summary["accuracy_best_layer_note"]
    low, high = summary["accuracy_nested_interval"]
    assert low <= summary["accuracy_nested"] <= high
    assert read.C.shape == (3, 5)


def test_a_folder_never_mixes_two_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = noise_cache(np.random.default_rng(0))
    first, second = sweep(cache, seed=0), sweep(cache, seed=5)
    write_sweep(tmp_path, first)

    def stops(*_: object) -> None:
        raise KeyboardInterrupt

    # While files are written aside, the first sweep stays whole.
    monkeypatch.setattr("probes.summary.write_csv", stops)
    with pytest.raises(KeyboardInterrupt):
        write_sweep(tmp_path, second)
    monkeypatch.undo()
    assert (read_sweep(tmp_path).fold == first.fold).all() != (first.fold == second.fold).all()
    # While they are moved, there is none.
    moved, replace = [], Path.replace

    def stops_at_the_second(path: Path, target: Path) -> Path:
        moved.extend([path.name] * (target.parent == tmp_path))
        return replace(path, target) if len(moved) < 2 else stops()

    monkeypatch.setattr(Path, "replace", stops_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        write_sweep(tmp_path, second)
    monkeypatch.undo()
    assert "probe.json" not in moved
    with pytest.raises(ResultError, match=r"probe\.json"):
        read_sweep(tmp_path)
    write_sweep(tmp_path, second)
    assert read_sweep(tmp_path).layers_nested == second.layers_nested
    assert (read_sweep(tmp_path).fold == second.fold).all()


def test_folders_that_are_no_probe_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="no probe folder"):
        read_sweep(tmp_path / "none")
    write_sweep(tmp_path / "probe", sweep(noise_cache(np.random.default_rng(0))))
    with (tmp_path / "probe" / "probes.h5").open("r+b") as handle:
        handle.truncate(200)
    with pytest.raises(ResultError, match="not a complete probe folder"):
        read_sweep(tmp_path / "probe")
    (tmp_path / "probe" / "probes.h5").unlink()
    with pytest.raises(ResultError, match="There is no file"):
        read_sweep(tmp_path / "probe")
