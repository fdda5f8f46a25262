"""Interventions on residual streams: what is changed, where, and by how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from einops import einsum
from torch import Tensor

from interp.direction import Direction
from interp.errors import SteeringError
from interp.vocabulary import HookPoint
from steering.positions import Positions, require_positions

__all__ = ["AlphaUnit", "Intervention", "add", "added", "shift"]

AlphaUnit = Literal["median", "absolute"]
"""`median`: alpha counts median residual norms of the layer; `absolute`: it is the norm added."""


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
        model_id: model that its direction was read from, for error messages.
    """

    layer: int
    hook_point: HookPoint
    positions: Positions
    change: Callable[[Tensor, Tensor], Tensor]
    d_model: int
    n_rows: int | None
    model_id: str


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
    policy = require_positions(positions)
    sizes = np.atleast_1d(np.asarray(alpha, dtype=np.float64))
    if sizes.ndim != 1 or not np.isfinite(sizes).all():
        raise SteeringError(f"alpha is {alpha}; expected finite numbers, one or one a sequence.")
    if alpha_unit == "median":
        sizes = sizes * direction.median_norm
    one = np.ndim(alpha) == 0
    vectors = direction.vector[None] if one else np.repeat(direction.vector[None], len(sizes), 0)
    return shift(direction, vectors, sizes, policy)


def shift(
    place: Direction,
    vectors: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
    coefficients: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
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
    )
