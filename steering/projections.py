"""Interventions that set a projection instead of adding to it: pure functions, never in place.

The arithmetic is done in float32 (float64 for float64 streams) and rounded once, so that a
projection taken out of a bfloat16 stream is as small as bfloat16 allows.
"""

from __future__ import annotations

import torch
from einops import einsum
from torch import Tensor

__all__ = ["clamped", "erased", "projected_out"]


def _moved(hidden: Tensor, vectors: Tensor, amounts: Tensor) -> Tensor:
    """Hidden + amounts · vectors, rounded once; a row whose amount is 0 keeps its bits."""
    exact = hidden.to(vectors.dtype)
    moved = exact + einsum(amounts, vectors, "... , ... d_model -> ... d_model")
    # Where nothing is added, -0.0 would still become 0.0.
    return torch.where((amounts == 0)[..., None], hidden, moved.to(hidden.dtype))


def _exact(hidden: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The others on the stream's device, in the number type that the arithmetic is done in."""
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    return tuple(other.to(hidden.device, dtype) for other in others)


def projected_out(hidden: Tensor, vectors: Tensor, strengths: Tensor) -> Tensor:
    """H' = h − strength · (v·h) v: with strength 1 nothing is left along the vector.

    Args:
        hidden: (..., d_model), any floating dtype.
        vectors: (..., d_model), unit norm.
        strengths: (...,) share of the projection to take out; 0 leaves a row bit for bit as it
            is, 2 mirrors it.
    """
    vectors, strengths = _exact(hidden, vectors, strengths)
    along = einsum(hidden.to(vectors.dtype), vectors, "... d_model, ... d_model -> ...")
    return _moved(hidden, vectors, -strengths * along)


def clamped(hidden: Tensor, vectors: Tensor, targets: Tensor) -> Tensor:
    """H' = h + (target − v·h) v: the projection becomes the target, whatever it was.

    Args:
        hidden: (..., d_model), any floating dtype.
        vectors: (..., d_model), unit norm.
        targets: (...,) projections wanted, in units of the residual stream, any sign.
    """
    vectors, targets = _exact(hidden, vectors, targets)
    along = einsum(hidden.to(vectors.dtype), vectors, "... d_model, ... d_model -> ...")
    return _moved(hidden, vectors, targets - along)


def erased(hidden: Tensor, write: Tensor, read: Tensor, mean: Tensor, strengths: Tensor) -> Tensor:
    """H' = h − strength · (read · (h − mean)) write: LEACE, see `interp.direction.Eraser`.

    With read = write and mean 0 it is `projected_out`.

    Args:
        hidden: (..., d_model), any floating dtype.
        write: (..., d_model), what is moved along.
        read: (..., d_model), what is read, scaled so that read · write = 1.
        mean: (..., d_model), the stream that is left where it is.
        strengths: (...,) 1 erases, 0 leaves a row bit for bit as it is.
    """
    write, read, mean, strengths = _exact(hidden, write, read, mean, strengths)
    reading = einsum(hidden.to(read.dtype) - mean, read, "... d_model, ... d_model -> ...")
    return _moved(hidden, write, -strengths * reading)
