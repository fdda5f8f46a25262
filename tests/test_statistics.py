import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm, t
from sklearn import metrics

from interp.statistics import (
    bootstrap_mean,
    bootstrap_means,
    calibrate,
    cross_validation_spread,
    mcnemar_exact,
    out_of_fold_threshold,
    score_decisions,
    sign_flip_p,
)


@given(st.lists(st.tuples(st.booleans(), st.floats(-5, 5)), min_size=4, max_size=40))
def test_scores_agree_with_scikit_learn(rows) -> None:
    rows = [*rows, (True, 0.5), (False, -0.5)]
    labels, decisions = np.array([r[0] for r in rows]), np.array([r[1] for r in rows])
    said = decisions > 0
    scores = score_decisions(labels, said, decisions)
    assert scores.accuracy == pytest.approx(metrics.accuracy_score(labels, said))
    assert scores.balanced_accuracy == pytest.approx(metrics.balanced_accuracy_score(labels, said))
    assert scores.macro_f1 == pytest.approx(metrics.f1_score(labels, said, average="macro"))
    assert scores.auroc == pytest.approx(metrics.roc_auc_score(labels, decisions))
    assert scores.true_recall == pytest.approx(metrics.recall_score(labels, said))
    assert scores.false_recall == pytest.approx(metrics.recall_score(~labels, ~said))


def test_group_bootstrap_of_constant_groups_is_the_bootstrap_of_group_means() -> None:
    # 40 groups of 10 equal values: the standard error is that of 40 draws, not of 400.
    rng = np.random.default_rng(0)
    group_values = rng.normal(size=40)
    values = np.repeat(group_values, 10)
    groups = [str(index) for index in np.repeat(np.arange(40), 10)]
    estimate = bootstrap_mean(values, groups, seed=0)
    half_width = t.ppf(0.975, 39) * group_values.std(ddof=1) / np.sqrt(40)
    assert estimate.value == pytest.approx(values.mean())
    assert (estimate.high - estimate.low) / 2 == pytest.approx(half_width, rel=0.03)
    # The control: without groups the interval is far too narrow.
    naive = bootstrap_mean(values, [str(index) for index in range(400)], seed=0)
    assert (naive.high - naive.low) < 0.5 * (estimate.high - estimate.low)


def test_group_bootstrap_covers_the_truth() -> None:
    rng = np.random.default_rng(1)
    groups = [str(index) for index in np.repeat(np.arange(50), 4)]
    covered = 0
    for repetition in range(200):
        values = np.repeat(rng.random(50) < 0.7, 4).astype(float)
        estimate = bootstrap_mean(values, groups, seed=repetition)
        covered += estimate.low <= 0.7 <= estimate.high
    # 95% nominal.
    assert 183 <= covered <= 198


def test_few_groups_get_an_interval_that_still_covers() -> None:
    rng = np.random.default_rng(2)
    covered, percentile = 0, 0
    for repetition in range(400):
        values = rng.normal(size=6)
        estimate = bootstrap_mean(values, list("abcdef"), seed=repetition)
        covered += estimate.low <= 0 <= estimate.high
        means = values[rng.integers(6, size=(500, 6))].mean(axis=1)
        low, high = np.quantile(means, [0.025, 0.975])
        percentile += low <= 0 <= high
    assert covered >= 372
    # The control: the quantiles alone are those of a far smaller interval.
    assert percentile < covered - 10


def test_one_group_says_nothing_and_no_interval_leaves_the_range() -> None:
    alone = bootstrap_mean([1, 1, 0, 1], ["a"] * 4, seed=0)
    assert (alone.value, alone.low, alone.high) == (0.75, 0.0, 1.0)
    pair = bootstrap_mean([1, 1, 0, 1], ["a", "a", "b", "b"], seed=0, spread=1.28)
    assert (pair.low, pair.high) == (0.0, 1.0)


def test_the_spread_of_cross_validation() -> None:
    # Noise: K − 2 of K − 1 terms are kept, at an angle whose cosine is the root of their ratio.
    for n_folds, by_noise in ((5, 1 / 6), (3, 1 / 4)):
        assert cross_validation_spread(0, n_folds) == 1
        full = cross_validation_spread(by_noise, n_folds)
        assert full == pytest.approx(np.sqrt(1 + 2 / np.pi))
        assert cross_validation_spread(1, n_folds) == pytest.approx(full)
    groups = [str(index) for index in range(200)]
    plain, wider = (bootstrap_mean(np.arange(200) % 2, groups, seed=0, spread=s) for s in (1, 1.2))
    assert wider.high - 0.5 == pytest.approx(1.2 * (plain.high - 0.5))
    assert wider.value - wider.low == pytest.approx(1.2 * (plain.value - plain.low))


def test_intervals_are_reproducible() -> None:
    values, groups = [0.0, 1.0, 1.0, 0.0], ["a", "a", "b", "c"]
    assert bootstrap_mean(values, groups, seed=3) == bootstrap_mean(values, groups, seed=3)


