"""Full fine-tunes: the difference of two checkpoints, one tensor at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from interp.adapters.base import BaseModel
from interp.adapters.findings import Finding, finding, named
from interp.adapters.locate import checkpoints, step_of
from interp.adapters.results import ModuleAudit
from interp.adapters.saved import saved_update
from interp.adapters.tensors import NamedTensors, shards
from interp.adapters.thresholds import SAME_BASE_COSINE
from interp.adapters.updates import Update

__all__ = ["FULL", "about_full", "full_checkpoints", "full_files", "full_updates"]

FULL: Final = "FULL"
"""Stands in for `peft_type` where a path holds a whole model."""

_LAYER: Final = re.compile(r"(^|\.)\d+\.")
# Tables that some versions of a library save and others compute.
_NOT_SAVED: Final = ("inv_freq", "attn.bias", "masked_bias", "position_ids")


def full_files(folder: Path) -> tuple[Path, ...]:
    """Weight files of a whole model in a folder; empty if there are none."""
    return shards(folder, "model", "pytorch_model.bin") if folder.is_dir() else ()


def full_checkpoints(path: Path) -> tuple[tuple[Path, int | None], ...]:
    """Whole models at a path: the folder itself, or a run's checkpoints and then its final model.

    Returns:
        each folder with its step, None for one that is no checkpoint; empty if there are none.
    """
    if not path.is_dir():
        return ()
    found: list[tuple[Path, int | None]] = [
        (folder, step) for step, folder in checkpoints(path) if full_files(folder)
    ]
    if full_files(path):
        found.append((path, step_of(path)))
    else:
        final = [
            folder
            for folder in sorted(path.iterdir())
            if folder.is_dir() and step_of(folder) is None and full_files(folder)
        ]
        found += [(folder, None) for folder in final] if found else []
    return tuple(found)


def full_updates(tensors: NamedTensors, base: BaseModel) -> Iterator[Update]:
    """One update for each floating-point tensor of the fine-tuned model."""
    for name in tensors:
        tensor = tensors.get(name)
        if tensor.is_floating_point():
            module, _, leaf = name.rpartition(".")
            yield saved_update(name, module, tensor, base, bias=leaf == "bias")


def about_full(base: BaseModel, modules: Sequence[ModuleAudit]) -> list[Finding]:
    """Whether a model is a fine-tune of this base at all.

    Training leaves most of a weight in place: the cosine of new and old weights stays near 1. Two
    models of one architecture that were trained apart have cosines near 0.
    """
    findings = []
    absent = [m.name for m in modules if m.base_norm is None and base.find(m.name) is None]
    # A new head is no sign of another base; layers are.
    absent = [name for name in absent if _LAYER.search(name)]
    if absent:
        findings.append(
            finding(
                "module_absent_from_base",
                f"{len(absent)} of {len(modules)} are not in {base.label}: {named(absent)}.",
            )
        )
    ours = {base.find(m.name) for m in modules}
    lost = [name for name in base.tensors if name not in ours and _LAYER.search(name)]
    lost = [name for name in lost if not name.endswith(_NOT_SAVED)]
    if lost:
        findings.append(
            finding(
                "module_absent_from_base",
                f"{len(lost)} tensors of {base.label} are not in the model: {named(lost)}.",
            )
        )
    matrices = [
        m for m in modules if m.base_cosine is not None and m.shape is not None and min(m.shape) > 1
    ]
    apart = [m for m in matrices if m.base_cosine is not None and m.base_cosine < SAME_BASE_COSINE]
    if len(apart) > len(matrices) / 2:
        median = sorted(m.base_cosine or 0.0 for m in matrices)[len(matrices) // 2]
        findings.append(
            finding(
                "another_base",
                f"The cosine of new and old weights is {median:.2g} in the median matrix: this is "
                f"no fine-tune of {base.label}.",
            )
        )
    return findings
