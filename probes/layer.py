"""Out-of-fold decisions of one layer, for many label vectors, with C chosen on training folds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Final, get_args

import numpy as np
from numpy.typing import NDArray

from interp.adapters.device import usable_device
from interp.errors import ProbeError, require_choice
from interp.statistics import class_weights
from interp.vocabulary import ProbeKind, Solver
from probes.batched import Split, decide_held_out
from probes.closed import closed_decisions
from probes.solver import fit_probe

__all__ = [
    "C_GRID",
    "Decide",
    "LayerFit",
    "decide_layer",
    "one_by_one",
    "probe_named",
    "solver_named",
]

C_GRID: Final = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""What `--C auto` chooses from, ascending."""

Decide = Callable[
    [Any, Sequence[Split], NDArray[np.bool_], Sequence[float]],
    Iterator[tuple[NDArray[np.float64], float | None]],
]
"""From features, splits, labels (n_items, columns) and ascending strengths to, for each split in
turn, decision values (n_shown, n_strengths, columns) and the largest relative gradient at a
solution, if known."""

DecideOne = Callable[[Any, Any, NDArray[np.bool_], Sequence[float]], NDArray[np.float64]]
"""From training features, shown features, labels of the training items and strengths to decision
values."""


@dataclass(frozen=True, slots=True)
class LayerFit:
    """What the probes of one layer decide.

    Attributes:
        decisions: (n_items, columns), each from probes without the item's fold.
        inner_accuracy: (n_folds, inner) cross-validated balanced accuracy inside each training
            part, at the chosen strength, of the columns for which it was asked.
        C: (n_folds, columns) strengths that were used.
        instability: (n_folds, inner) share of verdicts on the fold's items that change when a
            further fold is left out of the training, mean over that fold.
        relative_gradient: largest one at a solution; None if the solver does not say.
    """

    decisions: NDArray[np.float64]
    inner_accuracy: NDArray[np.float64]
    C: NDArray[np.float64]
    instability: NDArray[np.float64]
    relative_gradient: float | None


def probe_named(kind: ProbeKind, solver: Solver, device: str = "cpu") -> Decide:
    """What fits and decides: `solver_named` for logistic probes, else the closed form.

    Raises:
        ProbeError: scikit-learn's solver is asked of a closed form.
    """
    require_choice("probe", kind, get_args(ProbeKind), ProbeError)
    if kind == "logistic":
        return solver_named(solver, device)
    if solver == "sklearn":
        raise ProbeError(f"--solver sklearn goes with --probe logistic; {kind} has a closed form.")

    return one_by_one(partial(closed_decisions, kind))


def one_by_one(decide_one: DecideOne) -> Decide:
    """What decides each split by itself."""

    def decide(
        features: Any,
        splits: Sequence[Split],
        labels: NDArray[np.bool_],
        strengths: Sequence[float],
    ) -> Iterator[tuple[NDArray[np.float64], None]]:
        for training, shown in splits:
            fitted = (features[training], features[shown], labels[training], strengths)
            yield decide_one(*fitted), None

    return decide


def solver_named(solver: Solver, device: str = "cpu") -> Decide:
    """The solver of that name; `auto` takes a GPU if there is one (for `batched` only)."""
    require_choice("solver", solver, get_args(Solver), ProbeError)
    if solver == "sklearn":
        return one_by_one(_decide_by_sklearn)
    place = usable_device(device, ProbeError)

    def decide(
        features: NDArray[np.float32],
        splits: Sequence[Split],
        labels: NDArray[np.bool_],
        strengths: Sequence[float],
    ) -> Iterator[tuple[NDArray[np.float64], float]]:
        for found in decide_held_out(features, splits, labels, strengths, place):
            yield found.values, found.relative_gradient

    return decide


def _decide_by_sklearn(
    train: NDArray[np.float32],
    held_out: NDArray[np.float32],
    labels: NDArray[np.bool_],
    strengths: Sequence[float],
) -> NDArray[np.float64]:
    values = np.empty((len(held_out), len(strengths), labels.shape[1]))
    for column in range(labels.shape[1]):
        for index, strength in enumerate(strengths):
            probe = fit_probe(train, labels[:, column], C=strength)
            values[:, index, column] = probe.decide(held_out)
    return values


