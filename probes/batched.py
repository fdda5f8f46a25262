"""Exact L2 logistic regression for many label vectors and training sets, by damped Newton steps.

Minimises, for every label vector, C · Σ log loss + ½‖w‖² with an unpenalised intercept, on
features that are standardised by the training items: the objective of scikit-learn.

With at most as many training items n as features d, the weights lie in the span of the items, so
only the Gram matrix K of the standardised items is needed (row space): w = Zᵀa, decision values
f = K·a + b. Otherwise the coefficients are the weights themselves (feature space). Steps may be
computed in float32, because an inexact step costs a further step and never the solution; what a
solution is certified by is float64. No solution is reported whose gradient has not vanished.

On a CPU the items are standardised once for all training sets, and these are solved together where
label vectors are few, one after another where they are many. `probes.newton` runs on any device,
and on a CPU where that gives up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from interp.errors import ProbeError
from probes.linear import gram_matrix
from probes.many import solve_columns
from probes.newton import (
    DECISION_ERROR,
    RELATIVE_GRADIENT,
    State,
    feature_space,
    minimise,
    row_space,
)
from probes.scaling import Common, standardise, standardise_together
from probes.sets import FEW, SetsSpace
from probes.solver import require_strength
from probes.spaces import FeatureSpace, RowSpace
from probes.steps import Conjugate, Direct, Steps

__all__ = ["Decisions", "Split", "decide_held_out"]

_ONE_THREAD: Final = 2**22
"""Threads cost more than they bring on items of so few elements."""

_KEPT: Final = 2**25 - 2**16
"""Bytes: just below 32 MiB, the largest block of which glibc takes notice."""

_TOGETHER: Final = 2**26
"""Elements of the matrices of training sets that are solved together."""

_LARGE: Final = 0.1
"""A strength above this takes so many steps that a Gram matrix for each training set pays."""


@cache
def _threads() -> ThreadpoolController:
    return ThreadpoolController()


class Split(NamedTuple):
    """What is fitted on and what is decided.

    Attributes:
        training: (n_items,) of bool.
        shown: (n_items,) of bool.
    """

    training: NDArray[np.bool_]
    shown: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decision values of the items shown, and the certificate of the fits behind them.

    Attributes:
        values: (n_shown, n_strengths, n_columns) float64, log odds of True.
        relative_gradient: largest gradient norm at a solution, relative to zero weights.
    """

    values: NDArray[np.float64]
    relative_gradient: float


def decide_held_out(
    features: NDArray[np.float32],
    splits: Sequence[Split],
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
    device: str = "cpu",
) -> Iterator[Decisions]:
    """Fit on the training items of each split, decide the items that it shows, in turn.

    Args:
        features: (n_items, d) activations.
        splits: one fit each.
        labels: (n_items, n_columns) of bool; each column has both classes in every training part.
        strengths: values of C, ascending (each starts at the solution of the one before).
        device: torch device; the linear algebra of `cpu` is numpy's.

    Raises:
        ProbeError: a strength is not positive, a column has one class only, or a fit does not
            converge.
    """
    for c in strengths:
        require_strength(c)
    for split in splits:
        n_true = labels[split.training].sum(axis=0)
        if ((n_true == 0) | (n_true == split.training.sum())).any():
            raise ProbeError(
                "A label vector has one class only among the training items; probes need both. "
                "Use fewer --folds or more items."
            )
    if device != "cpu":
        return (_by_torch(features, split, labels, strengths, device) for split in splits)
    return _on_cpu(features, splits, labels, strengths)


def _on_cpu(
    features: NDArray[np.float32],
    splits: Sequence[Split],
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
) -> Iterator[Decisions]:
    limit = 1 if features.size <= _ONE_THREAD else None
    # What has once freed a block like this gives smaller ones back no more (glibc): fresh pages for
    # every array would take a fifth of the time.
    np.empty(_KEPT, dtype=np.uint8)
    with _threads().limit(limits=limit, user_api="blas"):
        common = standardise_together(features, np.stack([s.training for s in splits], axis=1))
    for begin, end in _parts(splits, features.shape[1], labels.shape[1]):
        part = splits[begin:end]
        with _threads().limit(limits=limit, user_api="blas"):
            scale = common.scale[:, begin:end]
            found = _solve(Common(common.z, scale), part, labels, strengths)
        # What does not go smoothly is left to a way that is slower and robust.
        yield from found or [_by_torch(features, s, labels, strengths, "cpu") for s in part]


def _parts(splits: Sequence[Split], d: int, columns: int) -> Iterator[tuple[int, int]]:
    """Which splits go together: those of one space if label vectors are few, and memory allows."""
    sizes = [int(split.training.sum()) for split in splits]
    begin = 0
    for end in range(1, len(splits) + 1):
        if end < len(splits) and columns <= FEW and (sizes[begin] <= d) == (sizes[end] <= d):
            # A Gram matrix, and a factor for each label vector.
            square = max(sizes[begin : end + 1]) ** 2
            if sizes[begin] > d or (end + 1 - begin) * (1 + columns) * square <= _TOGETHER:
                continue
        yield begin, end
        begin = end


def _solve(
    common: Common,
    splits: Sequence[Split],
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
) -> list[Decisions]:
    """Nothing where the quick ways give up."""
    training = np.stack([split.training for split in splits], axis=1)
    space: RowSpace | FeatureSpace | SetsSpace
    steps: Callable[[], Steps]
    if training[:, 0].sum() > common.z.shape[1]:
        space = FeatureSpace(common, training, labels)
        steps = partial(Conjugate, space)
    elif labels.shape[1] <= FEW:
        space = SetsSpace(common, training, labels, own=len(strengths) > 1 or strengths[0] > _LARGE)
        steps = partial(Direct, space)
    else:
        space = RowSpace(common, training, labels)
        steps = partial(Conjugate, space)
    solved = solve_columns(
        space,
        strengths,
        steps,
        decision_error=DECISION_ERROR,
        relative_gradient=RELATIVE_GRADIENT,
    )
    if solved is None:
        return []
    found, each = [], labels.shape[1]
    for index, split in enumerate(splits):
        own = slice(index * each, (index + 1) * each)
        values = solved.values[..., own]
        if isinstance(space, SetsSpace) or space.whole:
            values = values[split.shown]
        else:
            flat = values.reshape(space.n_coefficients, -1)
            values = space.outside(common.z[split.shown], index, flat).reshape(
                -1, *values.shape[1:]
            )
            values += solved.intercepts[:, own]
        found.append(Decisions(values, solved.worst))
    return found


def _by_torch(
    features: NDArray[np.float32],
    split: Split,
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
    device: str,
) -> Decisions:
    train, shown, _ = standardise(features[split.training], features[split.shown])
    z = torch.from_numpy(train).to(device)
    y = torch.from_numpy(labels[split.training]).to(device).double()
    space = row_space(z, gram_matrix(z)) if len(z) <= z.shape[1] else feature_space(z)
    state, worst = State.zero(space, y), 0.0
    values = np.empty((len(shown), len(strengths), labels.shape[1]))
    for index, c in enumerate(strengths):
        state, reached = minimise(space, y, c, state)
        worst = max(worst, reached)
        weights = space.weights(state.coefficients).cpu().numpy()
        values[:, index] = shown @ weights + state.intercept.cpu().numpy()
    return Decisions(values, worst)
