"""Updates against the adapter as it was before training, for initialisations with ΔW ≠ 0."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from interp.adapters.base import BaseModel
from interp.adapters.config import AdapterConfig
from interp.adapters.delta import Delta, Dense, LowRank, blocks, to_matrix
from interp.adapters.findings import Finding, finding
from interp.adapters.locate import find_adapters
from interp.adapters.lora import dora_delta, magnitudes_still
from interp.adapters.read import OpenAdapter, open_adapter, read_updates
from interp.adapters.recomputed import recomputed
from interp.adapters.rounding import coarser, same_up_to_rounding
from interp.adapters.updates import Update
from interp.errors import AdapterError

__all__ = ["from_start", "initial_updates", "read_initial", "subtracted"]


def initial_updates(adapter: OpenAdapter, base: BaseModel | None) -> dict[str, Update]:
    """Updates of an adapter before training, by parameter.

    LoRA's are factors alone, because its base may have been rewritten; the formulas of other
    methods may need the base.
    """
    if adapter.config is None or adapter.config.method == "LORA":
        updates = (u for u in read_updates(adapter, None) if isinstance(u.delta, LowRank))
        return {update.name: update for update in updates}
    # Of those that started at zero nothing is kept, least of all the base's weights.
    return {
        update.name: replace(update, delta=None, origin=None) if update.starts_zero else update
        for update in read_updates(adapter, base)
        if update.kind == "method"
    }


def read_initial(path: Path, base: BaseModel | None) -> dict[str, Update]:
    """The same from a folder.

    Raises:
        AdapterError: the path holds no adapter, or several.
    """
    folders = find_adapters(path)
    if len(folders) != 1:
        raise AdapterError(f"{path} holds {len(folders)} adapters; expected the initial one alone.")
    with open_adapter(folders[0]) as adapter:
        return initial_updates(adapter, base)


def from_start(
    config: AdapterConfig | None, base: BaseModel | None, start: dict[str, Update] | None
) -> tuple[Callable[[Update], Update], Finding | None] | None:
    """How updates become those against their start, where that can be told.

    Args:
        config: of the adapter.
        base: the original base, which PEFT's own initialisations from weights can be computed from.
        start: the initial adapter, where it was given.

    Returns:
        a function of updates, and what is to be said of it; None where the start is not known.
    """
    rewritten = config is not None and config.rewrites_base
    if start is not None:
        return lambda update: subtracted(update, start, rewritten=rewritten), None
    if base is None or config is None or not config.recomputable:
        return None
    told = finding(
        "start_recomputed",
        f"The factors' start ({config.init}) was computed anew from {base.label}.",
    )

    def against(update: Update) -> Update:
        before = recomputed(update, config)
        if before is None:
            return update
        if isinstance(before, Finding):
            return replace(
                update,
                delta=None,
                complete=False,
                starts_zero=False,
                findings=(*update.findings, before),
            )
        return subtracted(update, {update.name: before}, rewritten=True, recomputed=True)

    return against, told


def subtracted(
    update: Update, start: dict[str, Update], *, rewritten: bool = False, recomputed: bool = False
) -> Update:
    """s(BA − B₀A₀) as one product of rank 2r; other updates stay as they are.

    The initial factors are rounded as the trained ones are stored, so that an adapter saved in
    another format than its start does not seem to have moved.

    Args:
        update: of the trained adapter.
        start: the initial factors, by parameter.
        rewritten: whether the base without s·B₀A₀ is what the adapter was trained on.
        recomputed: whether the start was computed here, and so is good to rounding only.

    Raises:
        AdapterError: the initial adapter has no factors that fit.
    """
    if update.magnitude is not None:
        return _dora_subtracted(update, start.get(update.name), rewritten, recomputed)
    delta, before = update.delta, start.get(update.name)
    if update.kind == "method" and before is not None and before.starts_zero:
        return update
    if update.kind == "method" and delta is not None and not isinstance(delta, LowRank):
        return _method_subtracted(update, delta, before)
    if not isinstance(delta, LowRank):
        return update
    first = None if before is None else before.delta
    if (
        before is None
        or not isinstance(first, LowRank)
        or first.left.shape[:2] != delta.left.shape[:2]
        or first.n_columns != delta.n_columns
    ):
        raise _misfit(update, "factors")
    still = (
        first.scale == delta.scale
        and first.left.shape == delta.left.shape
        and same_up_to_rounding(_stored(first.left, before.b), _stored(delta.left, update.b))
        and same_up_to_rounding(_stored(first.right, before.a), _stored(delta.right, update.a))
    )
    together = _difference(update, delta, first)
    if recomputed:
        still = still or _within_rounding(update, together)
    # What B has moved from is not zero, so the budget's bounds do not apply to it.
    return replace(update, delta=together, starts_zero=still, fixed=None)


def _method_subtracted(update: Update, delta: Delta, before: Update | None) -> Update:
    """The difference of two updates of full rank.

    Raises:
        AdapterError: the initial adapter has none of this size.
    """
    first = None if before is None else before.delta
    if first is None or (first.n_rows, first.n_columns) != (delta.n_rows, delta.n_columns):
        raise _misfit(update, "tensors")

    def rows(start: int, stop: int) -> torch.Tensor:
        return delta.rows(start, stop) - first.rows(start, stop)

    both = Dense(delta.n_rows, delta.n_columns, rows)
    still = not any(bool(rows(*block).any()) for block in blocks(both))
    return replace(update, delta=both, starts_zero=still, fixed=None)


def _difference(update: Update, delta: LowRank, first: LowRank) -> LowRank:
    """s·BA − s₀·B₀A₀, with the start in the format that the trained factors are stored in."""
    left, right = (
        part.to(coarser(part, like)).to(part.dtype) if like is not None else part
        for part, like in ((first.left, update.b), (first.right, update.a))
    )
    return LowRank(
        torch.cat((delta.left * delta.scale, left * -first.scale), dim=2),
        torch.cat((delta.right, right), dim=1),
        1.0,
    )


def _dora_subtracted(
    update: Update, before: Update | None, rewritten: bool, recomputed: bool
) -> Update:
    """DoRA against its start.

    With the base W: where the initialisation took s·B₀A₀ out of it, what is left and s·BA make
    W + s(BA − B₀A₀), to which the magnitudes are applied, and the start is W. Where it did not, the
    start is what the initial factors and magnitudes make of W. Without the base only s(BA − B₀A₀)
    is known.

    Raises:
        AdapterError: the initial adapter has no factors and magnitudes that fit.
    """
    now, then = _dora_parts(update), None if before is None else _dora_parts(before)
    if now is None or update.delta is None:
        return update
    if before is None or then is None:
        raise _misfit(update, "factors and magnitudes")
    if any(a.shape != b.shape for a, b in zip(now, then, strict=True)):
        raise _misfit(update, "factors and magnitudes")
    scale = float(before.scaling or 0.0)
    still = scale == update.scaling and all(
        same_up_to_rounding(a, b) for a, b in zip(then, now, strict=True)
    )
    (a, b), (a0, b0) = (
        [part.to(torch.float64).flatten(1)[None] for part in parts[:2]] for parts in (now, then)
    )
    trained, first = LowRank(b, a, float(update.scaling or 0.0)), LowRank(b0, a0, scale)
    product = _difference(update, trained, first)
    if update.origin is None:
        return replace(update, delta=product, starts_zero=still, complete=still, fixed=None)
    weight = to_matrix(update.origin, update.layout)
    if rewritten:
        moved = dora_delta(weight, product, now[2])
        if recomputed:
            still = _within_rounding(update, product) and magnitudes_still(update, now[2])
        whole = product if still else moved
        return replace(update, delta=whole, starts_zero=still, complete=True, fixed=None)
    if not all(bool(part.any()) for part in then[:2]):
        return replace(update, starts_zero=still)
    new, old = dora_delta(weight, trained, now[2]), dora_delta(weight, first, then[2])

    def rows(start: int, stop: int) -> torch.Tensor:
        return new.rows(start, stop) - old.rows(start, stop)

    both = Dense(new.n_rows, new.n_columns, rows)
    return replace(update, delta=both, starts_zero=still, complete=True, fixed=None)


def _within_rounding(update: Update, product: LowRank) -> bool:
    """Whether a change is no more than what computing the start again may be off by."""
    from interp.adapters.norms import spectrum
    from interp.adapters.thresholds import RECOMPUTED_RHO

    if update.origin is None:
        return False
    size = float(torch.linalg.vector_norm(update.origin, dtype=torch.float64))
    return spectrum(product).frobenius <= RECOMPUTED_RHO * size


def _misfit(update: Update, what: str) -> AdapterError:
    return AdapterError(
        f"The initial adapter has no {what} that fit {update.name}. Give the adapter that this "
        f"very run started from."
    )


def _dora_parts(update: Update) -> tuple[torch.Tensor, ...] | None:
    a, b, magnitude = update.a, update.b, update.magnitude
    return None if a is None or b is None or magnitude is None else (a, b, magnitude)


def _stored(factor: torch.Tensor, saved: torch.Tensor | None) -> torch.Tensor:
    """A factor in the format that it has in its file."""
    return factor if saved is None else factor.to(saved.dtype)
