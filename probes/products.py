"""Products with items for a few columns at a time, and sums over items."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from probes.scaling import BLOCK, blocks

__all__ = ["Double", "Items", "Single", "dots", "sums"]

Double = NDArray[np.float64]
Single = NDArray[np.float32]
_Float = TypeVar("_Float", np.float32, np.float64)

_THIN: Final = 16
"""Up to so many columns are few."""

_SMALL_PRODUCT: Final = 9 * 10**5
"""Multiplications of a product that is small (OpenBLAS: a million)."""


_SMALL: Final = 2**18
"""Elements of items that are kept in float64 too."""


class Items:
    """Products with float32 items (n, d); those in float64 in bounded memory.

    A few columns are multiplied a few rows at a time: BLAS rearranges what is not small before it
    multiplies, and that takes longer than such products themselves.
    """

    def __init__(self, z: Single) -> None:
        self.z = z
        self.wide = z.astype(np.float64) if z.size <= _SMALL else None

    def times(self, weights: NDArray[_Float]) -> NDArray[_Float]:
        """(n, columns) of (d, columns), in the precision of the weights."""
        if weights.dtype == self.z.dtype and not 1 < weights.shape[1] <= _THIN:
            return self.z @ weights
        found = np.empty((len(self.z), weights.shape[1]), weights.dtype)
        for part in self._parts(weights):
            found[part] = self._block(part, weights) @ weights
        return found

    def pulled(self, residual: NDArray[_Float]) -> NDArray[_Float]:
        """(d, columns) of (n, columns), in the precision of the residual."""
        if residual.dtype == self.z.dtype and not 1 < residual.shape[1] <= _THIN:
            return self.z.T @ residual
        found = np.zeros((residual.shape[1], self.z.shape[1]), residual.dtype)
        for part in self._parts(residual):
            found += np.ascontiguousarray(residual[part].T) @ self._block(part, residual)
        return found.T

    def around(self, weights: Single, between: Single) -> tuple[Single, Single]:
        """(n, columns) of (d, columns); and (d, columns) of that times what is between.

        Items are read once for both, which is what takes the time if columns are few.

        Args:
            weights: (d, columns).
            between: (n, columns).
        """
        lifted, pulled = np.empty_like(between), np.zeros(weights.shape[::-1], weights.dtype)
        for part in self._parts(weights):
            block = self.z[part]
            lifted[part] = block @ weights
            pulled += np.ascontiguousarray((between[part] * lifted[part]).T) @ block
        return lifted, pulled.T

    def _block(self, part: slice, right: NDArray[_Float]) -> NDArray[_Float]:
        wide = self.wide if right.dtype == np.float64 else None
        return (self.z if wide is None else wide)[part].astype(right.dtype, copy=False)

    def _parts(self, right: NDArray[_Float]) -> Iterator[slice]:
        n, d = self.z.shape
        small = _SMALL_PRODUCT // right.shape[1] if right.shape[1] <= _THIN else n * d
        return blocks(n, d, min(small, BLOCK if right.dtype == np.float64 else n * d))


def dots(u: NDArray[_Float], v: NDArray[_Float]) -> NDArray[_Float]:
    """(columns,) inner products."""
    found: NDArray[_Float] = np.einsum("ij,ij->j", u, v)
    return found


def sums(u: NDArray[_Float]) -> NDArray[_Float]:
    """(columns,) sums, which as a product are several times faster."""
    found: NDArray[_Float] = np.ones(len(u), u.dtype) @ u
    return found
