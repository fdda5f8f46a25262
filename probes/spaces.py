"""The coefficients of label vectors: weights of the items, or of the features.

In the row space coefficients are weights of the items of a training set (w = Zᵀa), and inner
products of coefficients are those of the weights, uᵀKv. In the feature space they are the weights
themselves. Z is z · scale, as `probes.scaling.Common` has them; columns stand by training set, each
with the same number of label vectors.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack

from probes.products import Double, Items, Single, dots
from probes.scaling import Common

__all__ = [
    "ROUNDING",
    "ConjugateSpace",
    "FeatureSpace",
    "Inverse",
    "RowSpace",
    "Space",
]

Inverse = Callable[[Single], Single]

_PATIENCE: Final = 20.0
"""In the feature space, steps for each e-fold of the gradient from which a preconditioner pays."""

_PRICE: Final = 50
"""Features for each column that raise this by one: the preconditioner costs as much as more steps.
Four columns come on top, because products with few are slow."""

_UTMOST: Final = 100.0
"""Steps for each e-fold at which a point is left although there is a preconditioner."""

_CHEAP: Final = 16
"""Features for each column up to which the preconditioner costs as little as a few steps."""

ROUNDING: Final = 4 * float(np.finfo(np.float32).eps)
"""Of an inner product of the items, relative to the largest."""

_STALE: Final = 1
"""Steps for an e-fold that show a preconditioner of other weights to be out of date."""


class Space(Protocol):
    """What the coefficients are.

    Attributes:
        against: (n, columns): −1 True, 1 False, 0 outside the training set of the column.
        n_coefficients: of a column.
        radius: largest norm of an item.
        rounding: what float32 may miss of `squared`, over the square of the sum of the absolute
            coefficients.
        whole: whether the rows are all items, and not those of a training set.
    """

    against: Double
    n_coefficients: int
    radius: float
    rounding: float
    whole: bool

    def take(self, columns: NDArray[np.bool_], /) -> Space:
        """The same for some of the columns."""

    def decisions(self, coefficients: Double) -> Double:
        """(n, columns) decisions without intercept."""

    def pull(self, residual: Double) -> Double:
        """The coefficients whose weights are Zᵀ of (n, columns)."""

    def product(self, u: Double, v: Double, values: Double, /) -> Double:
        """(columns,) inner products as weights of u and v, given also `decisions` of v."""

    def squared(self, coefficients: Single, bound: bool, /) -> tuple[Single, Single]:
        """The same from float32 alone, or no less, and what it takes that serves steps too.

        Args:
            coefficients: (k, columns).
            bound: whether a bound from above will do.
        """


class ConjugateSpace(Space, Protocol):
    """What conjugate gradients need beyond that.

    Attributes:
        loosest: share of a gradient that they may leave far from the solution.
        slow: most steps at a point for each e-fold of the gradient.
    """

    loosest: float

    @property
    def slow(self) -> float: ...

    def take(self, columns: NDArray[np.bool_], /) -> ConjugateSpace:
        """The same for some of the columns."""

    def pull_single(self, residual: Single) -> Single:
        """Like `pull`, in float32."""

    def inner(self, u: Single, v: Single, /) -> tuple[Single, Single]:
        """(columns,) inner products as weights; and `lift` of v, if it takes that, else nothing."""

    def dot(self, u: Single, v: Single, lifted: Single, /) -> Single:
        """(columns,) inner products as weights of u and v, given also `lift` of v."""

    def follow(
        self, direction: Single, lifted: Single, ratio: Single, raised: Single, weights: Single, /
    ) -> tuple[Single, Single]:
        """`lift` of a direction; and `pull_single` of that times weights (n, columns).

        Args:
            direction: (k, columns).
            lifted: `lift` of the direction before, which may be overwritten.
            ratio: (columns,) share of that in the direction.
            raised: what `inner` says of the rest.
            weights: (n, columns).
        """

    def inverse(self, now: Inverse | None, weights: Double, rate: float) -> Inverse | None:
        """Preconditioner for mean weights (n,); `now` if that will do, None if there is none.

        Args:
            now: the one so far.
            weights: C · p(1 − p), mean over the columns.
            rate: conjugate gradient steps for each e-fold of the gradient at the last point.
        """


class RowSpace:
    """Coefficients are weights of the items of one training set."""

    whole = False
    loosest = 0.1
    slow = 40.0

    def __init__(self, common: Common, training: NDArray[np.bool_], labels: NDArray[np.bool_]):
        """Gram matrices of a training set.

        Args:
            common: items and the scale of the set.
            training: (n, 1) of bool.
            labels: (n, n_labels) of bool.
        """
        kept = training[:, 0]
        self.scale = common.scale[:, 0]
        z = common.z[kept]
        z *= self.scale
        self.items = Items(z)
        self.against = np.where(labels[kept], -1.0, 1.0)
        self.n_coefficients = len(z)
        wide = z.astype(np.float64)
        self.gram = wide @ wide.T
        self.kernel = self.gram.astype(np.float32)
        self.radius = float(np.sqrt(max(0.0, self.kernel.diagonal().max())))
        self.rounding = ROUNDING * self.radius**2

    def take(self, columns: NDArray[np.bool_]) -> RowSpace:
        part = copy(self)
        part.against = self.against[:, columns]
        return part

    def decisions(self, coefficients: Double) -> Double:
        return self.gram @ coefficients

    def pull(self, residual: Double) -> Double:
        return residual

    def product(self, u: Double, _v: Double, values: Double) -> Double:
        return dots(u, values)

    def squared(self, coefficients: Single, _bound: bool) -> tuple[Single, Single]:
        lifted = self.kernel @ coefficients
        return np.maximum(dots(coefficients, lifted), 0), lifted

    def pull_single(self, residual: Single) -> Single:
        return residual

    def inner(self, u: Single, v: Single) -> tuple[Single, Single]:
        raised = self.kernel @ v
        return dots(u, raised), raised

    def dot(self, u: Single, _v: Single, lifted: Single) -> Single:
        return dots(u, lifted)

    def follow(
        self, _direction: Single, lifted: Single, ratio: Single, raised: Single, weights: Single
    ) -> tuple[Single, Single]:
        lifted *= ratio
        lifted += raised
        return lifted, np.multiply(weights, lifted, out=raised)

    def inverse(self, now: Inverse | None, weights: Double, rate: float) -> Inverse | None:
        if now is not None and rate <= _STALE:
            return now
        # (I + WK)⁻¹ = (W⁻¹ + K)⁻¹·W⁻¹, symmetric under the inner product uᵀKv.
        ridge = (1 / weights).astype(np.float32)
        inverted = _inverted(self.kernel, ridge)
        if inverted is None:
            return None
        inverted *= ridge
        return lambda r: inverted @ r

    def outside(self, shown: Single, _of_set: int, coefficients: Double) -> Double:
        shown = shown * self.scale
        if coefficients.shape[1] > len(shown):
            return (shown.astype(np.float64) @ self.items.z.T.astype(np.float64)) @ coefficients
        return Items(shown).times(self.items.pulled(coefficients))


class FeatureSpace:
    """Coefficients are weights of the features."""

    rounding = 0.0
    # Without a preconditioner, all that a step needs of the first ones is the way down.
    loosest = 0.5

    def __init__(self, common: Common, training: NDArray[np.bool_], labels: NDArray[np.bool_]):
        """Items that all training sets share; the arguments are those of `RowSpace`."""
        self.whole = training.shape[1] > 1
        kept = np.ones(len(training), dtype=bool) if self.whole else training[:, 0]
        self.items = Items(common.z if self.whole else common.z[kept])
        self.scale = common.scale
        against = np.where(labels[kept], -1.0, 1.0)[:, None] * training[kept][:, :, None]
        self.against = against.reshape(len(against), -1)
        self.per_column = np.repeat(common.scale, labels.shape[1], axis=1)
        self.n_coefficients = common.z.shape[1]
        largest = np.einsum("ij,ij->i", self.items.z, self.items.z).max()
        self.radius = float(np.sqrt(largest) * common.scale.max())
        self.moments: list[Single] = []
        self.level = 0.0

    @property
    def slow(self) -> float:
        if self.moments:
            return _UTMOST
        price: float = self.n_coefficients / (_PRICE * (self.against.shape[1] + 4))
        return _PATIENCE + price

    def take(self, columns: NDArray[np.bool_]) -> FeatureSpace:
        part = copy(self)
        part.against, part.per_column = self.against[:, columns], self.per_column[:, columns]
        return part

    def decisions(self, coefficients: Double) -> Double:
        return self.items.times(self.per_column * coefficients)

    def pull(self, residual: Double) -> Double:
        return self.per_column * self.items.pulled(residual)

    def product(self, u: Double, v: Double, _values: Double) -> Double:
        return dots(u, v)

    def squared(self, coefficients: Single, _bound: bool) -> tuple[Single, Single]:
        return dots(coefficients, coefficients), coefficients[:0]

    def pull_single(self, residual: Single) -> Single:
        return self.per_column * self.items.pulled(residual)

    def inner(self, u: Single, v: Single) -> tuple[Single, Single]:
        return dots(u, v), v[:0]

    def dot(self, u: Single, v: Single, _lifted: Single) -> Single:
        return dots(u, v)

    def follow(
        self, direction: Single, _lifted: Single, _ratio: Single, _raised: Single, weights: Single
    ) -> tuple[Single, Single]:
        lifted, pulled = self.items.around(self.per_column * direction, weights)
        return lifted, self.per_column * pulled

    def inverse(self, now: Inverse | None, weights: Double, rate: float) -> Inverse | None:
        d, columns = self.per_column.shape
        if not (self.moments or d <= _CHEAP * columns or self.slow <= rate < np.inf):
            return lambda r: r
        # One weight for all items, so that the second moments are computed once; and one scale.
        level = float(weights.mean())
        if now is not None and self.moments and 0.5 < level / self.level < 2:
            return now
        if not self.moments:
            self.moments.append(self.items.z.T @ self.items.z)
        self.level = level
        matrix = self.moments[0] * np.float32(level)
        matrix.ravel()[:: len(matrix) + 1] += 1
        factor, failed = lapack.spotrf(matrix.T, lower=1, overwrite_a=1, clean=0)
        if failed:
            return None
        return lambda r: np.ascontiguousarray(lapack.spotrs(factor, r, lower=1)[0])

    def outside(self, shown: Single, of_set: int, coefficients: Double) -> Double:
        return Items(shown).times(self.scale[:, [of_set]] * coefficients)


def _inverted(kernel: Single, ridge: Single) -> Single | None:
    """(W⁻¹ + K)⁻¹; None if float32 cannot."""
    matrix = kernel.copy()
    matrix.ravel()[:: len(matrix) + 1] += ridge
    # The transpose of a symmetric matrix is itself, in the order that LAPACK works in place.
    factor, failed = lapack.spotrf(matrix.T, lower=1, overwrite_a=1, clean=1)
    if failed:
        return None
    half, _ = lapack.spotri(factor, lower=1, overwrite_c=1)
    whole: Single = half + half.T
    whole.ravel()[:: len(whole) + 1] *= 0.5
    return whole
