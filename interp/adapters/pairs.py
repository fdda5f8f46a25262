"""Two runs side by side, and an update beside a direction; ΔW is never materialised.

Two runs with the same initialisation agree because they started alike, not because they learned
alike: they are refused as evidence. With independent initialisations the row spaces of ΔW are
independent too, so the cosine of ΔW is near 0 whatever was learned, and what the runs write (the
left singular vectors) is the better question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from interp.adapters.budget import read_training_arguments
from interp.adapters.delta import LowRank
from interp.adapters.locate import AdapterFolder, find_adapters
from interp.adapters.read import open_adapter, read_updates
from interp.adapters.updates import Update
from interp.errors import AdapterError

__all__ = [
    "PairedModule",
    "compare_runs",
    "cosine",
    "direction_overlap",
    "left_alignment",
]

_SAME_START: Final = 0.5
"""Cosine of two A that independent initialisations do not come near (their spread is 1/√(r·in))."""


@dataclass(frozen=True, slots=True)
class PairedModule:
    """One parameter that two adapters change.

    Attributes:
        name: the parameter.
        cosine: of the two ΔW as vectors; None where one is zero.
        left_alignment: |cos| of their top left singular vectors, what they write most.
        chance: √(2/(π·out)), the expected |cos| of two random directions.
    """

    name: str
    cosine: float | None
    left_alignment: float | None
    chance: float


def cosine(first: LowRank, second: LowRank) -> float | None:
    """⟨ΔW₁, ΔW₂⟩/(‖ΔW₁‖‖ΔW₂‖) from r×r products; None where one of them is zero.

    ⟨L₁R₁, L₂R₂⟩ is the sum over (L₁ᵀL₂) ∘ (R₁R₂ᵀ).
    """

    def product(a: LowRank, b: LowRank) -> float:
        left = a.left.double().transpose(1, 2) @ b.left.double()
        right = a.right.double() @ b.right.double().transpose(1, 2)
        return float((left * right).sum()) * a.scale * b.scale

    _same_shape(first, second)
    sizes = product(first, first) * product(second, second)
    return product(first, second) / math.sqrt(sizes) if sizes > 0 else None


def left_alignment(first: LowRank, second: LowRank) -> float | None:
    """|cos| of the top left singular vectors; None where one ΔW is zero.

    For stacked matrices, of the one with the largest singular value in `first`.
    """
    _same_shape(first, second)
    which, vector = _top_left(first)
    _, other = _top_left(second, which)
    if vector is None or other is None:
        return None
    return abs(float(vector @ other))


def direction_overlap(delta: LowRank, vector: NDArray[np.float32]) -> float:
    """‖vᵀΔW‖ for a unit vector v in the output space: how much of ΔW writes along v.

    For modules that write to the residual stream (o_proj, down_proj), with v the direction of a
    probe. Beside ‖ΔW‖_F/√out, what a random direction gives.

    Args:
        delta: of one matrix.
        vector: (out,), unit norm.

    Raises:
        AdapterError: the sizes do not fit.
    """
    unit = torch.as_tensor(np.asarray(vector), dtype=torch.float64)
    if delta.left.shape[0] != 1 or unit.shape != (delta.left.shape[1],):
        raise AdapterError(
            f"A direction of shape {tuple(unit.shape)} does not fit ΔW with {delta.n_rows} output "
            f"features. Take a module that writes to the residual stream."
        )
    written = (unit / unit.norm()) @ delta.left[0].double() @ delta.right[0].double()
    return float(written.norm()) * abs(delta.scale)


def compare_runs(first: Path | str, second: Path | str) -> tuple[PairedModule, ...]:
    """Compare two adapters of LoRA's kind, parameter by parameter.

    Raises:
        AdapterError: a path holds not exactly one adapter, they have no parameter in common, or
            both runs started from the same initialisation.
    """
    folders = [_single(Path(path)) for path in (first, second)]
    ours, theirs = ({u.name: u for u in _factored(folder)} for folder in folders)
    common = [name for name in ours if name in theirs]
    if not common:
        raise AdapterError(f"{first} and {second} change no parameter in common.")
    seeds = [
        read_training_arguments(folder.path / "training_args.bin").get("seed") for folder in folders
    ]
    alike = _start_cosine(ours, theirs, common)
    if alike > _SAME_START or (seeds[0] is not None and seeds[0] == seeds[1]):
        why = (
            f"their A have a cosine of {alike:.2f}"
            if alike > _SAME_START
            else f"both have seed {seeds[0]}"
        )
        raise AdapterError(
            f"{first} and {second} started alike ({why}), so their agreement is no evidence that "
            f"they learned alike. Train one of them from another seed."
        )
    found = []
    for name in common:
        one, other = ours[name].delta, theirs[name].delta
        if isinstance(one, LowRank) and isinstance(other, LowRank):
            found.append(
                PairedModule(
                    name=name,
                    cosine=cosine(one, other),
                    left_alignment=left_alignment(one, other),
                    chance=math.sqrt(2 / (math.pi * one.left.shape[1])),
                )
            )
    return tuple(found)


def _single(path: Path) -> AdapterFolder:
    found = find_adapters(path)
    # Of a run with checkpoints, the last one is the result.
    if len(found) > 1 and found[-1].step is None and found[-1].path != path:
        raise AdapterError(f"{path} holds {len(found)} adapters; give one of them.")
    return found[-1]


def _factored(folder: AdapterFolder) -> list[Update]:
    with open_adapter(folder) as adapter:
        return [u for u in read_updates(adapter, None) if isinstance(u.delta, LowRank)]


def _start_cosine(ours: dict[str, Update], theirs: dict[str, Update], common: list[str]) -> float:
    """Median cosine of the factors that start at random."""
    found = []
    for name in common:
        a, b = ours[name].fixed, theirs[name].fixed
        if a is not None and b is not None and a.shape == b.shape:
            flat = a.double().flatten(), b.double().flatten()
            size = float(flat[0].norm() * flat[1].norm())
            found.append(float(flat[0] @ flat[1]) / size if size else 0.0)
    return float(np.median(found)) if found else 0.0


def _top_left(delta: LowRank, which: int | None = None) -> tuple[int, torch.Tensor | None]:
    basis, core = torch.linalg.qr(delta.left.double())
    right = torch.linalg.qr(delta.right.double().transpose(1, 2), mode="r").R
    u, values, _ = torch.linalg.svd(core @ right.transpose(1, 2))
    which = int(values[:, 0].argmax()) if which is None else which
    if float(values[which, 0]) == 0:
        return which, None
    return which, basis[which] @ u[which, :, 0]


def _same_shape(first: LowRank, second: LowRank) -> None:
    shapes = [(d.left.shape[0], d.left.shape[1], d.n_columns) for d in (first, second)]
    if shapes[0] != shapes[1]:
        raise AdapterError(
            f"Updates of shapes {shapes[0]} and {shapes[1]} cannot be compared; expected the same "
            f"parameter of the same base model."
        )
