"""Newton steps by conjugate gradients for many label vectors, on a CPU.

All columns share the products with the items, which are matrix by matrix, and the preconditioner:
the inverse Hessian at the columns' mean weights. Steps are float32; decisions, gradients and the
certificate are float64. As in `probes.dual`, what does not go smoothly is handed back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probes.spaces import CG_STEPS, Double, Inverse, Single, Space, dots

__all__ = ["Solutions", "solve_columns"]

Solutions = tuple[Double, Double, float]
"""Coefficients (k, n_strengths, columns), intercepts (n_strengths, columns), the largest relative
gradient."""

_MAX_STEPS: Final = 60
_HALVINGS: Final = 12
_SLACK: Final = 1e-6
"""Relative rounding of objectives whose decisions come from float32 steps."""


def solve_columns(
    space: Space,
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
    *,
    decision_error: float,
    relative_gradient: float,
) -> Solutions | None:
    """Solve for ascending strengths, each from what the ones before it suggest.

    Args:
        space: the items.
        labels: (n, columns) of bool, both classes in each.
        strengths: values of C.
        decision_error: certified error of decisions, relative to the largest, at which to end.
        relative_gradient: bound on the gradient norm, relative to the one at zero weights.

    Returns:
        the solutions, or None where this way does not lead there.
    """
    share = labels.mean(axis=0)
    half: Double = 0.5 - labels.astype(np.float64)
    # The gradient at zero weights, with C = 1.
    scale = np.sqrt(space.squared_norms(space.pull(half)) + half.sum(axis=0) ** 2)
    zero = np.zeros((space.n_coefficients, labels.shape[1]))
    points = [(0.0, _Point(zero, np.zeros_like(half), np.log(share / (1 - share))))]
    worst = 0.0
    coefficients = np.empty((len(zero), len(strengths), labels.shape[1]))
    intercepts = np.empty(coefficients.shape[1:])
    for index, c in enumerate(strengths):
        run = _Run(space, c, decision_error, relative_gradient)
        solved = run.minimise(_start(space, points, c, half), half, c * np.maximum(scale, 1))
        if solved is None:
            return None
        worst = max(worst, run.worst)
        points = [*points[-1:], (c, solved)]
        coefficients[:, index], intercepts[index] = solved.coefficients, solved.intercept
    return coefficients, intercepts, worst


class _Point:
    """Coefficients (k, columns), decisions without intercept (n, columns), intercepts."""

    def __init__(self, coefficients: Double, values: Double, intercept: Double) -> None:
        self.coefficients, self.values, self.intercept = coefficients, values, intercept

    def towards(self, move: _Point, length: Double | float) -> _Point:
        return _Point(
            self.coefficients + length * move.coefficients,
            self.values + length * move.values,
            self.intercept + length * move.intercept,
        )

    def take(self, columns: NDArray[np.bool_]) -> _Point:
        return _Point(
            self.coefficients[:, columns], self.values[:, columns], self.intercept[columns]
        )

    def put(self, columns: NDArray[np.int64], part: _Point) -> None:
        self.coefficients[:, columns] = part.coefficients
        self.values[:, columns] = part.values
        self.intercept[columns] = part.intercept


class _Run:
    """One strength."""

    def __init__(
        self, space: Space, c: float, decision_error: float, relative_gradient: float
    ) -> None:
        self.space, self.c = space, c
        self.decision_error, self.relative_gradient = decision_error, relative_gradient
        self.worst = 0.0

    def minimise(self, here: _Point, half: Double, scale: Double) -> _Point | None:
        """The solutions of all columns, from a start; None where a step does not lead down."""
        space, c = self.space, self.c
        found = _Point(here.coefficients.copy(), here.values.copy(), here.intercept.copy())
        left = np.arange(half.shape[1])
        inverse: Inverse | None = None
        used = 0
        exact = False
        value, p = _evaluate(space, here, c, half)
        for _ in range(_MAX_STEPS):
            residual = p + half
            spread = 0.25 - p * p
            mass = spread.sum(axis=0)
            slope = here.coefficients + c * space.pull(residual)
            slope_b = c * residual.sum(axis=0)
            # The intercept takes its best value for every step.
            owed = (space.pull(spread * (slope_b / mass)) - slope).astype(np.float32)
            squared = space.squared_norms(slope) if exact else space.squared_single(owed)
            relative = np.sqrt(squared + slope_b**2) / scale
            error = space.radius * np.sqrt(squared) + np.abs(slope_b) / (c * mass)
            size = np.abs(here.values + here.intercept).max(axis=0)
            done = (relative <= 1e-13) | (
                (2 * error <= self.decision_error * size) & (relative <= self.relative_gradient)
            )
            # To sort out columns costs as much as a step: worth it once half of them are done.
            enough = done.mean() >= 0.5
            if enough and not exact:
                # Float32 says so: now the decisions and the gradient as they are.
                here = _Point(here.coefficients, space.decisions(here.coefficients), here.intercept)
                value, p = _evaluate(space, here, c, half)
                exact = True
                continue
            if enough:
                found.put(left[done], here.take(done))
                self.worst = max(self.worst, float(relative[done].max()))
                if done.all():
                    return found
                keep = ~done
                left, here, half, scale = left[keep], here.take(keep), half[:, keep], scale[keep]
                owed, spread, slope_b = owed[:, keep], spread[:, keep], slope_b[keep]
                relative, mass, value = relative[keep], mass[keep], value[keep]
            weights = np.maximum(c * spread.mean(axis=1), 1e-14 * c)
            inverse = space.inverse(inverse, weights, used)
            if inverse is None:
                return None
            narrow = (c * spread).astype(np.float32)
            move, moved, used = _conjugate_gradients(space, inverse, narrow, owed, relative)
            values = moved.astype(np.float64)
            move_b = -(slope_b / c + dots(spread, values)) / mass
            step = _Point(move.astype(np.float64), values, move_b)
            allowed = value + _SLACK * np.abs(value)
            length: Double | float = 1.0
            for _ in range(_HALVINGS):
                there = here.towards(step, length)
                value, p = _evaluate(space, there, c, half)
                worse = ~(value <= allowed)
                if not worse.any():
                    break
                length = np.where(worse, np.multiply(length, 0.5), length)
            else:
                return None
            here, exact = there, False
        return None


def _conjugate_gradients(
    space: Space, inverse: Inverse, weights: Single, residual: Single, relative: Double
) -> tuple[Single, Single, int]:
    """A Newton step, `lift` of it, and the number of products with the Hessian."""
    total = weights.sum(axis=0)
    conditioned = inverse(residual)
    raised = space.lift(conditioned)
    inner = space.dot(residual, conditioned, raised)
    # Near the solution steps pay off fully only when they are solved well.
    target = np.clip(np.sqrt(relative), 3e-3, 0.1).astype(np.float32) ** 2 * inner
    direction: Single = conditioned
    lifted: Single = raised
    move, moved = np.zeros_like(direction), np.zeros_like(lifted)
    steps = 0
    while True:
        steps += 1
        # Weighted means drop out, with the intercept.
        bent: Single = weights * (lifted - dots(weights, lifted) / total)
        applied = direction + space.pull_single(bent)
        bend = space.dot(applied, direction, lifted)
        # A finished column rests: past the rounding its products are noise, even negative.
        length: Single = np.divide(inner, bend, out=np.zeros_like(bend), where=bend > 1e-30)
        move += length * direction
        moved += length * lifted
        residual = residual - length * applied
        conditioned = inverse(residual)
        raised = space.lift(conditioned)
        before, inner = inner, np.maximum(space.dot(residual, conditioned, raised), 0)
        going = inner > target
        if steps == CG_STEPS or not going.any():
            break
        inner = inner * going
        ratio: Single = np.divide(inner, before, out=np.zeros_like(inner), where=before > 1e-30)
        direction = conditioned + ratio * direction
        lifted = raised + ratio * lifted
    return move, moved, steps


def _evaluate(space: Space, at: _Point, c: float, half: Double) -> tuple[Double, Double]:
    """The objective (columns,) and p(True) − ½ (n, columns), for half = ½ − y."""
    f = at.values + at.intercept
    small = np.abs(f)
    np.negative(small, out=small)
    np.exp(small, out=small)
    small += 1
    p = 1 / small
    np.log(small, out=small)
    # −log p(y) = log(1 + exp(−|f|)) + |f|/2 + (½ − y)·f
    losses = small.sum(axis=0) + dots(half, f)
    np.abs(f, out=small)
    losses += 0.5 * small.sum(axis=0)
    p -= 0.5
    np.copysign(p, f, out=p)
    return 0.5 * space.penalty(at.coefficients, at.values) + c * losses, p


def _start(space: Space, points: list[tuple[float, _Point]], c: float, half: Double) -> _Point:
    """For each column the best of the last solution and lines from the ones before it."""
    before, last = points[-1]
    if not before:
        return last
    ratio = c / before
    nothing = _Point(0 * last.coefficients, 0 * last.values, 0 * last.intercept)
    grown = _Point(last.coefficients, last.values, nothing.intercept)
    starts = [last, *(last.towards(grown, r - 1) for r in (ratio, ratio**0.5))]
    earlier, first = points[0]
    if earlier:
        line = last.towards(first, -1)
        t = float(np.log(ratio) / np.log(before / earlier))
        starts += [last.towards(line, r) for r in (t, t / 2)]
    best = np.stack([_evaluate(space, start, c, half)[0] for start in starts]).argmin(axis=0)
    chosen = nothing
    for index, start in enumerate(starts):
        columns = np.flatnonzero(best == index)
        chosen.put(columns, start.take(best == index))
    return chosen
