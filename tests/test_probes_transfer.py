"""Control tasks by statement type, and probes that are tested on what was held out."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from caches import Cache

from interp import Item, Message
from interp.errors import ProbeError
from probes import fit_probe, read_sweep, sweep_layers, write_sweep
from probes.control import control_tasks, recurring
from probes.summary import summarise
from probes.transfer import MOST_PARTS, plan_transfer


def items_of(cache: Cache, metadata: list[dict[str, Any]]) -> tuple[Item, ...]:
    rows = zip(cache.item_id, cache.label, cache.group_id, cache.category, metadata, strict=True)
    return tuple(
        Item(item_id, (Message("user", "Is it so?"),), bool(label), None, group, category, extra)
        for item_id, label, group, category, extra in rows
    )


def twins(rng: np.random.Generator, *, n_groups: int, layers: int = 2, width: int = 40) -> Cache:
    labels = np.tile([True, False, True, False], n_groups)
    groups = [f"g{index}" for index in np.repeat(np.arange(n_groups), 4)]
    return Cache(rng.normal(size=(len(labels), layers, width)), labels, groups)


def sweep(cache: Cache, **options: Any):
    return sweep_layers(cache, **options)  # type: ignore[arg-type]


# Control tasks


def test_the_answer_entity_is_what_the_claim_says_last() -> None:
    def entity(metadata: dict[str, Any]) -> str | None:
        return Item("i", (Message("user", "?"),), True, None, "g", "c", metadata).entity

    assert entity({"claim": {"relation": "capital", "subject": "Peru", "value": "Lima"}}) == "Lima"
    nested = {"op": "knows", "of": {"op": "or", "of": [{"role": "A"}, {"seat": "X", "role": "B"}]}}
    assert entity({"claim": nested}) == "B"
    assert entity({"claim": {"left": 3, "right": 4}}) == "4"
    assert entity({"entity": "Lima", "claim": {"value": "Quito"}}) == "Lima"
    assert entity({}) is None
    assert entity({"claim": {}}) is None


def test_types_are_judged_only_where_they_recur_across_folds() -> None:
    types = np.array([0, 0, 1, 1, 2, -1, -1])
    folds = np.array([0, 1, 2, 2, 0, 0, 1])
    assert recurring(types, folds).tolist() == [True, True, False, False, False, False, False]


def test_a_control_label_is_one_a_type_and_half_of_the_types_are_true() -> None:
    cache = twins(np.random.default_rng(0), n_groups=30)
    metadata = [{"template": f"t{index // 4 % 6}"} for index in range(cache.n_items)]
    task = control_tasks(items_of(cache, metadata), np.repeat(np.arange(30) % 5, 4), seed=0)
    labels, types = task["template"].labels, task["template"].types
    assert labels.shape == (120, 5)
    for column in labels.T:
        by_type = [set(column[types == kind].tolist()) for kind in range(6)]
        assert all(len(found) == 1 for found in by_type)
        assert sum(True in found for found in by_type) == 3
    assert len({column.tobytes() for column in labels.T}) > 1
    assert task["entity"].labels.shape == (120, 0)


def test_selectivity_tells_a_probe_that_memorises_types_from_one_that_reads_the_label() -> None:
    rng = np.random.default_rng(1)
    cache = twins(rng, n_groups=50)
    kind = np.repeat(rng.integers(0, 10, 50), 4)
    metadata = [{"template": f"t{k}"} for k in kind]
    # Layer 0 holds the label, layer 1 the type (a direction of its own for each).
    cache.layers[:, 0, 0] += 4 * (cache.label - 0.5)
    cache.layers[:, 1] += 6 * rng.normal(size=(10, 40))[kind]
    found = sweep(cache, items=items_of(cache, metadata), C=1.0, wording=False)
    rows = summarise(found)["layers"]
    assert rows[0]["selectivity_template"] > 0.3
    assert rows[1]["control_template"] > 0.95
    assert rows[1]["selectivity_template"] < -0.3
    head = summarise(found)["control_tasks"]
    assert head["template"]["applicable"]
    assert head["template"]["n_types"] == 10
    assert head["template"]["selectivity"] == pytest.approx(
        found.correct_nested.mean() - head["template"]["accuracy"]
    )
    assert head["entity"] == {"applicable": False, "why": "not known"}


def test_the_control_goes_through_the_same_probes() -> None:
    # By hand, one layer and fold: a probe of the control's labels, judged on the held-out fold.
    cache = twins(np.random.default_rng(2), n_groups=25)
    metadata = [{"template": f"t{index // 4 % 5}"} for index in range(cache.n_items)]
    items = items_of(cache, metadata)
    found = sweep(cache, items=items, wording=False, seed=3)
    labels = control_tasks(items, found.fold, seed=3)["template"].labels
    inside = found.fold == 2
    x = cache.resid_post(1)
    for draw in range(labels.shape[1]):
        probe = fit_probe(x[~inside], labels[~inside, draw], C=0.01)
        right = (probe.decide(x[inside]) > 0) == labels[inside, draw]
        assert found.control_right["template"][1, 2, draw] == right.sum()


def test_types_of_one_group_each_are_not_applicable() -> None:
    cache = twins(np.random.default_rng(3), n_groups=20)
    metadata = [{"template": group, "entity": group} for group in cache.group_id]
    head = summarise(sweep(cache, items=items_of(cache, metadata), wording=False))["control_tasks"]
    for kind in ("template", "entity"):
        assert not head[kind]["applicable"]
        assert head[kind]["why"] == "types that stand in several folds cover 0% of the items"


# Transfer


def three_topics(rng: np.random.Generator, *, shared: bool) -> Cache:
    """Topics whose labels lie along one direction, or along one each."""
    labels = np.tile([True, False, True, False], 45)
    groups = [f"g{index}" for index in np.repeat(np.arange(45), 4)]
    topic = np.repeat(np.arange(3), 60)
    x = rng.normal(size=(180, 3, 40))
    place = 0 if shared else topic
    x[np.arange(180), 1, place] += 8 * (labels - 0.5)
    return Cache(x, labels, groups, [f"topic {k}" for k in topic])


def test_what_topics_share_carries_over_and_what_they_do_not_share_does_not() -> None:
    for shared in (True, False):
        cache = three_topics(np.random.default_rng(4), shared=shared)
        rows = summarise(sweep(cache, transfer=["category"]))["transfer"]["category"]
        assert [row["value"] for row in rows] == ["topic 0", "topic 1", "topic 2"]
        for row in rows:
            assert (row["layer"], row["n_items"], row["n_training"]) == (1, 60, 120)
            assert row["accuracy_within"] > 0.7
            assert row["low"] <= row["accuracy"] <= row["high"]
            if shared:
                assert row["accuracy"] > 0.85
                assert row["auroc"] > 0.95
            else:
                assert abs(row["accuracy"] - 0.5) < 0.2


def test_a_held_out_part_is_judged_by_probes_without_it_and_without_its_groups() -> None:
    cache = three_topics(np.random.default_rng(5), shared=True)
    # Some groups reach into two topics: they may train neither of the two.
    cache.category = tuple(
        "topic 0" if index % 4 == 0 and 60 <= index < 80 else name
        for index, name in enumerate(cache.category)
    )
    found = sweep(cache, transfer=["category"], C=0.1)
    (transfer,) = found.transfers
    topic, groups = np.array(cache.category), np.array(cache.group_id)
    labels = cache.label.astype(bool)
    for part, name in enumerate(("topic 0", "topic 1", "topic 2")):
        kept = ~np.isin(groups, groups[topic == name])
        np.testing.assert_array_equal(transfer.plan.training[part], kept)
        probe = fit_probe(cache.resid_post(1)[kept], labels[kept], C=0.1)
        np.testing.assert_allclose(
            transfer.decision_values[topic == name, 1],
            probe.decide(cache.resid_post(1)[topic == name]),
            atol=1e-3,
        )
    assert transfer.plan.training[0].sum() == 180 - 60 - 20
    # Whatever the labels of the held-out topic: its layer is chosen without them.
    swapped = Cache(
        cache.layers,
        np.where(topic == "topic 2", 1 - cache.label, cache.label),
        list(cache.group_id),
        list(cache.category),
    )
    (after,) = sweep(swapped, transfer=["category"], C=0.1).transfers
    np.testing.assert_allclose(after.inner_accuracy[2], transfer.inner_accuracy[2])
    assert not np.allclose(after.inner_accuracy[0], transfer.inner_accuracy[0])


def test_many_templates_are_held_out_whole_in_few_parts() -> None:
    cache = twins(np.random.default_rng(6), n_groups=60)
    templates = [f"t{index // 4 % 20}" for index in range(240)]
    folds = np.repeat(np.arange(60) % 5, 4)
    labels = cache.label.astype(bool)
    plan = plan_transfer("template", templates, labels, cache.group_id, folds, seed=0)
    assert set(plan.part) == set(range(MOST_PARTS))
    for name in set(templates):
        assert len(set(plan.part[np.array(templates) == name])) == 1
    assert np.bincount(plan.part).max() - np.bincount(plan.part).min() <= 12
    again = plan_transfer("template", templates, labels, cache.group_id, folds, seed=1)
    assert (again.part != plan.part).any()


def test_what_cannot_be_held_out_is_refused() -> None:
    cache = three_topics(np.random.default_rng(7), shared=True)
    one = Cache(cache.layers, cache.label, list(cache.group_id))
    with pytest.raises(ProbeError, match="all items have the category 'c'"):
        sweep(one, transfer=["category"])
    with pytest.raises(ProbeError, match="180 of 180 items have no template"):
        sweep(cache, transfer=["template"])
    rest = ["a"] * 168 + ["b"] * 12
    lonely = Cache(cache.layers, cache.label, list(cache.group_id), rest)
    with pytest.raises(ProbeError, match="without a and what shares a group with it, 12 items"):
        sweep(lonely, transfer=["category"])


def test_controls_and_transfers_survive_the_folder(tmp_path: Path) -> None:
    cache = three_topics(np.random.default_rng(8), shared=True)
    metadata = [{"template": f"t{index // 4 % 6}"} for index in range(180)]
    found = sweep(
        cache, items=items_of(cache, metadata), wording=False, transfer=["category", "template"]
    )
    summary = write_sweep(tmp_path, found)
    read = read_sweep(tmp_path)
    for kind in ("template", "entity"):
        np.testing.assert_array_equal(read.control_types[kind], found.control_types[kind])
        np.testing.assert_array_equal(read.control_right[kind], found.control_right[kind])
    for ours, theirs in zip(read.transfers, found.transfers, strict=True):
        assert (ours.plan.kind, ours.plan.value) == (theirs.plan.kind, theirs.plan.value)
        for name in ("part", "training"):
            np.testing.assert_array_equal(getattr(ours.plan, name), getattr(theirs.plan, name))
        np.testing.assert_array_equal(ours.decision_values, theirs.decision_values)
        np.testing.assert_array_equal(ours.inner_accuracy, theirs.inner_accuracy)
    assert summarise(read)["transfer"] == summary["transfer"]
    lines = (tmp_path / "transfer.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 + 6
    # A later sweep without transfer leaves no old table behind.
    write_sweep(tmp_path, sweep(cache))
    assert not (tmp_path / "transfer.csv").exists()
