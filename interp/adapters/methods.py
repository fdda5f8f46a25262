"""ΔW of methods other than LoRA, each by its own formula.

What PEFT applies is the reference; the tests compare with its merge. A method that is not here is
named by the audit and never guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Final

import torch

from interp.adapters.config import AdapterConfig
from interp.adapters.delta import Dense, Layout, LowRank
from interp.adapters.findings import finding
from interp.adapters.lora import lora_updates
from interp.adapters.saved import token_updates
from interp.adapters.updates import (
    Builder,
    Context,
    Group,
    Update,
    layout_of,
    misfit,
    multiplied,
    working,
)

__all__ = ["BUILDERS", "unsupported_options"]


def _adalora(group: Group, context: Context) -> Iterator[Update]:
    """α/(r + 1e-5) · B (E ∘ A), with r the rank that was kept (Zhang et al., 2023)."""
    a, b, e = (group.tensors.get(f"lora_{name}") for name in "ABE")
    if a is None or b is None or e is None:
        yield _fault(group, "unpaired_factors", "lacks one of lora_A, lora_B, lora_E")
        return
    rank = a.shape[0]
    alpha = context.config.lora_alpha
    scaling = (alpha if alpha > 0 else float(rank)) / (rank + 1e-5)
    yield _factored(
        group, context, b, a * e, scaling, starts_zero=not bool(e.any()), a=a, b=b, rank=rank
    )


def _loha(group: Group, context: Context) -> Iterator[Update]:
    """α/r · (w1a w1b) ∘ (w2a w2b) (Hyeon-Woo et al., 2022; LyCORIS)."""
    t = {name: tensor.to(working(tensor)) for name, tensor in group.tensors.items()}
    scale = context.config.scaling_of(group.module)
    if not {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"} <= t.keys():
        yield _fault(group, "unpaired_factors", "lacks one of the four LoHa factors")
        return
    if "hada_t1" in t:
        first, second = (
            torch.einsum(
                "ijkl,jr,ip->prkl", t[f"hada_t{n}"], t[f"hada_w{n}_b"], t[f"hada_w{n}_a"]
            ).flatten(1)
            for n in (1, 2)
        )
        yield _plain(group, context, Dense.of(first * second * scale), conv=True)
        return
    n_columns = t["hada_w1_b"].shape[1]

    def rows(start: int, stop: int) -> torch.Tensor:
        first = t["hada_w1_a"][start:stop] @ t["hada_w1_b"]
        return first * (t["hada_w2_a"][start:stop] @ t["hada_w2_b"]) * scale

    yield _plain(
        group,
        context,
        Dense(t["hada_w1_a"].shape[0], n_columns, rows),
        starts_zero=not bool(t["hada_w2_b"].any()),
    )


def _lokr(group: Group, context: Context) -> Iterator[Update]:
    """α/r · w1 ⊗ w2, either of them possibly a product of factors (LyCORIS)."""
    t = {name: tensor.to(working(tensor)) for name, tensor in group.tensors.items()}
    try:
        first = t["lokr_w1"] if "lokr_w1" in t else t["lokr_w1_a"] @ t["lokr_w1_b"]
        if "lokr_w2" in t:
            second = t["lokr_w2"]
        elif "lokr_t2" in t:
            second = torch.einsum("ijkl,ip,jr->prkl", t["lokr_t2"], t["lokr_w2_a"], t["lokr_w2_b"])
        else:
            second = t["lokr_w2_a"] @ t["lokr_w2_b"]
    except KeyError as error:
        yield _fault(group, "unpaired_factors", f"lacks {error.args[0]}")
        return
    if second.ndim > 2:
        first = first[:, :, None, None]
    product = torch.kron(first, second.contiguous()) * context.config.scaling_of(group.module)
    yield _plain(
        group,
        context,
        Dense.of(product.flatten(1)),
        conv=product.ndim > 2,
        starts_zero=not (bool(first.any()) and bool(second.any())),
    )


def _ia3(group: Group, context: Context) -> Iterator[Update]:
    """W ∘ l − W: l scales inputs of feed-forward modules, outputs of all others (Liu, 2022)."""
    scale = group.tensors["ia3_l"]
    column = not _feedforward(group.module, context.config, scale)
    still = bool((scale == 1).all())

    def rows(weight: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        dtype = working(weight, scale)
        factor = scale.to(dtype).reshape(-1, 1)[start:stop] if column else scale.to(dtype).flatten()
        if not column and scale.ndim > 2:
            # A grouped convolution's output sees the inputs of its own group.
            kernel = context.base.get(f"{group.module}.weight") if context.base else None
            n_out, n_in, *window = kernel.shape if kernel is not None else (1, factor.numel())
            group_of = torch.arange(start, stop) // (n_out * n_in // factor.numel())
            factor = factor.reshape(-1, n_in)[group_of].repeat_interleave(math.prod(window), dim=1)
        return weight.to(dtype) * (factor - 1)

    layout: Layout = "transposed" if context.config.fan_in_fan_out else "plain"
    yield multiplied(group, context, "method", rows, layout=layout, starts_zero=still)
    bias = None if context.base is None else context.base.get(f"{group.module}.bias")
    if column and bias is not None:
        dtype = working(bias, scale)
        change = bias.to(dtype) * (scale.to(dtype).flatten() - 1)
        yield Update(
            f"{group.module}.bias",
            group.module,
            "bias",
            delta=Dense.of(change[:, None]),
            starts_zero=still,
            origin=bias,
        )


def _feedforward(module: str, config: AdapterConfig, scale: torch.Tensor) -> bool:
    """Whether a vector of IA3 scales inputs; PEFT asks the config, never the shape."""
    names = config.raw.get("feedforward_modules")
    if isinstance(names, str):
        return re.fullmatch(names, module) is not None
    if isinstance(names, list):
        return any(module.endswith(str(name)) for name in names)
    return scale.ndim > 1 and scale.shape[0] == 1


def _vera(group: Group, context: Context) -> Iterator[Update]:
    """diag(b) B diag(d) A with A and B frozen and shared (Kopiczko et al., 2024)."""
    lambda_b, lambda_d = group.tensors["vera_lambda_b"], group.tensors["vera_lambda_d"]
    still = not bool(lambda_b.any())
    a, b = group.shared.get("vera_A"), group.shared.get("vera_B")
    inner = _inner(group, context, lambda_b.shape[0])
    if a is None or b is None or inner is None:
        yield Update(
            f"{group.module}.weight", group.module, "method", complete=False, starts_zero=still
        )
        return
    yield _factored(
        group,
        context,
        lambda_b[:, None] * b[: lambda_b.shape[0]],
        lambda_d[:, None] * a[:, :inner],
        1.0,
        starts_zero=still,
        rank=a.shape[0],
    )


def _randlora(group: Group, context: Context) -> Iterator[Update]:
    """Random bases scaled by λ and γ, always on the shorter side (Albert et al., 2025)."""
    scale, gamma = group.tensors["randlora_lambda"], group.tensors["randlora_gamma"]
    still = not bool(scale.any())
    a, b = group.shared.get("randlora_A"), group.shared.get("randlora_B")
    origin = None if context.base is None else context.base.get(f"{group.module}.weight")
    if a is None or b is None or origin is None:
        yield Update(
            f"{group.module}.weight", group.module, "method", complete=False, starts_zero=still
        )
        return
    out, inner = origin.shape if not context.config.fan_in_fan_out else origin.shape[::-1]
    n_bases, short = gamma.shape
    left = b[: max(out, inner), :n_bases].flatten(1)
    right = (scale[:, :, None] * a[:, :n_bases, :short] * gamma[None]).flatten(0, 1)
    if short != inner:
        left, right = right.T, left.T
    config = context.config
    scaling = float(config.raw.get("randlora_alpha", 640)) / config.r
    yield _factored(group, context, left, right, scaling, starts_zero=still, rank=config.r)


def _oft(group: Group, context: Context) -> Iterator[Update]:
    """W Rᵀ − W, R block-diagonal, the Cayley transform of skew blocks (Qiu et al., 2023)."""
    embedding = "oft_embedding_R" in group.tensors
    raw, upper = context.config.raw, group.tensors["oft_embedding_R" if embedding else "oft_R"]
    size = round((1 + (1 + 8 * upper.shape[1]) ** 0.5) / 2)
    skew = torch.zeros(upper.shape[0], size, size, dtype=working(upper))
    row, column = torch.triu_indices(size, size, 1)
    skew[:, row, column] = upper.to(skew.dtype)
    skew = skew - skew.transpose(1, 2)
    eye = torch.eye(size, dtype=skew.dtype).expand_as(skew)
    if raw.get("use_cayley_neumann"):
        # (I + Q)(I − Q)⁻¹ with the inverse as a truncated series: I + 2Q + 2Q² + …, the last
        # power once; PEFT never stops before the third power once it has passed the first.
        terms = min(int(raw.get("num_cayley_neumann_terms", 5)), 1000)
        top = max(terms - 1, 3) if terms > 2 else terms - 1
        rotation, power = eye.clone(), eye
        for n in range(1, top + 1):
            power = power @ skew
            rotation = rotation + power * (1 if n == top and terms > 2 else 2)
    else:
        rotation = torch.linalg.solve(eye + skew, eye - skew, left=False)
    if embedding:
        rotation = rotation.transpose(1, 2)  # its rows are rotated as outputs, not as inputs

    def rows(weight: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        del start, stop
        return _rotated(weight, rotation) - weight.to(working(weight, rotation))

    yield multiplied(group, context, "method", rows, starts_zero=not bool(upper.any()))


def _boft(group: Group, context: Context) -> Iterator[Update]:
    """Scaled rows of W Mᵀ, minus W; M a product of permuted block rotations (Liu, 2024)."""
    raw, scale = group.tensors["boft_R"], group.tensors["boft_s"].flatten()
    still = not bool((raw - raw.transpose(-1, -2)).any()) and bool((scale == 1).all())
    skew = raw.to(working(raw))
    skew = (skew - skew.transpose(-1, -2)) / 2
    eye = torch.eye(skew.shape[-1], dtype=skew.dtype).expand_as(skew)
    rotation = torch.linalg.solve(eye + skew, eye - skew, left=False)
    n_factors, n_blocks, size, _ = rotation.shape

    def rows(weight: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        dtype = working(weight, rotation)
        moved = weight.to(dtype)
        for i in range(n_factors):
            order = _butterfly(n_blocks * size, n_blocks >> i, size // 2, n_factors > 1)
            back = torch.argsort(order)
            # M = P D Pᵀ: Pᵀ puts entry i where `order` names it, P takes it back.
            moved = _rotated(moved[:, back], rotation[i])[:, order]
        return moved * scale[start:stop, None].to(dtype) - weight.to(dtype)

    yield multiplied(group, context, "method", rows, starts_zero=still)


def _hra(group: Group, context: Context) -> Iterator[Update]:
    """W H − W, H a product of Householder reflections (Yuan et al., 2024)."""
    vectors = group.tensors["hra_u"]
    unit = vectors.to(working(vectors))
    unit = unit / torch.linalg.vector_norm(unit, dim=0)
    orthogonal = bool(context.config.raw.get("apply_GS"))
    if orthogonal:
        # Gram-Schmidt up to signs, which reflections do not see.
        unit = torch.linalg.qr(unit).Q
    # Reflections in equal pairs cancel: that is how it starts.
    still = vectors.shape[1] % 2 == 0 and bool(torch.equal(vectors[:, ::2], vectors[:, 1::2]))

    def rows(weight: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        del start, stop
        dtype = working(weight, unit)
        moved = weight.to(dtype)
        for column in unit.to(dtype).T:
            moved = moved - 2 * (moved @ column)[:, None] * column
        return moved - weight.to(dtype)

    yield multiplied(group, context, "method", rows, starts_zero=still and not orthogonal)


def _rotated(weight: torch.Tensor, rotation: torch.Tensor) -> torch.Tensor:
    """Rows times blockdiag(rotation)ᵀ; one block is used for all where there is only one."""
    dtype = working(weight, rotation)
    n_blocks, size = rotation.shape[0], rotation.shape[-1]
    cut = weight.to(dtype).reshape(weight.shape[0], -1, size)
    blocks = (
        rotation.to(dtype).expand(cut.shape[1], -1, -1) if n_blocks == 1 else rotation.to(dtype)
    )
    return torch.einsum("rbk,bjk->rbj", cut, blocks).flatten(1)


def _butterfly(n: int, n_blocks: int, half: int, shuffled: bool) -> torch.Tensor:
    """Order in which BOFT takes features: in each block, even groups of `half`, then odd ones."""
    order = torch.arange(n)
    if not shuffled or n_blocks < 1:
        return order
    groups = order.reshape(n_blocks, -1, half)
    return torch.cat((groups[:, ::2], groups[:, 1::2]), dim=1).flatten()


def _inner(group: Group, context: Context, out: int) -> int | None:
    """Input features of a module, from the base."""
    origin = None if context.base is None else context.base.get(f"{group.module}.weight")
    if origin is None:
        return None
    return int(origin.shape[0] if context.config.fan_in_fan_out else origin.numel() // out)


def _factored(
    group: Group,
    context: Context,
    left: torch.Tensor,
    right: torch.Tensor,
    scaling: float,
    *,
    starts_zero: bool,
    rank: int,
    a: torch.Tensor | None = None,
    b: torch.Tensor | None = None,
) -> Update:
    dtype = working(left, right)
    delta = LowRank(left.to(dtype)[None], right.to(dtype)[None], scaling)
    origin = None if context.base is None else context.base.get(f"{group.module}.weight")
    shape = None if origin is None else tuple(origin.shape)
    layout = layout_of(shape, delta.n_rows, delta.n_columns, context.config)
    if layout is None:
        return misfit(group, str((delta.n_rows, delta.n_columns)), shape)
    return Update(
        f"{group.module}.weight",
        group.module,
        "method",
        layout=layout,
        delta=delta,
        starts_zero=starts_zero,
        a=a,
        b=b,
        rank=rank,
        scaling=scaling,
        origin=origin,
    )


def _plain(
    group: Group, context: Context, delta: Dense, *, conv: bool = False, starts_zero: bool = False
) -> Update:
    name = f"{group.module}.weight"
    origin = None if context.base is None else context.base.get(name)
    if origin is not None and origin.numel() != delta.n_rows * delta.n_columns:
        return misfit(group, str((delta.n_rows, delta.n_columns)), tuple(origin.shape))
    layout: Layout = "conv" if conv or (origin is not None and origin.ndim > 2) else "plain"
    return Update(
        name,
        group.module,
        "method",
        layout=layout,
        delta=delta,
        starts_zero=starts_zero,
        scaling=context.config.scaling_of(group.module),
        origin=origin,
    )


def _fault(group: Group, code: str, what: str) -> Update:
    return Update(
        f"{group.module}.weight",
        group.module,
        "method",
        findings=(finding(code, f"{group.module} {what}."),),
    )


BUILDERS: Final[Mapping[str, Builder]] = {
    "LORA": lora_updates,
    "ADALORA": _adalora,
    "BOFT": _boft,
    "HRA": _hra,
    "IA3": _ia3,
    "LOHA": _loha,
    "LOKR": _lokr,
    "OFT": _oft,
    "RANDLORA": _randlora,
    "TRAINABLE_TOKENS": token_updates,
    "VERA": _vera,
}
"""From `peft_type` to the function that makes a module's updates."""


def unsupported_options(config: AdapterConfig) -> tuple[str, ...]:
    """Options of the config under which the formulas here are not known to hold."""
    found = list(config.other_formula)
    if config.method == "OFT" and config.raw.get("coft"):
        found.append("coft")
    return tuple(found)
