"""The forward passes of an extraction: batches with a shared prefix, and plain ones."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from activations.backend import Capture, ModelBackend, Prompt, SharedPrefix
from activations.batches import Halvings, plan_batches, run_batches
from activations.sharing import PrefixGroup, find_groups, row_cost
from interp.errors import SharingError

__all__ = ["Reading", "SharingPlan", "capture_plain", "plan_sharing", "relative", "run_passes"]

_TOLERANCE: Final = {"float32": 1e-4}
"""Largest relative difference that counts as rounding; lower precision gets `_ROUGH`."""

_ROUGH: Final = 0.1


@dataclass(frozen=True, slots=True)
class Reading:
    """What is read from which prompts.

    Attributes:
        prompts: (n_items,).
        positions: (n_items,) index of the wanted token in `ids_with_stub`.
        logit_ids: vocabulary ids whose logits are read after the stub.
    """

    prompts: Sequence[Prompt]
    positions: Sequence[int]
    logit_ids: tuple[int, ...]

    def length(self, row: int) -> int:
        """Tokens of prompt and stub."""
        return len(self.prompts[row].ids) + len(self.prompts[row].stub_ids)


@dataclass(frozen=True, slots=True)
class SharingPlan:
    """Which rows share a prefix, and what that saves.

    Attributes:
        groups: rows that share a prefix.
        plain: rows that are run in full.
        tokens: of all rows, without sharing.
        tokens_saved: of them, not run because their prefix was.
        off: why nothing is shared; None where something is.
        alone: (n_layers, d_model) residual streams of a row that was run alone to test sharing.
    """

    groups: tuple[PrefixGroup, ...]
    plain: tuple[int, ...]
    tokens: int
    tokens_saved: int
    off: str | None
    alone: Mapping[int, torch.Tensor] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """What a file says of it."""
        return {
            "prefixes": len(self.groups),
            "items": sum(len(group.rows) for group in self.groups),
            "tokens": self.tokens,
            "tokens_saved": self.tokens_saved,
            "off": self.off,
        }


def capture_plain(backend: ModelBackend, reading: Reading, rows: Sequence[int]) -> Capture:
    """One batch, every sequence run from its first token."""
    return backend.capture(
        [reading.prompts[row].ids_with_stub for row in rows],
        [reading.positions[row] for row in rows],
        reading.logit_ids,
    )


def _capture_after(
    backend: ModelBackend, reading: Reading, prefix: SharedPrefix, rows: Sequence[int]
) -> Capture:
    start = prefix.n_tokens
    return backend.capture_after(
        prefix,
        [reading.prompts[row].ids_with_stub[start:] for row in rows],
        [reading.positions[row] - start for row in rows],
        reading.logit_ids,
    )


def _share(backend: ModelBackend, reading: Reading, group: PrefixGroup) -> SharedPrefix:
    ids = reading.prompts[group.rows[0]].ids[: group.length]
    # Through `run_batches` for its message where even this does not fit.
    ((_, prefix),) = run_batches([[0]], lambda _: backend.share_prefix(ids))
    return prefix


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest ‖got − expected‖ / ‖expected‖ over the layers of (n_layers, d_model)."""
    size = expected.norm(dim=1).clamp(min=torch.finfo(torch.float32).tiny)
    return float(((got - expected).norm(dim=1) / size).max())


def plan_sharing(
    backend: ModelBackend,
    reading: Reading,
    rows: Sequence[int],
    *,
    prefix_sharing: bool,
    prefer: Sequence[int] = (),
) -> SharingPlan:
    """Decide which rows share a prefix; one row is run both ways to see that it may.

    A model whose continuation differs from its plain pass (a position scheme that depends on the
    length, a state that is not the cache's) is run plainly, and the plan says why.

    Args:
        backend: a running model.
        reading: what is read.
        rows: the rows to run.
        prefix_sharing: False runs all of them plainly.
        prefer: rows that will be run alone anyway, to test with.
    """
    tokens = sum(reading.length(row) for row in rows)
    if not prefix_sharing:
        return SharingPlan((), tuple(rows), tokens, 0, "--no-prefix-sharing")
    # A wanted token is run with its own sequence, so a prefix ends before it.
    found, rest = find_groups(
        [reading.prompts[row].ids for row in rows], [reading.positions[row] for row in rows]
    )
    if not found:
        return SharingPlan((), tuple(rows), tokens, 0, "no prefix that is worth it")
    groups = tuple(
        PrefixGroup(group.length, tuple(rows[index] for index in group.rows)) for group in found
    )
    off, alone = _fault(backend, reading, groups, prefer)
    if off is not None:
        return SharingPlan((), tuple(rows), tokens, 0, off, alone)
    saved = sum(group.length * (len(group.rows) - 1) for group in groups)
    return SharingPlan(groups, tuple(rows[i] for i in rest), tokens, saved, None, alone)


def _fault(
    backend: ModelBackend,
    reading: Reading,
    groups: Sequence[PrefixGroup],
    prefer: Sequence[int],
) -> tuple[str | None, dict[int, torch.Tensor]]:
    """Why the model cannot share prefixes, if so, and the row that was run alone to see it."""
    group_of = {row: group for group in groups for row in group.rows}
    candidates = [row for row in prefer if row in group_of] or list(groups[0].rows)
    # The longest row: what depends on the length shows there first.
    row = max(candidates, key=reading.length)
    try:
        prefix = _share(backend, reading, group_of[row])
    except SharingError as error:
        return str(error), {}
    shared = _capture_after(backend, reading, prefix, [row]).resid_post[0]
    alone = capture_plain(backend, reading, [row]).resid_post[0]
    difference = relative(shared, alone)
    tolerance = _TOLERANCE.get(backend.fingerprint()["dtype"], _ROUGH)
    # A difference that is not a number is an overflow, which the run itself will report.
    if difference > tolerance:
        reason = (
            f"after a kept prefix the model differs from a plain pass by {difference:.1g} "
            f"(allowed: {tolerance:g})"
        )
        return reason, {row: alone}
    return None, {row: alone}


def run_passes(
    backend: ModelBackend,
    reading: Reading,
    plan: SharingPlan,
    *,
    batch_tokens: int,
    pending: Collection[int] | None = None,
) -> Iterator[tuple[list[int], Capture]]:
    """Run the rows of a plan.

    Batches are planned over all rows and those that are done are left out, so that a run that was
    stopped goes on with the very batches that it would have run.

    Args:
        backend: a running model.
        reading: what is read.
        plan: of all rows.
        batch_tokens: padded tokens a batch.
        pending: rows to run; None runs all.

    Yields:
        rows of one batch, and what was captured for them.
    """
    halvings = Halvings()

    def batches(rows: Sequence[int], costs: Sequence[int]) -> list[list[int]]:
        planned = [[rows[index] for index in batch] for batch in plan_batches(costs, batch_tokens)]
        if pending is None:
            return planned
        left = [[row for row in batch if row in pending] for batch in planned]
        return [batch for batch in left if batch]

    for group in plan.groups:
        costs = [row_cost(reading.length(row) - group.length, group.length) for row in group.rows]
        left = batches(group.rows, costs)
        if not left:
            continue
        prefix = _share(backend, reading, group)
        yield from run_batches(
            left,
            lambda rows, p=prefix: _capture_after(backend, reading, p, rows),  # type: ignore[misc]
            halvings,
        )
        # Not kept while the next prefix is run.
        del prefix
    yield from run_batches(
        batches(plan.plain, [reading.length(row) for row in plan.plain]),
        lambda rows: capture_plain(backend, reading, rows),
        halvings,
    )
