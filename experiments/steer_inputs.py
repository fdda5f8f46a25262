"""What steering takes from a probe sweep, and what it has to probe beyond it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from activations import ActivationCache
from interp.direction import FittedKind, fit_direction, read_directions, require_model
from interp.errors import SteeringError, did_you_mean
from interp.vocabulary import ProbeKind
from probes import ProbeSweep
from probes.directions import probe_weight
from probes.solver import fit_probe
from steering import SignedItems, SteeredDirection

__all__ = ["KINDS", "inner_decisions", "signed_items", "steered_direction"]

KINDS: Final = ("class_mean", "whitened", "pca", "leace", "probe", "mass_mean", "ridge", "lda")
"""Directions that can be fitted without the fold that they are applied to."""

_ENDINGS: Final = (".npz", ".safetensors", ".gguf")


def signed_items(sweep: ProbeSweep, inner: NDArray[np.float64] | None = None) -> SignedItems:
    """What steering needs of a probe sweep."""
    return SignedItems(
        sweep.fold,
        sweep.layer_nested,
        sweep.decision_values,
        sweep.manifest,
        inner,
        sweep.grouping,
    )


def steered_direction(
    cache: ActivationCache, sweep: ProbeSweep, text: str, layers: Sequence[int] | None
) -> tuple[SteeredDirection | None, Sequence[int] | None]:
    """What `--direction` names, and the layers of the grid.

    Args:
        cache: activations that were probed.
        sweep: of the probes; the strengths of `probe` and its like are its folds'.
        text: one of `KINDS`, or a file of directions.
        layers: of the grid, or None; a file of one direction has a layer of its own.

    Returns:
        None for the class mean, which is the default.

    Raises:
        SteeringError: an unknown kind, or a file that does not fit the cache's model or the layers.
    """
    if text == "class_mean":
        return None, layers
    if Path(text).suffix.lower() in _ENDINGS:
        return _given(cache, Path(text), layers)
    streams: dict[int, NDArray[np.float32]] = {}

    def stream(layer: int) -> NDArray[np.float32]:
        if layer not in streams:
            streams[layer] = cache.resid_post(layer)
        return streams[layer]

    if text in ("whitened", "pca", "leace"):
        kind: FittedKind = text  # type: ignore[assignment]  # one of them

        def fit(
            layer: int, training: NDArray[np.bool_], labels: NDArray[np.bool_]
        ) -> NDArray[np.floating]:
            made = fit_direction(
                kind,
                stream(layer)[training],
                labels[training],
                layer=layer,
                median_norm=1.0,
                model_id="",
                token_rule="",
                groups=[
                    group for group, kept in zip(cache.group_id, training, strict=True) if kept
                ],
            )
            return made.vector

        return SteeredDirection(text, fit), layers
    if text not in KINDS:
        raise SteeringError(
            f"There is no direction {text!r}. {did_you_mean(text, KINDS)} A file ends in "
            f"{', '.join(_ENDINGS)}."
        )
    weights: ProbeKind = sweep.probe if text == "probe" else text  # type: ignore[assignment]

    def fit_weights(
        layer: int, training: NDArray[np.bool_], labels: NDArray[np.bool_]
    ) -> NDArray[np.floating]:
        left_out = set(sweep.fold[~training].tolist())
        # One fold's strength was chosen without it; where two are left out, see `inner_decisions`.
        kept = left_out if len(left_out) == 1 else set(range(sweep.C.shape[1])) - left_out
        strength = float(np.median(sweep.C[layer, sorted(kept)]))
        return probe_weight(stream(layer)[training], labels[training], strength, weights)

    return SteeredDirection(text, fit_weights), layers


def _given(
    cache: ActivationCache, path: Path, layers: Sequence[int] | None
) -> tuple[SteeredDirection, Sequence[int]]:
    """The directions of a file, the same for all folds."""
    found = {direction.layer: direction for direction in read_directions(path)}
    for direction in found.values():
        require_model(
            direction,
            model_id=cache.manifest["model"]["model_id"],
            d_model=cache.d_model,
            n_layers=cache.n_layers,
        )
        if direction.hook_point != "resid_post":
            raise SteeringError(
                f"{path}: the direction of layer {direction.layer} is one of "
                f"{direction.hook_point}; the grid steers resid_post."
            )
    wanted = list(found) if layers is None and len(found) == 1 else layers
    missing = [layer for layer in wanted or () if layer not in found]
    if wanted is None or missing:
        held = ", ".join(str(layer) for layer in found)
        raise SteeringError(
            f"{path} holds directions of layers {held}; "
            + ("say with --layers which." if wanted is None else f"--layers has {missing}.")
        )
    name = f"file {path.name}"
    return SteeredDirection(name, lambda layer, *_: found[layer].vector, fitted=False), wanted


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
