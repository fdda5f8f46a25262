"""Paired comparisons, lengths, axes and whole reports, against answers worked by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from behaviours import IA, PT, SS, TC, answer_set, find, right, table
from scipy.stats import pearsonr

from interp.behaviour import (
    AnswerSet,
    ItemTable,
    ModelEntry,
    ProbeOutcome,
    behaviour_report,
)
from interp.behaviour.axes import EFFECTS, axis_effects, decompose
from interp.behaviour.lengths import quartiles
from interp.behaviour.paired import Outcome, compare, pooled_rows
from interp.behaviour.resampling import draw_groups
from interp.behaviour.taxonomy import ABILITIES
from interp.errors import ResultError


def outcome(correct: str, answered: str | None = None) -> Outcome:
    """From strings of 0 and 1."""
    n = len(correct)
    return Outcome(
        "x",
        np.ones(n, dtype=bool),
        np.array([c == "1" for c in answered or "1" * n]),
        np.array([c == "1" for c in correct]),
    )


def test_fixes_and_breaks_by_hand() -> None:
    items = table({PT: 8})
    found = compare(
        items,
        draw_groups(items.group_id, seed=0, n_resamples=50),
        outcome("11110000", "11111100"),
        outcome("11001110"),
    )

    def value(figure: str, policy: Any) -> float:
        return float(found.draws[figure, policy, PT][0])

    # Items 2, 3 broken, items 4, 5, 6 fixed; items 6 and 7 had no verdict before.
    assert [value(f, "wrong") for f in ("before", "after", "delta")] == [4 / 8, 5 / 8, 1 / 8]
    assert [value(f, "wrong") for f in ("fixes", "breaks", "flips")] == [3 / 8, 2 / 8, 5 / 8]
    assert found.n["left_out", PT] == 6
    assert [value(f, "left_out") for f in ("before", "after", "delta")] == [4 / 6, 4 / 6, 0]
    assert found.p["wrong", PT] == 1.0  # 3 against 2 is the middle of Binomial(5, 1/2)
    for policy in ("wrong", "left_out"):
        net = found.draws["fixes", policy, PT] - found.draws["breaks", policy, PT]  # type: ignore[index]
        np.testing.assert_allclose(found.draws["delta", policy, PT], net)  # type: ignore[index]


def test_helped_and_not_dropped_are_two_counts() -> None:
    items = table({PT: 4})
    resampler = draw_groups(items.group_id, seed=0, n_resamples=50)
    before = outcome("1100")
    pairs = [compare(items, resampler, before, outcome(x)) for x in ("1110", "1001", "0000")]
    row = find(pooled_rows(pairs), category=PT, policy="wrong")
    assert (row["n_models"], row["n_improved"], row["n_not_dropped"]) == (3, 1, 2)
    assert row["delta"] == pytest.approx((0.25 + 0 - 0.5) / 3)


def test_quartiles_keep_ties_together() -> None:
    assert quartiles(np.arange(8)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert quartiles(np.array([1, 2, 9, 9, 9, 9])).tolist() == [0, 0, 1, 1, 1, 1]


def test_length_correlation_is_pearsons_and_within_removes_the_model() -> None:
    items = table({PT: 40})
    rng = np.random.default_rng(0)
    # One model is verbose and good, the other brief and bad; within a model there is no relation.
    sets = [
        answer_set(items, right(items, *range(0, 40, every)), entry=ModelEntry(name), lengths=size)
        for name, every, size in (
            ("long", 20, rng.permutation(np.arange(200, 240)).tolist()),
            ("short", 2, rng.permutation(np.arange(20, 60)).tolist()),
        )
    ]
    rows = behaviour_report(items, sets, n_resamples=200)["length_correlation"]
    lengths = np.concatenate([s.n_tokens for s in sets])
    correct = np.concatenate([s.correct for s in sets])
    pooled = find(rows, policy="wrong", kind="pooled")
    assert pooled["r"] == pytest.approx(pearsonr(lengths, correct).statistic)
    assert pooled["r_low"] > 0.3
    within = find(rows, policy="wrong", kind="within")
    assert within["r_low"] < 0 < within["r_high"]


def test_cut_replies_make_the_longest_quartile_worse_only_where_they_count() -> None:
    items = table({PT: 40})
    lengths = list(range(40))
    silent = range(30, 40)
    rows = behaviour_report(
        items, [answer_set(items, right(items, silent=silent), lengths=lengths)], n_resamples=50
    )["length_quartiles"]
    accuracy = {
        policy: [
            row["accuracy"] for row in rows if row["policy"] == policy and row["model"] == "pooled"
        ]
        for policy in ("wrong", "left_out")
    }
    assert accuracy == {"wrong": [1, 1, 1, 0], "left_out": [1, 1, 1, 1]}


def test_effects_of_a_table_worked_by_hand() -> None:
    # PT 60, SS 70, IA 80, TC 70 with 1, 3, 2, 2 items.
    effects = dict(zip(EFFECTS, axis_effects([60, 70, 80, 70], [1, 3, 2, 2]), strict=True))
    assert effects["epistemic − motivational", "items"] == pytest.approx(67.5 - 75)
    assert effects["epistemic − motivational", "cells"] == pytest.approx(65 - 75)
    assert effects["inference − action", "items"] == pytest.approx(220 / 3 - 70)
    assert effects["inference − action", "cells"] == pytest.approx(70 - 70)
    assert effects["interaction", "cells"] == pytest.approx(-10 - 10)


def test_permutations_can_be_counted_by_hand() -> None:
    # One scenario a cell, and only PT's item is right. Of the 24 relabellings (all equally likely)
    # the value 1 falls in each cell alike: every effect keeps its size, so every p is 1.
    items = table(dict.fromkeys(ABILITIES, 1))
    values = np.array([[1.0], [0], [0], [0]])
    rows = decompose(
        items, draw_groups(items.group_id, seed=0, n_resamples=9), values, np.ones((4, 1)), seed=0
    )
    assert [row["value"] for row in rows] == [0.5, 0.5, 0.5, 0.5, 1.0]
    assert [row["p_permutation"] for row in rows] == [1.0] * 5
    # Both epistemic items right: 4! relabellings, in a third of which the pair is on one side
    # of the axis; the effect is then ±1, else 0.
    values = np.array([[1.0], [1], [0], [0]])
    rows = decompose(
        items, draw_groups(items.group_id, seed=0, n_resamples=9), values, np.ones((4, 1)), seed=0
    )
    assert rows[0]["value"] == 1
    assert rows[0]["p_permutation"] == pytest.approx(1 / 3, abs=0.02)
    assert rows[2]["value"] == 0
    assert rows[2]["p_permutation"] == 1.0


def test_permutation_finds_the_axis_that_is_there_and_no_other() -> None:
    items = table({PT: 68, SS: 140, IA: 60, TC: 140}, per_group=4)
    epistemic = np.array([c in (PT, SS) for c in items.category])
    rng = np.random.default_rng(5)
    correct = rng.random((408, 6)) < np.where(epistemic, 0.6, 0.8)[:, None]
    rows = decompose(
        items,
        draw_groups(items.group_id, seed=0, n_resamples=500),
        correct,
        np.ones_like(correct),
        seed=1,
        n_permutations=999,
    )
    assert rows[0]["p_permutation"] == 1 / 1000
    assert rows[0]["value_high"] < -0.1
    assert rows[2]["p_permutation"] > 0.05
    assert rows[4]["p_permutation"] > 0.05


def test_p_values_are_uniform_when_labels_mean_nothing() -> None:
    items = table(dict.fromkeys(ABILITIES, 24), per_group=3)
    resampler = draw_groups(items.group_id, seed=0, n_resamples=2)
    rng = np.random.default_rng(0)
    apart = replace(items, group_id=items.item_id)
    small = {"scenarios": 0, "items": 0}
    for seed in range(200):
        # Scenarios differ in how easy they are, abilities do not.
        ease = np.repeat(rng.random(32), 3)[:, None]
        correct = rng.random((96, 4)) < ease
        for name, units in (("scenarios", items), ("items", apart)):
            rows = decompose(
                units, resampler, correct, np.ones_like(correct), seed=seed, n_permutations=99
            )
            small[name] += rows[0]["p_permutation"] <= 0.05
    assert 2 <= small["scenarios"] <= 20  # Binomial(200, 0.05): mean 10, sd 3.1
    assert small["items"] > 30  # what shuffling single items would claim


def conditions(items: ItemTable) -> list[AnswerSet]:
    """Two models, one trained from the other, under several conditions."""
    entries = {
        "b": ModelEntry("b", access="open", reasoning=False),
        "r": ModelEntry("r", access="open", reasoning=True, base="b"),
    }
    wrong = {("b", "base"): 12, ("b", "injected"): 2, ("r", "base"): 6, ("r", "injected"): 6}
    sets = [
        answer_set(items, right(items, *range(k)), entry=replace(entries[m], condition=c))
        for (m, c), k in wrong.items()
    ]
    on, off = right(items, *range(8)), right(items, *range(4, 20))
    sets += [
        answer_set(items, off, entry=replace(entries["b"], condition="no_cot")),
        answer_set(items, on, entry=replace(entries["b"], condition="cot")),
    ]
    return sets


def test_a_report_compares_what_belongs_together() -> None:
    items = table(dict.fromkeys(ABILITIES, 12))
    report = behaviour_report(items, conditions(items), n_resamples=100, n_permutations=99)
    main = [(r["model"], r["condition"]) for r in report["scores"] if r["main"]]
    assert set(main) == {("b", "base"), ("r", "base")}
    classes = {row["model_class"]: row["accuracy_wrong"] for row in report["classes"]}
    assert classes == {"open reasoning": 1 - 6 / 48, "open non-reasoning": 1 - 12 / 48}
    injection = find(report["injection"], category=PT, policy="wrong")
    assert (injection["before"], injection["after"]) == (
        pytest.approx((0 + 6) / 24),
        pytest.approx((10 + 6) / 24),
    )
    assert (injection["n_improved"], injection["n_not_dropped"]) == (1, 2)
    toggle = find(report["toggle"], category="all", policy="wrong")
    assert (toggle["fixes"], toggle["breaks"]) == (12 / 48, 4 / 48)
    training = find(report["training"], category="all", policy="wrong")
    assert training["model"] == "r"
    assert training["delta"] == pytest.approx(6 / 48)
    benefit = [row for row in report["axes"] if row["quantity"] == "cot_benefit"]
    # By cell of 12: PT 4 fixed and 4 broken, SS 8 fixed, IA and TC as before.
    assert find(benefit, policy="wrong", effect="epistemic − motivational", weighting="cells")[
        "value"
    ] == pytest.approx(((4 - 4) / 12 + 8 / 12) / 2)


def test_a_probe_is_matched_by_model_and_items() -> None:
    items = table({PT: 12})
    sets = [answer_set(items, right(items, 0, 1, 2), entry=ModelEntry("shown as"))]
    probe = ProbeOutcome("p", "org/m", items.item_id, items.label, np.arange(12) != 3)
    rows = behaviour_report(items, sets, [probe], n_resamples=50)["probe"]
    row = find(rows, category=PT, policy="wrong")
    assert (row["before"], row["after"]) == (9 / 12, 11 / 12)
    assert (row["fixes"], row["breaks"]) == (3 / 12, 1 / 12)
    with pytest.raises(ResultError, match="'other', but the answers are of org/m, shown as"):
        behaviour_report(items, sets, [replace(probe, model_id="other")], n_resamples=5)
    with pytest.raises(ResultError, match="field 'label'"):
        behaviour_report(items, sets, [replace(probe, label=~items.label)], n_resamples=5)
    with pytest.raises(ResultError, match="field 'item_id'"):
        foreign = ("x", *items.item_id[1:])
        behaviour_report(items, sets, [replace(probe, item_id=foreign)], n_resamples=5)


def test_the_rules_exam_alone_has_scores_and_no_average() -> None:
    items = table({"rules": 8})
    report = behaviour_report(items, [answer_set(items, right(items, 1))])
    (row,) = report["scores"]
    assert (row["category"], row["accuracy_wrong"]) == ("rules", 7 / 8)
    assert [row["category"] for row in report["averages"]] == ["rules"]


def test_a_model_that_is_mostly_silent_is_named_before_any_comparison_with_it() -> None:
    items = table({PT: 20})
    some = answer_set(items, right(items, silent=[0, 1]))
    assert behaviour_report(items, [some])["warnings"] == []
    most = answer_set(items, right(items, silent=range(3)))
    probe = ProbeOutcome("p", "org/m", items.item_id, items.label, items.label)
    (first,) = behaviour_report(items, [most], [probe])["warnings"]
    assert first.startswith("m (base): 3 of 20 replies have no verdict.")
    assert "format as much as knowledge" in first
