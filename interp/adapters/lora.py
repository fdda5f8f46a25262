"""ΔW of the LoRA family, from saved tensors.

Sources: LoRA (Hu et al., 2021); rsLoRA (Kalajdzievski, 2023); DoRA (Liu et al., 2024), section 4.
What PEFT applies is the reference; the tests compare with its merge.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final, Literal

import torch

from interp.adapters.building import fault
from interp.adapters.delta import BLOCK_ELEMENTS, Dense, Layout, LowRank, to_matrix
from interp.adapters.findings import REMEDIES, finding
from interp.adapters.targets import may_own
from interp.adapters.updates import (
    Context,
    Group,
    Kind,
    Update,
    layout_of,
    misfit,
    multiplied,
    working,
)

__all__ = ["dora_delta", "lora_updates", "magnitudes_still"]

# Order in which fused experts register their parameters, which is the order PEFT wraps them in.
_EXPERT_ORDER: Final = ("gate_up_proj", "gate_proj", "up_proj", "down_proj")


def lora_updates(group: Group, context: Context) -> Iterator[Update]:
    """Updates of one module with LoRA factors: its weight, and its bias where B has one."""
    tensors = group.tensors
    if "lora_embedding_A" in tensors or "lora_embedding_B" in tensors:
        yield _paired(group, context, "lora_embedding_A", "lora_embedding_B")
        return
    targets = _targeted(group.module, context)
    if targets:
        yield _experts(group, context, targets)
        return
    update = _paired(group, context, "lora_A", "lora_B")
    yield update
    bias = tensors.get("lora_B.bias")
    if bias is None and context.config.raw.get("lora_bias"):
        yield fault(group, "unpaired_factors", "has no bias of B, which lora_bias asks for")
    if bias is not None and (b := tensors.get("lora_B")) is not None and len(bias) != len(b):
        yield fault(group, "bad_shape", f"has a bias of {len(bias)} for {len(b)} outputs")
    elif bias is not None and update.scaling is not None:
        name = f"{group.module}.{group.parameter.replace('weight', 'bias')}"
        yield Update(
            name,
            group.module,
            "bias",
            delta=Dense.of(bias.to(working(bias))[:, None] * update.scaling),
            starts_zero=not bool(bias.any()),
            origin=None if context.base is None else context.base.get(name),
        )


def _paired(group: Group, context: Context, name_a: str, name_b: str) -> Update:
    a, b = group.tensors.get(name_a), group.tensors.get(name_b)
    name = f"{group.module}.{group.parameter}"
    if a is None or b is None:
        there, missing = (name_a, name_b) if b is None else (name_b, name_a)
        return fault(group, "unpaired_factors", f"has {there} but no {missing}")
    if a.ndim < 2 or a.ndim != b.ndim:
        return fault(group, "bad_shape", f"has A of {tuple(a.shape)} and B of {tuple(b.shape)}")
    rank, config = a.shape[0], context.config
    if b.shape[1] != rank:
        if a.ndim > 2 and _grouped(group, context, a, b):
            return fault(group, "unsupported_option", "is a grouped convolution, cannot be merged")
        return fault(group, "unpaired_factors", f"has A of rank {rank} and B of rank {b.shape[1]}")
    findings = []
    if rank != config.rank_of(group.module):
        findings.append(
            finding(
                "rank_mismatch",
                f"{group.module} has rank {rank}, the config says {config.rank_of(group.module)}.",
                remedy=REMEDIES["rank_missing"] if config.raw.get("r") is None else None,
            )
        )
    embedding = name_a == "lora_embedding_A"
    kind: Kind = "embedding" if embedding else "conv" if a.ndim > 2 else "linear"
    scaling = config.scaling_of(group.module) * group.n_times
    dtype = working(a, b)
    left, right = b.to(dtype).flatten(1)[None], a.to(dtype).flatten(1)[None]
    origin = None if context.base is None else context.base.get(name)
    shape = None if origin is None else tuple(origin.shape)
    expected = (a.shape[1], b.shape[0]) if embedding else (b.shape[0], *a.shape[1:])
    layout: Layout | None
    if kind == "linear":
        layout = layout_of(shape, b.shape[0], a.shape[1], turned=context.turned(group.module))
    else:
        usual: Layout = "transposed" if embedding else "conv"
        layout = usual if shape in (None, expected) else None
    if layout is None:
        return misfit(group, str(expected), shape)
    zero: Literal["a", "b"] = "a" if embedding or config.init == "mica" else "b"
    update = Update(
        name,
        group.module,
        kind,
        layout=layout,
        delta=LowRank(left, right, scaling),
        starts_zero=not bool((a if zero == "a" else b).any()),
        a=a,
        b=b,
        zero=zero,
        rank=rank,
        scaling=scaling,
        fixed=left if embedding else right.transpose(1, 2),
        origin=origin,
        findings=tuple(findings),
    )
    magnitude = group.tensors.get("lora_magnitude_vector")
    if magnitude is None:
        if not config.use_dora:
            return update
        lost = finding(
            "unpaired_factors", f"{group.module} has no magnitudes, but use_dora is set."
        )
        return replace(update, findings=(*update.findings, lost))
    return _dora(group, context, update, LowRank(left, right, scaling), magnitude)


def _grouped(group: Group, context: Context, a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a convolution has as many groups as A has more rows than B has columns."""
    n_groups, rest = divmod(a.shape[0], max(b.shape[1], 1))
    origin = None if context.base is None else context.base.get(f"{group.module}.weight")
    return rest == 0 and (origin is None or a.shape[1] == n_groups * origin.shape[1])


