"""The probe sweep: five-fold decisions at every layer, and a layer chosen without the test fold."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from activations import ActivationCache
from interp.errors import ProbeError
from interp.vocabulary import Grouping
from probes.results import ProbeSweep
from probes.solver import fit_probe
from probes.splits import make_folds

__all__ = ["sweep_layers"]

Fold = NDArray[np.int64]


def sweep_layers(
    cache: ActivationCache,
    *,
    C: float = 0.01,
    n_folds: int = 5,
    seed: int = 0,
    grouping: Grouping = "group",
    progress: Callable[[int], None] = lambda _: None,
) -> ProbeSweep:
    """Probe every layer of a cache under the same folds.

    For each outer fold the layer is also chosen by cross-validation over the other folds alone
    (`layers_nested`): the accuracy at those layers is not inflated by having picked the layer.

    Args:
        cache: open activation cache of True/False items.
        C: inverse L2 strength.
        n_folds: outer folds; the inner ones are the outer ones that remain.
        seed: of the folds.
        grouping: `group` keeps groups whole.
        progress: called once a layer (and once for the embedding stream).

    Raises:
        ProbeError: missing labels, or labels and groups that cannot be split.
    """
    unlabelled = [item for item, label in zip(cache.item_id, cache.label, strict=True) if label < 0]
    if unlabelled:
        raise ProbeError(
            f"{len(unlabelled)} of {cache.n_items} items have no label (first: {unlabelled[0]!r}); "
            f"probes need True/False items."
        )
    labels = cache.label.astype(bool)
    folds = make_folds(labels, cache.group_id, n_folds=n_folds, seed=seed, grouping=grouping)

    decisions = np.empty((cache.n_items, cache.n_layers))
    inner_accuracy = np.empty((n_folds, cache.n_layers))
    for layer in range(cache.n_layers):
        activations = _finite(cache.resid_post(layer), f"layer {layer}", cache.item_id)
        decisions[:, layer] = _outer(activations, labels, folds, C)
        inner_accuracy[:, layer] = _inner(activations, labels, folds, C)
        progress(1)
    pre0 = _finite(cache.resid_pre0(), "the embedding stream", cache.item_id)
    decision_pre0 = _outer(pre0, labels, folds, C)
    progress(1)
    return ProbeSweep(
        item_id=cache.item_id,
        label=labels,
        group_id=cache.group_id,
        category=cache.category,
        fold=folds,
        decision_values=decisions,
        decision_values_pre0=decision_pre0,
        C=np.full((cache.n_layers, n_folds), C),
        # argmax takes the earliest of equally good layers.
        layers_nested=tuple(int(layer) for layer in inner_accuracy.argmax(axis=1)),
        inner_accuracy=inner_accuracy,
        seed=seed,
        grouping=grouping,
        manifest=cache.manifest,
    )


def _finite(
    activations: NDArray[np.float32], where: str, item_ids: tuple[str, ...]
) -> NDArray[np.float32]:
    bad = np.flatnonzero(~np.isfinite(activations).all(axis=1))
    if len(bad):
        raise ProbeError(
            f"{len(bad)} items have activations that are not finite at {where} (first: "
            f"{item_ids[bad[0]]!r}). Extract again."
        )
    return activations


def _outer(
    activations: NDArray[np.float32],
    labels: NDArray[np.bool_],
    folds: Fold,
    C: float,
) -> NDArray[np.float64]:
    """(n_items,) decision values, each from the probe of the folds without the item."""
    decisions = np.empty(len(labels))
    for fold in range(folds.max() + 1):
        held_out = folds == fold
        probe = fit_probe(activations[~held_out], labels[~held_out], C=C)
        decisions[held_out] = probe.decide(activations[held_out])
    return decisions


def _inner(
    activations: NDArray[np.float32],
    labels: NDArray[np.bool_],
    folds: Fold,
    C: float,
) -> NDArray[np.float64]:
    """(n_folds,) accuracy inside the training part of each outer fold.

    The probe that is fitted without folds a and b judges b on behalf of a, and a on behalf of b.
    """
    n_folds = int(folds.max()) + 1
    right, total = np.zeros(n_folds), np.zeros(n_folds)
    for a, b in combinations(range(n_folds), 2):
        training = (folds != a) & (folds != b)
        probe = fit_probe(activations[training], labels[training], C=C)
        for outer, judged in ((a, b), (b, a)):
            inside = folds == judged
            right[outer] += ((probe.decide(activations[inside]) > 0) == labels[inside]).sum()
            total[outer] += inside.sum()
    return right / total
