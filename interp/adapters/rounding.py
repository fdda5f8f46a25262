"""Tensors in formats of different precision: equal means equal after rounding to the coarser."""

from __future__ import annotations

import torch

__all__ = ["as_stored", "coarser", "same_up_to_rounding", "widened"]


def coarser(first: torch.Tensor, second: torch.Tensor) -> torch.dtype:
    """The format of the two with the larger spacing at 1; the first's, if they are alike."""
    if not (first.is_floating_point() and second.is_floating_point()):
        return first.dtype
    formats = (first.dtype, second.dtype)
    return max(formats, key=lambda dtype: torch.finfo(dtype).eps)


def as_stored(tensor: torch.Tensor, stored: torch.Tensor) -> torch.Tensor:
    """`tensor` as it would read if it had been saved in the format of `stored`, widened again.

    A finer format changes nothing; floats of one byte are widened for arithmetic.
    """
    rounded = tensor.to(stored.dtype) if stored.is_floating_point() else tensor
    return widened(rounded)


def same_up_to_rounding(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether one is the other, saved in a coarser format."""
    if first.shape != second.shape:
        return False
    dtype = coarser(first, second)
    if torch.equal(widened(first.to(dtype)), widened(second.to(dtype))):
        return True
    # bfloat16 is coarser, but float16 ends earlier: either may have been the copy.
    other = second.dtype if dtype == first.dtype else first.dtype
    return torch.equal(widened(first.to(other)), widened(second.to(other)))


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Floats of one byte have no arithmetic and no comparison: as float32."""
    return tensor.float() if tensor.is_floating_point() and tensor.element_size() < 2 else tensor
