"""The audit itself: from a path to verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path

import torch

from interp.adapters.base import BaseModel, open_base
from interp.adapters.budget import Budget, read_budget
from interp.adapters.delta import LowRank
from interp.adapters.findings import Finding, finding, named
from interp.adapters.full import FULL, full_files, full_updates
from interp.adapters.locate import AdapterFolder, find_adapters
from interp.adapters.measure import measure
from interp.adapters.read import OpenAdapter, open_adapter, read_updates
from interp.adapters.results import AdapterAudit, ModuleAudit, total
from interp.adapters.updates import Update
from interp.adapters.verdict import explain, judge, judge_budget
from interp.errors import AdapterError

__all__ = ["audit_adapter", "audit_full", "audit_path"]

_ORDER = {"error": 0, "warning": 1, "info": 2}
_MOST_WORKERS = 4  # each holds a module's factors, its base weight and a block of ΔW
_UNCERTAIN = ("rewritten_base", "unsupported_method", "unsupported_option")


def audit_path(
    path: Path | str,
    *,
    base: Path | str | None = None,
    initial: Path | str | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> tuple[AdapterAudit, ...]:
    """Audit every adapter at a path: one folder, one checkpoint, or all checkpoints of a run.

    Args:
        path: a PEFT adapter, a trainer's checkpoint, or a run folder; with `base` also a fully
            fine-tuned model.
        base: folder of the base model; without it there are no relative figures.
        initial: the adapter as it was before training, for initialisations that rewrite the base.
        device: where the arithmetic runs: a device of torch, or `auto`.
        progress: called with the name of each parameter that is done.

    Returns:
        one audit an adapter, checkpoints in the order of their steps.

    Raises:
        AdapterError: the path does not exist or holds no adapter; the base cannot be read.
    """
    device = _checked_device(device)
    try:
        folders = find_adapters(Path(path))
    except AdapterError:
        if base is None or not full_files(Path(path)):
            raise
        return (audit_full(Path(path), base=base, device=device, progress=progress),)
    return tuple(
        audit_adapter(folder, base=base, initial=initial, device=device, progress=progress)
        for folder in folders
    )


def audit_adapter(
    folder: AdapterFolder,
    *,
    base: Path | str | None = None,
    initial: Path | str | None = None,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> AdapterAudit:
    """Audit one adapter; arguments as for `audit_path`."""
    with (
        open_adapter(folder) as adapter,
        nullcontext() if base is None else open_base(Path(base)) as opened_base,
    ):
        findings = list(adapter.findings)
        budget, found = read_budget(folder.trainer_state)
        findings += found
        start = None
        if initial is not None:
            start = _initial_factors(Path(initial))
            findings = [f for f in findings if f.code != "rewritten_base"]
        updates = read_updates(adapter, opened_base)
        if start is not None:
            updates = (_subtracted(update, start) for update in updates)
        init = adapter.config.init if adapter.config else ""
        modules, found = _measured(updates, init, device, progress)
        findings += found
        if opened_base is not None:
            findings += _about_base(adapter, opened_base, modules)
    findings += _about_saved(adapter, modules)
    method = None if adapter.config is None else adapter.config.method
    return _concluded(folder.path, method, folder.step, modules, findings, budget)


def audit_full(
    folder: Path,
    *,
    base: Path | str,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda _: None,
) -> AdapterAudit:
    """Audit a full fine-tune: the difference of two model folders, streamed.

    Raises:
        AdapterError: one of them cannot be read.
    """
    with open_base(folder) as tuned, open_base(Path(base)) as opened_base:
        budget, findings = read_budget(
            state if (state := folder / "trainer_state.json").is_file() else None
        )
        updates = full_updates(tuned.tensors, opened_base)
        modules, found = _measured(updates, "", device, progress)
    return _concluded(folder, FULL, None, modules, findings + found, budget)


def _measured(
    updates: Iterable[Update], init: str, device: str, progress: Callable[[str], None]
) -> tuple[list[ModuleAudit], list[Finding]]:
    """Figures of all updates, a few at a time where torch may use several threads."""
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


def _concluded(
    path: Path,
    method: str | None,
    step: int | None,
    modules: list[ModuleAudit],
    findings: list[Finding],
    budget: Budget | None,
) -> AdapterAudit:
    uncertain = any(f.code in _UNCERTAIN for f in findings)
    judgement = judge(modules, findings, indeterminate=uncertain)
    reach, found = judge_budget(budget, modules, judgement.verdict)
    together = dict.fromkeys([*findings, *judgement.findings, *found])
    ordered = sorted(together, key=lambda f: _ORDER[f.severity])
    return AdapterAudit(
        path=path,
        method=method,
        step=step,
        verdict=judgement.verdict,
        summary=explain(judgement, ordered),
        findings=tuple(ordered),
        totals=total(modules),
        modules=tuple(modules),
        budget={} if budget is None else {**budget.to_json(), **reach},
    )


def _checked_device(device: str) -> str:
    """The device itself, with `auto` resolved; raises before any work if it cannot be used."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise AdapterError(
            f"The device {device!r} cannot be used ({str(error).splitlines()[0]}). Take cpu or "
            f"auto."
        ) from error
    return device


