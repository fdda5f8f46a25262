"""Directions of a cache's layers, all kinds side by side, and the model's own writer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from activations import ActivationCache, HFBackend
from activations.cache import manifest_differences
from activations.head import verdict_head
from interp.direction import CosineTable, Direction, cosine_table, writer_direction
from interp.errors import SteeringError
from probes import probe_direction
from steering import fold_direction

__all__ = ["compared", "writer_at"]

_COMPARED = ("class_mean", "whitened", "pca", "leace")


def compared(
    cache: ActivationCache,
    layer: int,
    *,
    C: float,
    training: NDArray[np.bool_] | None = None,
    shrinkage: float | None = None,
    also: Direction | None = None,
    writer: Direction | None = None,
) -> CosineTable:
    """Cosines between all kinds of directions that a layer's items give.

    Args:
        cache: open cache of True/False items.
        layer: 0-based block index.
        C: inverse L2 strength of the probe.
        training: (n_items,) of bool, items to fit on; None takes all.
        shrinkage: of `whitened` and `leace`; None estimates it.
        also: a further direction of the layer, under its method's name.
        writer: the model's own, see `writer_at`; None leaves it and the angles to it out.
    """
    found: dict[str, Direction] = {}
    for kind in _COMPARED:
        try:
            found[kind] = fold_direction(
                cache,
                layer,
                training=training,
                kind=kind,  # type: ignore[arg-type]  # of the tuple above
                shrinkage=shrinkage,
            )
        except SteeringError:
            if kind != "pca":  # groups without twins have no pairs
                raise
    found["probe"] = probe_direction(cache, layer, C=C, training=training)
    if also is not None:
        found[also.method] = also
    if writer is not None:
        found["writer"] = writer
    return cosine_table(found)


def writer_at(cache: ActivationCache, layer: int, backend: HFBackend) -> Direction:
    """The unembedding's True − False difference, weighed by the final norm, at a layer.

    Raises:
        SteeringError: the backend runs another model than the cache was made with.
    """
    differences = manifest_differences(cache.manifest["model"], backend.fingerprint())
    if differences:
        raise SteeringError(
            f"{cache.path} was made with another model than the one given. Fields that differ: "
            f"{'; '.join(differences)}."
        )
    verdicts = backend.verdict_ids(backend.tokenize(cache.items()[:1]))
    head = verdict_head(backend.model, verdicts.true_id, verdicts.false_id)
    made = writer_direction(
        head.rows,
        0,
        1,
        layer=layer,
        median_norm=float(np.nanmedian(cache.resid_norm[:, layer])),
        model_id=cache.manifest["model"]["model_id"],
        token_rule=cache.manifest["token_rule"],
        norm_weight=head.norm_weight,
        centred=head.centred,
    )
    tokens: dict[str, Any] = {"true_id": verdicts.true_id, "false_id": verdicts.false_id}
    return replace(made, details=dict(made.details) | tokens)
