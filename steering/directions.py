"""Directions fitted on the items of an activation cache."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from activations import ActivationCache
from interp.direction import Direction, FittedKind, fit_direction
from interp.errors import SteeringError

__all__ = ["fold_direction"]


def fold_direction(
    cache: ActivationCache,
    layer: int,
    *,
    training: NDArray[np.bool_] | None = None,
    kind: FittedKind = "class_mean",
    shrinkage: float | None = None,
    seed: int | Sequence[int] = 0,
) -> Direction:
    """True − False direction of a layer, fitted on the marked items only.

    Args:
        cache: open cache of True/False items.
        layer: 0-based block index.
        training: (n_items,) of bool; None takes all items.
        kind: see `interp.direction.FittedKind`.
        shrinkage: of `whitened` and `leace`; None estimates it.
        seed: of the random kinds.

    Raises:
        SteeringError: an item has no label, or these items have no such direction.
    """
    labels = cache.label
    if (labels < 0).any():
        raise SteeringError("Some items have no label; directions need True/False items.")
    kept = np.ones(cache.n_items, dtype=bool) if training is None else training
    return fit_direction(
        kind,
        cache.resid_post(layer)[kept],
        labels[kept].astype(bool),
        layer=layer,
        median_norm=float(np.nanmedian(cache.resid_norm[kept, layer])),
        model_id=cache.manifest["model"]["model_id"],
        token_rule=cache.manifest["token_rule"],
        groups=[group for group, inside in zip(cache.group_id, kept, strict=True) if inside],
        shrinkage=shrinkage,
        seed=seed,
    )
