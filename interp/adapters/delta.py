"""ΔW of one weight, as rows that are computed on demand.

Every update is seen as a matrix of shape (n_rows, n_columns) with the output features along the
rows; a convolution's kernel is flattened into the columns, fused experts are stacked along the
rows. Norms do not depend on this view; `to_matrix` and `from_matrix` go between it and the base
model's own layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol

import torch

from interp.errors import AdapterError

__all__ = [
    "BLOCK_ELEMENTS",
    "Delta",
    "Dense",
    "Kronecker",
    "Layout",
    "LowRank",
    "blocks",
    "from_matrix",
    "materialise",
    "to_matrix",
]

Layout = Literal["plain", "transposed", "conv"]
"""How a base stores a weight: (…, out, in); (…, in, out) as Conv1D and embeddings do; or
(out, in, k, …)."""

BLOCK_ELEMENTS: Final = 4_194_304
"""Entries of ΔW that are held at a time (16 MiB in float32)."""


class Delta(Protocol):
    """An update of one weight."""

    @property
    def n_rows(self) -> int:
        """Rows of the matrix view."""

    @property
    def n_columns(self) -> int:
        """Columns of the matrix view."""

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """(stop − start, n_columns) rows of ΔW."""


@dataclass(frozen=True, slots=True)
class LowRank:
    """ΔW = scale · left @ right, for each of n stacked matrices (n > 1 for fused experts).

    Attributes:
        left: (n, out, r).
        right: (n, r, in).
        scale: the scaling, α/r or its kin.
    """

    left: torch.Tensor
    right: torch.Tensor
    scale: float

    def __post_init__(self) -> None:
        fits = self.left.ndim == self.right.ndim == 3 and self.left.shape[0] == self.right.shape[0]
        if not fits or self.left.shape[2] != self.right.shape[1]:
            raise AdapterError(
                f"Factors of shapes {tuple(self.left.shape)} and {tuple(self.right.shape)} have no "
                f"product; expected (n, out, r) and (n, r, in)."
            )

    @property
    def n_rows(self) -> int:
        """Rows of all stacked matrices."""
        return self.left.shape[0] * self.left.shape[1]

    @property
    def n_columns(self) -> int:
        """Input features."""
        return self.right.shape[2]

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Rows of ΔW; a slice may run over the border of two stacked matrices."""
        out = self.left.shape[1]
        pieces = []
        while start < stop:
            which, first = divmod(start, out)
            last = min(out, first + stop - start)
            pieces.append(self.left[which, first:last] @ self.right[which])
            start += last - first
        return (pieces[0] if len(pieces) == 1 else torch.cat(pieces)) * self.scale


@dataclass(frozen=True, slots=True)
class Dense:
    """ΔW of full rank, given by a function of the rows.

    Attributes:
        n_rows: rows of the matrix view.
        n_columns: columns of the matrix view.
        rows: from (start, stop) to these rows.
    """

    n_rows: int
    n_columns: int
    rows: Callable[[int, int], torch.Tensor]

    @classmethod
    def of(cls, matrix: torch.Tensor) -> Dense:
        """An update that is there already, (n_rows, n_columns)."""
        return cls(matrix.shape[0], matrix.shape[1], lambda start, stop: matrix[start:stop])


@dataclass(frozen=True, slots=True)
class Kronecker:
    """ΔW = scale · left ⊗ right, never built as a whole.

    ‖A⊗B‖_F = ‖A‖_F‖B‖_F, the singular values are all products of those of A and B, and
    max|A⊗B| = max|A|·max|B|.

    Attributes:
        left: (p, q).
        right: (s, t).
        scale: the scaling.
    """

    left: torch.Tensor
    right: torch.Tensor
    scale: float

    def __post_init__(self) -> None:
        if self.left.ndim != 2 or self.right.ndim != 2:
            raise AdapterError(
                f"Factors of shapes {tuple(self.left.shape)} and {tuple(self.right.shape)} are no "
                f"matrices; expected two of them."
            )

    @property
    def n_rows(self) -> int:
        """p·s."""
        return self.left.shape[0] * self.right.shape[0]

    @property
    def n_columns(self) -> int:
        """q·t."""
        return self.left.shape[1] * self.right.shape[1]

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """Rows of ΔW: row i is row i // s of A times row i % s of B."""
        index = torch.arange(start, stop, device=self.left.device)
        size = self.right.shape[0]
        first, second = self.left[index // size], self.right[index % size]
        return (first[:, :, None] * second[:, None, :]).flatten(1) * self.scale


def blocks(delta: Delta, elements: int = BLOCK_ELEMENTS) -> Iterator[tuple[int, int]]:
    """Ranges of rows such that a block has at most `elements` entries (and at least one row)."""
    step = max(1, elements // max(1, delta.n_columns))
    for start in range(0, delta.n_rows, step):
        yield start, min(start + step, delta.n_rows)


def materialise(delta: Delta) -> torch.Tensor:
    """The whole matrix, (n_rows, n_columns). For small updates and tests."""
    return delta.rows(0, delta.n_rows)


def to_matrix(weight: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A base weight in the matrix view, where possible without a copy.

    Args:
        weight: a vector, (out, in), (out, in, k, …) for `conv`, or (n, out, in).
        layout: how the base stores it.
    """
    if weight.ndim == 1:
        return weight[:, None]
    if layout == "conv":
        return weight.flatten(1)
    if layout == "transposed":
        weight = weight.transpose(-1, -2)
    return weight if weight.ndim == 2 else weight.reshape(-1, weight.shape[-1])


def from_matrix(matrix: torch.Tensor, shape: tuple[int, ...], layout: Layout) -> torch.Tensor:
    """The inverse of `to_matrix` for a base weight of that shape."""
    if layout != "transposed":
        return matrix.reshape(shape)
    swapped = (*shape[:-2], shape[-1], shape[-2])
    return matrix.reshape(swapped).transpose(-1, -2)
