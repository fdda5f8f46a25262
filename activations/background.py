"""Writing a batch while the next one is computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeAlias

from activations.backend import Capture

__all__ = ["Write", "writing"]

Write: TypeAlias = Callable[[Sequence[int], Capture], None]

_WAITING = 2
"""Batches in memory that are not written yet; more would only grow the memory."""


@contextmanager
def writing(write: Write, *, background: bool) -> Iterator[Write]:
    """Yield a function that writes batches in the order given; at the end all are written.

    Args:
        write: writes one batch.
        background: write in a thread of its own. Worth it where the computing is done by another
            device; on a CPU the thread would take its time from the computing.

    Raises:
        Exception: what `write` raised for an earlier batch, at the next call or at the end.
    """
    if not background:
        yield write
        return
    waiting: deque[Future[None]] = deque()
    # One thread: batches are written in order, and by one writer at a time.
    with ThreadPoolExecutor(max_workers=1) as thread:

        def later(rows: Sequence[int], capture: Capture) -> None:
            while len(waiting) >= _WAITING:
                waiting.popleft().result()
            waiting.append(thread.submit(write, rows, capture))

        try:
            yield later
        finally:
            # Also after an error: what was computed is kept.
            failures = [future.exception() for future in waiting]
        for failure in failures:
            if failure is not None:
                raise failure
