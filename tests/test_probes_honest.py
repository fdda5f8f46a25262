"""What a sweep claims: schemes of mixed groups, p of noise, verdicts that say their limits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from caches import Cache

from figures.expression_gap import draw_accuracy_by_layer
from interp.errors import ProbeError
from interp.statistics import sign_flip_p
from probes import compare_sweeps, make_folds, sweep_layers
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
        test = null_test(found.correct.mean(axis=0), found.null_scores)
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
