"""Norms of ΔW: from small cores where it is a product of factors, blockwise otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from interp.adapters.delta import BLOCK_ELEMENTS, Delta, Kronecker, LowRank, blocks
from interp.adapters.lanczos import largest_singular_value

__all__ = [
    "Spectrum",
    "core_singular_values",
    "max_abs",
    "max_abs_of",
    "maxima",
    "norm_of",
    "spectra",
    "spectrum",
]

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
        return spectra([delta])[0]
    if isinstance(delta, Kronecker):
        return _of_kronecker(delta)
    if min(delta.n_rows, delta.n_columns) <= _EXACT_SIDE:
        matrix = torch.cat([delta.rows(*block).double() for block in blocks(delta)])
        return _from_values(torch.linalg.svdvals(matrix), complete=True)
    square = sum(float(delta.rows(*block).double().square().sum()) for block in blocks(delta))
    values = torch.tensor([largest_singular_value(delta)], dtype=torch.float64)
    return _from_values(values, complete=False, frobenius=square**0.5)


def spectra(deltas: Sequence[LowRank]) -> list[Spectrum]:
    """Norms and singular values of factored updates of one shape, as one batch of r×r cores."""
    left, right = (torch.cat([getattr(d, side) for d in deltas]) for side in ("left", "right"))
    values = core_singular_values(LowRank(left, right, 1.0)).cpu()
    return [
        _from_values(
            own.flatten().sort(descending=True).values * abs(delta.scale),
            complete=True,
        )
        for own, delta in zip(values.chunk(len(deltas)), deltas, strict=True)
    ]


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
    """Exact max|ΔW|, at most `elements` entries of ΔW in memory at a time."""
    if isinstance(delta, Kronecker):
        return max_abs_of(delta.left) * max_abs_of(delta.right) * abs(delta.scale)
    if not isinstance(delta, LowRank):
        return max((max_abs_of(delta.rows(*block)) for block in blocks(delta, elements)), default=0)
    return maxima([delta], elements)[0]


def maxima(deltas: Sequence[LowRank], elements: int = BLOCK_ELEMENTS) -> list[float]:
    """Exact max|ΔW| of factored updates of one shape, as one batch.

    Searched in float32, with both factors scaled to unit maximum so that tiny ones do not
    underflow; the winning entry of each is computed again in float64.

    Args:
        deltas: all of one shape, on one device.
        elements: entries of all ΔW together that are in memory at a time.
    """
    n, out, _ = deltas[0].left.shape
    n_columns = deltas[0].n_columns
    sizes = [(max_abs_of(d.left), max_abs_of(d.right)) for d in deltas]
    left = torch.cat([_unit(d.left, size) for d, (size, _) in zip(deltas, sizes, strict=True)])
    right = torch.cat([_unit(d.right, size) for d, (_, size) in zip(deltas, sizes, strict=True)])
    n_matrices = left.shape[0]
    best = torch.full((n_matrices,), -1.0, device=left.device)
    where = torch.zeros(n_matrices, dtype=torch.long, device=left.device)
    # Few rows of many matrices, or a few matrices whole: as many entries either way.
    group = max(1, min(n_matrices, elements // max(1, n_columns)))
    step = max(1, elements // max(1, n_columns * group))
    for first in range(0, n_matrices, group):
        which = slice(first, first + group)
        for start in range(0, out, step):
            block = left[which, start : start + step] @ right[which]
            flat = block.abs_().flatten(1)
            largest, place = flat.max(dim=1)
            better = largest > best[which]
            best[which] = torch.where(better, largest, best[which])
            where[which] = torch.where(better, place + start * n_columns, where[which])
    found = []
    values, places = best.tolist(), where.tolist()
    for index, delta in enumerate(deltas):
        if 0.0 in sizes[index] or delta.scale == 0 or not n * out * n_columns:
            found.append(0.0)
            continue
        # Of stacked matrices, the one with the largest entry.
        own = range(index * n, (index + 1) * n)
        matrix = max(own, key=lambda m: values[m]) - index * n
        row, column = divmod(places[index * n + matrix], n_columns)
        exact = delta.left[matrix, row].double() @ delta.right[matrix, :, column].double()
        found.append(abs(float(exact) * delta.scale))
    return found


def _unit(factor: torch.Tensor, size: float) -> torch.Tensor:
    """A factor over its largest entry, in float32."""
    return (factor.double() / size).float() if size > 0 else factor.float()


def max_abs_of(tensor: torch.Tensor) -> float:
    """Largest absolute entry; 0 for an empty tensor."""
    if not tensor.numel():
        return 0.0
    low, high = torch.aminmax(tensor)
    return max(-float(low), float(high))


def norm_of(tensor: torch.Tensor) -> float:
    """Frobenius norm in float64."""
    return float(torch.linalg.vector_norm(tensor.double()))