def decide_layer(
    features: Any,
    labels: NDArray[np.bool_],
    folds: NDArray[np.int64],
    strengths: Sequence[float],
    decide: Decide,
    *,
    inner: int = 0,
    one_standard_error: bool = False,
) -> LayerFit:
    """Decide every item by probes without its fold.

    With several strengths, each outer fold takes the one of the highest balanced accuracy in
    cross-validation over the other folds alone (the smallest of equally good ones); every label
    column chooses for itself, so that a permutation goes through the whole procedure.

    Args:
        features: (n_items, d), an array or a sparse matrix.
        labels: (n_items, columns).
        folds: (n_items,) from 0.
        strengths: values of C, ascending.
        decide: the solver.
        inner: for how many columns, from the first, the inner accuracy is wanted even though there
            is nothing to choose.
        one_standard_error: take the smallest strength whose inner accuracy is within one standard
            error (over the inner folds) of the best one.

    Raises:
        ProbeError: a training part has one class only, or a fit does not converge.
    """
    n_folds, columns = int(folds.max()) + 1, labels.shape[1]
    gradients: list[float] = []

    def run(
        splits: Sequence[Split], y: NDArray[np.bool_]
    ) -> Iterator[tuple[NDArray[np.bool_], NDArray[np.float64]]]:
        for training, _ in splits:
            inside = y[training].sum(axis=0)
            if (inside == 0).any() or (inside == training.sum()).any():
                raise ProbeError(
                    "The items outside two folds are of one class only, so no probe can be fitted "
                    "to them. Use fewer --folds, more groups, or another --seed."
                )
        decided = decide(features, splits, y, strengths)
        for (_, shown), (values, gradient) in zip(splits, decided, strict=True):
            if gradient is not None:
                gradients.append(gradient)
            yield shown, values

    judged = labels if len(strengths) > 1 else labels[:, :inner]
    verdicts = _inner_verdicts(judged, folds, len(strengths), run)
    accuracy, weights = _inner_accuracy(verdicts, judged, folds)
    if len(strengths) > 1:
        chosen = _chosen(accuracy, weights, one_standard_error)
    else:
        chosen = np.zeros((n_folds, columns), int)
    decisions = np.empty((len(labels), columns))
    instability = np.empty((n_folds, inner))
    splits = [Split(folds != fold, folds == fold) for fold in range(n_folds)]
    for fold, (held_out, values) in enumerate(run(splits, labels)):
        decisions[held_out] = np.take_along_axis(values, chosen[[fold]][:, None], axis=1)[:, 0]
        others = np.delete(verdicts[held_out], fold, axis=1)[..., :inner]
        said = np.take_along_axis(others, chosen[None, [fold], None, :inner], axis=2)[:, :, 0]
        changed = said != (decisions[held_out, None, :inner] > 0)
        instability[fold] = changed.mean(axis=(0, 1))
    best = np.take_along_axis(accuracy.mean(axis=1), chosen[:, None, : judged.shape[1]], axis=1)
    return LayerFit(
        decisions,
        best[:, 0, :inner],
        np.asarray(strengths)[chosen],
        instability,
        max(gradients, default=None),
    )


def _inner_verdicts(
    labels: NDArray[np.bool_],
    folds: NDArray[np.int64],
    n_strengths: int,
    run: Callable[..., Iterator[tuple[NDArray[np.bool_], NDArray[np.float64]]]],
) -> NDArray[np.bool_]:
    """(n_items, n_folds, n_strengths, columns) verdicts without the item's fold and another one.

    The probe that is fitted without folds a and b judges b on behalf of a, and a on behalf of b.
    """
    n_folds = int(folds.max()) + 1
    verdicts = np.zeros((len(labels), n_folds, n_strengths, labels.shape[1]), dtype=bool)
    if not labels.shape[1]:
        return verdicts
    pairs = list(combinations(range(n_folds), 2))
    splits = [Split(~np.isin(folds, pair), np.isin(folds, pair)) for pair in pairs]
    for (a, b), (held_out, values) in zip(pairs, run(splits, labels), strict=True):
        # Folds are two here, so the other one of an item is their sum without its own.
        verdicts[held_out, a + b - folds[held_out]] = values > 0
    return verdicts


def _inner_accuracy(
    verdicts: NDArray[np.bool_], labels: NDArray[np.bool_], folds: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Balanced accuracy of the inner folds inside the training part of each outer fold.

    Returns:
        (n_folds, n_folds − 1, n_strengths, columns) accuracies of the inner folds, each times its
        weight and n_folds − 1, so that their plain mean is the balanced accuracy of the training
        part; and (n_folds, n_folds − 1, 1, columns) the weights, which sum to 1.
    """
    n_folds = int(folds.max()) + 1
    found = np.empty((n_folds, n_folds - 1, *verdicts.shape[2:]))
    shares = np.empty((n_folds, n_folds - 1, 1, labels.shape[1]))
    for outer in range(n_folds):
        training = folds != outer
        right = (verdicts[training, outer] == labels[training, None]).astype(float)
        weights = class_weights(labels[training])
        right *= weights[:, None]
        for place, inside in enumerate(fold for fold in range(n_folds) if fold != outer):
            here = folds[training] == inside
            found[outer, place] = right[here].sum(axis=0) / training.sum() * (n_folds - 1)
            shares[outer, place, 0] = weights[here].sum(axis=0) / training.sum()
    return found, shares


def _chosen(
    accuracy: NDArray[np.float64], weights: NDArray[np.float64], one_standard_error: bool
) -> NDArray[np.int64]:
    """(n_folds, columns) index of the strength, from what `_inner_accuracy` returns."""
    mean = accuracy.mean(axis=1)
    best: NDArray[np.int64] = mean.argmax(axis=1)
    if not one_standard_error:
        return best
    # The standard error of a weighted mean of folds; std / √folds where all weigh the same.
    inner = accuracy.shape[1]
    spread = accuracy / inner - weights * mean[:, None]
    error = np.sqrt((spread**2).sum(axis=1) * inner / (inner - 1))
    needed = np.take_along_axis(mean - error, best[:, None], axis=1)
    return np.asarray((mean >= needed - 1e-12).argmax(axis=1))
