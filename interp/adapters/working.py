"""Figures of many updates: a few at a time, or same-shaped ones as one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice

import torch

from interp.adapters.findings import Finding, finding
from interp.adapters.measure import measure
from interp.adapters.results import ModuleAudit
from interp.adapters.updates import Update

__all__ = ["measure_all"]

_MOST_WORKERS = 4  # each holds a module's factors, its base weight and a block of ΔW


def measure_all(
    updates: Iterable[Update], init: str, device: str, progress: Callable[[str], None]
) -> tuple[list[ModuleAudit], list[Finding]]:
    """Figures of all updates, a few at a time where torch may use several threads.

    Args:
        updates: read as they are needed.
        init: `init_lora_weights` of the config.
        device: where the arithmetic runs.
        progress: called with the name of each parameter that is done.
    """
    modules: list[ModuleAudit] = []
    findings: list[Finding] = []
    work = partial(_measured_one, init=init, device=device)
    pending = iter(updates)
    with _one_thread_each() as n_workers, ThreadPoolExecutor(n_workers) as pool:
        # In batches, so that no more tensors are held than are worked on.
        while batch := list(islice(pending, n_workers)):
            for module, found in pool.map(work, batch):
                modules.append(module)
                findings += found
                progress(module.name)
    return modules, findings


def _measured_one(
    update: Update, *, init: str, device: str
) -> tuple[ModuleAudit, tuple[Finding, ...]]:
    try:
        return measure(update, init=init, device=device)
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
