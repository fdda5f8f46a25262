"""The row space on a CPU, one label vector at a time: the same Newton steps in plain LAPACK.

For one column, a step costs one Cholesky factor and the overhead of every call, and numpy's is a
fraction of torch's. Matrices are factorised in float32, in place; coefficients, decisions and
gradients are float64. Whatever does not go smoothly (a matrix that float32 cannot factorise, a step
that does not descend) is handed back, to be solved by `probes.newton`, which is slower and robust.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.special import expit
from threadpoolctl import ThreadpoolController

__all__ = ["Path", "solve_path"]

_MAX_STEPS: Final = 40
_HALVINGS: Final = 12

Path = tuple[NDArray[np.float64], NDArray[np.float64], float]
"""Coefficients (n, n_strengths), intercepts (n_strengths,), the largest relative gradient."""


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


def solve_path(
    gram: NDArray[np.float64],
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
    *,
    decision_error: float,
    relative_gradient: float,
) -> Path | None:
    """Solve for ascending strengths, each from what the ones before it suggest.

    Args:
        gram: (n, n) of the standardised items.
        labels: (n,) of bool, both classes.
        strengths: values of C.
        decision_error: certified error of decisions, relative to the largest, at which to end.
        relative_gradient: bound on the gradient norm, relative to the one at zero weights.

    Returns:
        the solutions, or None where this way does not lead there.
    """
    # Threads cost more than they bring on matrices of this size.
    with _threads().limit(limits=1, user_api="blas"):
        problem = _Problem(gram, labels, decision_error, relative_gradient)
        found = [problem.solve(c) for c in strengths]
    solved = [part for part in found if part is not None]
    if len(solved) < len(found):
        return None
    coefficients, intercepts, reached = zip(*solved, strict=True)
    return np.stack(coefficients, axis=1), np.array(intercepts), max(reached)


class _Problem:
    """One label vector: its matrices, and the last solutions, where the next strength starts."""

    def __init__(
        self,
        gram: NDArray[np.float64],
        labels: NDArray[np.bool_],
        decision_error: float,
        relative_gradient: float,
    ) -> None:
        self.gram, self.single = gram, gram.astype(np.float32)
        self.matrix = np.empty_like(self.single)
        self.y = labels.astype(float)
        self.decision_error, self.relative_gradient = decision_error, relative_gradient
        self.radius = float(np.sqrt(max(0.0, gram.diagonal().max())))
        share = self.y.mean()
        # The gradient at zero weights, with C = 1.
        residual = 0.5 - self.y
        self.scale = float(np.sqrt(max(0.0, residual @ gram @ residual) + residual.sum() ** 2))
        zero = np.zeros(len(self.y))
        self.a, self.ka, self.b = zero, zero, float(np.log(share / (1 - share)))
        self.c = 0.0
        self.last = (self.a, self.ka, self.b, self.c)

    def solve(self, c: float) -> tuple[NDArray[np.float64], float, float] | None:
        """Coefficients, intercept and relative gradient at strength c."""
        a, ka, b = self._start(c)
        value = self._objective(a, ka, b, c)
        scale = max(c, c * self.scale)
        for _ in range(_MAX_STEPS):
            p = expit(ka + b)
            residual = p - self.y
            spread = p * (1 - p)
            slope = a + c * residual
            lifted = ka + c * (self.gram @ residual)
            slope_b = c * residual.sum()
            squared = max(0.0, slope @ lifted)
            relative = float(np.sqrt(squared + slope_b**2) / scale)
            error = self.radius * np.sqrt(squared) + abs(slope_b) / (c * spread.sum())
            exact = relative <= 1e-13
            sure = 2 * error <= self.decision_error * np.abs(ka + b).max()
            if exact or (sure and relative <= self.relative_gradient):
                self._remember(a, ka, b, c)
                return a, b, relative
            step = self._step(slope, lifted, slope_b, np.sqrt(c * np.maximum(spread, 1e-14)))
            if step is None:
                return None
            move, move_b = step
            moved = self.gram @ move
            allowed = value + 1e-12 * abs(value)
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

    def _step(
        self,
        slope: NDArray[np.float64],
        lifted: NDArray[np.float64],
        slope_b: float,
        s: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], float] | None:
        # With δa = S·q − slope: (I + S·K·S)·q + s·δb = S·K·slope and sᵀq = slope_b.
        narrow = s.astype(np.float32)
        np.multiply(self.single, narrow[:, None], out=self.matrix)
        np.multiply(self.matrix, narrow, out=self.matrix)
        self.matrix.ravel()[:: len(s) + 1] += 1
        # The transpose of a symmetric matrix is itself, in the order that LAPACK works in place.
        factor, failed = lapack.spotrf(self.matrix.T, lower=1, overwrite_a=1, clean=0)
        if failed:
            return None
        right = np.stack([s * lifted, s], axis=1).astype(np.float32, order="F")
        solved, _ = lapack.spotrs(factor, right, lower=1, overwrite_b=1)
        by_lift, by_s = solved.astype(np.float64).T
        move_b = float((s @ by_lift - slope_b) / (s @ by_s))
        return s * (by_lift - by_s * move_b) - slope, move_b

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

    def _remember(
        self, a: NDArray[np.float64], ka: NDArray[np.float64], b: float, c: float
    ) -> None:
        self.last = (self.a, self.ka, self.b, self.c)
        self.a, self.ka, self.b, self.c = a, ka, b, c
