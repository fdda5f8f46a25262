"""Updates against the adapter as it was before training, for initialisations with ΔW ≠ 0."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from interp.adapters.delta import LowRank
from interp.adapters.locate import find_adapters
from interp.adapters.read import OpenAdapter, open_adapter, read_updates
from interp.adapters.rounding import coarser, same_up_to_rounding
from interp.adapters.updates import Update
from interp.errors import AdapterError

__all__ = ["initial_updates", "read_initial", "subtracted"]


def initial_updates(adapter: OpenAdapter) -> dict[str, Update]:
    """Factors of an adapter before training, by parameter."""
    return {
        update.name: update
        for update in read_updates(adapter, None)
        if isinstance(update.delta, LowRank)
    }


def read_initial(path: Path) -> dict[str, Update]:
    """The same from a folder.

    Raises:
        AdapterError: the path holds no adapter, or several.
    """
    folders = find_adapters(path)
    if len(folders) != 1:
        raise AdapterError(f"{path} holds {len(folders)} adapters; expected the initial one alone.")
    with open_adapter(folders[0]) as adapter:
        return initial_updates(adapter)


def subtracted(update: Update, start: dict[str, Update]) -> Update:
    """s(BA − B₀A₀) as one product of rank 2r; other updates stay as they are.

    The initial factors are rounded as the trained ones are stored, so that an adapter saved in
    another format than its start does not seem to have moved.

    Raises:
        AdapterError: the initial adapter has no factors that fit.
    """
    delta = update.delta
    if not isinstance(delta, LowRank):
        return update
    before = start.get(update.name)
    first = None if before is None else before.delta
    if (
        before is None
        or not isinstance(first, LowRank)
        or first.left.shape[:2] != delta.left.shape[:2]
        or first.n_columns != delta.n_columns
    ):
        raise AdapterError(
            f"The initial adapter has no factors that fit {update.name}. Give the adapter that "
            f"this very run started from."
        )
    still = (
        first.scale == delta.scale
        and first.left.shape == delta.left.shape
        and same_up_to_rounding(_stored(first.left, before.b), _stored(delta.left, update.b))
        and same_up_to_rounding(_stored(first.right, before.a), _stored(delta.right, update.a))
    )
    left, right = (
        part.to(coarser(part, like)).to(part.dtype) if like is not None else part
        for part, like in ((first.left, update.b), (first.right, update.a))
    )
    together = LowRank(
        torch.cat((delta.left * delta.scale, left * -first.scale), dim=2),
        torch.cat((delta.right, right), dim=1),
        1.0,
    )
    # What B has moved from is not zero, so the budget's bounds do not apply to it.
    return replace(update, delta=together, starts_zero=still, fixed=None)


def _stored(factor: torch.Tensor, saved: torch.Tensor | None) -> torch.Tensor:
    """A factor in the format that it has in its file."""
    return factor if saved is None else factor.to(saved.dtype)
