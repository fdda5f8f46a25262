"""What steering takes from a probe sweep, and what it has to probe beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from activations import ActivationCache
from probes import ProbeSweep
from probes.solver import fit_probe
from steering import SignedItems

__all__ = ["inner_decisions", "signed_items"]


def signed_items(sweep: ProbeSweep, inner: NDArray[np.float64] | None = None) -> SignedItems:
    """What steering needs of a probe sweep."""
    return SignedItems(sweep.fold, sweep.layer_nested, sweep.decision_values, sweep.manifest, inner)


def inner_decisions(
    cache: ActivationCache, sweep: ProbeSweep, layers: Sequence[int] | None
) -> NDArray[np.float64]:
    """(n_folds, n_items, n_layers) decisions without an item's own fold and without another one.

    A layer and a size are chosen for a fold by how steering does on the other folds. Their items'
    usual decisions come from probes that saw that fold, and so would its labels; these did not.

    Args:
        cache: activations that were probed.
        sweep: of the probes; strengths and folds are taken from it.
        layers: of the grid; None takes each fold's nested layer.

    Returns:
        NaN at other layers, and for the items of the fold itself.
    """
    n_folds = len(sweep.layers_nested)
    label = sweep.label
    found = np.full((n_folds, sweep.n_items, sweep.n_layers), np.nan)
    wanted = [
        {sweep.layers_nested[fold]} if layers is None else set(layers) for fold in range(n_folds)
    ]
    for layer in sorted(set().union(*wanted)):
        stream = cache.resid_post(layer)
        for first, second in combinations(range(n_folds), 2):
            if layer not in wanted[first] | wanted[second]:
                continue
            training = (sweep.fold != first) & (sweep.fold != second)
            # The strength of a fold may have been chosen on the other one, so both are left out.
            others = [fold for fold in range(n_folds) if fold not in (first, second)]
            strength = float(np.median(sweep.C[layer, others]))
            probe = fit_probe(stream[training], label[training], C=strength)
            for left_out, own in ((first, second), (second, first)):
                if layer in wanted[left_out]:
                    inside = sweep.fold == own
                    found[left_out, inside, layer] = probe.decide(stream[inside])
    return found
