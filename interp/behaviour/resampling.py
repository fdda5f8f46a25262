"""One bootstrap for all figures: groups are drawn once and every figure is computed on each draw.

Sharing the draws is what makes intervals of differences, of averages over models and of ratios
right: the same scenarios are in both terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp.statistics import N_RESAMPLES, Estimate, group_codes

__all__ = ["Draws", "Resampler", "draw_groups", "estimate", "estimate_fields", "ratio"]

Draws = NDArray[np.float64]
"""(1 + n_resamples,) values of a figure: on the observed items first, then on each resample."""

_BLOCK = 500


@dataclass(frozen=True, slots=True)
class Resampler:
    """How often each group occurs in each resample.

    Attributes:
        codes: (n_items,) group of each item.
        counts: (1 + n_resamples, n_groups); the first row is the observed sample, all ones.
    """

    codes: NDArray[np.int64]
    counts: NDArray[np.uint16]

    def sums(self, columns: ArrayLike) -> NDArray[np.float64]:
        """Column sums over the items of every resample.

        Args:
            columns: (n_items, n_columns).

        Returns:
            (1 + n_resamples, n_columns).
        """
        values = np.asarray(columns, dtype=float)
        by_group = np.zeros((self.counts.shape[1], values.shape[1]))
        np.add.at(by_group, self.codes, values)
        return np.concatenate([block.astype(float) @ by_group for block in self._blocks()])

    def _blocks(self) -> Iterator[NDArray[np.uint16]]:
        # A float copy of all counts at once would be several times the size of everything else.
        for start in range(0, len(self.counts), _BLOCK):
            yield self.counts[start : start + _BLOCK]


def draw_groups(
    group_ids: Sequence[str], *, seed: int, n_resamples: int = N_RESAMPLES
) -> Resampler:
    """Draw whole groups with replacement, as many as there are.

    Args:
        group_ids: (n_items,).
        seed: of the draws.
        n_resamples: number of resamples.
    """
    codes = group_codes(group_ids)
    n_groups = int(codes.max()) + 1
    rng = np.random.default_rng(seed)
    shares = np.full(n_groups, 1 / n_groups)
    blocks = [np.ones((1, n_groups), dtype=np.uint16)]
    for start in range(0, n_resamples, _BLOCK):
        size = min(_BLOCK, n_resamples - start)
        blocks.append(rng.multinomial(n_groups, shares, size=size).astype(np.uint16))
    return Resampler(codes, np.concatenate(blocks))


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> NDArray[np.float64]:
    """Element by element; NaN where the denominator is 0."""
    above, below = np.broadcast_arrays(
        np.asarray(numerator, dtype=float), np.asarray(denominator, dtype=float)
    )
    result = np.full(above.shape, np.nan)
    np.divide(above, below, out=result, where=below != 0)
    return result


def estimate(draws: Draws) -> Estimate:
    """Observed value with its 95% percentile interval.

    Resamples in which the figure is undefined (no item of a category was drawn) are left out.
    """
    defined = draws[1:][np.isfinite(draws[1:])]
    if not np.isfinite(draws[0]) or not defined.size:
        return Estimate(float(draws[0]), float("nan"), float("nan"))
    low, high = np.quantile(defined, [0.025, 0.975])
    return Estimate(float(draws[0]), float(low), float(high))


def estimate_fields(name: str, draws: Draws) -> dict[str, float | None]:
    """`name`, `name_low`, `name_high` of a row; None where undefined, since NaN is not JSON."""
    e = estimate(draws)
    values = {name: e.value, f"{name}_low": e.low, f"{name}_high": e.high}
    return {key: value if np.isfinite(value) else None for key, value in values.items()}
