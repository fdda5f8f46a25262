"""Controls of a sweep: strengths, permutations, text baselines."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from caches import Cache
from hypothesis import given
from hypothesis import strategies as st
from probe_sweeps import constant_groups, items_of, sweep, twins

from interp.errors import ProbeError
from interp.statistics import bootstrap_mean
from probes import (
    C_GRID,
    fit_probe,
)
from probes.baselines import text_baselines
from probes.permutation import benjamini_hochberg, draw_labels, null_test
from probes.summary import summarise

# Solvers and strengths


@pytest.mark.parametrize("strength", [1.0, "auto"])
def test_both_solvers_give_the_same_sweep(strength: Any) -> None:
    cache = twins(np.random.default_rng(0))
    cache.layers[:, 1, 0] += cache.label
    ours, reference = (sweep(cache, C=strength, solver=s) for s in ("batched", "sklearn"))
    np.testing.assert_allclose(ours.decision_values, reference.decision_values, atol=1e-3)
    np.testing.assert_array_equal(ours.C, reference.C)
    np.testing.assert_array_equal(ours.inner_accuracy, reference.inner_accuracy)
    assert ours.layers_nested == reference.layers_nested
    assert ours.relative_gradient is not None
    assert 0 <= ours.relative_gradient <= 1e-7
    assert reference.relative_gradient is None


def test_the_strength_is_chosen_inside_the_training_part() -> None:
    cache = twins(np.random.default_rng(1), n_groups=25)
    cache.layers[:, 1, :4] += 0.8 * (cache.label[:, None] - 0.5)
    before = sweep(cache, C="auto")
    assert before.C_grid == C_GRID
    assert before.C.shape == (3, 5)
    assert set(before.C.ravel()) <= set(C_GRID)
    assert len(set(before.C.ravel())) > 1
    # By hand, for one fold and layer: cross-validation over the other folds alone.
    fold, layer = 2, 1
    x, y = cache.resid_post(layer), cache.label.astype(bool)
    accuracy = []
    for strength in C_GRID:
        right = []
        for judged in sorted({0, 1, 2, 3, 4} - {fold}):
            training = (before.fold != fold) & (before.fold != judged)
            inside = before.fold == judged
            probe = fit_probe(x[training], y[training], C=strength)
            right.extend((probe.decide(x[inside]) > 0) == y[inside])
        accuracy.append(np.mean(right))
    assert before.C[layer, fold] == C_GRID[int(np.argmax(accuracy))]
    assert before.inner_accuracy[fold, layer] == pytest.approx(max(accuracy))
    # Whatever happens to a fold's labels (twins swapped), its strengths stay.
    inside = before.fold == fold
    swapped = Cache(
        cache.layers, np.where(inside, 1 - cache.label, cache.label), list(cache.group_id)
    )
    after = sweep(swapped, C="auto")
    np.testing.assert_array_equal(after.C[:, fold], before.C[:, fold])
    assert (after.C != before.C).any()


def test_one_standard_error_takes_the_smallest_strength_that_is_no_worse() -> None:
    cache = twins(np.random.default_rng(1), n_groups=25)
    cache.layers[:, 1, :4] += 0.8 * (cache.label[:, None] - 0.5)
    best, careful = (sweep(cache, C="auto", one_standard_error=o) for o in (False, True))
    assert (careful.C <= best.C).all()
    assert (careful.C < best.C).any()
    # By hand, for one fold and layer.
    x, y, fold, layer = cache.resid_post(1), cache.label.astype(bool), 3, 1
    accuracy = np.empty((len(C_GRID), 4))
    for row, strength in enumerate(C_GRID):
        for column, judged in enumerate(k for k in range(5) if k != fold):
            training = (best.fold != fold) & (best.fold != judged)
            inside = best.fold == judged
            said = fit_probe(x[training], y[training], C=strength).decide(x[inside]) > 0
            accuracy[row, column] = (said == y[inside]).mean()
    mean, error = accuracy.mean(axis=1), accuracy.std(axis=1, ddof=1) / 2
    top = int(mean.argmax())
    assert best.C[layer, fold] == C_GRID[top]
    within = np.flatnonzero(mean >= mean[top] - error[top] - 1e-12)
    assert careful.C[layer, fold] == C_GRID[int(within[0])]
    assert careful.inner_accuracy[fold, layer] == pytest.approx(mean[within[0]])
    with pytest.raises(ProbeError, match="goes with --C auto"):
        sweep(cache, C=1.0, one_standard_error=True)


# Permutations


def test_the_scheme_follows_the_groups() -> None:
    rng = np.random.default_rng(0)
    balanced, constant = twins(rng), constant_groups(rng)
    for cache, expected in ((balanced, "group_flip"), (constant, "group_exchange")):
        found = sweep(cache, n_permutations=3)
        assert found.scheme == expected
        assert found.null_scores.shape == (3, 3)
    assert sweep(balanced, n_permutations=2, grouping="none").scheme == "item_exchange"
    assert sweep(balanced).scheme is None
    assert sweep(balanced).null_scores.shape == (3, 0)


@given(sizes=st.lists(st.integers(1, 3), min_size=12, max_size=30), seed=st.integers(0, 10**6))
def test_exchanges_move_whole_patterns_inside_a_fold(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    groups = [f"g{index}" for index, size in enumerate(sizes) for _ in range(size)]
    folds = np.repeat(rng.integers(0, 3, len(sizes)), sizes)
    labels = rng.random(len(groups)) < 0.5
    drawn = draw_labels("group_exchange", labels, groups, folds, n_permutations=5, seed=seed)
    names = np.array(groups)

    def patterns(column: np.ndarray) -> Counter:
        return Counter(
            (int(folds[names == g][0]), tuple(column[names == g])) for g in dict.fromkeys(groups)
        )

    for column in drawn.T:
        assert patterns(column) == patterns(labels)


def test_flips_keep_every_group_balanced_and_act_on_whole_groups() -> None:
    cache = twins(np.random.default_rng(0), n_groups=30)
    labels = cache.label.astype(bool)
    folds = np.repeat(np.arange(30) % 5, 4)
    drawn = draw_labels("group_flip", labels, cache.group_id, folds, n_permutations=400, seed=0)
    changed = (drawn != labels[:, None]).reshape(30, 4, 400)
    assert (changed.all(axis=1) | ~changed.any(axis=1)).all()
    assert abs(changed.mean() - 0.5) < 0.02
    again = draw_labels("group_flip", labels, cache.group_id, folds, n_permutations=400, seed=0)
    assert (again == drawn).all()


def test_a_negative_number_of_permutations_is_refused() -> None:
    with pytest.raises(ProbeError, match="--permutations is -1"):
        sweep(twins(np.random.default_rng(0)), n_permutations=-1)


def test_a_planted_signal_is_significant_and_only_where_it_is() -> None:
    cache = twins(np.random.default_rng(2), n_groups=30, layers=4)
    cache.layers[:, 2, 0] += 2 * (cache.label - 0.5)
    found = sweep(cache, n_permutations=99)
    test = null_test(found.scores, found.null_scores)
    assert test.p_familywise == 0.01
    assert test.p[2] == 0.01
    assert test.p_adjusted[2] <= 0.05
    assert (test.p[[0, 1, 3]] > 0.02).all()
    # The null of every layer is centred on chance, the signal's layer too.
    assert abs(found.null_scores.mean() - 0.5) < 0.02
    assert abs(found.null_scores[2].mean() - 0.5) < 0.04


def test_p_values_by_hand() -> None:
    null = np.array([[0.4, 0.5, 0.6, 0.5], [0.5, 0.5, 0.5, 0.7]])
    test = null_test(np.array([0.6, 0.5]), null)
    np.testing.assert_allclose(test.p, [2 / 5, 5 / 5])
    # Best layers of the draws: 0.5, 0.5, 0.6, 0.7; two of four reach 0.6.
    assert test.p_familywise == pytest.approx(3 / 5)
    np.testing.assert_allclose(
        benjamini_hochberg(np.array([0.01, 0.04, 0.03, 0.5])), [0.04, 0.16 / 3, 0.16 / 3, 0.5]
    )


@pytest.mark.parametrize("make", [twins, constant_groups])
def test_a_sweep_is_honest_about_labels_that_mean_nothing(make: Any) -> None:
    # Group-constant labels are where a shuffle of single items fails: groups look alike, so the
    # effective sample is the number of groups. The full simulation is benchmarks/honesty.py.
    values, covered, plain, nested, optimism = [], 0, 0, [], []
    for seed in range(60):
        cache = make(np.random.default_rng(1000 + seed))
        found = sweep(cache, n_permutations=19, seed=seed)
        test = null_test(found.scores, found.null_scores)
        values.append(test.p_familywise)
        nested.append(found.correct_nested.mean())
        optimism.append(found.correct[:, found.best_layer].mean() - nested[-1])
        interval = found.estimate_nested(found.correct_nested)
        covered += interval.low <= 0.5 <= interval.high
        independent = bootstrap_mean(found.correct_nested, found.group_id, seed=seed)
        plain += independent.low <= 0.5 <= independent.high
    for level in (0.05, 0.1, 0.2, 0.5):
        slack = 3 * np.sqrt(level * (1 - level) / 60)
        assert np.mean(np.array(values) <= level) <= level + slack
    # The control: p-values are spread, not all large.
    assert min(values) < 0.4
    # Groups train each other's probes: taken as independent, they cover too rarely. (An interval
    # that covers in 93 of 100 covers fewer than 50 of 60 once in two hundred times.)
    assert covered >= 50
    assert covered > plain
    assert abs(np.mean(nested) - 0.5) < 0.03
    assert np.mean(optimism) > 0


def test_stable_verdicts_widen_nothing_and_noise_widens_by_the_arcsine_law() -> None:
    cache = twins(np.random.default_rng(3), n_groups=50, width=100)
    noise = sweep(cache)
    cache.layers += 20 * (cache.label[:, None, None] - 0.5)
    clear = sweep(cache)
    assert clear.spread_nested == 1.0
    assert (clear.instability == 0).all()
    assert noise.spread_nested == pytest.approx(np.sqrt(1 + 2 / np.pi), abs=0.04)
    # By hand: verdicts of fold 1 that change when fold 3 too is left out of the training.
    labels, inside = cache.label.astype(bool), noise.fold == 1
    x = cache.resid_post(2) - 20 * (cache.label[:, None] - 0.5)
    changed = []
    for other in (0, 2, 3, 4):
        kept = ~inside & (noise.fold != other)
        said = fit_probe(x[kept], labels[kept], C=0.01).decide(x[inside]) > 0
        changed.append(said != (noise.decision_values[inside, 2] > 0))
    assert 0 < noise.instability[1, 2] == np.mean(changed)


# Text baselines


def test_wording_that_gives_the_label_away_is_caught() -> None:
    cache = twins(np.random.default_rng(3), n_groups=25)
    cache.layers[:, 1, 0] += 3 * (cache.label - 0.5)
    names = [f"Item {index} of group {group}" for index, group in enumerate(cache.group_id)]
    telling = [
        f"{n} is {'in' if y else 'not in'} it." for n, y in zip(names, cache.label, strict=True)
    ]
    silent = [f"{n.replace(str(index), '')} is in it." for index, n in enumerate(names)]
    found = sweep(cache, items=items_of(cache, telling), n_permutations=99)
    summary = summarise(found)
    assert summary["text_baseline_accuracy"] == 1.0
    assert summary["text_baseline"] in ("statement", "prompt")
    assert summary["p_familywise"] == 0.01
    assert summary["p_beyond_wording"] > 0.5
    assert summary["verdict"].startswith("Decodable beyond wording: no")
    # The control: the same activations beside texts that say nothing.
    summary = summarise(sweep(cache, items=items_of(cache, silent), n_permutations=99))
    assert summary["text_baseline_accuracy"] < 0.65
    assert summary["verdict"].startswith("Decodable beyond wording: yes, p = 0.01 ")


def test_length_alone_is_caught_by_the_length_baseline() -> None:
    cache = twins(np.random.default_rng(4), n_groups=25)
    rng = np.random.default_rng(5)
    texts = ["".join(rng.choice(list("abc"), size=20 if y else 10)) for y in cache.label]
    found = text_baselines(
        items_of(cache, texts), cache.label.astype(bool), np.repeat(np.arange(25) % 5, 4)
    )
    assert ((found["length"] > 0) == cache.label).mean() > 0.95
    assert ((found["statement"] > 0) == cache.label).mean() < 0.8


def test_wording_that_tells_in_one_category_is_told_by_category() -> None:
    cache = twins(np.random.default_rng(4), n_groups=25)
    items = items_of(cache, ["yes it is" if y else "not so" for y in cache.label])
    plain = items_of(cache, ["so it goes"] * cache.n_items)
    # Whole groups: every other one has texts that give the label away.
    telling = [int(group[1:]) % 2 == 0 for group in cache.group_id]
    texts = [a if t else b for a, b, t in zip(items, plain, telling, strict=True)]
    cache.category = tuple("told" if t else "silent" for t in telling)
    by = summarise(sweep(cache, items=texts))["text_baselines_by_category"]
    assert set(by) == {"told", "silent"}
    assert by["told"]["statement"] > 0.9 and by["silent"]["statement"] < 0.7


def test_nothing_is_claimed_without_the_controls() -> None:
    cache = twins(np.random.default_rng(5))
    assert summarise(sweep(cache))["verdict"].startswith("Not tested")
    summary = summarise(sweep(cache, n_permutations=19))
    assert summary["verdict"].startswith("Decodable at some layer: no")
    assert summary["text_baseline_accuracy"] is None
