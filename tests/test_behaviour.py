"""Scores, paired comparisons, lengths and axes, against hand-worked and closed-form answers."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import pearsonr, t
from sklearn.metrics import f1_score

from interp import Answer, Item, Message, write_answers, write_items
from interp.behaviour import (
    AnswerSet,
    ItemTable,
    ModelEntry,
    ProbeOutcome,
    behaviour_report,
    read_answer_sets,
    read_item_table,
    read_roster,
)
from interp.behaviour.axes import EFFECTS, axis_effects, decompose
from interp.behaviour.lengths import quartiles
from interp.behaviour.paired import Outcome, compare, pooled_rows
from interp.behaviour.resampling import draw_groups, estimate
from interp.behaviour.scores import main_sets, score_set
from interp.behaviour.taxonomy import ABILITIES
from interp.errors import InterpError, ItemError, ResultError
from interp.statistics import bootstrap_mean

PT, SS, IA, TC = ABILITIES


def table(sizes: dict[str, int], *, per_group: int = 2) -> ItemTable:
    """Items whose labels alternate, `per_group` to a scenario."""
    names = [(category, i) for category, n in sizes.items() for i in range(n)]
    return ItemTable(
        item_id=tuple(f"{category}-{i}" for category, i in names),
        label=np.array([i % 2 == 0 for _, i in names]),
        group_id=tuple(f"{category}-g{i // per_group}" for category, i in names),
        category=tuple(category for category, _ in names),
    )


def answer_set(
    items: ItemTable,
    verdicts: Sequence[bool | None],
    *,
    entry: ModelEntry | None = None,
    lengths: Sequence[int] | None = None,
) -> AnswerSet:
    answered = np.array([verdict is not None for verdict in verdicts])
    verdict = np.array([bool(verdict) for verdict in verdicts])
    return AnswerSet(
        entry=entry or ModelEntry("m"),
        readout="greedy",
        model_ids=frozenset({"org/m"}),
        present=np.ones(len(verdicts), dtype=bool),
        answered=answered,
        verdict=verdict,
        correct=answered & (verdict == items.label),
        n_tokens=np.array(lengths if lengths is not None else [1] * len(verdicts)),
    )


def right(items: ItemTable, *wrong: int, silent: Sequence[int] = ()) -> list[bool | None]:
    """Verdicts that are right but for some items."""
    verdicts: list[bool | None] = [bool(label) for label in items.label]
    for i in wrong:
        verdicts[i] = not verdicts[i]
    for i in silent:
        verdicts[i] = None
    return verdicts


def find(rows: Sequence[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row


def test_both_policies_by_hand() -> None:
    # Labels T F T F T F; two non-answers, one wrong: 3 right of 6, or of 4.
    items = table({PT: 6})
    scored = score_set(
        items,
        answer_set(items, right(items, 1, silent=(0, 2))),
        draw_groups(items.group_id, seed=0),
    )
    assert scored.non_answers[PT] == 2
    assert scored.draws["accuracy", "wrong", PT][0] == 3 / 6
    assert scored.draws["accuracy", "left_out", PT][0] == 3 / 4
    # True: 1 right, said 2, labelled 3 or 1 answered; False: 2 right, said 2, labelled 3.
    assert scored.draws["f1", "wrong", PT][0] == pytest.approx((2 / 5 + 4 / 5) / 2)
    assert scored.draws["f1", "left_out", PT][0] == pytest.approx((2 / 3 + 4 / 5) / 2)


@pytest.mark.parametrize("seed", range(5))
def test_macro_f1_is_scikit_learns_with_a_third_verdict(seed: int) -> None:
    rng = np.random.default_rng(seed)
    items = table({PT: 40})
    said = rng.choice([0, 1, 2], size=40, p=[0.4, 0.4, 0.2])
    verdicts = [None if s == 2 else bool(s) for s in said]
    draws = score_set(items, answer_set(items, verdicts), draw_groups(items.group_id, seed=0)).draws
    gold = items.label.astype(int)
    three = f1_score(gold, said, labels=[0, 1], average="macro", zero_division=0.0)
    kept = said != 2
    two = f1_score(gold[kept], said[kept], labels=[0, 1], average="macro", zero_division=0.0)
    assert draws["f1", "wrong", PT][0] == pytest.approx(three)
    assert draws["f1", "left_out", PT][0] == pytest.approx(two)
    assert three < two


def test_the_bootstrap_is_the_house_bootstrap() -> None:
    rng = np.random.default_rng(3)
    items = table({PT: 60}, per_group=4)
    values = rng.normal(size=60) + np.repeat(rng.normal(size=15), 4)
    reference = bootstrap_mean(values, items.group_id, seed=1)
    sums = draw_groups(items.group_id, seed=2).sums(np.stack([values, np.ones(60)], axis=1))
    ours = estimate(sums[:, 0] / sums[:, 1])
    assert ours.value == pytest.approx(reference.value)
    # The house widens the quantiles for 15 groups; a report of several models has many more, says
    # so where it has not, and gives the quantiles themselves.
    wider = t.ppf(0.975, 14) / t.ppf(0.975, np.inf) * np.sqrt(15 / 14)
    ends = np.array([reference.low, reference.high])
    low, high = reference.value + (ends - reference.value) / wider
    width = high - low
    assert (ours.low, ours.high) == pytest.approx((low, high), abs=0.05 * width)
    # The control: single items, as if independent, give an interval that is too narrow.
    alone = draw_groups(items.item_id, seed=2).sums(np.stack([values, np.ones(60)], axis=1))
    narrow = estimate(alone[:, 0] / alone[:, 1])
    assert narrow.high - narrow.low < 0.8 * width


def test_average_is_over_abilities_and_without_the_rules() -> None:
    items = table({PT: 4, SS: 8, "rules": 2})
    report = behaviour_report(
        items, [answer_set(items, right(items, 0, 4, 12, 13))], n_resamples=50, n_permutations=9
    )
    scores = report["scores"]
    assert find(scores, category="rules")["accuracy_wrong"] == 0
    # (3/4 + 7/8) / 2, where weighing items the same would give 10/12.
    assert find(scores, category="average")["accuracy_wrong"] == pytest.approx(13 / 16)
    assert report["axes"] == []
    assert any("all four abilities" in note for note in report["notes"])


def test_means_over_models_share_the_draws_of_items() -> None:
    items = table({PT: 20, SS: 20})
    sets = [
        answer_set(items, right(items, *range(k)), entry=ModelEntry(name))
        for name, k in (("a", 4), ("b", 10))
    ]
    rows = behaviour_report(items, sets, n_resamples=200)["averages"]
    assert find(rows, category=PT)["accuracy_wrong"] == pytest.approx((16 / 20 + 10 / 20) / 2)
    assert find(rows, category="average")["n_models"] == 2
    # Two models that answer alike are no more evidence about the items than one.
    alike = [sets[0], replace(sets[0], entry=ModelEntry("c"))]
    one, two = (behaviour_report(items, s, n_resamples=200) for s in (sets[:1], alike))
    single, pair = find(one["averages"], category=PT), find(two["averages"], category=PT)
    assert single["accuracy_wrong_low"] < single["accuracy_wrong_high"]
    assert {k: v for k, v in pair.items() if k != "n_models"} == {
        k: v for k, v in single.items() if k != "n_models"
    }


@pytest.mark.parametrize(
    ("having", "main"),
    [
        (("injected", "no_cot", "thinking", "cot", "base"), "base"),
        (("injected", "no_cot", "thinking", "cot"), "cot"),
        (("no_cot", "thinking"), "thinking"),
        (("injected", "no_cot"), "no_cot"),
        (("injected",), None),
    ],
)
def test_the_main_condition(having: tuple[Any, ...], main: str | None) -> None:
    items = table({PT: 4})
    sets = [
        answer_set(items, right(items), entry=ModelEntry("m", condition=condition))
        for condition in having
    ]
    found = main_sets(sets)
    assert [s.entry.condition for s in found] == ([] if main is None else [main])


def test_a_model_that_never_answers_is_undefined_not_zero() -> None:
    items = table({PT: 8})
    report = behaviour_report(items, [answer_set(items, [None] * 8)], n_resamples=20)
    row = find(report["scores"], category=PT)
    assert (row["accuracy_wrong"], row["accuracy_left_out"], row["f1_left_out"]) == (0, None, None)
    json.dumps(report, allow_nan=False)


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


# Files


def write_files(folder: Path, *, n: int = 4, categories: Sequence[str] = (PT,)) -> Path:
    items = [
        Item(f"i{k}", (Message("user", "?"),), k % 2 == 0, None, f"g{k // 2}", c, {})
        for k, c in ((k, categories[k % len(categories)]) for k in range(n))
    ]
    write_items(folder / "items.jsonl", items)
    write_answers(
        folder / "a.jsonl",
        [Answer(i.item_id, "greedy", i.label, True, True, "ANSWER: x", 3, 0.0, 0.0) for i in items],
    )
    return folder / "a.jsonl"


def read(folder: Path, **changes: Any) -> tuple[AnswerSet, ...]:
    items = read_item_table([folder / "items.jsonl"])
    return read_answer_sets([folder / "a.jsonl"], items, **changes)


def test_the_manifest_names_the_model(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    assert read(tmp_path)[0].entry == ModelEntry("a")
    path.with_name("a.jsonl.manifest.json").write_text('{"model": {"model_id": "org/x"}}')
    (found,) = read(tmp_path)
    assert (found.entry.model, found.entry.condition) == ("org/x", "base")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("item_id", "i9", ["line 2", "'item_id'", "'i9'", "--items"]),
        ("item_id", "i0", ["line 2", "'correct'"]),
        ("correct", False, ["line 2", "'correct'", "'i1'"]),
        ("verdict", "False", ["line 2", "'verdict'", "'False'"]),
        ("n_tokens", -1, ["line 2", "'n_tokens'"]),
        ("condition", "gredy", ["line 2", "'condition'"]),
        ("answered", False, ["line 2", "'answered'"]),
    ],
)
def test_a_bad_answer_is_named_by_line_and_field(
    tmp_path: Path, field: str, value: object, words: list[str]
) -> None:
    path = write_files(tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1][field] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InterpError) as caught:
        read(tmp_path)
    assert all(word in str(caught.value) for word in words), caught.value


def test_missing_and_repeated_answers_are_refused(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]))
    with pytest.raises(ResultError, match=r"1 of 4 perspective_taking items.*'i3'"):
        read(tmp_path)
    path.write_text("".join([*lines, lines[0]]))
    with pytest.raises(ResultError, match=r"line 5.*'i0' is answered twice"):
        read(tmp_path)
    path.write_text("".join(lines))
    (tmp_path / "b.jsonl").write_text("".join(lines))
    (tmp_path / "models.csv").write_text("file,model,condition\na.jsonl,m,base\nb.jsonl,m,base\n")
    items = read_item_table([tmp_path / "items.jsonl"])
    with pytest.raises(ResultError, match=r"b\.jsonl.*another file of 'm'"):
        read_answer_sets([], items, read_roster(tmp_path / "models.csv"))
    with pytest.raises(ResultError, match="no answers read as 'forced'"):
        read(tmp_path, readout="forced")


def test_a_stray_category_among_abilities_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, categories=(PT, "strategic-signaling"))
    with pytest.raises(ItemError, match=r"'i1', field 'category'.*strategic_signaling"):
        read_item_table([tmp_path / "items.jsonl"])
    write_files(tmp_path, categories=("capitals", "elements"))
    assert read_item_table([tmp_path / "items.jsonl"]).abilities == ("capitals", "elements")


def test_two_item_files_must_agree(tmp_path: Path) -> None:
    write_files(tmp_path)
    again = tmp_path / "again"
    again.mkdir()
    write_files(again)
    both = [tmp_path / "items.jsonl", again / "items.jsonl"]
    assert len(read_item_table(both).item_id) == 4
    text = both[1].read_text().replace('"label": false', '"label": true', 1)
    both[1].write_text(text)
    with pytest.raises(ItemError, match=r"item 2 \('i1'\), field 'label': True.*False"):
        read_item_table(both)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model\nm\n", ["row 1", "'file' is missing"]),
        ("file,model,condition,acess\na.jsonl,m,base,open\n", ["row 1", "'acess'", "access"]),
        ("file,model,condition\na.jsonl,m,cott\n", ["row 2", "'condition'", "cot"]),
        ("file,model,condition,access\na.jsonl,m,base,close\n", ["row 2", "'access'", "'close'"]),
        ("file,model,condition,base\na.jsonl,m,base,n\n", ["row 2", "'base'", "'n'"]),
        ("file,model,condition\nb.jsonl,m,base\n", ["'file'", "a.jsonl"]),
        (
            "file,model,condition,family\na.jsonl,m,base,X\nb.jsonl,m,cot,Y\n",
            ["row 3", "'family'", "'Y'"],
        ),
        ("file,model,condition\na.jsonl,m\n", ["row 2", "2 cells under 3 columns"]),
    ],
)
def test_a_bad_models_table_is_named_by_row_and_field(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    write_files(tmp_path)
    (tmp_path / "models.csv").write_text(text)
    with pytest.raises(ResultError) as caught:
        read(tmp_path, roster=read_roster(tmp_path / "models.csv"))
    assert all(word in str(caught.value) for word in words), caught.value
