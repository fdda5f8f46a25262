"""Steering as a context manager: per-item directions, layers and coefficients in one batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch

from activations import Edit, ModelBackend
from interp.direction import Direction
from interp.errors import SteeringError
from steering.interventions import add_at

__all__ = ["steer"]


@contextmanager
def steer(
    backend: ModelBackend,
    directions: Sequence[Direction],
    coefficients: Sequence[float],
    columns: Sequence[int],
) -> Iterator[None]:
    """Add `coefficients[i] · directions[i]` to sequence `i` of every batch inside the context.

    Args:
        backend: a running model.
        directions: one a sequence; each is added at its own layer and hook point.
        coefficients: one a sequence, in units of the residual stream (alpha times
            `direction.median_norm`), with sign.
        columns: the position in each sequence, as the backend lays out its batch.

    Raises:
        SteeringError: a direction of another width, a layer out of range, or lists that differ in
            length.
    """
    if not len(directions) == len(coefficients) == len(columns):
        raise SteeringError(
            f"Got {len(directions)} directions, {len(coefficients)} coefficients and "
            f"{len(columns)} columns; expected one of each a sequence."
        )
    for direction in directions:
        require_fit(direction, backend)
    places: dict[tuple[int, str], list[int]] = {}
    for row, direction in enumerate(directions):
        places.setdefault((direction.layer, direction.hook_point), []).append(row)
    edits = []
    for (layer, _), rows in places.items():
        vectors = torch.from_numpy(np.stack([directions[row].vector for row in rows]))
        sizes = torch.tensor([coefficients[row] for row in rows], dtype=torch.float32)
        index, where = torch.tensor(rows), torch.tensor([columns[row] for row in rows])

        def apply(
            hidden: torch.Tensor,
            index: torch.Tensor = index,
            where: torch.Tensor = where,
            vectors: torch.Tensor = vectors,
            sizes: torch.Tensor = sizes,
        ) -> torch.Tensor:
            return add_at(hidden, index, where, vectors, sizes)

        edits.append(Edit(layer, directions[rows[0]].hook_point, apply))
    with backend.intervene(edits):
        yield


def require_fit(direction: Direction, backend: ModelBackend) -> None:
    """Raise `SteeringError` unless the direction fits the model's width and layers."""
    width = direction.vector.shape[0]
    if width != backend.d_model:
        raise SteeringError(
            f"The direction has {width} entries, but {backend.model_id} has d_model "
            f"{backend.d_model}: it belongs to another model ({direction.model_id})."
        )
    if not 0 <= direction.layer < backend.n_layers:
        raise SteeringError(
            f"The direction is for layer {direction.layer}, but {backend.model_id} has layers 0 to "
            f"{backend.n_layers - 1}."
        )
