"""Interventions on residual streams: what is changed, where, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
import torch
from einops import einsum
from numpy.typing import NDArray
from torch import Tensor

from interp.direction import Direction, Eraser
from interp.errors import SteeringError
from interp.vocabulary import HookPoint
from steering.positions import Positions, require_positions
from steering.projections import clamped, erased, projected_out

__all__ = [
    "CHANGES",
    "AlphaUnit",
    "Intervention",
    "InterventionKind",
    "add",
    "added",
    "clamp",
    "erase",
    "project_out",
    "shift",
]

AlphaUnit = Literal["median", "absolute"]
"""`median`: alpha counts median residual norms of the layer; `absolute`: it is the norm added."""

InterventionKind = Literal["add", "project_out", "clamp"]
"""What is done along a vector: add a multiple of it, take a share of the stream's projection on it
out, or set that projection."""


@dataclass(frozen=True, slots=True)
class Intervention:
    """One change of one layer's residual stream.

    Attributes:
        layer: 0-based block index.
        hook_point: `resid_post` (the block's output) or `resid_pre` (its input).
        positions: which tokens are changed.
        change: from the hidden states of those tokens (k, d_model), and for each the row of the
            batch that it belongs to (k,), to new hidden states; must not write in place.
        d_model: width that it was made for.
        n_rows: number of sequences that it was made for; None fits any batch.
        model_id: model that its direction was read from; empty where that is not known.
        any_model: `model_id` is only another program's hint, so that width and layer decide alone
            whether a model fits.
    """

    layer: int
    hook_point: HookPoint
    positions: Positions
    change: Callable[[Tensor, Tensor], Tensor]
    d_model: int
    n_rows: int | None
    model_id: str
    any_model: bool = False


def added(hidden: Tensor, vectors: Tensor, coefficients: Tensor) -> Tensor:
    """H' = h + coefficient · vector, in the dtype of `hidden`.

    Args:
        hidden: (n, d_model).
        vectors: (n, d_model), unit norm.
        coefficients: (n,) in units of the residual stream, any sign; 0 leaves a row as it is.
    """
    moved = einsum(coefficients, vectors, "n, n d_model -> n d_model")
    return hidden + moved.to(hidden.dtype)


def add(
    direction: Direction,
    alpha: float | Sequence[float] = 1.0,
    *,
    positions: str = "last_prompt",
    alpha_unit: AlphaUnit = "median",
) -> Intervention:
    """Add a direction to the residual stream at its layer.

    Args:
        direction: what to add.
        alpha: size and sign; one number, or one a sequence of the batch.
        positions: `last_prompt`, `prompt`, `generated` or `all`; see `steering.positions`.
        alpha_unit: `median` counts median residual norms of the layer, `absolute` is the norm of
            what is added.

    Raises:
        SteeringError: an alpha is not finite, or the policy is unknown.
    """
    sizes = _numbers(alpha, "alpha")
    if alpha_unit == "median":
        sizes = sizes * direction.median_norm
    vectors = direction.vector[None].repeat(len(sizes), axis=0)
    return shift(direction, vectors, sizes, require_positions(positions))


def project_out(
    direction: Direction,
    strength: float | Sequence[float] = 1.0,
    *,
    positions: str = "last_prompt",
) -> Intervention:
    """Take the projection on a direction out of the residual stream at its layer.

    Args:
        direction: what to take out.
        strength: share that is taken out, one number or one a sequence; 2 mirrors.
        positions: see `add`.
    """
    return _along(direction, _numbers(strength, "strength"), positions, projected_out)


def clamp(
    direction: Direction,
    target: float | Sequence[float],
    *,
    positions: str = "last_prompt",
) -> Intervention:
    """Set the projection on a direction, whatever it was.

    Args:
        direction: along which.
        target: projection wanted, in units of the residual stream, one number or one a sequence.
        positions: see `add`.
    """
    return _along(direction, _numbers(target, "target"), positions, clamped)


def erase(
    eraser: Eraser,
    layer: int,
    strength: float | Sequence[float] = 1.0,
    *,
    positions: str = "last_prompt",
    hook_point: HookPoint = "resid_post",
    model_id: str = "",
) -> Intervention:
    """Erase a concept by LEACE's affine edit: both classes keep no difference of their means.

    Args:
        eraser: from `interp.direction.fit_eraser` on activations of this layer and hook point.
        layer: 0-based block index.
        strength: share of the edit, one number or one a sequence; 0 leaves a sequence as it is.
        positions: see `add`.
        hook_point: `resid_post` or `resid_pre`.
        model_id: model whose activations were fitted, if a backend is to check it.

    Raises:
        SteeringError: a strength or the eraser is not finite, the layer is negative, or the policy
            is unknown.
    """
    sizes = torch.from_numpy(_numbers(strength, "strength"))
    parts = [torch.from_numpy(part) for part in (eraser.write, eraser.read, eraser.mean)]
    if not all(bool(part.isfinite().all()) for part in parts):
        raise SteeringError("The eraser holds numbers that are not finite. Fit it again.")
    if layer < 0:
        raise SteeringError(f"The layer to erase at is {layer}; layers count from 0.")

    def change(hidden: Tensor, row: Tensor) -> Tensor:
        write, read, mean = (part.expand(len(row), -1) for part in parts)
        return erased(hidden, write, read, mean, _by_row(sizes, row))

    return Intervention(
        layer=layer,
        hook_point=hook_point,
        positions=require_positions(positions),
        change=change,
        d_model=len(parts[0]),
        n_rows=len(sizes) if len(sizes) > 1 else None,
        model_id=model_id,
    )


CHANGES: Final[Mapping[InterventionKind, Callable[[Tensor, Tensor, Tensor], Tensor]]] = {
    "add": added,
    "project_out": projected_out,
    "clamp": clamped,
}
"""From hidden states (n, d_model), vectors (n, d_model) and amounts (n,) to new hidden states."""


def _by_row(sizes: Tensor, row: Tensor) -> Tensor:
    """(k,) the number of each token's sequence; a single one counts for all."""
    return sizes.to(row.device)[row if len(sizes) > 1 else torch.zeros_like(row)]


def _numbers(value: float | Sequence[float], what: str) -> NDArray[np.float64]:
    """One entry for a number, so that it fits any batch."""
    found = np.atleast_1d(np.asarray(value, dtype=np.float64))
    if found.ndim != 1 or not len(found) or not np.isfinite(found).all():
        raise SteeringError(f"{what} is {value}; expected finite numbers, one or one a sequence.")
    return found


def _along(
    direction: Direction,
    amounts: NDArray[np.float64],
    positions: str,
    function: Callable[[Tensor, Tensor, Tensor], Tensor],
) -> Intervention:
    vector, sizes = torch.from_numpy(direction.vector), torch.from_numpy(amounts)

    def change(hidden: Tensor, row: Tensor) -> Tensor:
        return function(hidden, vector.expand(len(row), -1), _by_row(sizes, row))

    return Intervention(
        layer=direction.layer,
        hook_point=direction.hook_point,
        positions=require_positions(positions),
        change=change,
        d_model=len(vector),
        n_rows=len(sizes) if len(sizes) > 1 else None,
        model_id=direction.model_id,
        any_model=direction.method == "file",
    )


def shift(
    place: Direction,
    vectors: NDArray[np.float32],
    coefficients: NDArray[np.float64],
    positions: Positions,
) -> Intervention:
    """Add `coefficients[i] · vectors[i]` to sequence i; one row of either fits any batch.

    Args:
        place: whose layer, hook point and model count.
        vectors: (n or 1, d_model).
        coefficients: (n or 1,) in units of the residual stream.
        positions: which tokens.
    """
    rows = len(coefficients)
    table = torch.from_numpy(np.ascontiguousarray(vectors))
    sizes = torch.from_numpy(coefficients.astype(np.float32))

    def change(hidden: Tensor, row: Tensor) -> Tensor:
        at = row if rows > 1 else torch.zeros_like(row)
        return added(hidden, table.to(hidden.device)[at], sizes.to(hidden.device)[at])

    return Intervention(
        layer=place.layer,
        hook_point=place.hook_point,
        positions=positions,
        change=change,
        d_model=table.shape[1],
        n_rows=rows if rows > 1 else None,
        model_id=place.model_id,
        any_model=place.method == "file",
    )
