"""Figures of many updates: a few at a time, or same-shaped ones as one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from interp.adapters.delta import LowRank
from interp.adapters.findings import Finding, finding
from interp.adapters.measure import measure, on_device
from interp.adapters.norms import Spectrum, maxima, spectra
from interp.adapters.results import ModuleAudit
from interp.adapters.updates import Update

__all__ = ["measure_all"]

_MOST_WORKERS = 4  # each holds a module's factors, its base weight and a block of ΔW
_BATCH = 32  # updates on a GPU: enough to fill it, and a few hundred megabytes of factors


def measure_all(
    updates: Iterable[Update],
    init: str,
    device: str,
    progress: Callable[[str], None],
    *,
    direction: NDArray[np.float32] | None = None,
    batch: int | None = None,
) -> tuple[list[ModuleAudit], list[Finding]]:
    """Figures of all updates, a few at a time where torch may use several threads.

    On a device other than the CPU, spectra and maxima of factored updates of one shape are
    computed as one batch.

    Args:
        updates: read as they are needed.
        init: `init_lora_weights` of the config.
        device: where the arithmetic runs.
        progress: called with the name of each parameter that is done.
        direction: (d_model,) of the residual stream; None for none.
        batch: updates that are held, and batched; None for one a thread on the CPU, and
            `_BATCH` elsewhere.
    """
    modules: list[ModuleAudit] = []
    findings: list[Finding] = []
    work = partial(_measured_one, init=init, device=device, direction=direction)
    pending = iter(updates)
    with _one_thread_each() as n_workers, ThreadPoolExecutor(n_workers) as pool:
        size = batch or (n_workers if device == "cpu" else _BATCH)
        batched = batch is not None or device != "cpu"
        # In batches, so that no more tensors are held than are worked on.
        while taken := list(islice(pending, size)):
            known = _batched(taken, device) if batched else [None] * len(taken)
            for module, found in pool.map(work, taken, known):
                modules.append(module)
                findings += found
                progress(module.name)
    return modules, findings


def _batched(updates: Sequence[Update], device: str) -> list[tuple[Spectrum, float] | None]:
    """Spectrum and max|ΔW| of the factored updates, those of one shape together."""
    groups: dict[tuple[object, ...], list[int]] = {}
    for place, update in enumerate(updates):
        delta = update.delta
        if isinstance(delta, LowRank):
            shape = (*delta.left.shape, *delta.right.shape, delta.left.dtype, delta.right.dtype)
            groups.setdefault(shape, []).append(place)
    found: list[tuple[Spectrum, float] | None] = [None] * len(updates)
    for places in groups.values():
        deltas = [delta for p in places if isinstance(delta := updates[p].delta, LowRank)]
        # An update that has no spectrum must not take its neighbours' with it.
        if not all(_finite(delta) for delta in deltas):
            continue
        there = [on_device(delta, device) for delta in deltas]
        pairs = zip(places, spectra(there), maxima(there), strict=True)
        for place, values, largest in pairs:
            found[place] = (values, largest)
    return found


def _finite(delta: LowRank) -> bool:
    return bool(delta.left.isfinite().all()) and bool(delta.right.isfinite().all())


def _measured_one(
    update: Update,
    known: tuple[Spectrum, float] | None,
    *,
    init: str,
    device: str,
    direction: NDArray[np.float32] | None,
) -> tuple[ModuleAudit, tuple[Finding, ...]]:
    try:
        return measure(update, init=init, device=device, direction=direction, known=known)
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, LookupError, ValueError, ArithmeticError) as error:
        # Rows of ΔW are computed on demand, so a misfit may show only here.
        broken = finding("bad_shape", f"{update.name}: cannot be computed ({error}).")
        module, found = measure(replace(update, delta=None), init=init, device=device)
        return module, (*found, broken)


@contextmanager
def _one_thread_each() -> Iterator[int]:
    """One thread inside a module, several modules at a time; yields how many.

    For matrices this thin, threads that share one product mostly wait for each other.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield min(before, _MOST_WORKERS)
    finally:
        torch.set_num_threads(before)
