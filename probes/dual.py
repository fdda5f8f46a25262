"""The row space, one label vector at a time: Newton steps in plain LAPACK.

For one column a step costs one Cholesky factor and the overhead of every call, so this is written
for few calls. Steps are computed from the Gram matrix in float32, and a factor serves as long as
the gradient falls fast; coefficients are float64, and the certificate is taken from float64
products with the items themselves. Whatever does not go smoothly (a matrix that float32 cannot
factorise, a step that does not descend) is handed back, to be solved by `probes.newton`, which is
slower and robust.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import blas, lapack
from scipy.special import expit

__all__ = ["Path", "solve_path"]

_MAX_STEPS: Final = 60
_HALVINGS: Final = 12
_SLOW: Final = 0.2
"""A factor is computed anew where the gradient fell by less than this."""

_SLACK: Final = 1e-6
"""Relative rounding of objectives whose decisions come from float32 steps."""

Path = tuple[NDArray[np.float64], NDArray[np.float64], float]
"""Coefficients (n, n_strengths), intercepts (n_strengths,), the largest relative gradient."""


def solve_path(
    features: NDArray[np.float64],
    kernel: NDArray[np.float32],
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
    *,
    decision_error: float,
    relative_gradient: float,
) -> Path | None:
    """Solve for ascending strengths, each from what the ones before it suggest.

    Args:
        features: (n, d) standardised items.
        kernel: (n, n) their Gram matrix.
        labels: (n,) of bool, both classes.
        strengths: values of C.
        decision_error: certified error of decisions, relative to the largest, at which to end.
        relative_gradient: bound on the gradient norm, relative to the one at zero weights.

    Returns:
        the solutions, or None where this way does not lead there.
    """
    problem = _Problem(features, kernel, labels, decision_error, relative_gradient)
    solved = []
    for c in strengths:
        found = problem.solve(c)
        if found is None:
            return None
        solved.append(found)
    coefficients, intercepts, reached = zip(*solved, strict=True)
    return np.stack(coefficients, axis=1), np.array(intercepts), max(reached)


class _Problem:
    """One label vector: its matrices, and the last solutions, where the next strength starts."""

    def __init__(
        self,
        features: NDArray[np.float64],
        kernel: NDArray[np.float32],
        labels: NDArray[np.bool_],
        decision_error: float,
        relative_gradient: float,
    ) -> None:
        self.features, self.kernel = features, kernel
        self.matrix = np.empty_like(kernel)
        self.y = labels.astype(float)
        self.decision_error, self.relative_gradient = decision_error, relative_gradient
        self.radius = float(np.sqrt(max(0.0, kernel.diagonal().max())))
        share = self.y.mean()
        # The gradient at zero weights, with C = 1.
        residual = 0.5 - self.y
        self.scale = float(np.hypot(np.linalg.norm(features.T @ residual), residual.sum()))
        zero = np.zeros(len(self.y))
        self.a, self.ka, self.b = zero, zero, float(np.log(share / (1 - share)))
        self.c = 0.0
        self.last = (self.a, self.ka, self.b, self.c)

    def solve(self, c: float) -> tuple[NDArray[np.float64], float, float] | None:
        """Coefficients, intercept and relative gradient at strength c."""
        a, ka, b = self._start(c)
        value = self._objective(a, ka, b, c)
        scale = max(c, c * self.scale)
        step: _Step | None = None
        before = np.inf
        exact = False
        for _ in range(_MAX_STEPS):
            f = ka + b
            p = expit(f)
            residual = p - self.y
            spread = p * (1 - p)
            slope = a + c * residual
            slope_b = c * float(residual.sum())
            if exact:
                lifted = self.features.T @ slope
                squared = float(lifted @ lifted)
            else:
                lifted = self.kernel @ slope.astype(np.float32)
                squared = max(0.0, float(slope @ lifted))
            relative = float(np.sqrt(squared + slope_b**2)) / scale
            error = self.radius * np.sqrt(squared) + abs(slope_b) / (c * spread.sum())
            sure = 2 * error <= self.decision_error * np.abs(f).max()
            if relative <= 1e-13 or (sure and relative <= self.relative_gradient):
                if exact:
                    self.last = (self.a, self.ka, self.b, self.c)
                    self.a, self.ka, self.b, self.c = a, ka, b, c
                    return a, b, relative
                # Float32 says so: now the decisions and the gradient as they are.
                ka = self.features @ (self.features.T @ a)
                value = self._objective(a, ka, b, c)
                exact = True
                continue
            if exact:
                lifted = self.kernel @ slope.astype(np.float32)
                exact = False
            if step is None or relative > _SLOW * before:
                step = self._factorise(np.sqrt(c * np.maximum(spread, 1e-14)))
                if step is None:
                    return None
            before = relative
            move, move_b = step.solve(slope, lifted, slope_b)
            moved = self.kernel @ move.astype(np.float32)
            allowed = value + _SLACK * abs(value)
            length = 1.0
            for _ in range(_HALVINGS):
                at, k_at, b_at = a + length * move, ka + length * moved, b + length * move_b
                value = self._objective(at, k_at, b_at, c)
                if value <= allowed:
                    break
                length /= 2
            else:
                return None
            a, ka, b = at, k_at, b_at
        return None

    def _factorise(self, s: NDArray[np.float64]) -> _Step | None:
        narrow = s.astype(np.float32)
        np.multiply(self.kernel, narrow[:, None], out=self.matrix)
        np.multiply(self.matrix, narrow, out=self.matrix)
        self.matrix.ravel()[:: len(s) + 1] += 1
        # The transpose of a symmetric matrix is itself, in the order that LAPACK works in place.
        factor, failed = lapack.spotrf(self.matrix.T, lower=1, overwrite_a=1, clean=0)
        return None if failed else _Step(factor, s)

    def _objective(
        self, a: NDArray[np.float64], ka: NDArray[np.float64], b: float, c: float
    ) -> float:
        f = ka + b
        return float(0.5 * (a @ ka) + c * (np.logaddexp(0, f).sum() - self.y @ f))

    def _start(self, c: float) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        """The best of the last solution and lines through the last two, in log C and in C."""
        if not self.c:
            return self.a, self.ka, self.b
        before, k_before, b_before, c_before = self.last
        ratio = c / self.c
        starts = [(self.a, self.ka, self.b)]
        starts += [(r * self.a, r * self.ka, self.b) for r in (ratio, ratio**0.5)]
        if c_before:
            t = np.log(ratio) / np.log(self.c / c_before)
            for r in (t, t / 2):
                starts.append(
                    (
                        self.a + r * (self.a - before),
                        self.ka + r * (self.ka - k_before),
                        self.b + r * (self.b - b_before),
                    )
                )
        return min(starts, key=lambda at: self._objective(at[0], at[1], at[2], c))


class _Step:
    """Newton steps under the weights S² of one point.

    With δa = S·q − slope: (I + S·K·S)·q + s·δb = S·K·slope and sᵀq = slope_b.
    """

    def __init__(self, factor: NDArray[np.float32], s: NDArray[np.float64]) -> None:
        self.factor, self.s = factor, s
        self.by_s = self._divide(s)
        self.total = s @ self.by_s

    def _divide(self, right: NDArray[np.float64]) -> NDArray[np.float64]:
        # For one side, several times faster than `spotrs`.
        half = blas.strsv(self.factor, right.astype(np.float32), lower=1, overwrite_x=1)
        solved = blas.strsv(self.factor, half, lower=1, trans=1, overwrite_x=1)
        return np.asarray(solved, dtype=np.float64)

    def solve(
        self, slope: NDArray[np.float64], lifted: NDArray[np.float32], slope_b: float
    ) -> tuple[NDArray[np.float64], float]:
        """The step from a point with this gradient, as coefficients and of the intercept."""
        by_lift = self._divide(self.s * lifted)
        move_b = float((self.s @ by_lift - slope_b) / self.total)
        return self.s * (by_lift - self.by_s * move_b) - slope, move_b
