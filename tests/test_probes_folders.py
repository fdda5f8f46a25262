"""What goes in and out of a sweep: fold files, folders, comparisons, directions."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from caches import Cache
from probe_sweeps import constant_groups, items_of, sweep, twins

from interp.errors import ProbeError, ResultError
from probes import (
    compare_sweeps,
    fit_probe,
    probe_direction,
    read_folds,
    read_sweep,
    write_sweep,
)


def test_folds_from_a_file(tmp_path: Path) -> None:
    cache = twins(np.random.default_rng(0))
    path = tmp_path / "folds.json"
    folds = {item: index // 4 % 4 for index, item in enumerate(cache.item_id)}
    path.write_text(json.dumps(folds | {"someone else": 9}))
    found = sweep(cache, folds=read_folds(path, cache.item_id))
    assert found.fold.tolist() == list(folds.values())
    assert len(found.layers_nested) == 4
    for change, message in (
        ({"i1": 3}, "cut group 'g0': it has items in folds 0 and 3"),
        ({f"i{k}": 7 for k in range(4)}, "without a gap"),
        ({"i1": "0"}, "the fold of 'i1' is '0'"),
        ({"i1": None}, "the fold of 'i1' is None"),
        ({"i1": -1}, "the fold of 'i1' is -1"),
    ):
        path.write_text(json.dumps(folds | change))
        with pytest.raises(ProbeError, match=message):
            sweep(cache, folds=read_folds(path, cache.item_id))
    path.write_text(json.dumps({"i0": 0}))
    with pytest.raises(ProbeError, match=r"no fold for 79 of 80 items \(first: 'i1'\)"):
        read_folds(path, cache.item_id)
    path.write_text("[]")
    with pytest.raises(ResultError, match="expected a fold file"):
        read_folds(path, cache.item_id)


def test_a_fold_file_with_a_fold_of_one_class_is_refused(tmp_path: Path) -> None:
    cache = constant_groups(np.random.default_rng(0), n_groups=12)
    # Groups have one label each: even ones True, and fold 0 gets none but these.
    fold_of = {
        group: 0 if group in ("g0", "g2") else 1 + int(group[1:]) % 3 for group in cache.group_id
    }
    path = tmp_path / "folds.json"
    folds = [fold_of[group] for group in cache.group_id]
    path.write_text(json.dumps(dict(zip(cache.item_id, folds, strict=True))))
    with pytest.raises(ProbeError, match="Fold 0 holds 6 items of one class only"):
        sweep(cache, folds=read_folds(path, cache.item_id))


def test_controls_survive_the_folder(tmp_path: Path) -> None:
    cache = twins(np.random.default_rng(0))
    texts = [f"Statement {index}" for index in range(cache.n_items)]
    found = sweep(cache, C="auto", n_permutations=4, items=items_of(cache, texts))
    summary = write_sweep(tmp_path, found)
    read = read_sweep(tmp_path)
    for name in found.__slots__:
        np.testing.assert_equal(getattr(read, name), getattr(found, name), err_msg=name)
    assert summary["scheme"] == "group_flip"
    assert summary["n_permutations"] == 4
    assert {"log_loss", "ece"} <= set(summary["scores_nested"])
    header = (tmp_path / "layers.csv").read_text().splitlines()[0].split(",")
    assert {"p", "p_adjusted", "null_low", "null_high", "log_loss", "ece"} <= set(header)


def test_a_comparison_is_paired_by_item() -> None:
    cache = twins(np.random.default_rng(6), n_groups=30)
    weak = sweep(cache)
    cache.layers[:, 1, 0] += 4 * (cache.label - 0.5)
    strong = sweep(cache)
    found = compare_sweeps(strong, weak)
    gap = strong.correct_nested.mean() - weak.correct_nested.mean()
    assert found["difference"]["value"] == pytest.approx(gap)
    assert found["p_mcnemar"] < 1e-4
    assert "differ:" in found["verdict"]
    # The order of the second does not matter, and its own order would be wrong.
    order = np.random.default_rng(0).permutation(cache.n_items)
    shuffled = replace(
        weak,
        item_id=tuple(weak.item_id[index] for index in order),
        label=weak.label[order],
        group_id=tuple(weak.group_id[index] for index in order),
        fold=weak.fold[order],
        decision_values=weak.decision_values[order],
    )
    assert compare_sweeps(strong, shuffled) == found
    same = compare_sweeps(weak, weak)
    assert same["p_mcnemar"] == 1.0
    assert "not shown to differ" in same["verdict"]


def test_sweeps_over_other_items_or_labels_are_not_compared() -> None:
    cache = twins(np.random.default_rng(6))
    one = sweep(cache)
    renamed = replace(one, item_id=("other", *one.item_id[1:]))
    with pytest.raises(ProbeError, match="1 are only in the first, 1 only in the second"):
        compare_sweeps(one, renamed)
    moved = replace(one, label=~one.label)
    with pytest.raises(ProbeError, match=r"80 items have another label.*'i0'"):
        compare_sweeps(one, moved)


def test_a_probe_direction_stands_in_raw_activation_space() -> None:
    cache = twins(np.random.default_rng(7), n_groups=50, width=5)
    # The label sits on a feature of large scale: standardised weights would weigh it like any
    # other, raw weights divide by its scale.
    cache.layers[:, 1, 0] += 2 * (cache.label - 0.5)
    scaled = Cache(cache.layers * np.array([1, 100, 1, 1, 0.01]), cache.label, list(cache.group_id))
    raw = probe_direction(scaled, 1, C=1.0)  # type: ignore[arg-type]
    probe = fit_probe(scaled.resid_post(1), cache.label.astype(bool), C=1.0)
    np.testing.assert_allclose(raw.vector, probe.weight / np.linalg.norm(probe.weight), rtol=1e-4)
    assert (raw.method, raw.class_gap, raw.n_true, raw.n_false) == ("probe", None, 100, 100)
    # It points to True: moving along it raises the decision.
    x = scaled.resid_post(1)
    assert (probe.decide(x + raw.vector) > probe.decide(x)).all()
    part = probe_direction(scaled, 1, C=1.0, training=np.arange(200) < 100)  # type: ignore[arg-type]
    assert (part.n_true, part.n_false) == (50, 50)
    cache.label[0] = -1
    with pytest.raises(ProbeError, match="no label"):
        probe_direction(cache, 1, C=1.0)  # type: ignore[arg-type]