def _initial_factors(path: Path) -> dict[str, LowRank]:
    folders = find_adapters(path)
    if len(folders) != 1:
        raise AdapterError(f"{path} holds {len(folders)} adapters; expected the initial one alone.")
    with open_adapter(folders[0]) as adapter:
        return {
            update.name: update.delta
            for update in read_updates(adapter, None)
            if isinstance(update.delta, LowRank)
        }


def _subtracted(update: Update, start: dict[str, LowRank]) -> Update:
    """s(BA − B₀A₀) as one product of rank 2r; other updates stay as they are."""
    delta, first = update.delta, start.get(update.name)
    if not isinstance(delta, LowRank):
        return update
    fits = first is not None and (
        first.left.shape[:2] == delta.left.shape[:2] and first.n_columns == delta.n_columns
    )
    if first is None or not fits:
        raise AdapterError(
            f"The initial adapter has no factors that fit {update.name}. Give the adapter that "
            f"this very run started from."
        )
    still = (
        first.left.shape == delta.left.shape
        and bool(torch.equal(first.left, delta.left))
        and bool(torch.equal(first.right, delta.right))
    )
    together = LowRank(
        torch.cat((delta.left * delta.scale, first.left * -first.scale), dim=2),
        torch.cat((delta.right, first.right), dim=1),
        1.0,
    )
    # What B has moved from is not zero, so the budget's bounds do not apply to it.
    return replace(update, delta=together, starts_zero=still, fixed=None)


def _about_base(adapter: OpenAdapter, base: BaseModel, modules: list[ModuleAudit]) -> list[Finding]:
    findings = []
    config = adapter.config
    missing = [m.name for m in modules if m.kind not in ("saved", "bias") and m.base_norm is None]
    missing = [name for name in missing if base.get(name) is None]
    packed = [name for name in missing if base.quantized(name)]
    unclear = [name for name in missing if base.ambiguous(name)]
    absent = [name for name in missing if name not in packed and name not in unclear]
    if unclear:
        findings.append(
            finding("base_ambiguous", f"Several tensors of the base fit {named(unclear)}.")
        )
    headless = config is not None and config.headless
    astray = {
        m.name: there
        for m in modules
        if m.kind != "saved" and (there := base.astray(m.name, headless=headless))
    }
    if astray:
        name, there = next(iter(astray.items()))
        findings.append(
            finding(
                "path_differs_from_base",
                f"{len(astray)} of {len(modules)} are elsewhere in the base: {name} is {there}.",
            )
        )
    if packed:
        findings.append(finding("base_quantized", f"Not in floating point: {named(packed)}."))
    if absent:
        findings.append(
            finding(
                "module_absent_from_base",
                f"{len(absent)} of {len(modules)} are not in {base.path}: {named(absent)}.",
            )
        )
    named_base = "" if config is None else config.base_model
    if named_base and not _same_name(named_base, base.path):
        findings.append(
            finding("base_overridden", f"The config names {named_base}, not {base.path}.")
        )
    ends = ("embed_tokens.weight", "wte.weight", "lm_head.weight")
    tied = [m.name for m in modules if m.name.endswith(ends) and not m.starts_zero]
    if base.tied and tied:
        findings.append(finding("tied_embeddings", f"The base ties {named(tied)}."))
    return findings


def _same_name(named_base: str, path: Path) -> bool:
    """Whether a folder, or one that it lies in, is called as the config calls the base."""
    # A folder of the Hub's cache has the name further up.
    names = {Path(named_base).name, f"models--{named_base.replace('/', '--')}"}
    segments = {*path.parts, *path.resolve().parts}
    return not {name.casefold() for name in names}.isdisjoint(s.casefold() for s in segments)


def _about_saved(adapter: OpenAdapter, modules: list[ModuleAudit]) -> list[Finding]:
    """Base tensors that are saved without having been asked for in the config."""
    config = adapter.config
    if config is None:
        return []
    asked = config.modules_to_save
    extra = [
        m.name
        for m in modules
        if m.kind == "saved"
        and not any(m.module == name or f".{name}" in f".{m.module}" for name in asked)
    ]
    if not extra:
        return []
    return [finding("base_tensors_saved", f"The file holds base tensors: {named(extra)}.")]


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
