"""Exact L2 logistic regression for many label vectors at once, by damped Newton steps.

Minimises, for every label column, C · Σ log loss + ½‖w‖² with an unpenalised intercept, on
features that are standardised by the training items: the objective of scikit-learn.

With at most as many training items n as features d, the weights lie in the span of the items, so
only the Gram matrix K of the standardised items is needed (row space): w = Zᵀa, decision values
f = K·a + b. Otherwise the coefficients are the weights themselves (feature space). Steps may be
computed in float32, because an inexact step costs a further step and never the solution; what a
solution is certified by is float64. No solution is reported whose gradient has not vanished.

On a CPU `probes.dual` solves a few columns and `probes.many` many of them; `probes.newton` runs on
any device, and on a CPU where these two give up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from interp.errors import ProbeError
from probes.dual import solve_path
from probes.linear import gram_matrix
from probes.many import Solutions, solve_columns
from probes.newton import (
    DECISION_ERROR,
    DIRECT_COLUMNS,
    RELATIVE_GRADIENT,
    State,
    feature_space,
    minimise,
    row_space,
)
from probes.scaling import standardise
from probes.solver import require_strength
from probes.spaces import FeatureSpace, RowSpace

__all__ = ["Decisions", "decide_held_out"]


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decision values of held-out items, and the certificate of the fits behind them.

    Attributes:
        values: (n_held, n_strengths, n_columns) float64, log odds of True.
        relative_gradient: largest gradient norm at a solution, relative to zero weights.
    """

    values: NDArray[np.float64]
    relative_gradient: float


def decide_held_out(
    train: NDArray[np.float32],
    held_out: NDArray[np.float32],
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
    device: str = "cpu",
) -> Decisions:
    """Fit on the training items, decide the held-out ones.

    Args:
        train: (n, d) activations.
        held_out: (m, d) activations.
        labels: (n, n_columns) of bool; each column has both classes.
        strengths: values of C, ascending (each starts at the solution of the one before).
        device: torch device; the linear algebra of `cpu` is numpy's.

    Raises:
        ProbeError: a strength is not positive, a column has one class only, or a fit does not
            converge.
    """
    for c in strengths:
        require_strength(c)
    n_true = labels.sum(axis=0)
    if ((n_true == 0) | (n_true == len(labels))).any():
        raise ProbeError(
            "A label vector has one class only among the training items; probes need both. "
            "Use fewer --folds or more items."
        )
    features, shown, _ = standardise(train, held_out)
    solved = _on_cpu(features, labels, strengths) if device == "cpu" else None
    if solved is None:
        weights, intercepts, worst = _by_torch(features, labels, strengths, device)
    else:
        coefficients, intercepts, worst = solved
        flat = coefficients.reshape(len(coefficients), -1)
        weights = features.T @ flat if len(features) <= features.shape[1] else flat
    values = (shown @ weights.reshape(len(weights), -1)).reshape(len(shown), *intercepts.shape)
    return Decisions(values + intercepts, worst)


def _on_cpu(
    features: NDArray[np.float64], labels: NDArray[np.bool_], strengths: Sequence[float]
) -> Solutions | None:
    """Item or feature weights, as `probes.many` gives them; None where the quick ways give up."""
    n, d = features.shape
    goal = {"decision_error": DECISION_ERROR, "relative_gradient": RELATIVE_GRADIENT}
    if n > d:
        return solve_columns(FeatureSpace(features), labels, strengths, **goal)
    if labels.shape[1] > DIRECT_COLUMNS:
        return solve_columns(RowSpace(features), labels, strengths, **goal)
    single = features.astype(np.float32)
    kernel = single @ single.T
    paths = []
    # Threads cost more than they bring on matrices of this size.
    with _threads().limit(limits=1, user_api="blas"):
        for label in labels.T:
            path = solve_path(features, kernel, label, strengths, **goal)
            if path is None:
                return None
            paths.append(path)
    coefficients, intercepts, reached = zip(*paths, strict=True)
    return np.stack(coefficients, axis=2), np.stack(intercepts, axis=1), max(reached)


def _by_torch(
    features: NDArray[np.float64],
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
    device: str,
) -> Solutions:
    """Weights (d, n_strengths, columns), intercepts, the largest relative gradient."""
    z = torch.from_numpy(features).to(device)
    y = torch.from_numpy(labels).to(device).double()
    space = row_space(z, gram_matrix(z)) if len(z) <= z.shape[1] else feature_space(z)
    state, worst = State.zero(space, y), 0.0
    weights, intercepts = [], []
    for c in strengths:
        state, reached = minimise(space, y, c, state)
        worst = max(worst, reached)
        weights.append(space.weights(state.coefficients).cpu().numpy())
        intercepts.append(state.intercept.cpu().numpy())
    return np.stack(weights, axis=1), np.stack(intercepts), worst
