"""From an update to its figures."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from interp.adapters.delta import Delta, LowRank, blocks, to_matrix
from interp.adapters.direction import direction_overlap, writes
from interp.adapters.findings import Finding, finding
from interp.adapters.keys import layer_of
from interp.adapters.norms import Spectrum, max_abs, max_abs_of, norm_of, spectrum
from interp.adapters.results import ModuleAudit
from interp.adapters.thresholds import SINGULAR_VALUES_KEPT
from interp.adapters.updates import Update

__all__ = ["Merge", "measure", "merge_shares", "on_device"]

_ONE_FACTOR_ZERO: Final = ("true", "gaussian", "eva")


@dataclass(frozen=True, slots=True)
class Merge:
    """What merging an update into its weights does.

    Attributes:
        base_norm: ‖W‖_F.
        cosine: of W + ΔW and W; None where one of them is zero.
        bf16_changed: share of the weights that differ after a merge in bfloat16.
        fp16_changed: the same in float16.
    """

    base_norm: float
    cosine: float | None
    bf16_changed: float
    fp16_changed: float


def measure(
    update: Update,
    *,
    init: str,
    device: str = "cpu",
    direction: NDArray[np.float32] | None = None,
    known: tuple[Spectrum, float] | None = None,
) -> tuple[ModuleAudit, tuple[Finding, ...]]:
    """Figures of one update.

    Args:
        update: with ΔW, or without where it is not known.
        init: `init_lora_weights` of the config, to judge the factor that starts at random.
        device: where the arithmetic runs.
        direction: (d_model,) of the residual stream; asked of modules that write to it.
        known: spectrum and max|ΔW|, where they were computed in a batch.

    Returns:
        the figures, and what was found while they were computed.
    """
    layer, projection = layer_of(update.module)
    audit = ModuleAudit(
        name=update.name,
        module=update.module,
        layer=layer,
        projection=projection if not update.name.endswith(".bias") else f"{projection}.bias",
        kind=update.kind,
        starts_zero=update.starts_zero,
        complete=update.complete and (update.delta is not None or update.starts_zero),
        rank=update.rank,
        scaling=update.scaling,
    )
    audit = _factors(audit, update, init)
    delta = update.delta
    if delta is None:
        return audit, update.findings
    if device != "cpu" and isinstance(delta, LowRank):
        delta = on_device(delta, device)
    found, largest = known if known is not None else (spectrum(delta), max_abs(delta))
    audit = replace(
        audit,
        shape=(delta.n_rows, delta.n_columns),
        n_weights=delta.n_rows * delta.n_columns,
        frobenius=found.frobenius,
        spectral=found.spectral,
        max_abs_delta=largest,
        stable_rank=found.stable_rank,
        effective_rank=found.effective_rank,
        singular_values=found.singular_values[:SINGULAR_VALUES_KEPT],
    )
    if not all(map(math.isfinite, (found.frobenius, audit.max_abs_delta or 0))):
        broken = finding("non_finite", f"The change of {update.name} is not finite.")
        return replace(
            audit,
            frobenius=None,
            spectral=None,
            max_abs_delta=None,
            stable_rank=None,
            effective_rank=None,
            singular_values=(),
        ), (*update.findings, broken)
    if direction is not None and writes(update.module) and update.kind != "bias":
        sides = delta.left.shape[1] if isinstance(delta, LowRank) else delta.n_rows
        if sides == direction.shape[0]:
            audit = replace(audit, direction_overlap=direction_overlap(delta, direction))
    if update.origin is None:
        return audit, update.findings
    merge = merge_shares(delta, to_matrix(update.origin, update.layout), device=device)
    if not math.isfinite(merge.base_norm):
        noted = finding("base_not_finite", f"{update.name} of the base holds NaN or infinity.")
        return audit, (*update.findings, noted)
    return replace(
        audit,
        base_norm=merge.base_norm,
        relative=found.frobenius / merge.base_norm if merge.base_norm > 0 else None,
        base_cosine=merge.cosine,
        bf16_changed=merge.bf16_changed,
        fp16_changed=merge.fp16_changed,
    ), update.findings


def on_device(delta: LowRank, device: str) -> LowRank:
    """The same update with its factors there."""
    return LowRank(delta.left.to(device), delta.right.to(device), delta.scale)


def merge_shares(delta: Delta, weight: torch.Tensor, *, device: str = "cpu") -> Merge:
    """Norm of the weights, and the share of them that a merge in half precision changes.

    A merge adds ΔW in float32 to the rounded weight and rounds the sum again; where |ΔW| is under
    half a unit in the last place, that gives the weight back.

    Args:
        delta: the update.
        weight: (n_rows, n_columns), the base in the matrix view.
        device: where the arithmetic runs.
    """
    square, dot, moved = 0.0, 0.0, 0.0
    changed = {torch.bfloat16: 0, torch.float16: 0}
    for start, stop in blocks(delta):
        change = delta.rows(start, stop).float().to(device)
        block = weight[start:stop].to(device)
        sum_of = change + block
        square += float(torch.linalg.vector_norm(block, dtype=torch.float64)) ** 2
        moved += float(torch.linalg.vector_norm(sum_of, dtype=torch.float64)) ** 2
        dot += float((sum_of * block).sum(dtype=torch.float64))
        for dtype in changed:
            rounded = block.to(dtype)
            merged = (rounded.float() + change).to(dtype)
            changed[dtype] += int(torch.count_nonzero(merged != rounded))
    n = delta.n_rows * delta.n_columns
    size = math.sqrt(square * moved)
    return Merge(
        base_norm=square**0.5,
        cosine=max(-1.0, min(1.0, dot / size)) if 0 < size < math.inf else None,
        bf16_changed=changed[torch.bfloat16] / max(n, 1),
        fp16_changed=changed[torch.float16] / max(n, 1),
    )


def _factors(audit: ModuleAudit, update: Update, init: str) -> ModuleAudit:
    """Norms of the factors, and how far a bounded moving factor could reach."""
    a, b = update.a, update.b
    if a is None or b is None:
        return audit
    audit = replace(
        audit,
        a_norm=norm_of(a),
        b_norm=norm_of(b),
        max_abs_a=max_abs_of(a),
        max_abs_b=max_abs_of(b),
    )
    moving, start = (a, b) if update.zero == "a" else (b, a)
    # Only where one factor is known to have started at zero do its entries tell how far it moved.
    if update.fixed is None or update.scaling is None or init not in _ONE_FACTOR_ZERO:
        return audit
    audit = replace(
        audit,
        a_init_ratio=_init_ratio(start, update, init),
        moved_norm=norm_of(moving),
        moved_max=max_abs_of(moving),
        n_moved=moving.numel(),
    )
    if update.kind == "dora":
        # The magnitudes move too: a bound on B bounds nothing.
        return audit
    fixed, scaling = update.fixed.double(), abs(update.scaling)
    # Each output row of ΔW is bᵀ·fixedᵀ with |b_k| ≤ 1, so at most √r · σ₁(fixed) long.
    largest = torch.linalg.matrix_norm(torch.linalg.qr(fixed, mode="r").R, ord=2)
    n_rows, rank = moving.numel() // (fixed.shape[0] * fixed.shape[2]), fixed.shape[2]
    return replace(
        audit,
        reach_max=scaling * float(fixed.abs().sum(dim=-1).max()),
        reach_frobenius=scaling * math.sqrt(n_rows * rank) * float(largest.norm()),
    )


def _init_ratio(start: torch.Tensor, update: Update, init: str) -> float | None:
    """‖A‖ over √E‖A‖² at PEFT's initialisation; None where that is not a fixed distribution."""
    if init == "eva":
        return None
    if update.zero == "a":
        expected = float(start.numel())  # standard normal
    elif init == "gaussian":
        expected = start.numel() / (update.rank or 1) ** 2
    else:
        # Uniform on ±1/√fan_in: variance 1/(3·fan_in), so r/3 for each matrix.
        expected = start.shape[0] / 3
    return norm_of(start) / math.sqrt(expected) if expected else None
