"""What a sweep claims: schemes of mixed groups, p of noise, verdicts that say their limits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from caches import Cache

from figures.expression_gap import draw_accuracy_by_layer
from interp.errors import ProbeError
from interp.statistics import (
    bootstrap_mean,
    few_groups,
    group_codes,
    resampled_groups,
    score_decisions,
    sign_flip_p,
)
from probes import compare_sweeps, make_folds, sweep_layers
from probes.intervals import score_intervals
from probes.layer import _chosen, _inner_accuracy
from probes.permutation import choose_scheme, draw_labels, label_agreement, null_test
from probes.results import ProbeSweep
from probes.summary import summarise

TWIN, BOTH_TRUE, BOTH_FALSE = (True, False), (True, True), (False, False)


def mixed(
    patterns: list[tuple[bool, ...]], *, signal: float = 0.0, seed: int = 0, layers: int = 2
) -> Cache:
    """One group a pattern; a signal in the last layer."""
    rng = np.random.default_rng(seed)
    labels = np.concatenate(patterns)
    groups = [f"g{index}" for index, pattern in enumerate(patterns) for _ in pattern]
    x = rng.normal(size=(len(labels), layers, 30))
    x[:, -1, 0] += signal * (labels - 0.5)
    return Cache(x, labels, groups)


def sweep(cache: Cache, **options: Any) -> ProbeSweep:
    return sweep_layers(cache, **options)  # type: ignore[arg-type]


# Permutations of mixed groups


@pytest.mark.parametrize(
    ("patterns", "scheme"),
    [
        ([TWIN] * 94 + [BOTH_TRUE] * 3 + [BOTH_FALSE] * 3, "group_exchange_flip"),
        # One group of its own size, which nothing can move.
        ([TWIN] * 60 + [(True, True, False)], "group_exchange_flip"),
        # One right answer of four, always the first.
        ([(True, False, False, False)] * 50, "group_exchange_within"),
        (
            [TWIN] * 30 + [(True, False, False)] * 15 + [(False, True, True)] * 15,
            "group_exchange_flip",
        ),
    ],
)
def test_a_few_odd_groups_leave_the_null_free_of_the_signal(
    patterns: list[tuple[bool, ...]], scheme: str
) -> None:
    cache = mixed(patterns, signal=2.5)
    found = sweep(cache, n_permutations=60, C=1.0)
    summary = summarise(found)
    assert found.scheme == scheme
    assert summary["permuted_agreement"] - summary["permuted_agreement_free"] < 0.05
    assert summary["permuted_warning"] is None
    # The layer with the signal: permuted labels are at chance there, and it is significant.
    assert abs(found.null_scores[1].mean() - found.null_scores[0].mean()) < 0.03
    assert summary["layers"][1]["p"] == pytest.approx(1 / 61)


@pytest.mark.parametrize("scheme", ["group_exchange_flip", "group_exchange_within"])
def test_mixed_groups_keep_their_folds_balance_and_their_kind(scheme: Any) -> None:
    patterns = [
        TWIN,
        BOTH_TRUE,
        BOTH_FALSE,
        (True, False, False, False),
        (True, True, False, False),
    ]
    cache = mixed(patterns * 15)
    labels = cache.label.astype(bool)
    folds = make_folds(labels, cache.group_id, n_folds=5, seed=0)
    drawn = draw_labels(scheme, labels, cache.group_id, folds, n_permutations=300, seed=1)
    names = np.array(cache.group_id)

    def counts(column: np.ndarray) -> list[tuple[int, int, int]]:
        rows = [names == name for name in dict.fromkeys(cache.group_id)]
        return sorted((int(folds[r][0]), int(r.sum()), int(column[r].sum())) for r in rows)

    for column in drawn.T:
        assert counts(column) == counts(labels)
    # The closed form of the agreement is the mean over draws.
    agreement = label_agreement(scheme, labels, cache.group_id, folds)
    assert (drawn == labels[:, None]).mean() == pytest.approx(agreement.expected, abs=0.01)
    # Twins are flipped with probability one half, wherever they went; and some patterns moved.
    assert len({column.tobytes() for column in drawn.T}) == 300
    first = np.array([np.flatnonzero(names == f"g{index}")[0] for index in range(0, 75, 5)])
    assert abs((drawn[first] == labels[first, None]).mean() - 0.5) < 0.06
    unlike = (drawn.reshape(15, 14, 300)[:, 7:10].any(axis=1)).mean()
    assert (unlike > 0.5) == (scheme == "group_exchange_within")


def test_the_null_of_mixed_groups_holds() -> None:
    small = 0
    for seed in range(60):
        cache = mixed([TWIN] * 14 + [BOTH_TRUE] * 3 + [BOTH_FALSE] * 3, seed=seed)
        found = sweep(cache, n_permutations=19, seed=seed)
        test = null_test(found.scores, found.null_scores)
        small += test.p_familywise <= 0.2
    assert abs(small / 60 - 0.2) < 3 * np.sqrt(0.2 * 0.8 / 60)


def test_labellings_that_keep_the_real_labels_are_refused_or_called_weak() -> None:
    # Groups of one label, each of its own size: nothing can move.
    patterns = [(size % 2 == 0,) * size for size in range(1, 9)]
    cache = mixed(patterns)
    folds = np.repeat(np.arange(8) // 2, range(1, 9))
    with pytest.raises(ProbeError, match=r"agree with the real ones on 100% of the 36 items"):
        choose_scheme(cache.label.astype(bool), cache.group_id, folds, grouped=True)
    # Half of the items in such groups: valid, weak, and said.
    large = [(index % 2 == 0,) * (10 + index) for index in range(6)]
    cache = mixed(large + [BOTH_TRUE, BOTH_FALSE] * 60, signal=1.0)
    summary = summarise(sweep(cache, n_permutations=19))
    assert summary["scheme"] == "group_exchange"
    assert 0.6 < summary["permuted_agreement"] < 0.75
    assert "valid but weak" in summary["permuted_warning"]
    # Few twins: all 16 labellings together cannot be significant.
    cache = mixed([TWIN] * 4)
    with pytest.raises(ProbeError, match=r"fewer than 20 distinct.*--permutations 0"):
        choose_scheme(
            cache.label.astype(bool), cache.group_id, np.repeat(np.arange(4), 2), grouped=True
        )


# p-values of differences


def noise(kind: str, seed: int) -> Cache:
    rng = np.random.default_rng(seed)
    if kind == "twins":
        return Cache(
            rng.normal(size=(40, 1, 60)), np.tile(TWIN, 20), [f"g{i // 2}" for i in range(40)]
        )
    # Groups of one label, whose items look alike.
    shared = np.repeat(rng.normal(size=(24, 1, 60)), 3, axis=0)
    labels = np.repeat(np.arange(24) % 2 == 0, 3)
    x = shared + 0.3 * rng.normal(size=shared.shape)
    return Cache(x, labels, [f"g{i // 3}" for i in range(72)])


def pair(kind: str, seed: int) -> tuple[ProbeSweep, ProbeSweep]:
    """Two sweeps as independent as those of two models, under the same folds."""
    one = sweep(noise(kind, 2 * seed), seed=seed)
    return one, sweep(noise(kind, 2 * seed + 1), folds=one.fold)


def check_spread(p: list[float]) -> None:
    for level in (0.05, 0.1, 0.2):
        share = np.mean(np.array(p) <= level)
        assert share <= level + 3 * np.sqrt(level * (1 - level) / len(p)), level
        # The control: they are spread.
        assert share > level / 4, level


def test_leads_of_noise_over_noise_are_not_significant_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("interp.statistics.N_RESAMPLES", 1000)
    wording, untrained, plain = [], [], []
    for seed in range(100):
        one, other = pair("twins", seed)
        beside = replace(one, baselines={"statement": other.decision_values[:, 0]})
        summary = summarise(beside, other)
        wording.append(summary["p_beyond_wording"])
        untrained.append(summary["untrained"]["p"])
        gain = one.correct_nested.astype(float) - other.correct_nested
        plain.append(sign_flip_p(gain, one.group_id, seed=seed))
    check_spread(wording)
    check_spread(untrained)
    # Groups taken as independent are what this guards against.
    assert np.mean(np.array(plain) <= 0.05) > np.mean(np.array(wording) <= 0.05) + 0.02


def test_comparisons_of_noise_are_not_significant_too_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("interp.statistics.N_RESAMPLES", 1000)
    compared = [compare_sweeps(*pair("constant", seed)) for seed in range(100)]
    check_spread([found["p_groups"] for found in compared])
    # Items of a group stand and fall together: McNemar's test counts them singly.
    assert np.mean([found["p_mcnemar"] <= 0.05 for found in compared]) > 0.2


def test_a_comparison_says_where_items_were_taken_as_independent() -> None:
    one, other = (sweep(noise("constant", seed)) for seed in (0, 1))
    verdict = compare_sweeps(one, other)["verdict"]
    assert "by groups (McNemar p = " in verdict
    assert "items as independent" in verdict
    single = {"group_id": one.item_id}
    verdict = compare_sweeps(replace(one, **single), replace(other, **single))["verdict"]
    assert "items as independent" not in verdict


# Groups ignored


def test_groups_that_were_ignored_are_the_first_thing_said() -> None:
    cache = noise("constant", 3)
    said = summarise(sweep(cache, grouping="none", n_permutations=19, C=1.0))
    assert said["verdict"].startswith("Groups ignored, p not valid: Decodable at some layer: ")
    assert draw_accuracy_by_layer(said).axes[0].get_title(loc="left").startswith("Groups ignored")
    kept = summarise(sweep(cache, n_permutations=19, C=1.0))
    assert not kept["verdict"].startswith("Groups")
    assert "ignored" not in draw_accuracy_by_layer(kept).axes[0].get_title(loc="left")


# Bad input


def test_rows_that_an_unfinished_cache_lacks_are_found_first_and_named() -> None:
    cache = mixed([TWIN] * 20)
    cache.layers[[3, 5, 8, 9, 11, 30, 31]] = np.nan
    done: list[int] = []
    with pytest.raises(ProbeError, match=r"7 of 40 items .* 'i3', 'i5', 'i8', 'i9', 'i11', …"):
        sweep(cache, progress=done.append)
    assert done == []
    only_there = mixed([TWIN] * 20)
    only_there.resid_pre0 = lambda: np.full((40, 30), np.nan, np.float32)  # type: ignore[method-assign]
    with pytest.raises(ProbeError, match="not finite at the embedding stream"):
        sweep(only_there, progress=done.append)
    assert done == []


# Unequal classes


def one_in_ten(signal: float, *, seed: int = 0) -> Cache:
    rng = np.random.default_rng(seed)
    labels = np.arange(300) % 10 == 0
    x = rng.normal(size=(300, 6, 40))
    x[:, 4, 0] += signal * labels
    return Cache(x, labels, [f"g{index}" for index in range(300)])


def test_unequal_classes_do_not_hide_a_signal() -> None:
    cache = one_in_ten(3.0)
    found = sweep(cache, n_permutations=39, C=1.0)
    summary = summarise(found)
    assert found.layers_nested == (4,) * 5
    assert found.best_layer == 4
    assert summary["p_familywise"] == pytest.approx(1 / 40)
    assert "some layer: yes" in summary["verdict"]
    assert not summary["accuracy_is_majority_class"]
    by_hand = summary["layers"][4]["balanced_accuracy"]
    assert found.scores[4] == pytest.approx(by_hand)
    # The text is compared in balanced accuracy too: it always says the commoner label.
    silent = replace(found, baselines={"length": np.full(300, -1.0)})
    summary = summarise(silent)
    assert summary["gain_over_text"]["value"] == pytest.approx(
        summary["scores_nested"]["balanced_accuracy"] - 0.5
    )
    assert summary["verdict"].startswith("Decodable beyond wording: yes")


def test_probes_that_always_say_the_commoner_label_decide_nothing() -> None:
    # So strong a penalty that no item comes out True, although the scores tell them apart.
    summary = summarise(sweep(one_in_ten(3.0), n_permutations=19, C=1e-4))
    assert summary["accuracy_nested"] == summary["majority_class"] == 0.9
    assert summary["accuracy_is_majority_class"]
    assert summary["layers"][4]["auroc"] > 0.9
    assert summary["verdict"].startswith("Not decided: the probes hardly ever say True, the label")
    assert "at layer 4" in summary["verdict"]
    # The control: noise of equal classes is a plain no.
    twins = summarise(sweep(mixed([TWIN] * 20), n_permutations=19))
    assert twins["verdict"].startswith("Decodable at some layer: no")


def test_equal_classes_are_scored_by_the_accuracy_itself() -> None:
    found = sweep(mixed([TWIN] * 23, signal=1.0), n_permutations=5, C="auto")
    np.testing.assert_array_equal(found.scores, found.correct.mean(axis=0))
    # Null scores are whole numbers of items.
    np.testing.assert_allclose(found.null_scores * 46, np.round(found.null_scores * 46), atol=1e-9)


# Choosing a strength on folds of unequal size


def test_one_standard_error_is_of_accuracies_and_not_of_fold_sizes() -> None:
    folds = np.repeat(np.arange(4), [40, 10, 10, 40])
    labels = (np.arange(100) % 2 == 0)[:, None]
    verdicts = np.repeat(labels[:, None, None], 4, axis=1).repeat(2, axis=2)
    # Strength 0 is right on eight of ten items of every fold, strength 1 on all: no doubt is left.
    wrong = np.arange(100) % 10 >= 8
    verdicts[wrong, :, 0] ^= True
    accuracy, weights = _inner_accuracy(verdicts, labels, folds)
    np.testing.assert_allclose(accuracy.mean(axis=1)[:, :, 0], [[0.8, 1.0]] * 4)
    np.testing.assert_allclose(weights[0, :, 0, 0], [1 / 6, 1 / 6, 2 / 3])
    assert _chosen(accuracy, weights, True).ravel().tolist() == [1] * 4
    # Where folds disagree, by hand: the inner folds 1 to 3 of fold 0 have accuracies 1, 0.5 and 1.
    accuracies = np.array([1.0, 0.5, 1.0])
    share = weights[0, :, 0, 0]
    mean = accuracies @ share
    error = np.sqrt(((share * (accuracies - mean)) ** 2).sum() * 3 / 2)
    for worse, expected in ((mean - 0.9 * error, 0), (mean - 1.1 * error, 1)):
        flat = np.stack([np.full(3, worse), accuracies], axis=1)[None, :, :, None]
        scaled = flat * weights[:1] * 3
        assert _chosen(scaled, weights[:1], True).item() == expected


# Intervals of other scores


def test_intervals_of_scores_are_those_of_resampled_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp.statistics.N_RESAMPLES", 300)
    monkeypatch.setattr("probes.intervals._CELLS_AT_ONCE", 1000)
    rng = np.random.default_rng(0)
    sizes = rng.integers(1, 5, 30)
    groups = [f"g{index}" for index, size in enumerate(sizes) for _ in range(size)]
    labels = rng.random(len(groups)) < 0.4
    # Rounded, so that there are ties.
    decisions = np.round(rng.normal(size=len(groups)) + labels, 1) - 0.45
    categories = [f"c{int(group[1:]) % 3}" for group in groups]
    scores, by_category = score_intervals(labels, decisions, categories, groups, seed=5, spread=1.1)
    draws: dict[str, list[float]] = {name: [] for name in (*scores, *by_category)}
    codes, named = group_codes(groups), np.array(categories)
    for weights in np.concatenate(list(resampled_groups(30, seed=5))):
        rows = np.repeat(np.arange(len(groups)), weights[codes].astype(int))
        found = score_decisions(labels[rows], decisions[rows] > 0, decisions[rows])
        for name in scores:
            draws[name].append(getattr(found, name))
        right = (decisions[rows] > 0) == labels[rows]
        for name in by_category:
            draws[name].append(right[named[rows] == name].mean())
    whole = score_decisions(labels, decisions > 0, decisions)
    for name, ends in (scores | by_category).items():
        inside = named == name
        at = ((decisions > 0) == labels)[inside].mean() if inside.any() else getattr(whole, name)
        wider = 1.1 * few_groups(10 if inside.any() else 30)
        expected = at + wider * (np.quantile(draws[name], [0.025, 0.975]) - at)
        np.testing.assert_allclose(ends, expected.clip(0, 1), err_msg=name)
    # The accuracy's own interval comes from the same draws.
    right = (decisions > 0) == labels
    own = bootstrap_mean(right, groups, seed=5, spread=1.1)
    (alone,) = score_intervals(labels, decisions, ["c"] * len(groups), groups, seed=5, spread=1.1)[
        1
    ].values()
    np.testing.assert_allclose(alone, [own.low, own.high])
