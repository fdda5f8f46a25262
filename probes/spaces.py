"""The coefficients of many label vectors: weights of the items, or of the features.

In the row space coefficients are weights of the items (n of them, w = Zᵀa), and inner products of
coefficients are those of the weights, uᵀKv. In the feature space they are the weights themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

__all__ = ["CG_STEPS", "Double", "FeatureSpace", "Inverse", "RowSpace", "Single", "Space", "dots"]

Double = NDArray[np.float64]
Single = NDArray[np.float32]
_Float = TypeVar("_Float", np.float32, np.float64)
Inverse = Callable[[Single], Single]

CG_STEPS: Final = 40
"""Most conjugate gradient steps at a point. In the feature space the preconditioner costs as much
as a hundred of them, and is only made where steps without one have reached this."""

_STALE: Final = 3
"""Conjugate gradient steps that show a preconditioner of other weights to be out of date."""


class Space(Protocol):
    """What the coefficients are."""

    n_coefficients: int
    radius: float

    def decisions(self, coefficients: Double) -> Double:
        """(n, columns) decisions without intercept."""

    def pull(self, residual: Double) -> Double:
        """The coefficients whose weights are Zᵀ of (n, columns)."""

    def squared_norms(self, coefficients: Double) -> Double:
        """(columns,) of the weights."""

    def penalty(self, coefficients: Double, values: Double, /) -> Double:
        """The same, given `decisions` too."""

    def squared_single(self, coefficients: Single) -> Single:
        """The same, in float32."""

    def lift(self, coefficients: Single) -> Single:
        """Like `decisions`, in float32."""

    def pull_single(self, residual: Single) -> Single:
        """Like `pull`, in float32."""

    def dot(self, u: Single, v: Single, lifted: Single, /) -> Single:
        """(columns,) inner products as weights of u and v, given also `lift` of v."""

    def inverse(self, now: Inverse | None, weights: Double, used: int) -> Inverse | None:
        """Preconditioner for mean weights (n,); `now` if that will do, None if there is none.

        Args:
            now: the one so far.
            weights: C · p(1 − p), mean over the columns.
            used: conjugate gradient steps at the last point.
        """


class RowSpace:
    """Coefficients are weights of the items, for standardised items z (n, d)."""

    def __init__(self, z: Double) -> None:
        self.gram: Double = z @ z.T
        self.kernel: Single = self.gram.astype(np.float32)
        self.n_coefficients = len(z)
        self.radius = float(np.sqrt(max(0.0, self.gram.diagonal().max())))

    def decisions(self, coefficients: Double) -> Double:
        return self.gram @ coefficients

    def pull(self, residual: Double) -> Double:
        return residual

    def squared_norms(self, coefficients: Double) -> Double:
        return np.maximum(dots(coefficients, self.gram @ coefficients), 0)

    def penalty(self, coefficients: Double, values: Double) -> Double:
        return dots(coefficients, values)

    def squared_single(self, coefficients: Single) -> Single:
        return np.maximum(dots(coefficients, self.kernel @ coefficients), 0)

    def lift(self, coefficients: Single) -> Single:
        return self.kernel @ coefficients

    def pull_single(self, residual: Single) -> Single:
        return residual

    def dot(self, u: Single, _v: Single, lifted: Single) -> Single:
        return dots(u, lifted)

    def inverse(self, now: Inverse | None, weights: Double, used: int) -> Inverse | None:
        if now is not None and used <= _STALE:
            return now
        # (I + S²K)⁻¹ = S·(I + S·K·S)⁻¹·S⁻¹, symmetric under the inner product uᵀKv.
        s = np.sqrt(weights).astype(np.float32)
        matrix = self.kernel * s[:, None]
        matrix *= s
        inverted = _inverted(matrix)
        if inverted is None:
            return None
        scaled: Single = inverted * s[:, None] / s
        return lambda r: scaled @ r


class FeatureSpace:
    """Coefficients are weights of the features, for standardised items z (n, d)."""

    def __init__(self, z: Double) -> None:
        self.z, self.single = z, z.astype(np.float32)
        self.n_coefficients = z.shape[1]
        self.radius = float(np.sqrt(np.einsum("ij,ij->i", z, z).max()))
        self.moments: Single | None = None
        self.level = 0.0

    def decisions(self, coefficients: Double) -> Double:
        return self.z @ coefficients

    def pull(self, residual: Double) -> Double:
        return self.z.T @ residual

    def squared_norms(self, coefficients: Double) -> Double:
        return dots(coefficients, coefficients)

    def penalty(self, coefficients: Double, _values: Double) -> Double:
        return dots(coefficients, coefficients)

    def squared_single(self, coefficients: Single) -> Single:
        return dots(coefficients, coefficients)

    def lift(self, coefficients: Single) -> Single:
        return self.single @ coefficients

    def pull_single(self, residual: Single) -> Single:
        return self.single.T @ residual

    def dot(self, u: Single, v: Single, _lifted: Single) -> Single:
        return dots(u, v)

    def inverse(self, now: Inverse | None, weights: Double, used: int) -> Inverse | None:
        if used < CG_STEPS and self.moments is None:
            return lambda r: r
        # One weight for all items, so that the second moments are computed once.
        level = float(weights.mean())
        if now is not None and self.moments is not None and 0.5 < level / self.level < 2:
            return now
        if self.moments is None:
            self.moments = self.single.T @ self.single
        self.level = level
        matrix = self.moments * np.float32(level)
        matrix.ravel()[:: len(matrix) + 1] += 1
        factor, failed = lapack.spotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
        if failed:
            return None
        return lambda r: np.ascontiguousarray(lapack.spotrs(factor, r, lower=1)[0])


def _inverted(matrix: Single) -> Single | None:
    """(I + M)⁻¹ of a symmetric matrix, which is overwritten; None if float32 cannot."""
    matrix.ravel()[:: len(matrix) + 1] += 1
    # The transpose of a symmetric matrix is itself, in the order that LAPACK works in place.
    factor, failed = lapack.spotrf(matrix.T, lower=1, overwrite_a=1, clean=1)
    if failed:
        return None
    half, _ = lapack.spotri(factor, lower=1, overwrite_c=1)
    whole: Single = half + half.T
    whole.ravel()[:: len(whole) + 1] *= 0.5
    return whole


def dots(u: NDArray[_Float], v: NDArray[_Float]) -> NDArray[_Float]:
    """(columns,) inner products."""
    found: NDArray[_Float] = np.einsum("ij,ij->j", u, v)
    return found
