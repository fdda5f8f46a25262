"""Full fine-tunes: the difference of two checkpoints, one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from interp.adapters.base import BaseModel
from interp.adapters.saved import saved_update
from interp.adapters.tensors import NamedTensors, shards
from interp.adapters.updates import Update

__all__ = ["FULL", "full_files", "full_updates"]

FULL: Final = "FULL"
"""Stands in for `peft_type` where a path holds a whole model."""


def full_files(folder: Path) -> tuple[Path, ...]:
    """Weight files of a whole model in a folder; empty if there are none."""
    return shards(folder, "model", "pytorch_model.bin") if folder.is_dir() else ()


def full_updates(tensors: NamedTensors, base: BaseModel) -> Iterator[Update]:
    """One update for each floating-point tensor of the fine-tuned model."""
    for name in tensors:
        tensor = tensors.get(name)
        if tensor.is_floating_point():
            module, _, leaf = name.rpartition(".")
            yield saved_update(name, module, tensor, base, bias=leaf == "bias")
