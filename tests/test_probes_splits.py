"""Several training sets at once: each is standardised and solved as if it were alone."""

from collections.abc import Callable

import numpy as np
import pytest

from probes import fit_probe
from probes.batched import Split, decide_held_out
from probes.scaling import standardise, standardise_together


def features(n: int, d: int) -> np.ndarray:
    """Unequal scales, far from zero, and columns that a common mean and deviation would garble."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, d)) * rng.uniform(0.1, 20, size=d) + rng.uniform(-300, 300, size=d)
    x[:, 0] = 7.1  # constant everywhere
    x[:, 1] = np.where(np.arange(n) < n // 4, x[:, 1], 3.3)  # constant without the first fold
    x[0, 2] = 1e7  # one item far away from all others
    return x.astype(np.float32)


def splits_of(n: int) -> list[Split]:
    fold = np.arange(n) * 4 // n
    outer = [Split(fold != held, fold == held) for held in range(4)]
    # What is shown need not be all that was left out, and sizes differ.
    return [*outer, Split(fold > 1, fold == 0)]


def test_items_are_on_the_scale_of_each_training_set() -> None:
    x = features(80, 30)
    splits = splits_of(80)
    common = standardise_together(x, np.stack([split.training for split in splits], axis=1))
    for index, (training, shown) in enumerate(splits):
        alone = standardise(x[training], x[shown])
        ours = common.z[training].astype(float) * common.scale[:, index]
        # The shift is left to the intercept.
        np.testing.assert_allclose(ours - ours.mean(axis=0), alone.train, atol=1e-5)
        constant = np.ptp(x[training], axis=0) == 0
        assert constant[0]
        assert constant[1] == (index in (0, 4))
        np.testing.assert_array_equal(common.scale[:, index] == 0, constant)
    # The control: one scale for all would be wrong by far.
    assert common.scale[2, 0] > 1e4 * common.scale[2, 1]


@pytest.mark.parametrize("shape", [(80, 120), (80, 20)])
@pytest.mark.parametrize("columns", [1, 9])
def test_each_split_is_solved_as_alone(
    shape: tuple[int, int], columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("probes.batched._by_torch")  # the quick ways must do
    x, splits = features(*shape), splits_of(shape[0])
    rng = np.random.default_rng(1)
    labels = rng.random((len(x), columns)) < 0.5
    strengths = (0.01, 1.0)
    together = list(decide_held_out(x, splits, labels, strengths))
    for (training, shown), found in zip(splits, together, strict=True):
        assert found.values.shape == (shown.sum(), 2, columns)
        for column in {0, columns - 1}:
            for index, strength in enumerate(strengths):
                probe = fit_probe(x[training], labels[training, column], C=strength)
                expected = probe.decide(x[shown])
                gap = np.abs(found.values[:, index, column] - expected).max()
                assert gap <= 1e-3 * np.abs(expected).max()


def test_items_that_are_not_trained_on_change_nothing() -> None:
    x, (first, *_) = features(80, 120), splits_of(80)
    labels = np.random.default_rng(2).random((80, 1)) < 0.5

    def decided(change: Callable[[np.ndarray, np.ndarray], None]) -> np.ndarray:
        other, other_labels = x.copy(), labels.copy()
        change(other, other_labels)
        return next(decide_held_out(other, [first], other_labels, (0.1,))).values[1:]

    def disturb(other: np.ndarray, other_labels: np.ndarray) -> None:
        other[0] += 50
        other_labels[~first.training] ^= True

    plain = decided(lambda *_: None)
    np.testing.assert_allclose(decided(disturb), plain, atol=1e-4 * np.abs(plain).max())
