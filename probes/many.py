"""Damped Newton steps for many label vectors together, on a CPU.

All columns share the products with the items, which are matrix by matrix. Steps are float32;
decisions, gradients and the certificate are float64. What does not go smoothly (a matrix that
float32 cannot factorise, a step that does not lead down) is handed back, to be solved by
`probes.newton`, which is slower and robust.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from probes.products import Double, dots, sums
from probes.spaces import Space
from probes.steps import Point, Steps

__all__ = ["Solutions", "solve_columns"]

_MAX_STEPS: Final = 60
_HALVINGS: Final = 12
_FARTHEST: Final = 700.0
"""Decisions beyond this are taken as this, where exp would overflow."""

_SECANTS: Final = 4
_LEVEL: Final = 0.2
"""A step ends where it goes up by no more than this of how it went down at its start."""

_NEAR: Final = 1e-2
"""Relative gradient from which on every step starts from exact decisions."""

_SLACK: Final = 1e-6
"""Relative rounding of objectives whose decisions come from float32 steps."""


@dataclass(frozen=True, slots=True)
class Solutions:
    """What `solve_columns` found.

    Attributes:
        values: (n, n_strengths, columns) decisions where the space has all items, else the
            coefficients (k, n_strengths, columns).
        intercepts: (n_strengths, columns), which are part of decisions.
        worst: the largest relative gradient.
    """

    values: Double
    intercepts: Double
    worst: float


def solve_columns(
    space: Space,
    strengths: Sequence[float],
    steps: Callable[[], Steps],
    *,
    decision_error: float,
    relative_gradient: float,
) -> Solutions | None:
    """Solve for ascending strengths, each from what the ones before it suggest.

    Args:
        space: the items and the labels, both classes in each column.
        strengths: values of C.
        steps: makes what gives the steps at a strength.
        decision_error: certified error of decisions, relative to the largest, at which to end.
        relative_gradient: bound on the gradient norm, relative to the one at zero weights.

    Returns:
        the solutions, or None where this way does not lead there.
    """
    # The gradient at zero weights, with C = 1.
    half = 0.5 * space.against
    slope, _ = space.squared(space.pull(half).astype(np.float32), False)
    scale = np.sqrt(slope + half.sum(axis=0) ** 2)
    zero, start = np.zeros((space.n_coefficients, half.shape[1])), np.zeros_like(half)
    odds = np.log((half < 0).sum(axis=0) / (half > 0).sum(axis=0))
    points = [(0.0, _Point(zero, start, odds))]
    worst = 0.0
    intercepts = np.empty((len(strengths), half.shape[1]))
    values = np.empty((len(half if space.whole else zero), *intercepts.shape))
    for index, c in enumerate(strengths):
        run = _Run(space, steps(), c, decision_error, relative_gradient)
        solved = run.minimise(_start(space, points, c), c * np.maximum(scale, 1))
        if solved is None:
            return None
        worst = max(worst, run.worst)
        points = [*(point for point in points[-2:] if point[0] < c), (c, solved)]
        intercepts[index] = solved.intercept
        values[:, index] = solved.values + solved.intercept if space.whole else solved.coefficients
    return Solutions(values, intercepts, worst)


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
        self,
        space: Space,
        steps: Steps,
        c: float,
        decision_error: float,
        relative_gradient: float,
    ) -> None:
        self.space, self.steps, self.c = space, steps, c
        self.decision_error, self.relative_gradient = decision_error, relative_gradient
        self.worst = 0.0

    def minimise(self, here: _Point, scale: Double) -> _Point | None:
        """The solutions of all columns, from a start; None where a step does not lead down."""
        space, c = self.space, self.c
        found = _Point(here.coefficients.copy(), here.values.copy(), here.intercept.copy())
        left = np.arange(len(scale))
        exact = False
        value, residual = _evaluate(space, here, c)
        for _ in range(_MAX_STEPS):
            spread = np.abs(residual)
            spread -= residual * residual
            mass = np.maximum(sums(spread), 1e-300)
            slope = here.coefficients + c * space.pull(residual)
            slope_b = c * sums(residual)
            # Of an exact gradient; its norm itself is needed to a few digits.
            single, lifted = space.squared(slope.astype(np.float32), True)
            squared = single.astype(np.float64)
            if exact and (space.rounding * np.abs(slope).sum(axis=0) ** 2 > 0.1 * squared).any():
                # Items that are near each other cancel, and float32 may say that nothing is left.
                squared = np.maximum(space.product(slope, slope, space.decisions(slope)), 0)
            relative = np.sqrt(squared + slope_b**2) / scale
            error = space.radius * np.sqrt(squared) + np.abs(slope_b) / (c * mass)
            size = np.abs(here.values + here.intercept).max(axis=0)
            goal = np.minimum(
                self.relative_gradient / np.maximum(relative, 1e-300),
                self.decision_error * size / np.maximum(2 * error, 1e-300),
            )
            done = (goal >= 1) | (relative <= 1e-13)
            # To sort out columns costs as much as a step: worth it once half of them are done.
            enough = 2 * done.sum() >= len(done)
            if enough and not exact:
                exact = True
                here, value, residual = _exactly(space, here, c)
                continue
            if enough:
                found.put(left[done], here.take(done))
                self.worst = max(self.worst, float(relative[done].max()))
                if done.all():
                    return found
                keep = ~done
                space, left = space.take(keep), left[keep]
                self.steps.take(keep)
                here, scale, value = here.take(keep), scale[keep], value[keep]
                lifted = lifted[:, keep]
                slope, slope_b, mass = slope[:, keep], slope_b[keep], mass[keep]
                spread, relative, goal = spread[:, keep], relative[keep], goal[keep]
                residual = residual[:, keep]
            taken = self.steps.step(Point(slope, lifted, slope_b, c * spread, relative, goal))
            if taken is None:
                return None
            move, values = (part.astype(np.float64) for part in taken)
            step = _Point(move, values, -(slope_b / c + dots(spread, values)) / mass)
            allowed = value + _SLACK * np.abs(value)
            length: Double | float = 1.0
            before = residual
            for _ in range(_HALVINGS):
                there = here.towards(step, length)
                value, residual = _evaluate(space, there, c)
                worse = ~(value <= allowed)
                if not worse.any():
                    break
                length = np.where(worse, np.multiply(length, 0.5), length)
            else:
                return None
            if not isinstance(length, float):
                there, value, residual = _settled(
                    space, here, before, step, length, (there, value, residual), c
                )
            here, exact = there, bool(relative.max() <= _NEAR)
            if exact:
                # What float32 has summed up would hide what is left to gain.
                here, value, residual = _exactly(space, here, c)
        return None


def _settled(
    space: Space,
    here: _Point,
    before: Double,
    step: _Point,
    length: Double,
    found: tuple[_Point, Double, Double],
    c: float,
) -> tuple[_Point, Double, Double]:
    """The lowest point, nearly, of steps that had to be shortened, as `found` has it.

    No higher than at the start may be far up the other side, from where steps lead back and forth.

    Args:
        space: the items.
        here: the start.
        before: (n, columns), p(True) less the label at the start.
        step: the whole step.
        length: (columns,) how much of it leads no higher.
        found: where that is, and what `_evaluate` says of it.
        c: the strength.
    """
    there, value, residual = found

    def slope(at: _Point, residual: Double) -> Double:
        penalty = space.product(step.coefficients, at.coefficients, at.values)
        return penalty + c * dots(residual, step.values + step.intercept)

    start = np.minimum(slope(here, before), -1e-300)
    for _ in range(_SECANTS):
        end = slope(there, residual)
        over = end > -_LEVEL * start
        if not over.any():
            break
        # Slopes grow along a line, so this is between the start and there.
        length = np.divide(length * start, start - end, out=length.copy(), where=over)
        there = here.towards(step, length)
        value, residual = _evaluate(space, there, c)
    return there, value, residual


def _exactly(space: Space, at: _Point, c: float) -> tuple[_Point, Double, Double]:
    """The point with its decisions from the items in float64, and what `_evaluate` says of it."""
    at = _Point(at.coefficients, space.decisions(at.coefficients), at.intercept)
    return at, *_evaluate(space, at, c)


def _evaluate(space: Space, at: _Point, c: float) -> tuple[Double, Double]:
    """The objective (columns,), but for a constant, and p(True) less the label (n, columns)."""
    # With u = −sign · f: the loss is log(1 + exp(u)), its slope −sign · σ(u), to all digits.
    u = at.values + at.intercept
    u *= space.against
    losses = sums(u)
    np.maximum(u, -_FARTHEST, out=u)
    np.negative(u, out=u)
    np.exp(u, out=u)
    u += 1
    losses += sums(np.log(u))
    np.divide(space.against, u, out=u)
    penalty = space.product(at.coefficients, at.coefficients, at.values)
    return 0.5 * penalty + c * losses, u


def _start(space: Space, points: list[tuple[float, _Point]], c: float) -> _Point:
    """For each column the best of the last solution and curves in log C from those before it."""
    before, last = points[-1]
    if not before:
        return last
    known = [(float(np.log(at / c)), point) for at, point in points if at]
    starts = [last]
    if len(known) == 1:
        grown = _Point(last.coefficients, last.values, 0 * last.intercept)
        starts += [last.towards(grown, (c / before) ** power - 1) for power in (1, 0.5)]
    # A line, and a parabola.
    for begin in range(len(known) - 2, -1, -1):
        nodes, start = known[begin:], last
        for x, point in nodes[:-1]:
            share = np.prod([other / (other - x) for other, _ in nodes if other != x])
            start = start.towards(point.towards(last, -1), float(share))
        starts.append(start)
    best = np.stack([_evaluate(space, start, c)[0] for start in starts]).argmin(axis=0)
    chosen = _Point(0 * last.coefficients, 0 * last.values, 0 * last.intercept)
    for index, start in enumerate(starts):
        columns = np.flatnonzero(best == index)
        chosen.put(columns, start.take(best == index))
    return chosen
