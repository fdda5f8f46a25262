"""Norms from cores and blocks against the materialised matrix, and what must not change them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.adapters.delta import Dense, LowRank, blocks, from_matrix, materialise, to_matrix
from interp.adapters.measure import merge_shares
from interp.adapters.norms import max_abs, spectrum
from interp.errors import AdapterError

shapes = st.tuples(
    st.integers(1, 3), st.integers(1, 9), st.integers(1, 6), st.integers(1, 11), st.integers(0, 99)
)


def factors(n: int, out: int, rank: int, inner: int, seed: int, scale: float = 0.7) -> LowRank:
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(n, out, rank, generator=generator, dtype=torch.float64)
    right = torch.randn(n, rank, inner, generator=generator, dtype=torch.float64)
    return LowRank(left, right, scale)


@given(shapes)
def test_core_equals_the_materialised_matrix(shape: tuple[int, int, int, int, int]) -> None:
    delta = factors(*shape)
    found = spectrum(delta)
    pieces = materialise(delta).reshape(delta.left.shape[0], -1, delta.n_columns)
    values = torch.linalg.svdvals(pieces).flatten().sort(descending=True).values
    got = torch.tensor(found.singular_values, dtype=torch.float64)
    n = min(len(got), len(values))
    assert torch.allclose(got[:n], values[:n], atol=1e-9)
    assert math.isclose(found.frobenius, float(pieces.norm()), rel_tol=1e-9)
    assert math.isclose(found.spectral, float(values[0]), rel_tol=1e-9)
    assert math.isclose(max_abs(delta), float(pieces.abs().max()), rel_tol=1e-12)


@given(shapes, st.floats(-6, 6))
def test_moving_scale_between_factors_changes_nothing(
    shape: tuple[int, int, int, int, int], exponent: float
) -> None:
    delta, c = factors(*shape), 10.0**exponent
    moved = LowRank(delta.left / c, delta.right * c, delta.scale)
    before, after = spectrum(delta), spectrum(moved)
    assert math.isclose(before.frobenius, after.frobenius, rel_tol=1e-9)
    assert math.isclose(before.spectral, after.spectral, rel_tol=1e-9)
    assert math.isclose(max_abs(delta), max_abs(moved), rel_tol=1e-9)


@given(shapes)
def test_an_orthogonal_mixing_of_factors_changes_nothing(
    shape: tuple[int, int, int, int, int],
) -> None:
    delta = factors(*shape)
    rank = delta.left.shape[2]
    generator = torch.Generator().manual_seed(shape[-1] + 1)
    mixing = torch.linalg.qr(torch.randn(rank, rank, generator=generator, dtype=torch.float64)).Q
    mixed = LowRank(delta.left @ mixing.T, mixing @ delta.right, delta.scale)
    assert np.allclose(spectrum(delta).singular_values, spectrum(mixed).singular_values, atol=1e-9)
    assert math.isclose(max_abs(delta), max_abs(mixed), rel_tol=1e-9)


def test_mixing_only_one_factor_does_change_the_norms() -> None:
    """The control: the invariance is of the pair."""
    delta = factors(1, 8, 4, 9, 0)
    half = LowRank(delta.left * 2, delta.right, delta.scale)
    assert math.isclose(spectrum(half).frobenius, 2 * spectrum(delta).frobenius, rel_tol=1e-9)


@given(shapes, st.integers(1, 60))
def test_blocks_of_any_size_give_the_same(
    shape: tuple[int, int, int, int, int], elements: int
) -> None:
    delta = factors(*shape)
    ranges = list(blocks(delta, elements))
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == delta.n_rows
    whole = materialise(delta)
    assert torch.allclose(torch.cat([delta.rows(*block) for block in ranges]), whole)
    assert math.isclose(max_abs(delta, elements), max_abs(delta), rel_tol=1e-12)
    dense = Dense.of(whole)
    assert max_abs(dense, elements) == float(whole.abs().max())


def test_tiny_factors_do_not_underflow() -> None:
    delta = LowRank(torch.full((1, 2, 1), 1e-30), torch.full((1, 1, 3), 1e-20), 1.0)
    assert math.isclose(max_abs(delta), 1e-50, rel_tol=1e-5)
    assert math.isclose(spectrum(delta).frobenius, math.sqrt(6) * 1e-50, rel_tol=1e-5)


@pytest.mark.parametrize("side", [40, 600])
def test_full_rank_updates(side: int) -> None:
    matrix = torch.randn(side, side + 10, generator=torch.Generator().manual_seed(0))
    matrix[:, 0] *= 3
    values = torch.linalg.svdvals(matrix.double())
    found = spectrum(Dense.of(matrix))
    assert math.isclose(found.spectral, float(values[0]), rel_tol=1e-4)
    assert math.isclose(found.frobenius, float(values.norm()), rel_tol=1e-6)
    assert (len(found.singular_values) == side) == (side < 500)


def test_ranks_of_a_known_spectrum() -> None:
    """Two equal singular values: both ranks are 2; one: both are 1; zero: neither exists."""
    two = LowRank(torch.eye(5)[None, :, :2], torch.eye(7)[None, :2], 3.0)
    found = spectrum(two)
    assert math.isclose(found.stable_rank or 0, 2, rel_tol=1e-12)
    assert math.isclose(found.effective_rank or 0, 2, rel_tol=1e-12)
    none = spectrum(LowRank(two.left * 0, two.right, 3.0))
    assert none.stable_rank is None and none.effective_rank is None and none.frobenius == 0


def test_factors_that_do_not_fit_are_refused() -> None:
    with pytest.raises(AdapterError, match="no product"):
        LowRank(torch.zeros(1, 3, 2), torch.zeros(1, 4, 3), 1.0)


def test_merge_share_around_half_an_ulp() -> None:
    """At 1.0 bfloat16 has steps of 2⁻⁷ upwards: under half a step nothing changes."""
    weight = torch.ones(4, 8)
    ulp = 2.0**-7
    under, over = (torch.full((4, 8), ulp * share) for share in (0.49, 0.51))
    assert merge_shares(Dense.of(under), weight).bf16_changed == 0
    merge = merge_shares(Dense.of(over), weight)
    assert merge.bf16_changed == 1 and merge.fp16_changed == 1
    assert math.isclose(merge.base_norm, math.sqrt(32))
    some = torch.zeros(4, 8)
    some[0] = 1.0
    assert merge_shares(Dense.of(some), weight).bf16_changed == 0.25


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((5, 3), "plain"), ((5, 3), "transposed"), ((4, 3, 2, 2), "conv"), ((4, 3, 2), "conv"),
     ((2, 5, 3), "plain"), ((2, 5, 3), "transposed"), ((6,), "plain")],
)  # fmt: skip
def test_views_go_there_and_back(shape: tuple[int, ...], layout: str) -> None:
    weight = torch.arange(math.prod(shape), dtype=torch.float32).reshape(shape)
    matrix = to_matrix(weight, layout)  # type: ignore[arg-type]
    assert matrix.ndim == 2
    assert torch.equal(from_matrix(matrix, shape, layout), weight)  # type: ignore[arg-type]
