"""Every kind of direction by its name, as a `Direction` ready to steer with or to save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from interp.direction.core import Direction, unit_direction
from interp.direction.erasure import fit_eraser
from interp.direction.vectors import (
    class_mean_difference,
    orthogonal_draw,
    paired_component,
    shuffle_labels,
    unembedding_difference,
    whitened_difference,
)
from interp.errors import SteeringError, did_you_mean

__all__ = [
    "FITTED_KINDS",
    "FittedKind",
    "class_mean_direction",
    "fit_direction",
    "writer_direction",
]

FittedKind = Literal["class_mean", "whitened", "pca", "leace", "shuffled", "orthogonal", "random"]
"""Kinds that need activations alone. `class_mean`: True − False; `whitened`: that times the inverse
shared covariance; `pca`: first component of the twins' differences; `leace`: what the concept's
eraser reads; `shuffled`: class means of permuted labels; `orthogonal`: random within the
activations' covariance, orthogonal to `class_mean`; `random`: uniform on the sphere."""

FITTED_KINDS: Final[tuple[FittedKind, ...]] = get_args(FittedKind)


def fit_direction(
    kind: FittedKind,
    activations: NDArray[np.float32],
    labels: NDArray[np.bool_],
    *,
    layer: int,
    median_norm: float,
    model_id: str,
    token_rule: str,
    groups: Sequence[str] | None = None,
    shrinkage: float | None = None,
    seed: int | Sequence[int] = 0,
) -> Direction:
    """Fit a direction of a kind on some items.

    Args:
        kind: see `FittedKind`.
        activations: (n_items, d_model), `resid_post` of `layer`.
        labels: (n_items,) of bool, both classes.
        layer: 0-based block index.
        median_norm: median residual norm there, first position excluded.
        model_id: recorded.
        token_rule: recorded.
        groups: (n_items,); `pca` needs it, `shuffled` shuffles inside groups if it is given.
        shrinkage: of `whitened` and `leace`; None estimates it.
        seed: of `shuffled`, `orthogonal` and `random`; recorded.

    Raises:
        SteeringError: an unknown kind, a class is empty, values are not finite, or the vector is
            zero.
    """
    if kind not in FITTED_KINDS:
        raise SteeringError(
            f"There is no direction kind {kind!r}. {did_you_mean(kind, FITTED_KINDS)}"
        )
    difference = class_mean_difference(activations, labels)
    details: dict[str, float | str] = {}
    gap: float | None = None
    vector = difference
    if kind == "class_mean":
        gap = float(np.linalg.norm(difference))
    elif kind == "whitened":
        vector, details["shrinkage"] = whitened_difference(activations, labels, shrinkage)
    elif kind == "leace":
        eraser = fit_eraser(activations, labels, shrinkage)
        vector, details["shrinkage"] = eraser.read, eraser.shrinkage
    elif kind == "pca":
        if groups is None:
            raise SteeringError("A `pca` direction needs groups: pairs are the twins of a group.")
        vector, details["share"], details["n_pairs"] = paired_component(activations, labels, groups)
    else:
        rng = np.random.default_rng(seed)  # also takes a sequence: (seed, number of the draw)
        details["seed"] = repr(seed)
        if kind == "shuffled":
            shuffled = shuffle_labels(labels, rng, groups)
            vector = class_mean_difference(activations, shuffled)
            gap = float(np.linalg.norm(vector))
        elif kind == "orthogonal":
            vector = orthogonal_draw(activations, difference, rng.standard_normal(len(labels)))
        else:
            vector = np.asarray(rng.standard_normal(activations.shape[1]))
    return unit_direction(
        vector,
        method=kind,
        class_gap=gap,
        layer=layer,
        median_norm=median_norm,
        model_id=model_id,
        token_rule=token_rule,
        n_true=int(labels.sum()),
        n_false=int((~labels).sum()),
        details=details,
    )


def class_mean_direction(
    activations: NDArray[np.float32],
    labels: NDArray[np.bool_],
    *,
    layer: int,
    median_norm: float,
    model_id: str,
    token_rule: str,
) -> Direction:
    """Class mean of True minus class mean of False, normalised; see `fit_direction`.

    Source: Avalon-ToM-Bench, section 5.1 (steering).
    """
    return fit_direction(
        "class_mean",
        activations,
        labels,
        layer=layer,
        median_norm=median_norm,
        model_id=model_id,
        token_rule=token_rule,
    )


def writer_direction(
    unembedding: NDArray[np.float32],
    true_id: int,
    false_id: int,
    *,
    layer: int,
    median_norm: float,
    model_id: str,
    token_rule: str,
    norm_weight: NDArray[np.float32] | None = None,
    centred: bool = False,
) -> Direction:
    """The unembedding's True − False difference, as a direction at a layer.

    Args:
        unembedding: (d_vocab, d_model).
        true_id: token of True.
        false_id: token of False.
        layer: 0-based block index.
        median_norm: median residual norm there, first position excluded.
        model_id: recorded.
        token_rule: recorded.
        norm_weight: see `unembedding_difference`; whether it was used is recorded.
        centred: likewise.
    """
    details: Mapping[str, float | str] = {
        "true_id": true_id,
        "false_id": false_id,
        "final_norm": "none" if norm_weight is None else "weight",
        "centred": str(centred).lower(),
    }
    return unit_direction(
        unembedding_difference(
            unembedding, true_id, false_id, norm_weight=norm_weight, centred=centred
        ),
        method="writer",
        layer=layer,
        median_norm=median_norm,
        model_id=model_id,
        token_rule=token_rule,
        details=details,
    )
