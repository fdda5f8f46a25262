"""Exact L2 logistic regression for many label vectors at once, by damped Newton steps.

Minimises, for every label column, C · Σ log loss + ½‖w‖² with an unpenalised intercept, on
features that are standardised by the training items: the objective of scikit-learn.

With at most as many training items n as features d, the weights lie in the span of the items, so
only the Gram matrix K of the standardised items is needed (row space): w = Zᵀa, decision values
f = K·a + b. Otherwise the coefficients are the weights themselves (feature space). Gradients and
decisions are float64; Newton steps may be solved in float32, because an inexact step costs a
further step and never the solution. No solution is reported whose gradient has not vanished.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from interp.errors import ProbeError
from probes.dual import solve_path
from probes.linear import gram_matrix, standardise
from probes.newton import (
    DECISION_ERROR,
    DIRECT_COLUMNS,
    RELATIVE_GRADIENT,
    State,
    feature_space,
    minimise,
    row_space,
)

__all__ = ["Decisions", "decide_held_out"]


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decision values of held-out items, and the certificate of the fits behind them.

    Attributes:
        values: (n_held, n_strengths, n_columns) float64, log odds of True.
        relative_gradient: largest gradient norm at a solution, relative to zero weights.
    """

    values: Tensor
    relative_gradient: float


def decide_held_out(
    train: Tensor, held_out: Tensor, labels: Tensor, strengths: Sequence[float]
) -> Decisions:
    """Fit on the training items, decide the held-out ones.

    Args:
        train: (n, d) activations.
        held_out: (m, d) activations.
        labels: (n, n_columns) of bool; each column has both classes.
        strengths: values of C, ascending (each starts at the solution of the one before).

    Raises:
        ProbeError: a strength is not positive, a column has one class only, or a fit does not
            converge.
    """
    if not strengths or not all(0 < c < float("inf") for c in strengths):
        raise ProbeError(
            f"--C is {', '.join(map(str, strengths))}; expected a positive number (inverse L2 "
            f"strength)."
        )
    n_true = labels.sum(dim=0)
    if bool(((n_true == 0) | (n_true == len(labels))).any()):
        raise ProbeError(
            "A label vector has one class only among the training items; probes need both. "
            "Use fewer --folds or more items."
        )
    y = labels.double()
    features, shown, _, _ = standardise(train, held_out)
    n, d = features.shape
    gram = gram_matrix(features) if n <= d else None
    if gram is not None and gram.device.type == "cpu" and labels.shape[1] <= DIRECT_COLUMNS:
        quick = _by_column(gram, labels, strengths)
        if quick is not None:
            coefficients, intercepts, worst = quick
            weights = features.T @ coefficients.flatten(1)
            values = (shown @ weights).reshape(len(shown), *intercepts.shape)
            return Decisions(values + intercepts, worst)
    space = row_space(features, gram) if gram is not None else feature_space(features)
    state = State.zero(space, y)
    decided, worst = [], 0.0
    for c in strengths:
        state, reached = minimise(space, y, c, state)
        worst = max(worst, reached)
        decided.append(shown @ space.weights(state.coefficients) + state.intercept)
    return Decisions(torch.stack(decided, dim=1), worst)


def _by_column(
    gram: Tensor, labels: Tensor, strengths: Sequence[float]
) -> tuple[Tensor, Tensor, float] | None:
    """(n, n_strengths, columns) coefficients, intercepts, certificate; None if a column fails."""
    columns = []
    for label in labels.numpy().T:
        found = solve_path(
            gram.numpy(),
            label,
            strengths,
            decision_error=DECISION_ERROR,
            relative_gradient=RELATIVE_GRADIENT,
        )
        if found is None:
            return None
        columns.append(found)
    coefficients, intercepts, reached = zip(*columns, strict=True)
    return (
        torch.from_numpy(np.stack(coefficients, axis=2)),
        torch.from_numpy(np.stack(intercepts, axis=1)),
        max(reached),
    )
