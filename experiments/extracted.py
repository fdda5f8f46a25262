"""What an extraction wrote, file by file, and how far adapted models are from their base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from activations import ActivationCache
from activations.manifests import self_check_fault
from experiments.console import print_table, say
from experiments.drift import layer_drift

__all__ = ["Extracted", "describe_caches", "print_extracted"]

_NEAR: Final = 10
"""A change up to so many times the rounding is reported beside it."""


@dataclass(frozen=True, slots=True)
class Extracted:
    """A finished cache.

    Attributes:
        file: its path.
        model: what results call the model.
        adapter: folder of the adapter that was attached; None for the base.
        n_items: rows.
        self_check_max_relative: largest relative difference of rows that were run again alone.
        self_check_fault: why that is more than rounding; None if it is not.
        largest_change: ‖adapted − base‖ / ‖base‖, mean over the items, at the layer where it is
            largest; None for the base, and where there is nothing to compare with.
        largest_change_layer: that layer; None where nothing changes.
        verdict: one sentence on that change; None likewise.
    """

    file: str
    model: str
    adapter: str | None
    n_items: int
    self_check_max_relative: float
    self_check_fault: str | None
    largest_change: float | None
    largest_change_layer: int | None
    verdict: str | None


def describe_caches(
    paths: Sequence[Path], adapters: Sequence[Path | None], *, file_locking: bool = True
) -> tuple[Extracted, ...]:
    """Describe the caches of an extraction; the first is the reference of the others.

    Args:
        paths: of finished caches of the same items.
        adapters: what was attached to each; None for the base.
        file_locking: False for a file system on which locks fail or hang.
    """
    with ActivationCache.open(paths[0], file_locking=file_locking) as base:
        first = _described(base, adapters[0], None)
        others = []
        for path, adapter in zip(paths[1:], adapters[1:], strict=True):
            with ActivationCache.open(path, file_locking=file_locking) as cache:
                others.append(_described(cache, adapter, base))
    return (first, *others)


def _described(
    cache: ActivationCache, adapter: Path | None, base: ActivationCache | None
) -> Extracted:
    check = cache.self_check_max_relative or 0.0
    model, store = cache.manifest["model"], cache.manifest["store"]
    change = layer = verdict = None
    if base is not None:
        row = max(layer_drift(base, cache, n_folds=None), key=lambda row: row.relative_change)
        change = row.relative_change
        layer = row.layer if change else None
        rounding = max(check, base.self_check_max_relative or 0.0)
        verdict = _verdict(change, layer, rounding)
    return Extracted(
        file=str(cache.path),
        model=str(model["model_id"]),
        adapter=None if adapter is None else str(adapter),
        n_items=cache.n_items,
        self_check_max_relative=check,
        self_check_fault=self_check_fault(check, model["dtype"], store),
        largest_change=change,
        largest_change_layer=layer,
        verdict=verdict,
    )


def _verdict(change: float, layer: int | None, rounding: float) -> str:
    if change == 0:
        return "its residual streams are those of the base: it changes nothing on these items."
    size = f"it moves the residual streams by at most {change:.2g} (layer {layer}, mean over items)"
    if change <= rounding:
        return f"{size}, no more than rounding does (self-check: {rounding:.2g})."
    if change <= _NEAR * rounding:
        return f"{size}, where rounding alone does up to {rounding:.2g} (self-check)."
    return f"{size}."


def print_extracted(rows: Sequence[Extracted]) -> None:
    """A table of several caches, and what each adapter changes."""
    cells = [
        (
            row.file,
            row.adapter or "none",
            row.n_items,
            f"{row.self_check_max_relative:.2g}",
            "–" if row.largest_change is None else f"{row.largest_change:.3g}",
            "–" if row.largest_change_layer is None else row.largest_change_layer,
        )
        for row in rows
    ]
    columns = ("file", "adapter", "items", "self-check", "largest change", "at layer")
    print_table(f"{rows[0].model} and adapters on the same items", columns, cells)
    for row in rows:
        if row.verdict is not None:
            say(f"{row.model}: {row.verdict}")
