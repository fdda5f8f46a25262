"""Interventions on residual streams: pure functions on tensors, never in place."""

from __future__ import annotations

import torch
from einops import einsum
from torch import Tensor

__all__ = ["add", "add_at"]


def add(hidden: Tensor, vectors: Tensor, coefficients: Tensor) -> Tensor:
    """H' = h + coefficient · vector, in the dtype of `hidden`.

    Args:
        hidden: (n, d_model).
        vectors: (n, d_model), unit norm.
        coefficients: (n,) in units of the residual stream, any sign; 0 leaves a row as it is.
    """
    added = einsum(coefficients, vectors, "n, n d_model -> n d_model")
    return hidden + added.to(hidden.dtype)


def add_at(
    hidden: Tensor, rows: Tensor, columns: Tensor, vectors: Tensor, coefficients: Tensor
) -> Tensor:
    """`add` at one position of some sequences of a batch; everything else is copied unchanged.

    Args:
        hidden: (n, seq, d_model).
        rows: (k,) sequences to change.
        columns: (k,) the position in each.
        vectors: (k, d_model).
        coefficients: (k,).
    """
    device = hidden.device
    rows, columns = rows.to(device), columns.to(device)
    changed = hidden.clone()
    changed[rows, columns] = add(
        hidden[rows, columns], vectors.to(device), coefficients.to(device, torch.float32)
    )
    return changed
