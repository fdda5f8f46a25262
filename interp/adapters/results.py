"""What an audit returns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.adapters.findings import Finding
from interp.adapters.thresholds import Verdict

__all__ = [
    "AdapterAudit",
    "DirectionOverlap",
    "ModuleAudit",
    "PairedModule",
    "RunComparison",
    "Totals",
    "by_layer",
    "by_projection",
    "total",
]


@dataclass(frozen=True, slots=True)
class ModuleAudit:
    """One parameter of the base that the adapter changes. None: not known, or does not apply.

    Attributes:
        name: the parameter, `….q_proj.weight`.
        module: its module.
        layer: 0-based block index.
        projection: the module's name inside its block.
        kind: linear, embedding, conv, experts, dora, bias, saved, tokens, method.
        shape: rows and columns of ΔW as a matrix, output features first.
        rank: of the factors.
        scaling: α/r or its kin.
        a_norm: ‖A‖_F.
        b_norm: ‖B‖_F.
        max_abs_a: max|A|.
        max_abs_b: max|B|.
        a_init_ratio: norm of the factor that starts at random, in units of what its
            initialisation gives in expectation.
        starts_zero: the part that training has to move has not moved at all.
        complete: the figures are of the whole change, not of a part of it.
        frobenius: ‖ΔW‖_F.
        spectral: ‖ΔW‖₂.
        max_abs_delta: max|ΔW|.
        stable_rank: ‖ΔW‖_F²/‖ΔW‖₂².
        effective_rank: exp of the entropy of the normalised singular values.
        singular_values: the largest ones, in order.
        base_norm: ‖W‖_F.
        relative: ρ = ‖ΔW‖_F/‖W‖_F.
        base_cosine: cosine of W + ΔW and W, as vectors.
        bf16_changed: share of the weights that a merge in bfloat16 changes at all.
        fp16_changed: the same in float16.
        direction_overlap: ‖vᵀΔW‖ for a unit direction v that the audit was given, in modules that
            write to the residual stream.
        n_weights: entries of ΔW.
        moved_norm: Frobenius norm of the factor that starts at zero.
        moved_max: its largest absolute entry.
        n_moved: its number of entries.
        reach_max: max|ΔW| at most, for each unit of |entry| that the moving factor may have.
        reach_frobenius: the same for ‖ΔW‖_F.
    """

    name: str
    module: str
    layer: int | None
    projection: str
    kind: str
    starts_zero: bool
    complete: bool
    shape: tuple[int, int] | None = None
    rank: int | None = None
    scaling: float | None = None
    a_norm: float | None = None
    b_norm: float | None = None
    max_abs_a: float | None = None
    max_abs_b: float | None = None
    a_init_ratio: float | None = None
    frobenius: float | None = None
    spectral: float | None = None
    max_abs_delta: float | None = None
    stable_rank: float | None = None
    effective_rank: float | None = None
    singular_values: tuple[float, ...] = ()
    base_norm: float | None = None
    relative: float | None = None
    base_cosine: float | None = None
    bf16_changed: float | None = None
    fp16_changed: float | None = None
    direction_overlap: float | None = None
    n_weights: int | None = None
    moved_norm: float | None = None
    moved_max: float | None = None
    n_moved: int | None = None
    reach_max: float | None = None
    reach_frobenius: float | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """Over all modules: norms as one long vector, maxima as maxima. None: not known.

    Attributes:
        a_norm: norm of all A.
        b_norm: norm of all B.
        max_abs_b: max|B|.
        max_abs_delta: max|ΔW|.
        frobenius: norm of all ΔW.
        relative: norm of all ΔW over the norm of the weights that they change.
        bf16_changed: share of these weights that a merge in bfloat16 changes at all.
    """

    a_norm: float | None
    b_norm: float | None
    max_abs_b: float | None
    max_abs_delta: float | None
    frobenius: float | None
    relative: float | None
    bf16_changed: float | None


@dataclass(frozen=True, slots=True)
class DirectionOverlap:
    """How much of an adapter writes along a direction of the residual stream.

    Attributes:
        layer: of the direction; modules up to it write into the stream that it was read from.
        method: how the direction was made.
        n_modules: writing modules that count.
        overlap: √Σ‖vᵀΔW‖² over them.
        expected: √Σ‖ΔW‖_F²/out, what a random direction gives.
    """

    layer: int
    method: str
    n_modules: int
    overlap: float
    expected: float


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


@dataclass(frozen=True, slots=True)
class RunComparison:
    """An adapter beside that of another run.

    Attributes:
        other: path of the other run.
        refused: why their agreement would be no evidence; then there are no figures.
        cosine: of all ΔW as one vector.
        median_cosine: over the parameters.
        median_left_alignment: over the parameters.
        chance: median of what two random directions give.
        modules: one entry a parameter that both change.
    """

    other: Path
    refused: str | None = None
    cosine: float | None = None
    median_cosine: float | None = None
    median_left_alignment: float | None = None
    chance: float | None = None
    modules: tuple[PairedModule, ...] = ()


@dataclass(frozen=True, slots=True)
class AdapterAudit:
    """The audit of one adapter.

    Attributes:
        path: its folder.
        method: `peft_type`, None without a readable config.
        step: N of a `checkpoint-N`.
        verdict: see `interp.adapters.thresholds`.
        summary: the verdict in one plain paragraph.
        findings: what to know about it, worst first.
        totals: over all modules.
        modules: one entry a parameter.
        budget: the learning-rate budget; empty without a trainer state.
        direction: overlap with a direction; None if none was given, or no module writes.
        compared: with the last adapters of other runs.
    """

    path: Path
    method: str | None
    step: int | None
    verdict: Verdict
    summary: str
    findings: tuple[Finding, ...]
    totals: Totals
    modules: tuple[ModuleAudit, ...]
    budget: dict[str, Any]
    direction: DirectionOverlap | None = None
    compared: tuple[RunComparison, ...] = ()


def total(modules: Sequence[ModuleAudit]) -> Totals:
    """Sum up modules."""
    known = [(m.frobenius, m.base_norm) for m in modules]
    pairs = [(f, w) for f, w in known if f is not None and w is not None]
    weights = math.hypot(*(w for _, w in pairs)) if pairs else 0.0
    shares = [
        (m.bf16_changed * m.n_weights, m.n_weights)
        for m in modules
        if m.bf16_changed is not None and m.n_weights is not None
    ]
    return Totals(
        a_norm=_norm(m.a_norm for m in modules),
        b_norm=_norm(m.b_norm for m in modules),
        max_abs_b=_most(m.max_abs_b for m in modules),
        max_abs_delta=_most(m.max_abs_delta for m in modules),
        frobenius=_norm(m.frobenius for m in modules),
        relative=math.hypot(*(f for f, _ in pairs)) / weights if weights else None,
        bf16_changed=sum(s for s, _ in shares) / sum(n for _, n in shares) if shares else None,
    )


def _norm(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.hypot(*known) if known else None


def _most(values: Iterable[float | None]) -> float | None:
    largest = max((value for value in values if value is not None), default=None)
    # A negative zero is a zero.
    return None if largest is None else largest + 0.0


def by_layer(modules: Sequence[ModuleAudit]) -> dict[int, Totals]:
    """Totals of each block, in order; parameters outside the blocks are left out."""
    parts: dict[int, list[ModuleAudit]] = {}
    for module in modules:
        if module.layer is not None:
            parts.setdefault(module.layer, []).append(module)
    return {layer: total(parts[layer]) for layer in sorted(parts)}


def by_projection(modules: Sequence[ModuleAudit]) -> dict[str, Totals]:
    """Totals of each kind of module over the blocks, in the order of their first appearance."""
    parts: dict[str, list[ModuleAudit]] = {}
    for module in modules:
        parts.setdefault(module.projection, []).append(module)
    return {projection: total(found) for projection, found in parts.items()}
