"""Which prompts start with the same tokens, so that those tokens need to be run once only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

__all__ = ["PrefixGroup", "common_length", "find_groups", "row_cost", "tokens_saved"]

LEAST_TOKENS: Final = 16
"""Shorter prefixes are not worth a pass of their own."""

LEAST_SHARE: Final = 0.1
"""Of a group's tokens that sharing must save: below it, smaller batches eat the gain."""

_PASS_TOKENS: Final = 32
"""What an extra pass costs beyond its tokens, in tokens."""

_TOKENS_PER_KEY: Final = 2
"""A prefix token is read by a row as a key and a value. They take about a quarter of the memory
that running a token takes, but many rows' keys push each other out of a processor's cache, so
that larger batches are slower: counted as half a token."""


@dataclass(frozen=True, slots=True)
class PrefixGroup:
    """Sequences that share their first tokens.

    Attributes:
        length: tokens of the shared prefix.
        rows: indices of the sequences, in the order they were given.
    """

    length: int
    rows: tuple[int, ...]


def common_length(first: Sequence[int], second: Sequence[int], limit: int) -> int:
    """Number of leading tokens that two sequences share, at most `limit`."""
    low, high = 0, min(limit, len(first), len(second))
    # Bisection on slices: comparing slices is far quicker than comparing token by token.
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def row_cost(own: int, prefix: int) -> int:
    """What a continuation adds to a batch's memory, in tokens of a plain pass.

    Args:
        own: tokens that the row runs itself.
        prefix: tokens that it reads the keys and values of.
    """
    return own + -(-prefix // _TOKENS_PER_KEY)


def find_groups(
    sequences: Sequence[Sequence[int]], limits: Sequence[int]
) -> tuple[tuple[PrefixGroup, ...], tuple[int, ...]]:
    """The groups of sequences whose shared prefixes save the most tokens.

    Sequences are compared as token ids. In sorted order every shared prefix belongs to a run of
    neighbours, and these runs nest; from the inside out, each run becomes one group if that saves
    at least as many tokens as the best groups inside it do.

    Args:
        sequences: token ids.
        limits: the longest prefix that each sequence may share: the index of the first token that
            has to be run with the sequence itself.

    Returns:
        the groups, largest saving first, and the indices that are in none.
    """
    n = len(sequences)
    order = sorted(range(n), key=lambda index: tuple(sequences[index]))
    shared = [
        common_length(sequences[a], sequences[b], min(limits[a], limits[b]))
        for a, b in pairwise(order)
    ]
    total = [0, *accumulate(len(sequences[index]) for index in order)]
    found: list[_Run] = []
    open_runs: list[_Run] = []
    for right in range(n):
        following = shared[right] if right < n - 1 else 0
        best = _Run(0, right, 0, [])
        while open_runs and open_runs[-1].length > following:
            run = open_runs.pop()
            run.absorb(best)
            best = run.closed(right + 1, total)
        if following == 0:
            found += best.parts
        elif open_runs and open_runs[-1].length == following:
            open_runs[-1].absorb(best)
        else:
            open_runs.append(_Run(following, best.left, best.saved, best.parts))
    found.sort(key=lambda run: (-run.saved, run.left))
    groups = tuple(
        PrefixGroup(run.length, tuple(sorted(order[run.left : run.right]))) for run in found
    )
    grouped = {row for group in groups for row in group.rows}
    return groups, tuple(row for row in range(n) if row not in grouped)


def tokens_saved(sequences: Sequence[Sequence[int]], limits: Sequence[int]) -> int:
    """Tokens that need not be run where each group's prefix is run once; see `find_groups`."""
    groups, _ = find_groups(sequences, limits)
    return sum(group.length * (len(group.rows) - 1) for group in groups)


@dataclass(slots=True)
class _Run:
    """Neighbours in sorted order that share `length` tokens; open until its end is known.

    Attributes:
        length: shared tokens.
        left: first neighbour.
        saved: tokens that the best groups inside save.
        parts: those groups.
        right: one past the last neighbour.
    """

    length: int
    left: int
    saved: int
    parts: list[_Run]
    right: int = 0

    def absorb(self, inner: _Run) -> None:
        """Take over what a run inside this one saves."""
        self.saved += inner.saved
        self.parts = [*self.parts, *inner.parts] if inner.parts else self.parts

    def closed(self, right: int, total: Sequence[int]) -> _Run:
        """The best use of this run: one group, or the groups inside it."""
        saved = self.length * (right - self.left - 1) - _PASS_TOKENS
        pays = (
            self.length >= LEAST_TOKENS
            and saved >= self.saved
            and saved >= LEAST_SHARE * (total[right] - total[self.left])
        )
        if not pays:
            return _Run(0, self.left, self.saved, self.parts)
        group = _Run(self.length, self.left, saved, [], right)
        return _Run(0, self.left, saved, [group])
