"""Annotation sequences that occur again in another run, longer than chance allows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

__all__ = ["ReplicatedBlock", "replicated_blocks"]

MAX_EXPECTED: Final = 1e-3
"""Blocks of the flagged length that independent annotations would give in the whole file."""


@dataclass(frozen=True, slots=True)
class ReplicatedBlock:
    """Consecutive traces of two runs with the same annotations, one by one.

    Attributes:
        first: run (`trace.key`) of the one block.
        second: run of the other.
        first_start: place of the block in the first run, 0-based, in the order of trace_id.
        second_start: its place in the second.
        n: traces in it.
    """

    first: str
    second: str
    first_start: int
    second_start: int
    n: int


def _codes(runs: Mapping[str, Sequence[tuple[bool | None, ...]]]) -> dict[str, NDArray[np.int64]]:
    """Every run's annotations as whole numbers, equal where the 14 labels are."""
    known: dict[tuple[bool | None, ...], int] = {}
    return {
        run: np.array([known.setdefault(labels, len(known)) for labels in rows], dtype=np.int64)
        for run, rows in runs.items()
    }


def _shortest(first: NDArray[np.int64], second: NDArray[np.int64], n_pairs: int) -> float:
    """Length from which equal blocks of two runs are no chance.

    If traces were annotated independently with each run's own frequencies, two of them would agree
    with probability c, and n_A·n_B·c^L blocks of length L would be expected.
    """
    counts_a, counts_b = Counter(first.tolist()), Counter(second.tolist())
    chance = sum(n * counts_b[code] for code, n in counts_a.items()) / (len(first) * len(second))
    if chance == 0 or chance == 1:
        return math.inf  # nothing agrees, or there is but one annotation to agree on
    places = len(first) * len(second) * n_pairs
    return max(2.0, math.log(MAX_EXPECTED / places) / math.log(chance))


def replicated_blocks(
    runs: Mapping[str, Sequence[tuple[bool | None, ...]]],
) -> tuple[ReplicatedBlock, ...]:
    """Maximal blocks of equal annotations between runs, longest first.

    Args:
        runs: run to the 14 labels of its traces, in the order of trace_id.

    Returns:
        of every pair of runs, the blocks that are too long for chance (fewer than one in a
        thousand such files would have any).
    """
    codes = _codes(runs)
    n_pairs = len(codes) * (len(codes) - 1) // 2
    found: list[ReplicatedBlock] = []
    for a, b in combinations(codes, 2):
        first, second = codes[a], codes[b]
        if not len(first) or not len(second):
            continue
        shortest = _shortest(first, second, n_pairs)
        # length[i, j]: equal annotations in a row that end at trace i of one and j of the other.
        length = np.zeros((len(first) + 1, len(second) + 1), dtype=np.int64)
        for i, code in enumerate(first):
            length[i + 1, 1:] = np.where(second == code, length[i, :-1] + 1, 0)
        ends = length[1:, 1:]
        goes_on = np.zeros_like(ends, dtype=bool)
        goes_on[:-1, :-1] = ends[1:, 1:] > 0
        for i, j in zip(*np.nonzero((ends >= shortest) & ~goes_on), strict=True):
            n = int(ends[i, j])
            found.append(ReplicatedBlock(a, b, int(i) + 1 - n, int(j) + 1 - n, n))
    return tuple(sorted(found, key=lambda block: (-block.n, block.first, block.second)))
