"""The sentence of a sweep, and the numbers in it: one measure, its interval, its verbs."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from caches import Cache
from probe_sweeps import sweep, twins

from figures.expression_gap import draw_accuracy_by_layer
from interp.statistics import bootstrap_mean, few_groups, group_codes, resampled_groups
from probes.intervals import balanced_estimates, score_intervals
from probes.results import ProbeSweep
from probes.summary import summarise


def three_to_one(**options: Any) -> ProbeSweep:
    """Three True items to one False one, told apart by every layer, and a text that says True."""
    labels = np.arange(240) % 4 != 0
    x = np.random.default_rng(0).normal(size=(240, 2, 8))
    x[:, :, 0] += 20 * labels[:, None]
    # Groups of two, some with a False item, some without.
    found = sweep(Cache(x, labels, [f"g{index // 2}" for index in range(240)]), C=1.0, **options)
    return replace(found, baselines={"statement": np.ones(240)})


def beside(right: np.ndarray, found: ProbeSweep) -> ProbeSweep:
    """The sweep with a text baseline that is right on these items."""
    return replace(found, baselines={"statement": np.where(right == found.label, 1.0, -1.0)})


# Unequal classes


def test_a_sentence_has_one_measure() -> None:
    summary = summarise(three_to_one(n_permutations=19))
    assert summary["text_baseline_accuracy"] == 0.75
    assert summary["text_baseline_balanced_accuracy"] == 0.5
    assert summary["verdict"].endswith(
        "; in balanced accuracy the nested probe (100.0%) leads the best text baseline "
        "(statement, 50.0%) by +50.0 points [+50.0, +50.0]."
    )


def test_a_figure_has_one_measure() -> None:
    found = replace(three_to_one(n_permutations=19), own_logits=np.ones(240))
    # Not all are right, so that the measures differ everywhere.
    said = found.decision_values.copy()
    said[:16] = 1
    found = replace(found, decision_values=said, decision_values_pre0=np.ones(240))
    summary = summarise(found, found)
    axes = draw_accuracy_by_layer(summary).axes[0]
    assert axes.get_ylabel() == "balanced accuracy"
    at = {line.get_label(): np.asarray(line.get_ydata()) for line in axes.get_lines()}
    recall = 1 - 4 / 60
    for name, expected in (
        ("probe, out of fold", (1 + recall) / 2),
        ("same architecture, random weights", (1 + recall) / 2),
        ("probe on the embedding stream", 0.5),
        ("text alone (statement)", 0.5),
        ("the model's own forced choice", 0.5),
    ):
        np.testing.assert_allclose(at[name], expected, err_msg=name)
    (container,) = axes.containers
    assert container.lines[0].get_ydata()[0] == pytest.approx((1 + recall) / 2)
    bands = {each.get_label(): each.get_datalim(axes.transData) for each in axes.collections}
    band = bands["95% interval (group bootstrap)"]
    layer = summary["layers"][0]
    assert (band.y0, band.y1) == pytest.approx((layer["balanced_low"], layer["balanced_high"]))
    # The control: the accuracy's band lies elsewhere.
    assert layer["low"] > layer["balanced_low"] + 0.01
    # Equal classes: the accuracy, as before.
    equal = summarise(sweep(twins(np.random.default_rng(0))))
    assert draw_accuracy_by_layer(equal).axes[0].get_ylabel() == "accuracy"
    assert equal["layers"][0]["balanced_low"] == pytest.approx(equal["layers"][0]["low"])


# Intervals


def test_a_lead_in_balanced_accuracy_has_the_interval_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("interp.statistics.N_RESAMPLES", 400)
    # Everything against always the commoner label: one half, however many items of a class are
    # drawn. With weights that stay, it would be 40 to 60.
    gain = summarise(three_to_one())["gain_over_text"]
    assert (gain["value"], gain["low"], gain["high"]) == pytest.approx((0.5, 0.5, 0.5))
    # Against the resampled items themselves.
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 6, 25)
    groups = [f"g{index}" for index, size in enumerate(sizes) for _ in range(size)]
    labels = rng.random(len(groups)) < 0.25
    values = rng.choice([-1.0, 0.0, 1.0], size=(len(groups), 2))
    spread = np.array([1.0, 1.2])
    found = balanced_estimates(labels, values, groups, seed=3, spread=spread, possible=(-1.0, 1.0))
    codes, draws = group_codes(groups), []
    for weights in np.concatenate(list(resampled_groups(25, seed=3))):
        rows = np.repeat(np.arange(len(groups)), weights[codes].astype(int))
        y = labels[rows]
        if y.any() and not y.all():
            draws.append((values[rows[y]].mean(axis=0) + values[rows[~y]].mean(axis=0)) / 2)
    for column, estimate in enumerate(found):
        own = values[:, column]
        at = (own[labels].mean() + own[~labels].mean()) / 2
        ends = np.quantile(np.array(draws)[:, column], [0.025, 0.975])
        low, high = at + spread[column] * few_groups(25) * (ends - at)
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx((at, low, high))
    # Of right decisions it is the interval of the balanced accuracy.
    decisions = rng.normal(size=len(groups))
    right = (decisions > 0) == labels
    scores, _ = score_intervals(labels, decisions, ["c"] * len(groups), groups, seed=3, spread=1.1)
    (own,) = balanced_estimates(labels, right[:, None], groups, seed=3, spread=1.1)
    assert [own.low, own.high] == pytest.approx(scores["balanced_accuracy"])


def test_groups_that_are_balanced_give_the_interval_of_the_mean() -> None:
    cache = twins(np.random.default_rng(2), n_groups=15)
    values = np.random.default_rng(3).choice([-1.0, 0.0, 1.0], size=60)
    (ours,) = balanced_estimates(
        cache.label.astype(bool),
        values[:, None],
        cache.group_id,
        seed=4,
        spread=1.1,
        possible=(-1.0, 1.0),
    )
    plain = bootstrap_mean(values, cache.group_id, seed=4, spread=1.1)
    assert (ours.value, ours.low, ours.high) == pytest.approx((plain.value, plain.low, plain.high))


def test_one_group_says_nothing_wherever_it_is_printed() -> None:
    cache = twins(np.random.default_rng(4), n_groups=30)
    cache.layers += 20 * (cache.label[:, None, None] - 0.5)
    parts = ("even", "odd")
    cache.category = tuple(
        "alone" if group == "g0" else parts[int(group[1:]) % 2] for group in cache.group_id
    )
    summary = summarise(sweep(cache, transfer=["category"]))
    rows = {row["value"]: row for row in summary["transfer"]["category"]}
    assert rows["alone"]["accuracy"] == 1.0
    assert [rows["alone"]["low"], rows["alone"]["high"]] == [0.0, 1.0]
    assert summary["by_category_intervals"]["alone"] == [0.0, 1.0]
    # The control: of many groups that are all right, something is known.
    assert rows["odd"]["low"] == 1.0
    right = np.ones(4, dtype=bool)
    (balanced,) = balanced_estimates(
        cache.label[:4].astype(bool), right[:, None], ["a"] * 4, seed=0, spread=1.0
    )
    assert (balanced.low, balanced.high) == (0.0, 1.0)


# Verbs


def test_the_verb_follows_the_sign() -> None:
    found = sweep(twins(np.random.default_rng(5), n_groups=25))
    right = found.correct_nested
    worse = right.copy()
    worse[np.flatnonzero(right)[:6]] = False
    better = right.copy()
    better[np.flatnonzero(~right)[:6]] = True
    for text, words in (
        (worse, "the nested probe leads the best text baseline (statement, {}%) by +6.0 points ["),
        (better, "the nested probe trails the best text baseline (statement, {}%): -6.0 points ["),
        (right, "the nested probe is level with the best text baseline (statement, {}%): +0.0 "),
    ):
        said = summarise(beside(text, found))["verdict"]
        assert words.format(f"{100 * text.mean():.1f}") in said


# Random weights


def test_the_sentence_says_whether_it_is_beyond_random_weights() -> None:
    cache = twins(np.random.default_rng(6), n_groups=30)
    noise = sweep(cache)
    cache.layers[:, :, 0] += 20 * (cache.label[:, None] - 0.5)
    found = sweep(cache, n_permutations=39, folds=noise.fold)
    text = {"statement": -np.ones(cache.n_items)}
    found = replace(found, baselines=text)
    alone, over_noise, over_itself = (summarise(found, other) for other in (None, noise, found))
    assert alone["verdict"].startswith("Decodable beyond wording: yes, p = 0.025 ")
    assert "random weights" not in alone["verdict"]
    sentence, _, more = over_noise["verdict"].partition(" Beyond random weights: ")
    assert sentence == alone["verdict"]
    assert more.startswith("yes, p = 0.0001; training adds +")
    assert over_itself["verdict"].endswith(
        " Beyond random weights: no, p = 1; training adds +0.0 points [+0.0, +0.0]."
    )


# Resolution of the false discovery rate


def test_too_few_permutations_for_a_single_layer_are_named() -> None:
    cache = twins(np.random.default_rng(2), n_groups=30, layers=4)
    noise = summarise(sweep(cache, n_permutations=39))
    cache.layers[:, 2, 0] += 2 * (cache.label - 0.5)
    found = summarise(sweep(cache, n_permutations=39))
    # Four layers at 5%: one alone must have p of at most 0.0125, and 39 permutations give 0.025.
    assert found["p_familywise"] == 0.025
    assert [row["p"] <= 0.025 for row in found["layers"]] == [False, False, True, False]
    assert all(row["p_adjusted"] > 0.05 for row in found["layers"])
    assert found["false_discovery_warning"] == (
        "With 39 permutations no p is below 0.025: at a false discovery rate of 5% 2 layers would "
        "have to be at it, and 1 of 4 are. From --permutations 79 on a single layer can pass."
    )
    # What it says is so.
    enough = summarise(sweep(cache, n_permutations=79))
    assert enough["layers"][2]["p_adjusted"] <= 0.05
    assert enough["false_discovery_warning"] is None
    less = summarise(sweep(cache, n_permutations=78))
    assert less["layers"][2]["p"] == pytest.approx(1 / 79)
    assert less["layers"][2]["p_adjusted"] > 0.05 and less["false_discovery_warning"]
    # Noise does not fail for want of permutations, unless no number of layers could pass.
    assert noise["false_discovery_warning"] is None
    assert (
        "5 layers would have to be at it, and "
        in (summarise(sweep(cache, n_permutations=15))["false_discovery_warning"])
    )
