"""Projections taken out, set and erased: closed forms in every number type."""

import numpy as np
import pytest
import torch

from interp.direction import fit_eraser
from steering import clamped, erased, projected_out

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def units(n: int, width: int, seed: int = 0) -> torch.Tensor:
    drawn = torch.randn(n, width, generator=torch.Generator().manual_seed(seed))
    return drawn / drawn.norm(dim=1, keepdim=True)


def test_by_hand() -> None:
    hidden = torch.tensor([[5.0, 10.0], [5.0, 10.0], [1.0, 2.0]])
    vectors = torch.tensor([[0.6, 0.8], [1.0, 0.0], [0.0, 1.0]])
    # 5·0.6 + 10·0.8 = 11, of which all, half and twice the projection are taken out.
    out = projected_out(hidden, vectors, torch.tensor([1.0, 0.5, 2.0]))
    torch.testing.assert_close(out, torch.tensor([[-1.6, 1.2], [2.5, 10.0], [1.0, -2.0]]))
    set_to = clamped(hidden, vectors, torch.tensor([21.0, -3.0, 2.0]))
    torch.testing.assert_close(set_to, torch.tensor([[11.0, 18.0], [-3.0, 10.0], [1.0, 2.0]]))
    edit = erased(
        hidden[:1],
        write=torch.tensor([[2.0, 0.0]]),
        read=torch.tensor([[0.5, 1.0]]),
        mean=torch.tensor([[1.0, 4.0]]),
        strengths=torch.ones(1),
    )
    # It reads 0.5·4 + 1·6 = 8 and moves by −8·(2, 0).
    torch.testing.assert_close(edit, torch.tensor([[-11.0, 10.0]]))
    torch.testing.assert_close(hidden[0], torch.tensor([5.0, 10.0]))  # never in place


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_projection_is_what_was_asked_and_the_rest_stays(dtype: torch.dtype) -> None:
    hidden = (10 * torch.randn(6, 5, 64, generator=torch.Generator().manual_seed(1))).to(dtype)
    vectors = units(30, 64).reshape(6, 5, 64)
    exact, along = hidden.double(), vectors.double()
    before = (exact * along).sum(-1)
    # One rounding of each entry, so a projection is off by at most its sum over the entries.
    bound = 80 * torch.finfo(dtype).eps
    targets = torch.linspace(-40, 40, 30).reshape(6, 5)
    for found, wanted in (
        (projected_out(hidden, vectors, torch.ones(6, 5)), torch.zeros(6, 5)),
        (clamped(hidden, vectors, targets), targets),
    ):
        assert found.dtype == dtype
        after = (found.double() * along).sum(-1)
        assert (after - wanted).abs().max() < max(bound, 1e-5)
        rest = exact - before[..., None] * along
        kept = found.double() - after[..., None] * along
        assert (kept - rest).abs().max() < max(bound, 1e-4)
    assert before.abs().max() > 10  # control: there was something to take out
    again = projected_out(hidden, vectors, torch.ones(6, 5))
    twice = projected_out(again, vectors, torch.ones(6, 5))
    torch.testing.assert_close(twice.double(), again.double(), atol=max(bound, 1e-5), rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_strength_zero_keeps_every_bit(dtype: torch.dtype) -> None:
    hidden = torch.tensor([[-0.0, 3.3, 1e-7], [0.1, -0.0, 7.0]], dtype=dtype)
    vectors = units(2, 3)
    strengths = torch.tensor([0.0, 1.0])
    for found in (
        projected_out(hidden, vectors, strengths),
        erased(hidden, vectors, vectors, torch.zeros(2, 3), strengths),
    ):
        as_bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        assert torch.equal(found[0].view(as_bits), hidden[0].view(as_bits))
        assert not torch.equal(found[1], hidden[1])


def test_erasing_along_one_vector_is_projecting_it_out() -> None:
    hidden, vectors = torch.randn(4, 8), units(4, 8)
    strengths = torch.tensor([1.0, 0.3, -1.0, 2.0])
    torch.testing.assert_close(
        erased(hidden, vectors, vectors, torch.zeros(4, 8), strengths),
        projected_out(hidden, vectors, strengths),
    )


def test_erasing_a_running_stream_is_the_fitted_eraser() -> None:
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2 == 0
    rows = (rng.normal(size=(60, 8)) @ rng.normal(size=(8, 8))).astype(np.float32)
    rows[labels, 2] += 3
    eraser = fit_eraser(rows, labels)
    write, read, mean = (
        torch.from_numpy(part).expand(60, 8) for part in (eraser.write, eraser.read, eraser.mean)
    )
    found = erased(torch.from_numpy(rows), write, read, mean, torch.ones(60)).numpy()
    np.testing.assert_allclose(found, eraser.erase(rows), atol=1e-4)
    np.testing.assert_allclose(found[labels].mean(0), found[~labels].mean(0), atol=1e-4)
    assert np.abs(rows[labels].mean(0) - rows[~labels].mean(0)).max() > 1
