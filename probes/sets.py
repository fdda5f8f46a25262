"""The coefficients of few label vectors on several training sets: weights of the items."""

from __future__ import annotations

from copy import copy
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probes.products import Double, Items, Single, dots
from probes.scaling import Common
from probes.spaces import ROUNDING

__all__ = ["FEW", "SetsSpace"]

FEW: Final = 4
"""Up to so many label vectors each get a factor of their own in the row space, and products with
the items rather than with a float64 Gram matrix."""

_WIDEST: Final = 1.4
"""Up to so many times the common scale that of a set is near it."""


class SetsSpace:
    """Coefficients are weights of the items of several training sets, each for few label vectors.

    Rows are all items, and coefficients outside the training set are zero. A Gram matrix for each
    set's own scale costs as much as some steps on all sets. For one strength that is not large a
    matrix for the common scale gives factors that are near enough, and products are with the items.
    """

    whole = True

    def __init__(
        self, common: Common, training: NDArray[np.bool_], labels: NDArray[np.bool_], *, own: bool
    ):
        """Gram matrices.

        Args:
            common: items and the scale of each set.
            training: (n, n_sets) of bool.
            labels: (n, n_labels) of bool.
            own: whether each set gets a Gram matrix of its own; so it does where scales differ.
        """
        z, widest = common.z, float(common.scale.max())
        self.items = Items(z)
        self.rows = [np.flatnonzero(kept) for kept in training.T]
        against = np.where(labels, -1.0, 1.0)[:, None] * training[:, :, None]
        self.against = against.reshape(len(z), -1)
        self.set_of = np.repeat(np.arange(len(self.rows)), labels.shape[1])
        self.squares = common.scale[:, self.set_of] ** 2
        self.n_coefficients = len(z)
        self.radius = float(np.sqrt(np.einsum("ij,ij->i", z, z).max())) * widest
        self.rounding = ROUNDING * self.radius**2
        self.common: Single | None = None
        self.kernels: list[Single] = []
        # Where sets are small shares of the items, the common matrix is the larger one.
        apart = sum(len(rows) ** 2 for rows in self.rows) < len(z) ** 2
        if own or apart or widest > _WIDEST:
            for rows, scale in zip(self.rows, common.scale.T, strict=True):
                scaled = z[rows]
                scaled *= scale
                self.kernels.append(scaled @ scaled.T)
        else:
            self.common = z @ z.T
        self.excess = np.float32(1 if self.common is None else widest**2)

    def rows_of(self, column: int) -> NDArray[np.int64]:
        """The items of the column's set."""
        return self.rows[int(self.set_of[column])]

    def kernel_of(self, column: int) -> Single:
        """Inner products of these items, of the common scale if there is no other; a copy."""
        if self.common is None:
            return self.kernels[int(self.set_of[column])].copy()
        rows = self.rows_of(column)
        found: Single = self.common[rows].take(rows, axis=1)
        return found

    def take(self, columns: NDArray[np.bool_]) -> SetsSpace:
        part = copy(self)
        part.against, part.set_of = self.against[:, columns], self.set_of[columns]
        part.squares = self.squares[:, columns]
        return part

    def decisions(self, coefficients: Double) -> Double:
        return self.items.times(self.squares * self.items.pulled(coefficients))

    def pull(self, residual: Double) -> Double:
        return residual

    def product(self, u: Double, _v: Double, values: Double) -> Double:
        return dots(u, values)

    def squared(self, coefficients: Single, bound: bool, /) -> tuple[Single, Single]:
        if not bound:
            lifted = self.lift(coefficients)
            return np.maximum(dots(coefficients, lifted), 0), lifted
        lifted = self._by_kernels(coefficients)
        # No feature is wider in a set than in the common scale by more than the root of `excess`.
        return self.excess * np.maximum(dots(coefficients, lifted), 0), lifted

    def lift(self, coefficients: Single) -> Single:
        if self.common is None:
            return self._by_kernels(coefficients)
        return self.items.times(self.squares * self.items.pulled(coefficients))

    def _by_kernels(self, coefficients: Single) -> Single:
        if self.common is not None:
            return self.common @ coefficients
        lifted = np.zeros_like(coefficients)
        for column in range(coefficients.shape[1]):
            rows = self.rows_of(column)
            kernel = self.kernels[int(self.set_of[column])]
            lifted[rows, column] = kernel @ coefficients[rows, column]
        return lifted
