"""Norms from cores and blocks against the materialised matrix, and what must not change them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.adapters.delta import (
    Dense,
    Kronecker,
    LowRank,
    blocks,
    from_matrix,
    materialise,
    to_matrix,
)
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
    assert math.isclose(found.spectral, float(values[0]), rel_tol=1e-6)
    assert math.isclose(found.frobenius, float(values.norm()), rel_tol=1e-6)
    assert (len(found.singular_values) == side) == (side < 500)


@pytest.mark.parametrize("shape", [(900, 700), (600, 1300), (513, 513)])
@pytest.mark.parametrize("scale", [1.0, 1e-30])
def test_the_spectral_norm_of_flat_updates(shape: tuple[int, int], scale: float) -> None:
    """Noise has its largest singular values close together: power iteration ends too low there."""
    matrix = torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * scale
    gram = matrix.double().T @ matrix.double() / scale**2
    exact = float(torch.linalg.eigvalsh(gram)[-1]) ** 0.5 * scale
    assert math.isclose(spectrum(Dense.of(matrix)).spectral, exact, rel_tol=1e-6)
    vector = torch.randn(shape[1], dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for _ in range(20):
        vector = gram @ vector
        vector = vector / vector.norm()
    # The control: after twenty steps of the other way, one part in a thousand and more is lacking.
    assert float(vector @ gram @ vector) ** 0.5 * scale < exact * (1 - 1e-3)


def test_equal_singular_values_and_nothing_at_all() -> None:
    """Lanczos ends after one step where all singular values are alike, or all zero."""
    turned = torch.linalg.qr(torch.randn(600, 600, generator=torch.Generator().manual_seed(0))).Q
    assert math.isclose(spectrum(Dense.of(turned * 0.5)).spectral, 0.5, rel_tol=1e-5)
    assert spectrum(Dense.of(torch.zeros(600, 600))).spectral == 0


kronecker = st.tuples(*(st.integers(1, 6) for _ in range(4)), st.integers(0, 99))


@given(kronecker, st.integers(1, 50))
def test_kronecker_products_are_never_built(
    shape: tuple[int, int, int, int, int], elements: int
) -> None:
    p, q, s, t, seed = shape
    generator = torch.Generator().manual_seed(seed)
    left = torch.randn(p, q, generator=generator, dtype=torch.float64)
    right = torch.randn(s, t, generator=generator, dtype=torch.float64)
    delta = Kronecker(left, right, -0.3)
    matrix = torch.kron(left, right) * -0.3
    assert torch.allclose(torch.cat([delta.rows(*b) for b in blocks(delta, elements)]), matrix)
    values = torch.linalg.svdvals(matrix)
    found = spectrum(delta)
    n = min(p, q) * min(s, t)
    assert np.allclose(found.singular_values, values[:n], atol=1e-12)
    assert torch.all(values[n:] < 1e-12)
    assert math.isclose(found.frobenius, float(matrix.norm()), rel_tol=1e-12)
    assert math.isclose(max_abs(delta), float(matrix.abs().max()), rel_tol=1e-12)


def test_figures_of_a_kronecker_product_of_the_size_of_a_model_need_no_memory() -> None:
    """16384 × 16384 in float32 would be a gigabyte; rows are not asked for at all."""

    class Rowless(Kronecker):
        def rows(self, start: int, stop: int) -> torch.Tensor:
            raise AssertionError("the product was built")

    generator = torch.Generator().manual_seed(0)
    factors_ = (torch.randn(128, 128, generator=generator) for _ in range(2))
    delta = Rowless(*factors_, 1.0)
    assert spectrum(delta).frobenius > 0 and max_abs(delta) > 0
    assert delta.n_rows == delta.n_columns == 16384


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
