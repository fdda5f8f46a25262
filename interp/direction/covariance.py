"""A covariance matrix shrunk towards a multiple of the identity, kept by its spectrum.

Residual streams have more dimensions than there are items, so the sample covariance is singular
and its inverse means nothing for new items. Shrinking mends that; how far is estimated by Ledoit
and Wolf's formula (2004, "A well-conditioned estimator for large-dimensional covariance matrices",
section 3) unless it is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from interp.errors import SteeringError

__all__ = ["ShrunkCovariance", "shrunk_covariance"]


@dataclass(frozen=True, slots=True)
class ShrunkCovariance:
    """(1 − s)·S + s·(tr S / d)·I for the sample covariance S of some centred rows.

    Attributes:
        axes: (rank, d_model) float64, orthonormal: the axes along which the rows vary.
        variances: (rank,) of S along them (divided by the number of rows), all positive.
        scale: tr S / d_model.
        shrinkage: s, between 0 and 1.
    """

    axes: NDArray[np.float64]
    variances: NDArray[np.float64]
    scale: float
    shrinkage: float

    def solve(self, vector: NDArray[np.float64]) -> NDArray[np.float64]:
        """(d_model,) inverse times `vector`; without shrinkage the pseudo-inverse."""
        along = self.axes @ vector
        floor = self.shrinkage * self.scale
        kept = (1 - self.shrinkage) * self.variances + floor
        inside: NDArray[np.float64] = self.axes.T @ (along / kept)
        if self.shrinkage == 0:
            return inside
        return inside + (vector - self.axes.T @ along) / floor


def shrunk_covariance(
    centred: NDArray[np.float64], shrinkage: float | None = None
) -> ShrunkCovariance:
    """Covariance of rows whose mean (or class means) the caller has subtracted.

    Args:
        centred: (n, d_model).
        shrinkage: between 0 and 1; None estimates it (Ledoit and Wolf).

    Raises:
        SteeringError: the rows do not vary, or a shrinkage outside 0 to 1.
    """
    if shrinkage is not None and not 0 <= shrinkage <= 1:
        raise SteeringError(f"The shrinkage is {shrinkage}; expected a number from 0 to 1.")
    n, width = centred.shape
    _, singular, axes = np.linalg.svd(centred, full_matrices=False)
    if not singular.size or singular[0] == 0:
        raise SteeringError(
            f"The {n} activations do not vary within their class, so they have no covariance. "
            f"Give more items."
        )
    kept = singular > singular[0] * max(n, width) * np.finfo(np.float64).eps
    variances = singular[kept] ** 2 / n
    scale = float(variances.sum() / width)
    if shrinkage is None:
        squares = float((variances**2).sum())
        fourth = float(((centred**2).sum(axis=1) ** 2).mean())
        noise, spread = (fourth - squares) / n, squares - width * scale**2
        shrinkage = 1.0 if spread <= 0 else float(min(max(noise / spread, 0), 1))
    return ShrunkCovariance(axes[kept], variances, scale, shrinkage)
