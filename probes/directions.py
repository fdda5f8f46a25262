"""The direction that a probe reads, in raw activation space."""

from __future__ import annotations

from typing import get_args

import numpy as np
from numpy.typing import NDArray

from activations import ActivationCache
from interp.direction import Direction
from interp.errors import ProbeError, require_choice
from interp.vocabulary import ProbeKind
from probes.closed import closed_weights
from probes.scaling import standardise
from probes.solver import fit_probe

__all__ = ["probe_direction", "probe_weight"]


def probe_direction(
    cache: ActivationCache,
    layer: int,
    *,
    C: float,
    training: NDArray[np.bool_] | None = None,
    kind: ProbeKind = "logistic",
) -> Direction:
    """Unit vector along a probe's weights, mapped back through the scaler.

    A decision value grows fastest along it per unit of the residual stream; it points to True.

    Args:
        cache: open cache of True/False items.
        layer: 0-based block index.
        C: inverse L2 strength.
        training: (n_items,) of bool, items to fit on; None takes all.
        kind: which probe.

    Raises:
        ProbeError: an unknown kind, an item has no label, a class is missing, or the weights are
            zero.
    """
    require_choice("kind", kind, get_args(ProbeKind), ProbeError)
    if (cache.label < 0).any():
        raise ProbeError("Some items have no label; directions need True/False items.")
    kept = np.ones(cache.n_items, dtype=bool) if training is None else training
    labels = cache.label[kept].astype(bool)
    n_true, n_false = int(labels.sum()), int((~labels).sum())
    if not n_true or not n_false:
        raise ProbeError(
            f"A probe direction needs both classes; got {n_true} True and {n_false} False items."
        )
    weight = probe_weight(cache.resid_post(layer)[kept], labels, C, kind)
    norm = float(np.linalg.norm(weight))
    if norm == 0:
        raise ProbeError(f"Layer {layer}: the probe's weights are zero; there is no direction.")
    return Direction(
        vector=(weight / norm).astype(np.float32),
        layer=layer,
        hook_point="resid_post",
        method="probe" if kind == "logistic" else f"probe_{kind}",
        class_gap=None,
        median_norm=float(np.nanmedian(cache.resid_norm[kept, layer])),
        model_id=cache.manifest["model"]["model_id"],
        token_rule=cache.manifest["token_rule"],
        n_true=n_true,
        n_false=n_false,
    )


def probe_weight(
    activations: NDArray[np.float32], labels: NDArray[np.bool_], C: float, kind: ProbeKind
) -> NDArray[np.float64]:
    """(d_model,) weights of a probe on raw activations, of any length, towards True.

    Args:
        activations: (n_items, d_model).
        labels: (n_items,) of bool, both classes.
        C: inverse L2 strength.
        kind: which probe.
    """
    if kind == "logistic":
        return fit_probe(activations, labels, C=C).weight
    z, _, inverse = standardise(activations, activations[:0])
    weights, _ = closed_weights(kind, z, labels[:, None], (C,))
    # Constant features have no deviation to divide by, and no weight.
    return np.asarray(weights[:, 0, 0] * inverse)
