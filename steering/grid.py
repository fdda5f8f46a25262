"""Runs the cells of a plan: with everything below the steered layer computed once, or plainly."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from activations import Edit, HFBackend, ModelBackend, Prompt
from activations.backend import SharedPrefix
from activations.batches import PACKED_TOKENS, pending_of, plan_batches
from activations.branches import TILE_TOKENS, Branches
from activations.passes import Reading, plan_sharing, run_plan
from activations.reuse import (
    branch_logits,
    keep_residuals,
    resumed_logits,
    why_not_reusable,
)
from activations.workers import spread_batches, workers_for
from interp.errors import InterpError, SteeringError
from steering.hooks import change_at
from steering.interventions import CHANGES
from steering.plan import FoldPlan, distinct
from steering.positions import Positions, selected
from steering.unfinished import Unfinished

__all__ = ["FastPath", "run_cells"]

_TOLERANCE: Final = {"float32": 1e-4}
_ROUGH: Final = 0.1
KEEP_BYTES: Final = 2**30
"""Largest size of the residual streams that a batch keeps for `prompt` and `all`."""

BRANCH_BYTES: Final = 2**26
"""Largest size of the residual streams that one pass carries for `last_prompt` and `generated`; a
few times as much is in use while they are joined."""

_TOO_LARGE: Final = "The model's logits are not finite under steering. Use smaller --alphas."
# What a model raises that is built otherwise than the fast path takes it to be.
_FAULTS: Final = (
    *(InterpError, RuntimeError, ValueError, TypeError, LookupError, AttributeError),
    AssertionError,
)


@dataclass(frozen=True, slots=True)
class FastPath:
    """Whether what lies below the steered layers was run once.

    Attributes:
        used: False means plain passes.
        off: why not; None where it was used.
        max_relative: largest relative difference of the logits of the item that was run both ways
            first; None where nothing was compared.
        trimmed: whether the last block left out what no logit needs.
    """

    used: bool
    off: str | None
    max_relative: float | None
    trimmed: bool = False


@dataclass(frozen=True, slots=True)
class _Job:
    """What all batches share."""

    backend: ModelBackend
    prompts: Sequence[Prompt]
    logit_ids: tuple[int, int]
    positions: Positions
    batch_tokens: int
    trimmed: bool = False

    @property
    def from_last(self) -> bool:
        return self.positions in ("last_prompt", "generated")


def run_cells(
    backend: ModelBackend,
    prompts: Sequence[Prompt],
    plans: Sequence[FoldPlan],
    n_cells: int,
    logit_ids: tuple[int, int],
    *,
    positions: Positions,
    plain: bool,
    batch_tokens: int,
    prefix_sharing: bool,
    kept: Unfinished | None,
    progress: Callable[[int], None],
) -> tuple[NDArray[np.float32], NDArray[np.float32], FastPath]:
    """Forced-choice logits of every item in the cells of its fold.

    Args:
        backend: a running model.
        prompts: (n_items,).
        plans: one a fold; together they hold every item once.
        n_cells: cells of the sweep.
        logit_ids: tokens of True and False.
        positions: which tokens are steered.
        plain: run every cell from the first token.
        batch_tokens: padded tokens a batch.
        prefix_sharing: run first tokens that prompts share once, where steering starts later.
        kept: what an earlier run had found and is not run again; finished batches are added to it.
        progress: called with the number of items finished since the last call.

    Returns:
        (n_items, 2) unsteered logits; (n_cells, n_items, 2), NaN where a fold has no such cell;
        which way they were computed.

    Raises:
        SteeringError: logits are not finite.
    """
    largest = max(float(np.abs(plan.coefficients).max()) for plan in plans)
    if largest > float(np.finfo(np.float32).max):
        raise SteeringError(_TOO_LARGE)
    job = _Job(backend, prompts, logit_ids, positions, batch_tokens)
    path = FastPath(False, "--plain", None) if plain else _examine(job, plans)
    job = replace(job, trimmed=path.trimmed)
    baseline = np.full((len(prompts), 2), np.nan, dtype=np.float32)
    logits = np.full((n_cells, len(prompts), 2), np.nan, dtype=np.float32)
    if kept is not None:
        progress(kept.restore(plans, baseline, logits))
    for fold, plan in enumerate(plans):
        pending = set(np.flatnonzero(np.isnan(baseline[plan.rows, 0])).tolist())
        if not pending:
            continue
        runs, taken = distinct(plan)
        for batch, (base, found) in _batches(job, runs, path, pending, prefix_sharing):
            values = found[taken[:, batch], np.arange(len(batch))]
            if not (np.isfinite(base).all() and np.isfinite(values).all()):
                raise SteeringError(_TOO_LARGE)
            if kept is not None:
                kept.append(fold, batch, base, values)
            rows = plan.rows[batch]
            baseline[rows] = base
            logits[plan.cells[:, None], rows[None, :]] = values
            progress(len(batch))
    return baseline, logits, path


Found = tuple[NDArray[np.float32], NDArray[np.float32]]
"""(n, 2) unsteered logits and (n_cells, n, 2) of a batch."""


def _batches(
    job: _Job, plan: FoldPlan, path: FastPath, pending: Set[int], prefix_sharing: bool
) -> Iterator[tuple[list[int], Found]]:
    """Batches of a fold's items, as places in the fold, with what was found for them."""
    prompts = [job.prompts[int(row)] for row in plan.rows]
    if path.used and job.from_last:
        # A shared prefix ends before the last token that `prefill` runs.
        reading = Reading(prompts, [len(prompt.ids) - 2 for prompt in prompts], job.logit_ids)
        sharing = plan_sharing(
            job.backend, reading, range(len(prompts)), prefix_sharing=prefix_sharing
        )
        yield from run_plan(
            *(
                job.backend,
                reading,
                sharing,
                lambda part, prefix: _branched(job, plan, part, prefix),
            ),
            batch_tokens=_branch_budget(job, plan, reading),
            aligned=True,
            pending=pending,
        )
        return
    lengths = [len(prompt.ids_with_stub) for prompt in prompts]
    budget = _budget(job, plan) if path.used else job.batch_tokens
    run = _resumed if path.used else _plain
    batches = pending_of(plan_batches(lengths, budget), pending)
    workers = workers_for(job.backend)
    yield from spread_batches(batches, lambda part: run(job, plan, part), workers=workers)


