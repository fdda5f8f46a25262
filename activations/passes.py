"""The forward passes of an extraction: batches with a shared prefix, and plain ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch

from activations.backend import Capture, ModelBackend, Prompt, SharedPrefix
from activations.batches import PACKED_TOKENS, Halvings, pending_of, plan_batches, run_batches
from activations.captures import relative
from activations.cpu import keep_freed_memory
from activations.manifests import tolerance_of
from activations.sharing import PrefixGroup, find_groups, row_cost
from activations.workers import spread_batches, workers_for
from interp.errors import SharingError

__all__ = [
    "Reading",
    "SharingPlan",
    "capture_plain",
    "plan_sharing",
    "run_passes",
    "run_plan",
]

T = TypeVar("T")


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

    def only(self, rows: Collection[int]) -> SharingPlan:
        """The plan for some of its rows; the token counts stay those of the whole."""
        groups = tuple(
            PrefixGroup(group.length, kept)
            for group in self.groups
            if (kept := tuple(row for row in group.rows if row in rows))
        )
        return replace(self, groups=groups, plain=tuple(r for r in self.plain if r in rows))

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
    tolerance = tolerance_of(backend.fingerprint()["dtype"])
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
    pending: Set[int] | None = None,
) -> Iterator[tuple[list[int], Capture]]:
    """Capture the rows of a plan; see `run_plan`.

    Args:
        backend: a running model.
        reading: what is read.
        plan: of all rows.
        batch_tokens: padded tokens a batch.
        pending: rows to run; None runs all.

    Yields:
        rows of one batch, and what was captured for them.
    """

    def run(rows: Sequence[int], prefix: SharedPrefix | None) -> list[Any]:
        if prefix is None:
            capture = capture_plain(backend, reading, rows)
        else:
            capture = _capture_after(backend, reading, prefix, rows)
        return [getattr(capture, part.name).numpy() for part in fields(Capture)]

    for rows, parts in run_plan(
        *(backend, reading, plan, run), batch_tokens=batch_tokens, pending=pending
    ):
        yield rows, Capture(*map(torch.from_numpy, parts))


def run_plan(
    backend: ModelBackend,
    reading: Reading,
    plan: SharingPlan,
    run: Callable[[Sequence[int], SharedPrefix | None], T],
    *,
    batch_tokens: int,
    more: int = 0,
    aligned: bool = False,
    pending: Set[int] | None = None,
) -> Iterator[tuple[list[int], T]]:
    """Run the rows of a plan in batches, each with the prefix that its rows share.

    Batches are planned over all rows and those that are done are left out, so that a run that was
    stopped goes on with the very batches that it would have run.

    Args:
        backend: a running model.
        reading: the prompts.
        plan: from `plan_sharing`.
        run: runs the rows of one batch; the prefix is None where they share none. It may run in
            another process: see `spread_batches`.
        batch_tokens: padded tokens a batch.
        more: tokens that each row goes on for after its stub.
        aligned: whether rows of unequal length need a prefix that can be shifted (`prefill` and
            `generate`); where it cannot be, batches hold rows of one length.
        pending: rows to run; None runs all.

    Yields:
        rows of one batch, and what `run` gave for them.
    """
    halvings, workers = Halvings(), workers_for(backend)
    keep_freed_memory()
    if backend.padded_because is None and not aligned:
        batch_tokens = min(batch_tokens, PACKED_TOKENS)
    for group in plan.groups:
        if pending is not None and pending.isdisjoint(group.rows):
            continue
        prefix = _share(backend, reading, group)
        own = {row: reading.length(row) + more - group.length for row in group.rows}
        copied = 0 if prefix.read_once and not aligned else group.length
        parts = [group.rows] if prefix.ragged or not aligned else _by_length(group.rows, own)
        batches = [
            batch
            for rows in parts
            for batch in _batches(rows, [row_cost(own[row], copied) for row in rows], batch_tokens)
        ]
        yield from spread_batches(
            pending_of(batches, pending),
            lambda rows, p=prefix: run(rows, p),  # type: ignore[misc]
            halvings,
            workers=workers,
        )
        # Not kept while the next prefix is run.
        del prefix
    costs = [reading.length(row) + more for row in plan.plain]
    batches = _batches(plan.plain, costs, batch_tokens)
    yield from spread_batches(
        pending_of(batches, pending), lambda rows: run(rows, None), halvings, workers=workers
    )


def _by_length(rows: Sequence[int], length: Mapping[int, int]) -> list[list[int]]:
    found: dict[int, list[int]] = {}
    for row in rows:
        found.setdefault(length[row], []).append(row)
    return list(found.values())


def _batches(rows: Sequence[int], costs: Sequence[int], batch_tokens: int) -> list[list[int]]:
    return [[rows[index] for index in batch] for batch in plan_batches(costs, batch_tokens)]
