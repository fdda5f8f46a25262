"""Scores of answers under both policies, against hand-worked and closed-form values."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from behaviours import PT, SS, answer_set, find, right, table
from scipy.stats import t
from sklearn.metrics import f1_score

from interp.behaviour import (
    ModelEntry,
    behaviour_report,
)
from interp.behaviour.resampling import draw_groups, estimate
from interp.behaviour.scores import main_sets, score_set
from interp.statistics import bootstrap_mean


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