def test_mcnemar_by_hand() -> None:
    # Eight items only the first has right, two only the second:
    # p = 2 · P(X ≤ 2), X ~ Binomial(10, 1/2) = 2 · 56/1024.
    first = [True] * 8 + [False] * 2 + [True] * 5
    second = [False] * 8 + [True] * 2 + [True] * 5
    assert mcnemar_exact(first, second) == pytest.approx(112 / 1024)
    assert mcnemar_exact(first, first) == 1.0


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=2, max_size=12))
def test_threshold_is_a_best_one_on_the_other_fold(rows) -> None:
    # Two folds: every value between the integers is judged by a threshold fitted on fold 0 alone.
    training, labels = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    candidates = np.arange(-3.5, 4.0)
    held_out = np.arange(-4.0, 5.0)
    values = np.concatenate([training, held_out])
    gold = np.concatenate([labels, np.arange(len(held_out)) % 2 == 0])
    fold = np.array([0] * len(training) + [1] * len(held_out))
    got = out_of_fold_threshold(values, gold, fold)[len(training) :]
    right = {c: int(((training > c) == labels).sum()) for c in candidates}
    best = max(right.values())
    # The verdicts step from False to True once, where the training accuracy is at its best.
    step = held_out[got].min() - 0.5 if got.any() else held_out.max() + 0.5
    assert (got == (held_out > step)).all()
    assert int(((training > step) == labels).sum()) == best


def test_the_threshold_of_a_fold_never_sees_its_labels() -> None:
    rng = np.random.default_rng(0)
    values, gold, fold = rng.normal(size=60), rng.random(60) < 0.5, np.arange(60) % 5
    before = out_of_fold_threshold(values, gold, fold)
    changed = False
    for k in range(5):
        flipped = np.where(fold == k, ~gold, gold)
        after = out_of_fold_threshold(values, flipped, fold)
        assert (after[fold == k] == before[fold == k]).all()
        changed |= bool((after[fold != k] != before[fold != k]).any())
    assert changed


def test_several_columns_share_their_resamples() -> None:
    rng = np.random.default_rng(0)
    groups = [str(index) for index in rng.integers(30, size=100)]
    columns = rng.random((100, 3))
    together = bootstrap_means(columns, groups, seed=1)
    alone = [bootstrap_mean(columns[:, k], groups, seed=1) for k in range(3)]
    for first, second in zip(together, alone, strict=True):
        assert first.value == pytest.approx(second.value)
        assert first.low == pytest.approx(second.low)
        assert first.high == pytest.approx(second.high)


def test_many_groups_stay_within_bounded_memory() -> None:
    groups = [str(index) for index in range(20_000)]
    tracemalloc.start()
    estimate = bootstrap_mean(np.arange(20_000) % 2, groups, seed=0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2**28
    assert estimate.high - estimate.low == pytest.approx(2 * 1.96 * 0.5 / np.sqrt(20_000), rel=0.1)


def test_calibration_undoes_a_bias_but_finds_nothing_in_noise() -> None:
    rng = np.random.default_rng(0)
    gold = rng.random(400) < 0.5
    fold = np.arange(400) % 5
    biased = gold + 0.3 * rng.normal(size=400) - 20
    assert ((biased > 0) == gold).mean() < 0.6
    assert (out_of_fold_threshold(biased, gold, fold) == gold).mean() > 0.9
    noise = rng.normal(size=400)
    assert abs((out_of_fold_threshold(noise, gold, fold) == gold).mean() - 0.5) < 0.08


def test_calibration_by_hand() -> None:
    # Four items at p = 0.75, three of them True; one at p = 0.05, True.
    odds = np.log(np.array([3.0] * 4 + [1 / 19]))
    found = calibrate([True, True, True, False, True], odds)
    expected = -(3 * np.log(0.75) + np.log(0.25) + np.log(0.05)) / 5
    assert found.log_loss == pytest.approx(expected)
    assert found.ece == pytest.approx(0.95 / 5)
    full = [part for part in found.bins if part.n]
    assert [(part.n, part.observed) for part in full] == [(1, 1.0), (4, 0.75)]
    assert calibrate([True, False], [1e4, -1e4]).log_loss == 0
    assert np.isfinite(calibrate([False], [1e4]).log_loss)


def test_sign_flips_by_hand() -> None:
    # Three groups, all positive: one of eight sign patterns does as well.
    p = sign_flip_p([1, 1, 1, 1], ["a", "a", "b", "c"], seed=0)
    assert p == pytest.approx(1 / 8, abs=0.02)
    assert sign_flip_p([0, 0], ["a", "b"], seed=0) == 1.0
    assert sign_flip_p([-1, -1, -1, -1], ["a", "b", "c", "d"], seed=0) == pytest.approx(1)
    # Both signs count: two of eight patterns.
    three = ([-1, -1, -1], ["a", "b", "c"])
    assert sign_flip_p(*three, seed=0, two_sided=True) == pytest.approx(1 / 4, abs=0.02)
    # Means of 3, 1, -1 and -3 with a normal of the variance that makes it four times theirs, 3.
    wide = sign_flip_p([1, 1, 1], ["a", "b", "c"], seed=0, spread=2)
    reach = norm.sf([0, 2, 4, 6], scale=3) @ [1, 3, 3, 1] / 8
    assert wide == pytest.approx(reach, abs=0.02)
    assert sign_flip_p([0, 0], ["a", "b"], seed=0, spread=2) == 1.0