def _dora(
    group: Group, context: Context, update: Update, product: LowRank, magnitude: torch.Tensor
) -> Update:
    """m/‖W + s·BA‖ · (W + s·BA) − W, norms over the input features of each output."""
    scale = magnitude.to(working(magnitude)).flatten()
    if scale.numel() != product.n_rows:
        return fault(
            group,
            "bad_shape",
            f"has {scale.numel()} DoRA magnitudes for {product.n_rows} output features",
        )

    def rows(weight: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        return _dora_rows(weight, product, scale, start, stop)

    whole = multiplied(
        group,
        context,
        "dora",
        rows,
        layout=update.layout,
        rank=update.rank,
        a=update.a,
        b=update.b,
        zero=update.zero,
        scaling=update.scaling,
        magnitude=magnitude,
        fixed=update.fixed,
        findings=update.findings,
    )
    if whole.delta is None:
        # Without W the magnitudes say nothing: only s·BA is known.
        return replace(update, kind="dora", complete=False, starts_zero=False, magnitude=magnitude)
    if update.starts_zero and magnitudes_still(whole, magnitude):
        # m is ‖W‖ rounded; what the rounding does to W is no training.
        return replace(whole, delta=product, starts_zero=True)
    return whole


def _dora_rows(
    weight: torch.Tensor, product: LowRank, magnitude: torch.Tensor, start: int, stop: int
) -> torch.Tensor:
    dtype = working(weight, product.left)
    plain = weight.to(dtype)
    moved = plain + product.rows(start, stop).to(dtype)
    length = torch.linalg.vector_norm(moved, dim=1, keepdim=True)
    factor: torch.Tensor = magnitude[start:stop, None].to(dtype) / length
    return factor * moved - plain


def dora_delta(weight: torch.Tensor, product: LowRank, magnitude: torch.Tensor) -> Dense:
    """m/‖W + P‖ · (W + P) − W for a product P of factors.

    Args:
        weight: (n_rows, n_columns), W in the matrix view.
        product: P.
        magnitude: m, one for each row, in any shape.
    """
    scale = magnitude.flatten()
    return Dense(
        weight.shape[0],
        weight.shape[1],
        lambda start, stop: _dora_rows(weight[start:stop], product, scale, start, stop),
    )


def magnitudes_still(update: Update, magnitude: torch.Tensor) -> bool:
    """Whether DoRA's magnitudes are the norms of W's rows, to an ulp of W's format or their own."""
    if update.origin is None:
        return False
    magnitude = magnitude.flatten()
    matrix = to_matrix(update.origin, update.layout)
    if matrix.shape[0] != magnitude.numel():
        return False
    # PEFT keeps factors and magnitudes in float32 at the finest.
    formats = (update.origin.dtype, magnitude.dtype, torch.float32)
    ulp = max(torch.finfo(t).eps for t in formats if t.is_floating_point)
    step = max(1, BLOCK_ELEMENTS // max(1, matrix.shape[1]))
    for start in range(0, matrix.shape[0], step):
        block = matrix[start : start + step]
        length = torch.linalg.vector_norm(block, dim=1, dtype=torch.float64)
        moved = (magnitude[start : start + step].double() - length).abs()
        if not bool((moved <= ulp * length).all()):
            return False
    return True


def _targeted(module: str, context: Context) -> list[str]:
    """Names of the module's own parameters that have factors, in the order of wrapping."""
    found = []
    for target in context.config.target_parameters:
        owner, _, parameter = target.rpartition(".")
        if not may_own(context.config, module, target):
            continue
        if owner or context.base is None or context.base.holds(f"{module}.{parameter}"):
            found.append(parameter)

    def order(name: str) -> tuple[int, str]:
        known = _EXPERT_ORDER.index(name) if name in _EXPERT_ORDER else len(_EXPERT_ORDER)
        return known, name

    return sorted(set(found), key=order)


def _experts(group: Group, context: Context, targets: list[str]) -> Update:
    """Factors on a parameter, for fused experts (E, out, in) or a plain matrix.

    A holds E blocks of r rows; B's columns run over the experts fastest. Multiplying the two as
    they are raises nothing and is wrong.
    """
    a, b = group.tensors.get("lora_A"), group.tensors.get("lora_B")
    if a is None or b is None or a.ndim != 2 or b.ndim != 2 or a.shape[0] != b.shape[1]:
        return fault(group, "unpaired_factors", "has no pair of factors")
    config = context.config
    parameter, origin = _parameter(group, context, targets, b.shape[0], a.shape[1])
    key = f"{group.module}.{parameter}"
    rank = config.rank_of(key)
    n_experts, rest = divmod(a.shape[0], rank)
    if rest:
        return fault(
            group, "rank_mismatch", f"has {a.shape[0]} rows in A, no multiple of the rank {rank}"
        )
    dtype = working(a, b)
    right = a.to(dtype).reshape(n_experts, rank, -1)
    left = b.to(dtype).reshape(b.shape[0], rank, n_experts).permute(2, 0, 1)
    shape = None if origin is None else tuple(origin.shape)
    layout = layout_of(shape, b.shape[0], a.shape[1], turned=config.fan_in_fan_out)
    if shape is not None and shape[-1] == shape[-2] and _stored_transposed(group, context):
        layout = "transposed"
    fits = origin is None or origin.numel() == n_experts * b.shape[0] * a.shape[1]
    if layout is None or not fits:
        return misfit(group, str((n_experts, b.shape[0], a.shape[1])), shape)
    scaling = config.scaling_of(key)
    return Update(
        key,
        group.module,
        "experts",
        layout=layout,
        delta=LowRank(left.contiguous(), right, scaling),
        starts_zero=not bool(b.any()),
        a=a,
        b=b,
        rank=rank,
        scaling=scaling,
        fixed=right.transpose(1, 2),
        origin=origin,
    )


def _stored_transposed(group: Group, context: Context) -> bool:
    """Whether square experts are stored (E, in, out), which only their siblings can tell.

    gate_up_proj (2·inner by d_model) is wide and down_proj square, or the other way round: stored
    plainly either has more rows than columns, and turned it has fewer.
    """
    if context.base is None:
        return False
    for name in ("gate_up_proj", "down_proj"):
        sibling = context.base.get(f"{group.module}.{name}")
        if sibling is not None and sibling.shape[-1] != sibling.shape[-2]:
            return bool(sibling.shape[-1] > sibling.shape[-2])
    return False


def _parameter(
    group: Group, context: Context, targets: list[str], out: int, inner: int
) -> tuple[str, torch.Tensor | None]:
    """Which of the targeted parameters a group belongs to: by shape, else by nesting."""
    by_nesting = targets[max(0, len(targets) - 1 - group.depth)]
    if context.base is None:
        return by_nesting, None
    origins = {name: context.base.get(f"{group.module}.{name}") for name in targets}
    fitting = [
        name
        for name, origin in origins.items()
        if origin is not None and tuple(origin.shape[-2:]) in ((out, inner), (inner, out))
    ]
    name = fitting[0] if len(fitting) == 1 else by_nesting
    return name, origins[name]
