"""Newton steps for many label vectors, in float32: by one factor a column, or conjugate gradients.

An inexact step costs a further step and never the solution, which `probes.many` certifies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack

from probes.products import Double, Single, dots, sums
from probes.sets import SetsSpace
from probes.spaces import ConjugateSpace, Inverse

__all__ = ["Conjugate", "Direct", "Point", "Steps"]

_SLOW: Final = 0.2
"""A factor is computed anew where the gradient fell by less than this."""

_LONGEST: Final = 1e3
"""A longer step comes of weights that have vanished."""

_POINT: Final = 12
"""Conjugate gradient steps that cost as much as the next point."""


@dataclass(frozen=True, slots=True)
class Point:
    """What a step is computed from.

    Attributes:
        slope: (k, columns) gradient, as coefficients.
        lifted: (n, columns), what `Space.squared` says of it.
        slope_b: (columns,) gradient of the intercept.
        weights: (n, columns), C · p(1 − p), 0 outside the training set.
        relative: (columns,) gradient norm relative to the one at zero weights.
        goal: (columns,) what share of the gradient may be left at the end.
    """

    slope: Double
    lifted: Single
    slope_b: Double
    weights: Double
    relative: Double
    goal: Double


class Steps(Protocol):
    """Newton steps at one strength."""

    def take(self, columns: NDArray[np.bool_], /) -> None:
        """Go on with some of the columns."""

    def step(self, at: Point, /) -> tuple[Single, Single] | None:
        """Coefficients of the step and `lift` of them; None where float32 cannot give them.

        The intercept is left out: it takes its best value for every step.
        """


class Direct:
    """One Cholesky factor a column, which serves as long as its gradient falls fast."""

    def __init__(self, space: SetsSpace) -> None:
        self.space = space
        self.factors: list[_Factor | None] = [None] * space.against.shape[1]
        self.before = np.full(len(self.factors), np.inf)

    def take(self, columns: NDArray[np.bool_]) -> None:
        self.space = self.space.take(columns)
        self.factors = [self.factors[column] for column in np.flatnonzero(columns)]
        self.before = self.before[columns]

    def step(self, at: Point) -> tuple[Single, Single] | None:
        stale = at.relative > _SLOW * self.before
        move = -at.slope.astype(np.float32)
        moved = np.zeros_like(move)
        for column, factor in enumerate(self.factors):
            rows = self.space.rows_of(column)
            if factor is None or stale[column]:
                factor = _Factor.of(self.space.kernel_of(column), at.weights[rows, column])
                if factor is None:
                    return None
                self.factors[column] = factor
            found, moved[rows, column] = factor.solve(at.lifted[rows, column], at.slope_b[column])
            move[rows, column] += found
        self.before = at.relative
        if self.space.common is not None:
            moved = self.space.lift(move)
        # An old factor, or one of the common scale, misjudges how far to go.
        along = moved.astype(np.float64)
        mean = dots(at.weights, along) / np.maximum(sums(at.weights), 1e-300)
        down = mean * at.slope_b - dots(at.slope, along)
        bend = dots(move.astype(np.float64), along)
        along -= mean
        along *= along
        bend += dots(at.weights, along)
        length = np.divide(down, bend, out=np.ones_like(bend), where=(down > 0) & (bend > 0))
        share = np.minimum(length, _LONGEST).astype(np.float32)
        return move * share, moved * share


class _Factor:
    """Newton steps under the weights W of one point.

    With δa = q − slope: (W⁻¹ + K)·q + δb = K·slope and Σq = slope_b.
    """

    def __init__(self, factor: Single, ridge: Single) -> None:
        self.factor, self.ridge = factor, ridge
        self.by_one = self._divide(np.ones(len(factor), dtype=np.float32))
        self.total = self.by_one.sum()

    @classmethod
    def of(cls, kernel: Single, weights: Double) -> _Factor | None:
        """A factor of the kernel, which is overwritten."""
        floor = max(1e-14 * weights.max(), 1e-30)
        ridge = (1 / np.maximum(weights, floor)).astype(np.float32)
        kernel.ravel()[:: len(kernel) + 1] += ridge
        # The transpose of a symmetric matrix is itself, in the order that LAPACK works in place.
        factor, failed = lapack.spotrf(kernel.T, lower=1, overwrite_a=1, clean=0)
        return None if failed else cls(factor, ridge)

    def _divide(self, right: Single) -> Single:
        # For one side, several times faster than `spotrs`.
        half = blas.strsv(self.factor, right, lower=1)
        solved: Single = blas.strsv(self.factor, half, lower=1, trans=1, overwrite_x=1)
        return solved

    def solve(self, lifted: Single, slope_b: float) -> tuple[Single, Single]:
        """q, and K·δa as the equations have it, from K·slope and the gradient of the intercept."""
        by_lift = self._divide(lifted)
        move_b = (by_lift.sum() - np.float32(slope_b)) / self.total
        found: Single = by_lift - self.by_one * move_b
        return found, -self.ridge * found - move_b


class Conjugate:
    """Conjugate gradients with one preconditioner: the inverse Hessian at the columns' mean."""

    def __init__(self, space: ConjugateSpace) -> None:
        self.space = space
        self.inverse: Inverse | None = None
        self.rate = np.inf

    def take(self, columns: NDArray[np.bool_]) -> None:
        self.space = self.space.take(columns)

    def step(self, at: Point) -> tuple[Single, Single] | None:
        space = self.space
        mean = at.weights.mean(axis=1)
        inverse = space.inverse(
            self.inverse, np.maximum(mean, max(1e-14 * mean.max(), 1e-30)), self.rate
        )
        self.inverse = inverse
        if inverse is None:
            return None
        weights = at.weights.astype(np.float32)
        # At a start beyond the solution of separable labels nothing is left of the weights.
        total: Single = np.maximum(sums(weights), np.float32(1e-30))
        # Weighted means drop out, with the intercept.
        sink = space.pull_single(weights)
        residual = sink * (at.slope_b.astype(np.float32) / total)
        residual -= at.slope
        # Near the solution a step that is solved well pays off fully; but where that takes many
        # products, the next point is the better guide.
        share = np.exp(-_POINT / max(self.rate, 1e-3))
        share = np.clip(share, np.sqrt(at.relative), np.cbrt(at.relative))
        share = np.clip(np.maximum(share, 0.5 * at.goal), 3e-3, space.loosest)
        share[at.goal >= 1] = 1
        target = np.square(share).astype(np.float32) * dots(residual, residual)
        folds = max(-np.log(share.min()), 1e-3)  # of the gradient, by e
        direction, lifted = np.zeros_like(residual), np.zeros_like(weights)
        move, moved = np.zeros_like(residual), np.zeros_like(weights)
        before = np.zeros_like(total)
        whole, going = (move, moved), np.ones(len(total), dtype=bool)
        used = 0
        # In place, because fresh memory costs as much as the arithmetic.
        while used < space.slow * folds:
            on = dots(residual, residual) > target
            # To sort out columns takes time, too.
            if 4 * on.sum() <= 3 * len(on):
                whole[0][:, going], whole[1][:, going] = move, moved
                if not on.any():
                    break
                going[going] = on
                residual, direction, move, sink = (
                    part.compress(on, axis=1) for part in (residual, direction, move, sink)
                )
                lifted, moved, weights = (
                    part.compress(on, axis=1) for part in (lifted, moved, weights)
                )
                before, target, total = before[on], target[on], total[on]
                space = space.take(on)
            used += 1
            conditioned = inverse(residual)
            inner, raised = space.inner(residual, conditioned)
            inner = np.maximum(inner, 0)
            ratio = np.divide(inner, before, out=np.zeros_like(inner), where=before > 1e-30)
            direction *= ratio
            direction += conditioned
            lifted, applied = space.follow(direction, lifted, ratio, raised, weights)
            applied -= sink * (dots(weights, lifted) / total)
            applied += direction
            bend = space.dot(applied, direction, lifted)
            # A finished column rests: past the rounding its products are noise, even negative.
            length: Single = np.divide(inner, bend, out=np.zeros_like(bend), where=bend > 1e-30)
            applied *= length
            residual -= applied
            move += np.multiply(direction, length, out=applied)
            moved += lifted * length
            before = inner
        else:
            whole[0][:, going], whole[1][:, going] = move, moved
        self.rate = used / folds
        return whole
