"""The largest singular value of a large full-rank ΔW, with a certified residual.

Power iteration stalls where the largest singular values lie close together, as they do for noise:
it stops one percent too low. Lanczos on ΔWᵀΔW with full reorthogonalisation hardly depends on the
gap. Its Ritz value θ never exceeds the largest eigenvalue, and the residual β_k·|s_k| bounds the
distance of θ to an eigenvalue, so that steps go on until that bound is small (Golub and Van Loan,
Matrix Computations, section 10.1).
"""

from __future__ import annotations

import math
from typing import Final

import torch

from interp.adapters.delta import Delta, blocks

__all__ = ["largest_singular_value"]

_TOLERANCE: Final = 1e-6
"""Residual over θ at which the iteration stops: σ is then good to half of it."""

_CHECK_EVERY: Final = 5
_MOST_STEPS: Final = 1000

_HELD_ELEMENTS: Final = 2**27
"""Larger updates (whole vocabularies) are computed anew in every step."""


def largest_singular_value(delta: Delta, *, tolerance: float = _TOLERANCE) -> float:
    """‖ΔW‖₂ to a relative error of `tolerance`; deterministic.

    Args:
        delta: of any size; ΔW is computed by blocks of rows, and held if it is not too large.
        tolerance: largest residual of the Ritz pair of ΔWᵀΔW, relative to its value.
    """
    apply = _Gram(delta)
    n = delta.n_columns
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(n, dtype=torch.float64, generator=generator)
    vector = vector / vector.norm()
    basis = torch.empty(min(n, _MOST_STEPS), n, dtype=torch.float64)
    diagonal: list[float] = []
    beside: list[float] = []
    value = 0.0
    for step in range(basis.shape[0]):
        basis[step] = vector
        image = apply(vector)
        diagonal.append(float(vector @ image))
        known = basis[: step + 1]
        for _ in range(2):  # once is not enough in finite precision
            image = image - known.T @ (known @ image)
        beside.append(float(image.norm()))
        last = step + 1 == basis.shape[0]
        if beside[-1] <= 1e-14 * max(diagonal) or last or step % _CHECK_EVERY == 0:
            value, residual = _ritz(diagonal, beside)
            if residual <= tolerance * value or beside[-1] <= 1e-14 * max(diagonal):
                break
        vector = image / beside[-1]
    return math.sqrt(max(value, 0.0))


def _ritz(diagonal: list[float], beside: list[float]) -> tuple[float, float]:
    """The largest eigenvalue of the tridiagonal matrix, and the residual of its vector."""
    matrix = torch.diag(torch.tensor(diagonal, dtype=torch.float64))
    if len(beside) > 1:
        off = torch.diag(torch.tensor(beside[:-1], dtype=torch.float64), 1)
        matrix = matrix + off + off.T
    values, vectors = torch.linalg.eigh(matrix)
    return float(values[-1]), beside[-1] * abs(float(vectors[-1, -1]))


class _Gram:
    """v to ΔWᵀΔWv, in float64 sums over blocks of rows."""

    def __init__(self, delta: Delta) -> None:
        self._delta = delta
        self._ranges = list(blocks(delta))
        small = delta.n_rows * delta.n_columns <= _HELD_ELEMENTS
        self._held = [delta.rows(*block) for block in self._ranges] if small else None

    def __call__(self, vector: torch.Tensor) -> torch.Tensor:
        image = torch.zeros_like(vector)
        for place, block in enumerate(self._ranges):
            rows = self._held[place] if self._held is not None else self._delta.rows(*block)
            middle = rows @ vector.to(rows.device, rows.dtype)
            # Tiny updates would underflow where they are multiplied by themselves.
            size = float(middle.abs().max()) if middle.numel() else 0.0
            if size > 0:
                image += (rows.T @ (middle / size)).double().cpu() * size
        return image
