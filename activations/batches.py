"""Length-sorted batches under a token budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Final, TypeVar

import torch

from interp.errors import ModelError

__all__ = [
    "BATCH_TOKENS",
    "PACKED_TOKENS",
    "Halvings",
    "pending_of",
    "plan_batches",
    "run_batches",
]

T = TypeVar("T")

BATCH_TOKENS: Final = 2048
"""Default budget of padded tokens a batch: fits a laptop, and larger ones are no faster there."""


PACKED_TOKENS: Final = 1536
"""Largest batch where captures are packed on a CPU. Larger ones are no faster and take more memory;
batches of 768 took 3 to 5% longer."""


def plan_batches(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Indices in batches of similar length, longest first.

    Args:
        lengths: tokens of each sequence.
        batch_tokens: largest padded size (sequences times longest) of a batch; a sequence that
            is longer by itself gets a batch of its own.
    """
    if batch_tokens < 1:
        raise ModelError(f"--batch-tokens is {batch_tokens}; expected at least 1.")
    order = sorted(range(len(lengths)), key=lambda index: (-lengths[index], index))
    batches: list[list[int]] = []
    for index in order:
        # Sorted downwards, so the first sequence of a batch is its longest.
        if batches and lengths[batches[-1][0]] * (len(batches[-1]) + 1) <= batch_tokens:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def pending_of(batches: Sequence[list[int]], pending: Set[int] | None) -> list[list[int]]:
    """Batches without the indices that are done; None keeps all."""
    if pending is None:
        return list(batches)
    left = [[index for index in batch if index in pending] for batch in batches]
    return [batch for batch in left if batch]


@dataclass(slots=True)
class Halvings:
    """How often batches were too large so far; shared by the calls of one run.

    Attributes:
        times: a batch as planned is run in 2 ** times parts.
    """

    times: int = 0


def run_batches(
    batches: Sequence[Sequence[int]],
    run: Callable[[Sequence[int]], T],
    halvings: Halvings | None = None,
) -> Iterator[tuple[list[int], T]]:
    """Run each batch; one that does not fit into memory is halved and tried again.

    All later batches are halved as often: what did not fit once would fail each time anew.

    Args:
        batches: indices, as planned.
        run: what to do with one batch.
        halvings: what earlier calls of the same run have found; updated here.

    Yields:
        the indices of a (part of a) batch, and what `run` returned for them.

    Raises:
        ModelError: a single sequence does not fit.
    """
    found = halvings or Halvings()
    waiting = [(list(batch), 0) for batch in reversed(batches)]
    while waiting:
        batch, halved = waiting.pop()
        if halved < found.times and len(batch) > 1:
            half = len(batch) // 2
            waiting += [(batch[half:], halved + 1), (batch[:half], halved + 1)]
            continue
        try:
            result = run(batch)
        except torch.OutOfMemoryError as error:
            if len(batch) == 1:
                raise ModelError(
                    "One sequence alone does not fit into the device's memory. Use a smaller "
                    "model, a smaller dtype, or another device."
                ) from error
            torch.cuda.empty_cache()
            found.times = halved + 1
            waiting.append((batch, halved))
            continue
        yield batch, result
