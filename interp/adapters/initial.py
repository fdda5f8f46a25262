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
    if update.magnitude is not None:
        return _dora_subtracted(update, start.get(update.name))
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


def _dora_subtracted(update: Update, before: Update | None) -> Update:
    """DoRA against its start: unmoved, as it is where that start was the base, else in part.

    Where the start had a product of its own, only s(BA − B₀A₀) is known: what the magnitudes make
    of it depends on weights that are in neither file.

    Raises:
        AdapterError: the initial adapter has no factors and magnitudes that fit.
    """
    now, then = _dora_parts(update), None if before is None else _dora_parts(before)
    if now is None or update.delta is None:
        return update
    if then is None or any(a.shape != b.shape for a, b in zip(now, then, strict=True)):
        raise AdapterError(
            f"The initial adapter has no factors and magnitudes that fit {update.name}. Give the "
            f"adapter that this very run started from."
        )
    first, scale = then[:2], float(before.scaling or 0.0) if before is not None else 0.0
    still = scale == update.scaling and all(
        same_up_to_rounding(a, b) for a, b in zip(then, now, strict=True)
    )
    if not still and update.origin is not None and not all(bool(part.any()) for part in first):
        return update
    (a, b), (a0, b0) = (
        [part.to(torch.float64).flatten(1)[None] for part in parts[:2]] for parts in (now, then)
    )
    together = LowRank(
        torch.cat((b * float(update.scaling or 0.0), b0 * -scale), dim=2),
        torch.cat((a, a0), dim=1),
        1.0,
    )
    return replace(update, delta=together, starts_zero=still, complete=still, fixed=None)


def _dora_parts(update: Update) -> tuple[torch.Tensor, ...] | None:
    a, b, magnitude = update.a, update.b, update.magnitude
    return None if a is None or b is None or magnitude is None else (a, b, magnitude)


def _stored(factor: torch.Tensor, saved: torch.Tensor | None) -> torch.Tensor:
    """A factor in the format that it has in its file."""
    return factor if saved is None else factor.to(saved.dtype)
