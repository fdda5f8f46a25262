"""The audit itself: from a path to verdicts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from interp.adapters.against import about_base, about_saved, same_model
from interp.adapters.base import BaseModel, live_base, open_base
from interp.adapters.budget import Budget, live_budget, read_budget
from interp.adapters.device import usable_device
from interp.adapters.direction import about_direction, overlap_of
from interp.adapters.findings import Finding, gathered
from interp.adapters.full import FULL, about_full, full_checkpoints, full_updates
from interp.adapters.initial import from_start, initial_updates, read_initial
from interp.adapters.locate import AdapterFolder, find_adapters, find_runs
from interp.adapters.read import OpenAdapter, adapter_of, open_adapter, read_updates
from interp.adapters.results import AdapterAudit, ModuleAudit, total
from interp.adapters.updates import Update
from interp.adapters.verdict import explain, judge, judge_budget
from interp.adapters.working import measure_all
from interp.direction import Direction
from interp.errors import AdapterError

__all__ = ["audit_adapter", "audit_full", "audit_path", "audit_tensors"]

_ORDER = {"error": 0, "warning": 1, "info": 2}
_UNCERTAIN = ("rewritten_base", "unsupported_method", "unsupported_option")


def audit_path(
    path: Path | str,
    *,
    base: Path | str | None = None,
    initial: Path | str | None = None,
    direction: Direction | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[AdapterAudit, ...]:
    """Audit every adapter at a path: one folder, one checkpoint, all checkpoints of a run or runs.

    Args:
        path: a PEFT adapter, a trainer's checkpoint, a run folder, or a folder of these; with
            `base` also a fully fine-tuned model.
        base: folder of the base model; without it there are no relative figures.
        initial: the adapter as it was before training, for initialisations that rewrite the base.
        direction: of the residual stream, for ‖vᵀΔW‖ of the modules that write to it.
        device: where the arithmetic runs: a device of torch, or `auto`.
        progress: called with the name of each parameter that is done.

    Returns:
        one audit an adapter: run after run, checkpoints in the order of their steps.

    Raises:
        AdapterError: the path does not exist or holds no adapter; the base cannot be read.
    """
    device = usable_device(device, AdapterError, double=True)
    runs = find_runs(Path(path))
    try:
        folders = [found for run in runs for found in find_adapters(run)]
    except AdapterError:
        whole = [found for run in runs for found in full_checkpoints(run)]
        if base is None or not whole:
            raise
        return tuple(
            audit_full(
                folder, base=base, step=step, direction=direction, device=device, progress=progress
            )
            for folder, step in whole
        )
    return tuple(
        audit_adapter(
            folder,
            base=base,
            initial=initial,
            direction=direction,
            device=device,
            progress=progress,
        )
        for folder in folders
    )


def audit_adapter(
    folder: AdapterFolder,
    *,
    base: Path | str | None = None,
    initial: Path | str | None = None,
    direction: Direction | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> AdapterAudit:
    """Audit one adapter; arguments as for `audit_path`."""
    budget, found = read_budget(folder.trainer_state)
    with (
        open_adapter(folder) as adapter,
        nullcontext() if base is None else open_base(Path(base)) as opened_base,
    ):
        return _audited(
            adapter,
            opened_base,
            None if initial is None else read_initial(Path(initial), opened_base),
            (budget, found),
            path=folder.path,
            step=folder.step,
            direction=direction,
            device=device,
            progress=progress,
        )


def audit_tensors(
    tensors: Mapping[str, torch.Tensor],
    config: Mapping[str, Any],
    *,
    base: Mapping[str, torch.Tensor] | Callable[[str], torch.Tensor | None] | None = None,
    tied: bool = False,
    initial: Mapping[str, torch.Tensor] | None = None,
    trainer_state: Mapping[str, Any] | None = None,
    training_arguments: Mapping[str, Any] | None = None,
    name: str = "live adapter",
    step: int | None = None,
    direction: Direction | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> AdapterAudit:
    """Audit an adapter in memory, such as that of a model in training.

    The tensors are only read: nothing is copied but what is worked on, nothing is changed.

    Args:
        tensors: by the names that they have in an adapter's file, as
            `peft.get_peft_model_state_dict(model)` gives them; on any device.
        config: the fields of `adapter_config.json`, as `model.peft_config["default"].to_dict()`
            gives them.
        base: weights of the base, by the names that they had before the adapter was put in
            (`model.layers.0.self_attn.q_proj.weight`): a mapping, or a function that gives None
            for a name that it does not know. Without it there are no relative figures.
        tied: whether the base's input and output embeddings are one tensor.
        initial: the same as `tensors` before training, for initialisations that rewrite the base.
        trainer_state: `global_step` and `log_history`, for the learning-rate budget.
        training_arguments: `optim`, `learning_rate`, `adam_beta1`, `adam_beta2`, `seed`, as far as
            they are known; without them AdamW with its usual β is assumed.
        name: stands in the result's `path`.
        step: optimiser steps so far.
        direction: of the residual stream, for ‖vᵀΔW‖ of the modules that write to it.
        device: where the arithmetic runs: a device of torch, or `auto`.
        progress: called with the name of each parameter that is done.

    Returns:
        what `audit_adapter` would say of the same adapter saved.

    Raises:
        AdapterError: the device cannot be used, or `initial` does not fit.
    """
    device = usable_device(device, AdapterError, double=True)
    budget = (None, []) if trainer_state is None else live_budget(trainer_state, training_arguments)
    with (
        adapter_of(tensors, config) as adapter,
        nullcontext() if base is None else live_base(base, tied=tied) as opened_base,
    ):
        start = None
        if initial is not None:
            with adapter_of(initial, config) as before:
                start = initial_updates(before, opened_base)
        return _audited(
            adapter,
            opened_base,
            start,
            budget,
            path=Path(name),
            step=step,
            direction=direction,
            device=device,
            progress=progress,
        )


def _audited(
    adapter: OpenAdapter,
    base: BaseModel | None,
    start: dict[str, Update] | None,
    budget: tuple[Budget | None, list[Finding]],
    *,
    path: Path,
    step: int | None,
    direction: Direction | None,
    device: str,
    progress: Callable[[str], None],
) -> AdapterAudit:
    findings = [*adapter.findings, *budget[1]]
    updates = read_updates(adapter, base)
    config = adapter.config
    against = from_start(config, base, start)
    if against is not None:
        findings = [f for f in findings if f.code != "rewritten_base"]
        findings += [] if against[1] is None else [against[1]]
        updates = map(against[0], updates)
    modules, found = measure_all(
        updates,
        config.init if config else "",
        device,
        progress,
        direction=None if direction is None else direction.vector,
    )
    findings += found
    if base is not None:
        findings += about_base(adapter, base, modules)
    findings += about_saved(adapter, modules)
    if direction is not None:
        same = same_model(direction.model_id, "" if config is None else config.base_model, base)
        findings += about_direction(modules, direction, same_model=same)
    method = None if config is None else config.method
    return _concluded(
        path,
        method,
        step,
        modules,
        findings,
        budget[0],
        base_given=base is not None,
        direction=direction,
    )


def audit_full(
    folder: Path,
    *,
    base: Path | str,
    step: int | None = None,
    direction: Direction | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> AdapterAudit:
    """Audit a full fine-tune: the difference of two model folders, streamed.

    Args:
        folder: of the fine-tuned model.
        base: of the model that it started from.
        step: N, where the folder is a `checkpoint-N`.
        direction: as for `audit_path`.
        device: where the arithmetic runs.
        progress: called with the name of each parameter that is done.

    Raises:
        AdapterError: one of them cannot be read.
    """
    with open_base(folder) as tuned, open_base(Path(base)) as opened_base:
        budget, findings = read_budget(
            state if (state := folder / "trainer_state.json").is_file() else None
        )
        updates = full_updates(tuned.tensors, opened_base)
        modules, found = measure_all(
            updates,
            "",
            device,
            progress,
            direction=None if direction is None else direction.vector,
        )
        found += about_full(opened_base, modules)
        if direction is not None:
            same = same_model(direction.model_id, "", opened_base)
            found += about_direction(modules, direction, same_model=same)
    return _concluded(
        folder, FULL, step, modules, findings + found, budget, base_given=True, direction=direction
    )


def _concluded(
    path: Path,
    method: str | None,
    step: int | None,
    modules: list[ModuleAudit],
    findings: list[Finding],
    budget: Budget | None,
    *,
    base_given: bool,
    direction: Direction | None,
) -> AdapterAudit:
    uncertain = any(f.code in _UNCERTAIN for f in findings)
    judgement = judge(modules, findings, indeterminate=uncertain, base_given=base_given)
    reach, found = judge_budget(budget, modules, judgement.verdict)
    totals = total(modules)
    if judgement.verdict == "indeterminate":
        # What is known is a part of the change, or none of it: no figure for the whole.
        totals = replace(
            totals, relative=None, max_abs_delta=None, frobenius=None, bf16_changed=None
        )
    elif any(f.code == "base_names_unknown" for f in findings):
        # The few modules that were found do not stand for the whole.
        totals = replace(totals, relative=None)
    together = dict.fromkeys([*findings, *judgement.findings, *found])
    ordered = gathered(sorted(together, key=lambda f: _ORDER[f.severity]))
    return AdapterAudit(
        path=path,
        method=method,
        step=step,
        verdict=judgement.verdict,
        summary=explain(judgement, ordered),
        findings=tuple(ordered),
        totals=totals,
        modules=tuple(modules),
        budget={} if budget is None else {**budget.to_json(), **reach},
        direction=None if direction is None else overlap_of(modules, direction),
    )
