"""Norms of ΔW: from small cores where it is a product of factors, blockwise otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from interp.adapters.delta import BLOCK_ELEMENTS, Delta, Kronecker, LowRank, blocks
from interp.adapters.lanczos import largest_singular_value

__all__ = ["Spectrum", "core_singular_values", "max_abs", "max_abs_of", "norm_of", "spectrum"]

_EXACT_SIDE: Final = 512
"""Full-rank updates up to this size get all singular values; larger ones the largest only."""


@dataclass(frozen=True, slots=True)
class Spectrum:
    """What the singular values of ΔW say.

    Attributes:
        frobenius: ‖ΔW‖_F.
        spectral: ‖ΔW‖₂, the largest singular value.
        stable_rank: ‖ΔW‖_F² / ‖ΔW‖₂²; None for ΔW = 0.
        effective_rank: exp of the entropy of σ/Σσ (Roy and Vetterli, 2007); None where not all
            singular values are known, or ΔW = 0.
        singular_values: largest first; only the largest one for big full-rank updates.
    """

    frobenius: float
    spectral: float
    stable_rank: float | None
    effective_rank: float | None
    singular_values: tuple[float, ...]


def core_singular_values(delta: LowRank) -> torch.Tensor:
    """Singular values of scale · left @ right from an r×r core.

    With left = Q_l R_l and rightᵀ = Q_r R_r, those of R_l R_rᵀ are the same, because the Qs have
    orthonormal columns. In float64, so that factors of very different sizes lose nothing.

    Returns:
        (n, min(out, r, in)) float64, each row largest first.
    """
    left = torch.linalg.qr(delta.left.double(), mode="r").R
    right = torch.linalg.qr(delta.right.double().transpose(1, 2), mode="r").R
    values: torch.Tensor = torch.linalg.svdvals(left @ right.transpose(1, 2)) * abs(delta.scale)
    return values


def spectrum(delta: Delta) -> Spectrum:
    """Norms and singular values of an update.

    Factored updates never leave the r×r core, Kronecker products their factors. Full-rank ones are
    computed by blocks of rows; the spectral norm of large ones by `largest_singular_value`.
    """
    if isinstance(delta, LowRank):
        values = core_singular_values(delta).flatten().sort(descending=True).values
        return _from_values(values, complete=True)
    if isinstance(delta, Kronecker):
        return _of_kronecker(delta)
    if min(delta.n_rows, delta.n_columns) <= _EXACT_SIDE:
        matrix = torch.cat([delta.rows(*block).double() for block in blocks(delta)])
        return _from_values(torch.linalg.svdvals(matrix), complete=True)
    square = sum(float(delta.rows(*block).double().square().sum()) for block in blocks(delta))
    values = torch.tensor([largest_singular_value(delta)], dtype=torch.float64)
    return _from_values(values, complete=False, frobenius=square**0.5)


def _of_kronecker(delta: Kronecker) -> Spectrum:
    """From the singular values of the two factors: all products of one of each."""
    first, second = (torch.linalg.svdvals(m.double()) for m in (delta.left, delta.right))
    values = torch.outer(first, second).flatten() * abs(delta.scale)
    return _from_values(values.sort(descending=True).values, complete=True)


def _from_values(
    values: torch.Tensor, *, complete: bool, frobenius: float | None = None
) -> Spectrum:
    largest = float(values[0]) if values.numel() else 0.0
    total = float(values.norm()) if frobenius is None else frobenius
    effective = None
    if complete and largest > 0:
        shares = values / values.sum()
        shares = shares[shares > 0]
        effective = float(torch.exp(-(shares * shares.log()).sum()))
    return Spectrum(
        frobenius=total,
        spectral=largest,
        stable_rank=(total / largest) ** 2 if largest > 0 else None,
        effective_rank=effective,
        singular_values=tuple(values.tolist()),
    )


def max_abs(delta: Delta, elements: int = BLOCK_ELEMENTS) -> float:
    """Exact max|ΔW|, at most `elements` entries of ΔW in memory at a time.

    A factored update is searched in float32, with both factors scaled to unit maximum so that
    tiny ones do not underflow, and the winning entry is computed again in float64.
    """
    if isinstance(delta, Kronecker):
        return max_abs_of(delta.left) * max_abs_of(delta.right) * abs(delta.scale)
    if not isinstance(delta, LowRank):
        return max((max_abs_of(delta.rows(*block)) for block in blocks(delta, elements)), default=0)
    size_left, size_right = max_abs_of(delta.left), max_abs_of(delta.right)
    if size_left == 0 or size_right == 0 or delta.scale == 0:
        return 0.0
    left = (delta.left.double() / size_left).float()
    right = (delta.right.double() / size_right).float()
    best, where = -1.0, (0, 0)
    unit = LowRank(left, right, 1.0)
    for start, stop in blocks(unit, elements):
        block = unit.rows(start, stop)
        low, high = torch.aminmax(block)
        largest = max(-float(low), float(high))
        if largest > best:
            flat = int(block.argmin() if -float(low) > float(high) else block.argmax())
            best, where = largest, (start + flat // delta.n_columns, flat % delta.n_columns)
    which, row = divmod(where[0], delta.left.shape[1])
    exact = delta.left[which, row].double() @ delta.right[which, :, where[1]].double()
    return abs(float(exact) * delta.scale)


def max_abs_of(tensor: torch.Tensor) -> float:
    """Largest absolute entry; 0 for an empty tensor."""
    if not tensor.numel():
        return 0.0
    low, high = torch.aminmax(tensor)
    return max(-float(low), float(high))


def norm_of(tensor: torch.Tensor) -> float:
    """Frobenius norm in float64."""
    return float(torch.linalg.vector_norm(tensor.double()))
