"""Two runs side by side; ΔW is never materialised.

Two runs with the same initialisation agree because they started alike, not because they learned
alike: they are refused as evidence. With independent initialisations the row spaces of ΔW are
independent too, so the cosine of ΔW is near 0 whatever was learned, and what the runs write (the
left singular vectors) is the better question.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Final

import numpy as np
import torch

from interp.adapters.budget import read_training_arguments
from interp.adapters.delta import LowRank
from interp.adapters.direction import direction_overlap
from interp.adapters.locate import AdapterFolder, find_adapters
from interp.adapters.read import OpenAdapter, open_adapter, read_updates
from interp.adapters.results import PairedModule, RunComparison
from interp.adapters.updates import Update
from interp.errors import AdapterError

__all__ = [
    "PairedModule",
    "compare_runs",
    "compared",
    "cosine",
    "direction_overlap",
    "inner_product",
    "left_alignment",
]

_SAME_START: Final = 0.5
"""Cosine of two A that independent initialisations do not come near (their spread is 1/√(r·in))."""


def inner_product(first: LowRank, second: LowRank) -> float:
    """⟨ΔW₁, ΔW₂⟩ from r×r products: the sum over (L₁ᵀL₂) ∘ (R₁R₂ᵀ)."""
    _same_shape(first, second)
    left = first.left.double().transpose(1, 2) @ second.left.double()
    right = first.right.double() @ second.right.double().transpose(1, 2)
    return float((left * right).sum()) * first.scale * second.scale


def cosine(first: LowRank, second: LowRank) -> float | None:
    """⟨ΔW₁, ΔW₂⟩/(‖ΔW₁‖‖ΔW₂‖), never materialised; None where one of them is zero."""
    return _over(
        inner_product(first, second), inner_product(first, first), inner_product(second, second)
    )


def _over(product: float, first: float, second: float) -> float | None:
    size = math.sqrt(max(first, 0.0)) * math.sqrt(max(second, 0.0))
    return max(-1.0, min(1.0, product / size)) if size > 0 else None


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


def compare_runs(first: Path | str, second: Path | str) -> tuple[PairedModule, ...]:
    """Compare two adapters of LoRA's kind, parameter by parameter.

    Raises:
        AdapterError: a path holds not exactly one adapter, they have no parameter in common, or
            both runs started from the same initialisation.
    """
    return compared(first, second).modules


def compared(first: Path | str, second: Path | str) -> RunComparison:
    """The same with what it comes to; a parameter's factors are held only while it is compared.

    Raises:
        AdapterError: as for `compare_runs`.
    """
    folders = [_single(Path(path)) for path in (first, second)]
    seeds = [
        read_training_arguments(folder.path / "training_args.bin").get("seed") for folder in folders
    ]
    found: list[PairedModule] = []
    starts: list[float] = []
    sums = [0.0, 0.0, 0.0]
    for one, other in _common(*folders):
        a, b = one.delta, other.delta
        if not (isinstance(a, LowRank) and isinstance(b, LowRank)):
            continue
        products = (inner_product(a, b), inner_product(a, a), inner_product(b, b))
        sums = [total + product for total, product in zip(sums, products, strict=True)]
        starts += _start_cosine(one, other)
        found.append(
            PairedModule(
                name=one.name,
                cosine=_over(*products),
                left_alignment=left_alignment(a, b),
                chance=math.sqrt(2 / (math.pi * a.left.shape[1])),
            )
        )
    if not found:
        raise AdapterError(f"{first} and {second} change no parameter in common.")
    alike = float(np.median(starts)) if starts else 0.0
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
    return RunComparison(
        other=Path(second),
        cosine=_over(*sums),
        median_cosine=_median([pair.cosine for pair in found]),
        median_left_alignment=_median([pair.left_alignment for pair in found]),
        chance=_median([pair.chance for pair in found]),
        modules=tuple(found),
    )


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return float(np.median(known)) if known else None


def _single(path: Path) -> AdapterFolder:
    found = find_adapters(path)
    # Of a run with checkpoints, the last one is the result.
    if len(found) > 1 and found[-1].step is None and found[-1].path != path:
        raise AdapterError(f"{path} holds {len(found)} adapters; give one of them.")
    return found[-1]


def _common(first: AdapterFolder, second: AdapterFolder) -> Iterator[tuple[Update, Update]]:
    """Updates of the same parameters, side by side; both files are read in one order of modules."""
    with open_adapter(first) as one, open_adapter(second) as other:
        for folder, adapter in ((first, one), (second, other)):
            if any(found.code == "rewritten_base" for found in adapter.findings):
                raise AdapterError(
                    f"The factors of {folder.path} started as part of the base, so what they have "
                    f"in common with another run's is the base. Convert both to plain LoRA first "
                    f"(path_initial_model_for_weight_conversion)."
                )
        shared = {key.module for key in one.keys} & {key.module for key in other.keys}
        waiting: tuple[dict[str, Update], dict[str, Update]] = ({}, {})
        pairs = zip_longest(_factored(one, shared), _factored(other, shared))
        for pair in pairs:
            for side, update in enumerate(pair):
                if update is not None:
                    waiting[side][update.name] = update
            for name in [name for name in waiting[0] if name in waiting[1]]:
                yield waiting[0].pop(name), waiting[1].pop(name)


def _factored(adapter: OpenAdapter, modules: set[str]) -> Iterator[Update]:
    return (
        update
        for update in read_updates(adapter, None)
        if isinstance(update.delta, LowRank) and update.module in modules
    )


def _start_cosine(one: Update, other: Update) -> list[float]:
    """Cosine of the factors that start at random; empty where they cannot be compared."""
    a, b = one.fixed, other.fixed
    if a is None or b is None or a.shape != b.shape:
        return []
    first, second = a.double().flatten(), b.double().flatten()
    size = float(first.norm() * second.norm())
    return [float(first @ second) / size if size else 0.0]


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
