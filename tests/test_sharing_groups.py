"""Shared prefixes: which sequences begin alike, on token ids alone."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from activations.sharing import (
    LEAST_SHARE,
    LEAST_TOKENS,
    PrefixGroup,
    common_length,
    find_groups,
    tokens_saved,
)

ids = st.lists(st.integers(0, 2), max_size=8).map(tuple)


@given(ids, ids, st.integers(0, 8))
def test_common_length_counts_leading_tokens(
    a: tuple[int, ...], b: tuple[int, ...], k: int
) -> None:
    expected = 0
    for x, y in zip(a[:k], b[:k], strict=False):
        if x != y:
            break
        expected += 1
    assert common_length(a, b, k) == expected


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 2), max_size=3),
            st.lists(st.integers(0, 2), min_size=1, max_size=12),
            st.floats(0, 1),
        ),
        max_size=9,
    )
)
def test_groups_share_what_they_say_and_no_token_beyond_the_limit(
    parts: list[tuple[list[int], list[int], float]],
) -> None:
    # Each number stands for a stretch of 20 equal tokens, so that prefixes are long enough.
    sequences = [tuple(d for d in head for _ in range(20)) + tuple(own) for head, own, _ in parts]
    limits = [int(share * (len(s) - 1)) for s, (_, _, share) in zip(sequences, parts, strict=True)]
    groups, rest = find_groups(sequences, limits)
    rows = [row for group in groups for row in group.rows] + list(rest)
    assert sorted(rows) == list(range(len(sequences)))
    for group in groups:
        assert len(group.rows) > 1
        assert group.length >= LEAST_TOKENS
        assert len({sequences[row][: group.length] for row in group.rows}) == 1
        assert all(group.length <= limits[row] for row in group.rows)
        saved = group.length * (len(group.rows) - 1)
        assert saved >= LEAST_SHARE * sum(len(sequences[row]) for row in group.rows)


def grouped(*heads: tuple[int, int, int], own: int = 10) -> list[list[int]]:
    """Sequences of (first token, prefix length, number), with own tokens that all differ."""
    rows: list[list[int]] = []
    for token, length, number in heads:
        rows += [[token] * length + [1000 + len(rows) + i] * own for i in range(number)]
    return rows


def lengths_of(rows: list[list[int]]) -> list[tuple[int, int]]:
    groups, _ = find_groups(rows, [len(row) - 1 for row in rows])
    return [(group.length, len(group.rows)) for group in groups]


def test_one_prefix_several_prefixes_and_none() -> None:
    assert lengths_of(grouped((7, 100, 5))) == [(100, 5)]
    assert lengths_of(grouped((7, 100, 5), (8, 300, 4), (9, 50, 1))) == [(300, 4), (100, 5)]
    assert lengths_of(grouped((7, 100, 1), (8, 100, 1))) == []
    assert lengths_of(grouped((7, LEAST_TOKENS - 1, 50))) == []
    # A short prefix before long own tokens saves too little.
    assert lengths_of(grouped((7, 20, 50), own=1000)) == []


def test_the_split_that_saves_more_is_taken() -> None:
    def lineups(common: int, own: int) -> list[list[int]]:
        return [
            [7] * common + [8 + lineup] * own + [100 + lineup, 200 + item] * 5
            for lineup in range(3)
            for item in range(4)
        ]

    # Together 11 × 500 tokens are saved, apart 9 × 520.
    assert lengths_of(lineups(500, 20)) == [(500, 12)]
    # Together 11 × 20, apart 9 × 520.
    assert lengths_of(lineups(20, 500)) == [(521, 4)] * 3
    rows = lineups(20, 500)
    assert tokens_saved(rows, [len(row) - 1 for row in rows]) == 9 * 521


def test_ten_thousand_nested_prefixes_do_not_exhaust_the_stack() -> None:
    rows = [tuple(range(20 + k % 3000)) for k in range(10_000)]
    groups, rest = find_groups(rows, [len(row) - 1 for row in rows])
    assert sum(len(group.rows) for group in groups) + len(rest) == 10_000


def test_groups_are_ordered_by_what_they_save() -> None:
    groups, _ = find_groups(grouped((7, 40, 5), (8, 300, 4)), [49] * 5 + [309] * 4)
    assert groups[0] == PrefixGroup(300, (5, 6, 7, 8))
    saved = [group.length * (len(group.rows) - 1) for group in groups]
    assert all(a >= b for a, b in pairwise(saved))