def _branch_budget(job: _Job, plan: FoldPlan, reading: Reading) -> int:
    """Tokens of prompts a batch, so that all cells of its items go up the layers together.

    Rather that than a few cells of many items. Batches are small, and the same for any number of
    processes.
    """
    seq = 1 + len(job.prompts[int(plan.rows[0])].stub_ids)
    most = max(1, job.batch_tokens // (len(plan.cells) * seq))
    budget = min(job.batch_tokens, most * max(map(reading.length, range(len(plan.rows)))))
    on_cpu = getattr(job.backend, "device", None) == torch.device("cpu")
    return min(budget, PACKED_TOKENS) if on_cpu else budget


def _branches(job: _Job, plan: FoldPlan, part: slice, batch: Sequence[int]) -> Branches:
    """Cells of a plan for some items of its fold."""
    assert isinstance(job.backend, HFBackend)
    vectors = torch.from_numpy(plan.vectors[plan.which[part]])
    amounts = torch.from_numpy(plan.coefficients[part][:, list(batch)].astype(np.float32))
    shifts = vectors[:, None] * amounts[:, :, None]
    shares = None
    if plan.kind == "project_out":
        shifts, shares = torch.zeros_like(shifts), amounts
    elif plan.kind == "clamp":
        shares = torch.ones_like(amounts)
    return Branches(
        [int(layer) for layer in plan.layers[part]],
        shifts,
        every=job.positions == "generated",
        trimmed=job.trimmed,
        tile_tokens=TILE_TOKENS if job.backend.device.type == "cpu" else job.batch_tokens,
        vectors=None if shares is None else vectors,
        shares=shares,
    )


def _branched(
    job: _Job, plan: FoldPlan, batch: Sequence[int], shared: SharedPrefix | None = None
) -> Found:
    """Cells as branches of the items' kept prompts, as many at once as the budget allows."""
    assert isinstance(job.backend, HFBackend)
    backend = job.backend
    prompts = [job.prompts[int(plan.rows[i])] for i in batch]
    prefix = backend.prefill([prompt.ids[:-1] for prompt in prompts], shared)
    suffixes = [prompt.ids[-1:] + prompt.stub_ids for prompt in prompts]
    # Blocks run their rows in tiles, so the residual streams alone bound the rows of a pass.
    step = max(1, BRANCH_BYTES // (len(batch) * len(suffixes[0]) * backend.d_model * 4))
    parts = []
    for start in range(0, len(plan.cells), step):
        branches = _branches(job, plan, slice(start, start + step), batch)
        found = branch_logits(backend, prefix, suffixes, job.logit_ids, branches).numpy()
        parts.append(found[1:])
    return found[0], np.concatenate(parts)


def _chosen(job: _Job, prompts: Sequence[Prompt], seq: int) -> Tensor:
    """(n, seq) of bool: steered tokens of a batch as the backend lays it out."""
    lengths = torch.tensor([len(prompt.ids_with_stub) for prompt in prompts])
    index = torch.arange(seq).expand(len(prompts), seq)
    if getattr(job.backend, "padding", "right") == "left":
        index = index - (seq - lengths[:, None])
    index = torch.where(index < lengths[:, None], index, -1)
    return selected(job.positions, index, torch.tensor([len(prompt.ids) for prompt in prompts]))


def _changing(
    job: _Job, plan: FoldPlan, batch: Sequence[int], cell: int
) -> Callable[[Tensor], Tensor]:
    prompts = [job.prompts[plan.rows[i]] for i in batch]
    vector = torch.from_numpy(plan.vectors[plan.which[cell]])
    sizes = torch.from_numpy(plan.coefficients[cell, list(batch)].astype(np.float32))

    def change(hidden: Tensor) -> Tensor:
        def push(states: Tensor, rows: Tensor) -> Tensor:
            device = states.device
            vectors = vector.to(device).expand(len(rows), -1)
            return CHANGES[plan.kind](states, vectors, sizes.to(device)[rows])

        return change_at(hidden, _chosen(job, prompts, hidden.shape[1]), push)

    return change


def _plain(job: _Job, plan: FoldPlan, batch: Sequence[int]) -> Found:
    sequences = [job.prompts[plan.rows[i]].ids_with_stub for i in batch]
    cells = []
    for cell, layer in enumerate(plan.layers):
        edit = Edit(int(layer), "resid_post", _changing(job, plan, batch, cell))
        with job.backend.intervene([edit]):
            cells.append(job.backend.logits(sequences, job.logit_ids))
    return job.backend.logits(sequences, job.logit_ids).numpy(), torch.stack(cells).numpy()


def _resumed(job: _Job, plan: FoldPlan, batch: Sequence[int]) -> Found:
    """Every cell starts at its layer from the kept residual stream of the same batch."""
    assert isinstance(job.backend, HFBackend)
    sequences = [job.prompts[plan.rows[i]].ids_with_stub for i in batch]
    layers = sorted({int(layer) for layer in plan.layers})
    kept = keep_residuals(job.backend, sequences, job.logit_ids, layers)
    cells = [
        resumed_logits(
            job.backend, kept, job.logit_ids, int(layer), _changing(job, plan, batch, cell)
        )
        for cell, layer in enumerate(plan.layers)
    ]
    return kept.logits.numpy(), torch.stack(cells).numpy()


def _budget(job: _Job, plan: FoldPlan) -> int:
    """Tokens a batch, so that its kept residual streams stay within `KEEP_BYTES`."""
    bytes_a_token = len(set(plan.layers.tolist())) * job.backend.d_model * 4
    return max(1, min(job.batch_tokens, KEEP_BYTES // bytes_a_token))


def _examine(job: _Job, plans: Sequence[FoldPlan]) -> FastPath:
    """Run one item both ways in one cell at the lowest layer: does the model allow it?"""
    reason = why_not_reusable(job.backend)
    if reason is not None:
        return FastPath(False, reason, None)
    plan = plans[0]
    # The longest prompt: what depends on the length shows there first.
    item = max(range(len(plan.rows)), key=lambda i: len(job.prompts[int(plan.rows[i])].ids))
    lowest = plan.layers == plan.layers[0]
    cell = int(np.argmax(np.where(lowest, np.abs(plan.coefficients[:, item]), -1)))
    only = slice(cell, cell + 1)
    one = replace(
        plan,
        cells=plan.cells[only],
        layers=plan.layers[only],
        which=plan.which[only],
        coefficients=plan.coefficients[only],
    )
    expected = _plain(job, one, [item])[1]
    if not np.isfinite(expected).all():
        return FastPath(True, None, None)  # an overflow, which the run itself will report
    found = FastPath(False, None, None)
    for trimmed in (True, False) if job.from_last else (False,):
        found = _compared(replace(job, trimmed=trimmed), one, item, expected)
        if found.used:
            break
    return found


def _compared(job: _Job, one: FoldPlan, item: int, expected: NDArray[np.float32]) -> FastPath:
    """One item's logits in one cell, beside those of a plain pass."""
    try:
        got = (_branched if job.from_last else _resumed)(job, one, [item])[1]
    except _FAULTS as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        return FastPath(False, f"the model does not allow it ({first[:200]})", None)
    difference = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
    tolerance = _TOLERANCE.get(str(job.backend.fingerprint()["dtype"]), _ROUGH)
    if not difference <= tolerance:
        return FastPath(
            False,
            f"it differs from a plain pass by {difference:.1g} (allowed: {tolerance:g})",
            difference,
        )
    return FastPath(True, None, difference, job.trimmed)
