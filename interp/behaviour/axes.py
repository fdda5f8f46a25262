"""The 2×2 decomposition: two main effects and their interaction (Table 2)."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from interp.behaviour.loading import ItemTable
from interp.behaviour.resampling import Resampler, estimate_fields, ratio
from interp.behaviour.taxonomy import ABILITIES, EPISTEMIC, INFERENCE
from interp.statistics import group_codes

__all__ = ["EFFECTS", "N_PERMUTATIONS", "axis_effects", "decompose"]

N_PERMUTATIONS: Final = 9_999
"""The smallest p-value is then 1e-4, and one near 0.05 has a standard error of 0.002."""

EFFECTS: Final = (
    ("epistemic − motivational", "items"),
    ("epistemic − motivational", "cells"),
    ("inference − action", "items"),
    ("inference − action", "cells"),
    ("interaction", "cells"),
)
"""(effect, weighting): `items` weighs each item the same, `cells` each ability the same."""

_BLOCK = 500


def axis_effects(cells: ArrayLike, weights: ArrayLike) -> NDArray[np.float64]:
    """Effects of a 2×2 table of means.

    A main effect is the mean of the cells on one side of an axis minus that on the other side.
    The interaction is (Perspective-Taking − Strategic Signaling) − (Intention Attribution −
    Tacit Coordination): by how much the inference − action contrast differs between the sides.

    Args:
        cells: (..., 4) means in the order of `ABILITIES`.
        weights: (..., 4) items in each cell.

    Returns:
        (..., 5) in the order of `EFFECTS`.

    Source: Avalon-ToM-Bench, section 4.2 and table 2.
    """
    values, sizes = np.asarray(cells, dtype=float), np.asarray(weights, dtype=float)

    def contrast(side: tuple[bool, ...], weight: NDArray[np.float64]) -> NDArray[np.float64]:
        here = np.array(side)
        means = [
            ratio((values * weight)[..., part].sum(axis=-1), weight[..., part].sum(axis=-1))
            for part in (here, ~here)
        ]
        return means[0] - means[1]

    same = np.ones_like(sizes)
    return np.stack(
        [
            contrast(EPISTEMIC, sizes),
            contrast(EPISTEMIC, same),
            contrast(INFERENCE, sizes),
            contrast(INFERENCE, same),
            (values[..., 0] - values[..., 1]) - (values[..., 2] - values[..., 3]),
        ],
        axis=-1,
    )


def decompose(
    items: ItemTable,
    resampler: Resampler,
    numerators: ArrayLike,
    denominators: ArrayLike,
    *,
    seed: int,
    n_permutations: int = N_PERMUTATIONS,
) -> list[dict[str, Any]]:
    """Effects with group-bootstrap intervals and permutation p-values.

    The value of a cell is the mean over models of Σ numerator / Σ denominator over its items.
    For the p-values the scenarios' cell labels are shuffled, so that each cell keeps its number of
    scenarios and a scenario keeps its items; p = (1 + permutations at least as extreme) / (1 +
    permutations), two-sided. A scenario with items of several abilities is shuffled in parts.

    Args:
        items: with all four abilities.
        resampler: drawn for the same items.
        numerators: (n_items, n_models), for instance whether each is right.
        denominators: (n_items, n_models), for instance whether each counts.
        seed: of the permutations.
        n_permutations: how many.

    Source: Avalon-ToM-Bench, section 4.2.
    """
    cell = np.array([ABILITIES.index(c) if c in ABILITIES else -1 for c in items.category])
    above = np.asarray(numerators, dtype=float)
    columns = np.concatenate(
        [above, np.asarray(denominators, dtype=float), np.ones((len(cell), 1))], axis=1
    )
    in_cells = [resampler.sums(columns * (cell == c)[:, None]) for c in range(4)]
    draws = _effects(np.stack(in_cells, axis=1), above.shape[1])

    ours = np.flatnonzero(cell >= 0)
    units = group_codes([f"{items.group_id[i]}\n{cell[i]}" for i in ours])
    unit_sums = np.zeros((int(units.max()) + 1, columns.shape[1]))
    np.add.at(unit_sums, units, columns[ours])
    unit_cell = np.zeros(len(unit_sums), dtype=np.int64)
    unit_cell[units] = cell[ours]
    rng = np.random.default_rng(seed)
    extreme = np.zeros(len(EFFECTS), dtype=np.int64)
    for start in range(0, n_permutations, _BLOCK):
        size = min(_BLOCK, n_permutations - start)
        shuffled = rng.permuted(np.tile(unit_cell, (size, 1)), axis=1)
        sums = np.stack([(shuffled == c).astype(float) @ unit_sums for c in range(4)], axis=1)
        # Not "larger": an undefined effect must never make a p-value smaller.
        less = np.abs(_effects(sums, above.shape[1])) < np.abs(draws[0]) - 1e-12
        extreme += (~less).sum(axis=0)
    p = (1 + extreme) / (1 + n_permutations)
    return [
        {
            "effect": effect,
            "weighting": weighting,
            **estimate_fields("value", draws[:, k]),
            "p_permutation": float(p[k]) if np.isfinite(draws[0, k]) else None,
        }
        for k, (effect, weighting) in enumerate(EFFECTS)
    ]


def _effects(sums: NDArray[np.float64], n_models: int) -> NDArray[np.float64]:
    """(n, 5) effects from (n, 4, 2·n_models + 1) sums."""
    means = ratio(sums[..., :n_models], sums[..., n_models : 2 * n_models]).mean(axis=-1)
    return axis_effects(means, sums[..., -1])
