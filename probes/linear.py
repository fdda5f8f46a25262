"""Gram matrices and Cholesky factors, in float32 or float64."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from interp.errors import ProbeError

__all__ = ["factorise", "gram_matrix", "solve_shifted"]

_ENLARGED: Final = (1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3)


def gram_matrix(z: Tensor) -> Tensor:
    """z·zᵀ. On a CPU numpy's product, which sees the symmetry and computes one half."""
    if z.is_cuda:
        return z @ z.T
    array = z.numpy()
    return torch.from_numpy(array @ array.T)


def solve_shifted(matrix: Tensor, right: Tensor) -> Tensor:
    """Solve (I + M)·x = r for positive semidefinite M (columns, k, k), which is overwritten.

    Args:
        matrix: float32 or float64.
        right: (columns, k, sides) float64.
    """
    matrix.diagonal(dim1=1, dim2=2).add_(1)
    factor = factorise(matrix)
    # For a few sides two triangular solves are several times faster than `cholesky_solve`.
    half = torch.linalg.solve_triangular(factor, right.to(factor.dtype), upper=False)
    solved: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return solved.double()


def factorise(matrix: Tensor) -> Tensor:
    """Cholesky factor; where rounding makes the matrix indefinite, of one a little larger.

    A larger matrix shortens a Newton step, and so costs further steps, not the solution.

    Raises:
        ProbeError: no small enlargement helps.
    """
    factor: Tensor
    factor, failed = torch.linalg.cholesky_ex(matrix)
    if not bool(failed.any()):
        return factor
    largest = matrix.diagonal(dim1=-2, dim2=-1).amax(dim=-1)[..., None]
    for enlarged in _ENLARGED:
        shifted = matrix.to(torch.float64, copy=True)
        shifted.diagonal(dim1=-2, dim2=-1).add_(enlarged * largest)
        factor, failed = torch.linalg.cholesky_ex(shifted)
        if not bool(failed.any()):
            return factor
    raise ProbeError(
        "The probe's equations are too ill-conditioned to be solved. Use a smaller C, and check "
        "the activations for features of extreme size."
    )
