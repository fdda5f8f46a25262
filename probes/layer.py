"""Out-of-fold decisions of one layer, for many label vectors, with C chosen on training folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from interp.errors import ProbeError
from interp.vocabulary import Solver
from probes.batched import decide_held_out
from probes.solver import fit_probe

__all__ = ["C_GRID", "Decide", "LayerFit", "decide_layer", "solver_named"]

C_GRID: Final = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""What `--C auto` chooses from, ascending."""

Decide = Callable[
    [Any, Any, NDArray[np.bool_], Sequence[float]], tuple[NDArray[np.float64], float | None]
]
"""From training features, held-out features, labels (n, columns) and ascending strengths to
decision values (n_held, n_strengths, columns) and the largest relative gradient at a solution, if
known."""


@dataclass(frozen=True, slots=True)
class LayerFit:
    """What the probes of one layer decide.

    Attributes:
        decisions: (n_items, columns), each from probes without the item's fold.
        inner_accuracy: (n_folds, columns) cross-validated accuracy inside each training part, at
            the chosen strength; empty where it was not asked for.
        C: (n_folds, columns) strengths that were used.
        relative_gradient: largest one at a solution; None if the solver does not say.
    """

    decisions: NDArray[np.float64]
    inner_accuracy: NDArray[np.float64]
    C: NDArray[np.float64]
    relative_gradient: float | None


def solver_named(solver: Solver, device: str = "cpu") -> Decide:
    """The solver of that name; `auto` takes a GPU if there is one (for `batched` only)."""
    if solver == "sklearn":
        return _decide_by_sklearn
    place = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device

    def decide(
        train: NDArray[np.float32],
        held_out: NDArray[np.float32],
        labels: NDArray[np.bool_],
        strengths: Sequence[float],
    ) -> tuple[NDArray[np.float64], float]:
        found = decide_held_out(
            torch.from_numpy(train).to(place),
            torch.from_numpy(held_out).to(place),
            torch.from_numpy(labels).to(place),
            strengths,
        )
        return found.values.cpu().numpy(), found.relative_gradient

    return decide


def _decide_by_sklearn(
    train: NDArray[np.float32],
    held_out: NDArray[np.float32],
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
) -> tuple[NDArray[np.float64], None]:
    values = np.empty((len(held_out), len(strengths), labels.shape[1]))
    for column in range(labels.shape[1]):
        for index, strength in enumerate(strengths):
            probe = fit_probe(train, labels[:, column], C=strength)
            values[:, index, column] = probe.decide(held_out)
    return values, None


def decide_layer(
    features: Any,
    labels: NDArray[np.bool_],
    folds: NDArray[np.int64],
    strengths: Sequence[float],
    decide: Decide,
    *,
    inner: bool,
) -> LayerFit:
    """Decide every item by probes without its fold.

    With several strengths, each outer fold takes the one that is most accurate in cross-validation
    over the other folds alone (the smallest of equally good ones); every label column chooses for
    itself, so that a permutation goes through the whole procedure.

    Args:
        features: (n_items, d), an array or a sparse matrix.
        labels: (n_items, columns).
        folds: (n_items,) from 0.
        strengths: values of C, ascending.
        decide: the solver.
        inner: whether the inner accuracy is wanted though there is nothing to choose.

    Raises:
        ProbeError: a training part has one class only, or a fit does not converge.
    """
    n_folds, columns = int(folds.max()) + 1, labels.shape[1]
    gradients: list[float] = []

    def run(training: NDArray[np.bool_], held_out: NDArray[np.bool_]) -> NDArray[np.float64]:
        inside = labels[training].sum(axis=0)
        if (inside == 0).any() or (inside == training.sum()).any():
            raise ProbeError(
                "The items outside two folds are of one class only, so no probe can be fitted to "
                "them. Use fewer --folds, more groups, or another --seed."
            )
        values, gradient = decide(
            features[training], features[held_out], labels[training], strengths
        )
        if gradient is not None:
            gradients.append(gradient)
        return values

    accuracy = np.empty((0, len(strengths), columns))
    if inner or len(strengths) > 1:
        accuracy = _inner_accuracy(labels, folds, len(strengths), run)
    chosen = accuracy.argmax(axis=1) if len(strengths) > 1 else np.zeros((n_folds, columns), int)
    decisions = np.empty((len(labels), columns))
    for fold in range(n_folds):
        held_out = folds == fold
        values = run(~held_out, held_out)
        decisions[held_out] = np.take_along_axis(values, chosen[[fold]][:, None], axis=1)[:, 0]
    return LayerFit(
        decisions,
        np.take_along_axis(accuracy, chosen[:, None], axis=1)[:, 0]
        if len(accuracy)
        else np.empty((0, columns)),
        np.asarray(strengths)[chosen],
        max(gradients, default=None),
    )


def _inner_accuracy(
    labels: NDArray[np.bool_],
    folds: NDArray[np.int64],
    n_strengths: int,
    run: Callable[[NDArray[np.bool_], NDArray[np.bool_]], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """(n_folds, n_strengths, columns) accuracy inside the training part of each outer fold.

    The probe that is fitted without folds a and b judges b on behalf of a, and a on behalf of b.
    """
    n_folds = int(folds.max()) + 1
    right = np.zeros((n_folds, n_strengths, labels.shape[1]))
    total = np.zeros(n_folds)
    for a, b in combinations(range(n_folds), 2):
        held_out = (folds == a) | (folds == b)
        said = run(~held_out, held_out) > 0
        correct = said == labels[held_out][:, None]
        for outer, judged in ((a, b), (b, a)):
            inside = folds[held_out] == judged
            right[outer] += correct[inside].sum(axis=0)
            total[outer] += inside.sum()
    return right / total[:, None, None]
