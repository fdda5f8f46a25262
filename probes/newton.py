"""Damped Newton steps on regularised logistic losses, all label columns together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from interp.errors import ProbeError
from probes.linear import factorise, solve_shifted

__all__ = [
    "DECISION_ERROR",
    "RELATIVE_GRADIENT",
    "Space",
    "State",
    "feature_space",
    "minimise",
    "row_space",
]

RELATIVE_GRADIENT: Final = 1e-7
"""A fit whose gradient norm is above this times its norm at zero weights is an error."""

DECISION_ERROR: Final = 1e-4
"""Steps end when the decisions are known to this, relative to the largest one."""

_MAX_STEPS: Final = 60
_SHARED_STEPS: Final = 25
_MAX_HALVINGS: Final = 40
_DIRECT_COLUMNS: Final = 4
"""Up to so many label columns each get a matrix of their own."""

_CG_STEPS: Final = 40
_DIRECT_WORK: Final = 10**9


@dataclass(frozen=True, slots=True)
class Space:
    """What the coefficients are: weights of the items (rows) or of the features.

    Attributes:
        n_coefficients: n in row space, d in feature space.
        forward: coefficients (k, columns) to decisions without intercept (n, columns).
        pull: a vector over items (n, columns) to the coefficients whose weights are Zᵀ of it.
        dot: inner products as weights (columns,) of u and v, given also `forward` of v.
        weights: coefficients to weights (d, columns).
        radius: largest norm of an item.
        direct: Newton step by factorising every column's own matrix, in float64 if told so.
        inverter: from mean squared weights s² (n,) to the inverse of I + ZᵀS²Z on coefficients.
        prefers_direct: whether a matrix a column is cheap for that many columns.
    """

    n_coefficients: int
    forward: Callable[[Tensor], Tensor]
    pull: Callable[[Tensor], Tensor]
    dot: Callable[[Tensor, Tensor, Tensor], Tensor]
    weights: Callable[[Tensor], Tensor]
    radius: float
    direct: Callable[[_Point, bool], tuple[Tensor, Tensor]]
    inverter: Callable[[Tensor], Callable[[Tensor], Tensor]]
    prefers_direct: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class State:
    """A point: where the next strength starts.

    Attributes:
        coefficients: (k, columns) float64.
        intercept: (columns,).
        values: (n, columns), `forward` of the coefficients.
    """

    coefficients: Tensor
    intercept: Tensor
    values: Tensor

    @classmethod
    def zero(cls, space: Space, y: Tensor) -> State:
        """All weights zero, for labels y (n, columns)."""
        columns = y.shape[1]
        return cls(y.new_zeros(space.n_coefficients, columns), y.new_zeros(columns), 0 * y)

    def take(self, columns: Tensor) -> State:
        """The same for some of the columns, ascending."""
        if len(columns) == len(self.intercept):
            return self
        return State(
            self.coefficients[:, columns], self.intercept[columns], self.values[:, columns]
        )

    def put(self, columns: Tensor, part: State) -> State:
        """With these columns replaced; reuses the storage of this state."""
        if len(columns) == len(self.intercept):
            return part
        self.coefficients[:, columns] = part.coefficients
        self.intercept[columns] = part.intercept
        self.values[:, columns] = part.values
        return self


@dataclass(frozen=True, slots=True)
class _Point:
    """What a Newton step is computed from.

    Attributes:
        slope: (k, columns) gradient as coefficients.
        lifted: (n, columns), `forward` of it.
        slope_b: (columns,) gradient of the intercept.
        s: (n, columns), root of C · p(1 − p).
    """

    slope: Tensor
    lifted: Tensor
    slope_b: Tensor
    s: Tensor

    def take(self, columns: slice) -> _Point:
        return _Point(
            self.slope[:, columns],
            self.lifted[:, columns],
            self.slope_b[columns],
            self.s[:, columns],
        )


def minimise(space: Space, y: Tensor, c: float, start: State) -> tuple[State, float]:
    """Minimise for every label column; returns the solution and its largest relative gradient.

    A column is finished when its decisions are certified: the objective is strongly convex in the
    weights, so a gradient g leaves them at most ‖g‖ away, and a decision at most ‖g‖ times the
    norm of its item. Where rounding keeps that bound from being reached (C around 1e6), steps end
    at `_MAX_STEPS`, and a relative gradient up to `RELATIVE_GRADIENT` is all that is known.

    Args:
        space: the items.
        y: (n, columns) labels as 0 and 1.
        c: inverse L2 strength.
        start: where to start.

    Raises:
        ProbeError: the gradient of a column does not vanish.
    """
    columns = y.shape[1]
    state = State(start.coefficients.clone(), start.intercept.clone(), start.values.clone())
    scale = _gradient_at_zero(space, y, c)
    reached = torch.full_like(state.intercept, float("inf"))
    left = torch.arange(columns, device=y.device)
    exact = False
    for number in range(_MAX_STEPS):
        here, labels = state.take(left), y if len(left) == columns else y[:, left]
        p = torch.sigmoid(here.values + here.intercept)
        residual = p - labels
        spread = p * (1 - p)
        slope = here.coefficients + c * space.pull(residual)
        lifted = space.forward(slope)
        slope_b = c * residual.sum(dim=0)
        squared = space.dot(slope, slope, lifted).clamp(min=0)
        relative = (squared + slope_b**2).sqrt() / scale[left]
        error = space.radius * squared.sqrt() + slope_b.abs() / (c * spread.sum(dim=0))
        size = (here.values + here.intercept).abs().amax(dim=0)
        finished = (relative <= 1e-13) | (
            (2 * error <= DECISION_ERROR * size) & (relative <= RELATIVE_GRADIENT)
        )
        # Float32 steps stall where the matrix is ill-conditioned: then float64 takes over.
        exact = exact or (number > 2 and bool((relative > 0.3 * reached[left]).any()))
        reached[left] = relative
        keep = ~finished
        if not bool(keep.any()):
            break
        if not bool(keep.all()):
            keep = keep.nonzero()[:, 0]
            left, here, labels = left[keep], here.take(keep), labels[:, keep]
            slope, lifted, slope_b = slope[:, keep], lifted[:, keep], slope_b[keep]
            spread, relative = spread[:, keep], relative[keep]
        point = _Point(slope, lifted, slope_b, (c * spread.clamp(min=1e-14)).sqrt())
        if space.prefers_direct(len(left)) or number >= _SHARED_STEPS:
            move, move_b = _in_chunks(space, point, exact)
            step = (move, space.forward(move), move_b)
        else:
            step = _shared_step(space, point, relative)
        state = state.put(left, _downhill(space, labels, c, here, step))
    worst = float(reached.max())
    # Float64 sums round: at large C a gradient of exactly zero cannot be reached.
    if not worst <= RELATIVE_GRADIENT:
        raise ProbeError(
            f"The probe at C = {c:g} did not converge: its gradient is still {worst:.1e} of the "
            f"one at zero weights. Use a smaller C."
        )
    return state, worst


def _gradient_at_zero(space: Space, y: Tensor, c: float) -> Tensor:
    slope = c * space.pull(0.5 - y)
    squared = space.dot(slope, slope, space.forward(slope)).clamp(min=0)
    # A floor for labels that no feature tells apart: then the gradient is zero from the start.
    return (squared + (c * (0.5 - y).sum(dim=0)) ** 2).sqrt().clamp(min=c)


def _in_chunks(space: Space, point: _Point, exact: bool) -> tuple[Tensor, Tensor]:
    """Direct steps, a few columns at a time: each needs a matrix of its own."""
    if point.s.shape[1] <= _DIRECT_COLUMNS:
        return space.direct(point, exact)
    parts = [
        space.direct(point.take(slice(first, first + _DIRECT_COLUMNS)), exact)
        for first in range(0, point.s.shape[1], _DIRECT_COLUMNS)
    ]
    return torch.cat([move for move, _ in parts], dim=1), torch.cat([b for _, b in parts])


def _downhill(
    space: Space, y: Tensor, c: float, here: State, step: tuple[Tensor, Tensor, Tensor]
) -> State:
    """Take the step (coefficients, `forward` of them, intercept), halved where it must be."""
    move, moved, move_b = step

    def objective(state: State) -> Tensor:
        f = state.values + state.intercept
        losses = (torch.nn.functional.softplus(f) - y * f).sum(dim=0)
        return 0.5 * space.dot(state.coefficients, state.coefficients, state.values) + c * losses

    before = objective(here)
    allowed = before + 1e-12 * before.abs()
    length = torch.ones_like(move_b)
    there = State(here.coefficients + move, here.intercept + move_b, here.values + moved)
    for _ in range(_MAX_HALVINGS):
        worse = ~(objective(there) <= allowed)
        if not bool(worse.any()):
            break
        length = torch.where(worse, length / 2, length)
        there = State(
            here.coefficients + length * move,
            here.intercept + length * move_b,
            here.values + length * moved,
        )
    return there


def row_space(z: Tensor, gram: Tensor) -> Space:
    """The space of item weights a, with w = Zᵀa; for standardised items z (n, d), and z·zᵀ."""
    single = gram.float()

    def direct(point: _Point, exact: bool) -> tuple[Tensor, Tensor]:
        # With δa = S·q − slope: (I + S·K·S)·q + s·δb = S·K·slope and sᵀq = slope_b.
        kernel, s = gram if exact else single, point.s.T
        rows = s.to(kernel.dtype)
        matrix = rows[:, :, None] * kernel
        matrix *= rows[:, None, :]
        right = torch.stack([s * point.lifted.T, s], dim=2)
        by_lift, by_s = solve_shifted(matrix, right).unbind(dim=2)
        move_b = ((s * by_lift).sum(dim=1) - point.slope_b) / (s * by_s).sum(dim=1)
        q = by_lift - by_s * move_b[:, None]
        return point.s * q.T - point.slope, move_b

    def inverter(squared: Tensor) -> Callable[[Tensor], Tensor]:
        # (I + S²K)⁻¹ = S·(I + S·K·S)⁻¹·S⁻¹, symmetric under the inner product uᵀKv.
        s = squared.sqrt().float()
        matrix = s[:, None] * single * s
        matrix.diagonal().add_(1)
        inverse = torch.cholesky_inverse(factorise(matrix)).float()
        inverse = s[:, None] * inverse / s
        return lambda r: inverse @ r

    return Space(
        n_coefficients=len(z),
        forward=lambda a: (single if a.dtype == torch.float32 else gram) @ a,
        pull=lambda r: r,
        dot=lambda u, _v, lifted: (u * lifted).sum(dim=0),
        weights=lambda a: z.T @ a,
        radius=float(gram.diagonal().max().clamp(min=0).sqrt()),
        direct=direct,
        inverter=inverter,
        prefers_direct=lambda columns: columns <= _DIRECT_COLUMNS,
    )


def feature_space(z: Tensor) -> Space:
    """The space of feature weights, for standardised items z (n, d)."""
    n, d = z.shape
    single = z.float()
    moments: list[Tensor] = []

    def direct(point: _Point, _exact: bool) -> tuple[Tensor, Tensor]:
        scaled = point.s.T[:, :, None] * z
        pulled = (scaled * point.s.T[:, :, None]).sum(dim=1)
        right = torch.stack([-point.slope.T, pulled], dim=2)
        by_slope, by_pull = solve_shifted(scaled.mT @ scaled, right).unbind(dim=2)
        total = point.s.square().sum(dim=0) - (pulled * by_pull).sum(dim=1)
        move_b = (-point.slope_b - (pulled * by_slope).sum(dim=1)) / total
        return (by_slope - by_pull * move_b[:, None]).T, move_b

    def inverter(squared: Tensor) -> Callable[[Tensor], Tensor]:
        # One weight for all items, so that the second moments are computed once.
        if not moments:
            moments.append(single.T @ single)
        matrix = squared.mean().float() * moments[0]
        matrix.diagonal().add_(1)
        factor = factorise(matrix).float()
        return lambda r: torch.cholesky_solve(r, factor)

    return Space(
        n_coefficients=d,
        forward=lambda w: (single if w.dtype == torch.float32 else z) @ w,
        pull=lambda r: (single if r.dtype == torch.float32 else z).T @ r,
        dot=lambda u, v, _lifted: (u * v).sum(dim=0),
        weights=lambda w: w,
        radius=float(z.square().sum(dim=1).max().sqrt()),
        direct=direct,
        inverter=inverter,
        prefers_direct=lambda columns: columns <= _DIRECT_COLUMNS and n * d * d <= _DIRECT_WORK,
    )


def _shared_step(space: Space, point: _Point, relative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Newton steps of many columns by conjugate gradients under one factor, in float32.

    The preconditioner is the inverse Hessian of the columns' mean weights. Inner products are
    those of the weights, so the error that is left is the error of the step.
    """
    squared = point.s.square().float()
    total = squared.sum(dim=0)

    def curvature(lifted: Tensor) -> Tensor:
        # The intercept takes its best value for every step: weighted means drop out.
        return space.pull(squared * (lifted - (squared * lifted).sum(dim=0) / total))

    precondition = space.inverter(squared.mean(dim=1))
    owed = squared * (point.slope_b.float() / total)
    residual = space.pull(owed) - point.slope.float()
    # Near the solution steps pay off fully only when they are solved well.
    tolerance = relative.float().sqrt().clamp(3e-3, 0.1) ** 2
    move = torch.zeros_like(residual)
    direction = precondition(residual)
    lifted = space.forward(direction)
    inner = space.dot(residual, direction, lifted).clamp(min=0)
    target = tolerance * inner
    tiny = torch.finfo(torch.float32).tiny
    for _ in range(_CG_STEPS):
        applied = direction + curvature(lifted)
        bend = space.dot(applied, direction, lifted)
        # A finished column rests: past the rounding its products are noise, even negative.
        length = torch.where((inner > target) & (bend > tiny), inner / bend, 0.0)
        move = move + length * direction
        residual = residual - length * applied
        conditioned = precondition(residual)
        raised = space.forward(conditioned)
        inner, before = space.dot(residual, conditioned, raised).clamp(min=0), inner
        if bool(((inner <= target) | (length == 0)).all()):
            break
        ratio = torch.where(before > tiny, inner / before, 0.0)
        direction = conditioned + ratio * direction
        lifted = raised + ratio * lifted
    exact = move.double()
    weight = point.s.square()
    moved = space.forward(exact)
    move_b = -(point.slope_b + (weight * moved).sum(dim=0)) / weight.sum(dim=0)
    return exact, moved, move_b
