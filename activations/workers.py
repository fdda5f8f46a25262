"""Batches on several processes of one machine, where threads would wait for each other.

The processes are forks: they read the model's weights, a kept prefix and all else where the parent
has them, and only what a batch gave travels. Two threads of one process meet at the end of every
small product; two processes with a thread each never do.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final, TypeVar

import torch
from torch import nn

from activations.backend import ModelBackend
from activations.batches import Halvings, run_batches
from activations.hooks import has_foreign_hooks
from interp.errors import ModelError

__all__ = ["spread_batches", "workers_for"]

T = TypeVar("T")

_MOST: Final = 8
"""Processes at most: each holds the residual streams of a batch of its own."""


def workers_for(backend: ModelBackend) -> int:
    """Processes for the batches of a backend: one a thread where forks lose nothing, else one."""
    # Other libraries have threads of their own, which a fork loses.
    if backend.library != "hf" or getattr(backend, "device", None) != torch.device("cpu"):
        return 1
    # What somebody's hook notes down would stay in another process.
    if has_foreign_hooks(getattr(backend, "model", nn.Module())):
        return 1
    # Elsewhere than on Linux system libraries do not bear a fork.
    return min(_MOST, torch.get_num_threads()) if hasattr(os, "sched_getaffinity") else 1


def spread_batches(
    batches: Sequence[Sequence[int]],
    run: Callable[[Sequence[int]], T],
    halvings: Halvings | None = None,
    *,
    workers: int,
) -> Iterator[tuple[list[int], T]]:
    """As `run_batches`, on several processes that share this one's threads.

    Args:
        batches: indices, as planned.
        run: what to do with one batch. It runs in another process: what it changes is lost, what it
            returns is pickled (arrays rather than tensors).
        halvings: see `run_batches`; where there are several processes each halves on its own.
        workers: processes; 1 runs everything in this one.

    Yields:
        the indices of a (part of a) batch, and what `run` returned for them, as they get done.

    Raises:
        ModelError: a process was killed.
    """
    workers = min(workers, len(batches))
    if workers <= 1:
        yield from run_batches(batches, run, halvings)
        return
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("fork"),
        initializer=_begin,
        # Handed over by the fork itself, so it may be a closure over the model.
        initargs=(run, max(1, torch.get_num_threads() // workers)),
    )
    try:
        for done in as_completed([pool.submit(_work, list(batch)) for batch in batches]):
            yield from done.result()
    except BrokenProcessPool as error:
        raise ModelError(
            f"One of {workers} processes was killed, as happens where memory runs out. Use one "
            f"process (OMP_NUM_THREADS=1) or a smaller --batch-tokens."
        ) from error
    finally:
        # They hold what this process has open, locks on files among it, for as long as they live.
        pool.shutdown(wait=True, cancel_futures=True)


_task: list[Callable[[Sequence[int]], Any]] = []
"""In a worker: what it does with a batch."""


def _begin(run: Callable[[Sequence[int]], Any], threads: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its workers
    torch.set_num_threads(threads)
    _task[:] = [run]
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _work(batch: list[int]) -> list[tuple[list[int], Any]]:
    return list(run_batches([batch], _task[0]))
