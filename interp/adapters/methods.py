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

from interp.adapters.building import factored, fault, open_question, plain
from interp.adapters.config import AdapterConfig
from interp.adapters.delta import Dense, Kronecker, Layout
from interp.adapters.findings import Finding, finding, named
from interp.adapters.lora import lora_updates
from interp.adapters.more_methods import (
    c3a_updates,
    delora_updates,
    fourier_updates,
    gralora_updates,
    hira_updates,
    miss_updates,
    norm_updates,
    pvera_updates,
    road_updates,
    shira_updates,
    vblora_updates,
)
from interp.adapters.rotations import boft_updates, hra_updates, oft_updates
from interp.adapters.saved import token_updates
from interp.adapters.updates import (
    Builder,
    Context,
    Group,
    Update,
    multiplied,
    working,
)

__all__ = ["BUILDERS", "about_method", "unsupported_options"]


def _adalora(group: Group, context: Context) -> Iterator[Update]:
    """α/(r + 1e-5) · B (E ∘ A), with r the rank that was kept (Zhang et al., 2023)."""
    a, b, e = (group.tensors.get(f"lora_{name}") for name in "ABE")
    if a is None or b is None or e is None:
        yield fault(group, "unpaired_factors", "lacks one of lora_A, lora_B, lora_E")
        return
    rank = a.shape[0]
    if e.shape != (rank, 1) or b.shape[1:] != (rank,):
        yield fault(group, "unpaired_factors", f"has E of {tuple(e.shape)} for rank {rank}")
        return
    if rank == 0:
        # Pruned whole: trained, and then without effect.
        zero_a, zero_b = a.new_zeros(1, a.shape[1]), b.new_zeros(b.shape[0], 1)
        yield factored(group, context, zero_b, zero_a, 1.0, starts_zero=False, rank=0)
        return
    alpha = context.config.lora_alpha
    scaling = (alpha if alpha > 0 else float(rank)) / (rank + 1e-5)
    yield factored(
        group, context, b, a * e, scaling, starts_zero=not bool(e.any()), a=a, b=b, rank=rank
    )


def _loha(group: Group, context: Context) -> Iterator[Update]:
    """α/r · (w1a w1b) ∘ (w2a w2b) (Hyeon-Woo et al., 2022; LyCORIS)."""
    t = {name: tensor.to(working(tensor)) for name, tensor in group.tensors.items()}
    scale = context.config.scaling_of(group.module)
    if not {"hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b"} <= t.keys():
        yield fault(group, "unpaired_factors", "lacks one of the four LoHa factors")
        return
    if "hada_t1" in t:
        if not all(_core_fits(t, f"hada_t{n}", f"hada_w{n}_a", f"hada_w{n}_b") for n in (1, 2)):
            yield fault(group, "unpaired_factors", "has cores that do not fit their factors")
            return
        first, second = (
            torch.einsum(
                "ijkl,jr,ip->prkl", t[f"hada_t{n}"], t[f"hada_w{n}_b"], t[f"hada_w{n}_a"]
            ).flatten(1)
            for n in (1, 2)
        )
        yield plain(
            group,
            context,
            Dense.of(first * second * scale),
            conv=True,
            starts_zero=not bool(t["hada_w2_b"].any()),
        )
        return
    n_columns = t["hada_w1_b"].shape[1]
    if t["hada_w1_a"].shape != t["hada_w2_a"].shape or t["hada_w1_b"].shape != t["hada_w2_b"].shape:
        yield fault(group, "unpaired_factors", "has two products of different shapes")
        return

    def rows(start: int, stop: int) -> torch.Tensor:
        first = t["hada_w1_a"][start:stop] @ t["hada_w1_b"]
        return first * (t["hada_w2_a"][start:stop] @ t["hada_w2_b"]) * scale

    yield plain(
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
            if not _core_fits(t, "lokr_t2", "lokr_w2_a", "lokr_w2_b"):
                yield fault(group, "unpaired_factors", "has a core that does not fit its factors")
                return
            second = torch.einsum("ijkl,ip,jr->prkl", t["lokr_t2"], t["lokr_w2_a"], t["lokr_w2_b"])
        else:
            second = t["lokr_w2_a"] @ t["lokr_w2_b"]
    except KeyError as error:
        yield fault(group, "unpaired_factors", f"lacks {error.args[0]}")
        return
    conv = second.ndim > 2
    # A kernel's window lies inside w2, so that the product of the flat matrices is the flat one.
    delta = Kronecker(first, second.flatten(1), context.config.scaling_of(group.module))
    yield plain(
        group,
        context,
        delta,
        conv=conv,
        starts_zero=not (bool(first.any()) and bool(second.any())),
    )


def _core_fits(t: Mapping[str, torch.Tensor], core: str, first: str, second: str) -> bool:
    """Whether a core's first two sides are the ranks of its factors; a side of 1 would stretch."""
    return core in t and t[core].shape[:2] == (t[first].shape[0], t[second].shape[0])


def _ia3(group: Group, context: Context) -> Iterator[Update]:
    """W ∘ l − W: l scales inputs of feed-forward modules, outputs of all others (Liu, 2022)."""
    scale = group.tensors["ia3_l"]
    column = not _feedforward(group.module, context.config, scale)
    expected = _ia3_shape(group, context, scale, column=column)
    if tuple(scale.shape) != expected:
        yield fault(group, "bad_shape", f"has l of {tuple(scale.shape)}, expected {expected}")
        return
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

    layout: Layout = "transposed" if context.turned(group.module) else "plain"
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


def _ia3_shape(
    group: Group, context: Context, scale: torch.Tensor, *, column: bool
) -> tuple[int, ...]:
    """Shape that l must have: one entry an output, or one an input, in PEFT's layout."""
    kernel = None if context.base is None else context.base.get(f"{group.module}.weight")
    n = scale.numel()
    if kernel is not None and kernel.ndim > 2:
        n_groups = max(n // max(kernel.shape[1], 1), 1)
        n = kernel.shape[0] if column else n_groups * kernel.shape[1]
        return (1, n, *(1 for _ in kernel.shape[2:]))
    if kernel is not None:
        out, inner = kernel.shape[::-1] if context.turned(group.module) else kernel.shape
        n = int(out if column else inner)
    if scale.ndim > 2:
        return (1, n, *(1 for _ in scale.shape[2:]))
    return (n, 1) if column else (1, n)


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
        yield open_question(group, starts_zero=still)
        return
    yield factored(
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
        yield open_question(group, starts_zero=still)
        return
    out, inner = origin.shape if not context.turned(group.module) else origin.shape[::-1]
    n_bases, short = gamma.shape
    left = b[: max(out, inner), :n_bases].flatten(1)
    right = (scale[:, :, None] * a[:, :n_bases, :short] * gamma[None]).flatten(0, 1)
    if short != inner:
        left, right = right.T, left.T
    config = context.config
    scaling = float(config.raw.get("randlora_alpha", 640)) / config.r
    yield factored(group, context, left, right, scaling, starts_zero=still, rank=config.r)


def _inner(group: Group, context: Context, out: int) -> int | None:
    """Input features of a module, from the base."""
    origin = None if context.base is None else context.base.get(f"{group.module}.weight")
    if origin is None:
        return None
    return int(origin.shape[0] if context.turned(group.module) else origin.numel() // out)


BUILDERS: Final[Mapping[str, Builder]] = {
    "LORA": lora_updates,
    "ADALORA": _adalora,
    "BOFT": boft_updates,
    "HRA": hra_updates,
    "IA3": _ia3,
    "C3A": c3a_updates,
    "DELORA": delora_updates,
    "FOURIERFT": fourier_updates,
    "GRALORA": gralora_updates,
    "HIRA": hira_updates,
    "LN_TUNING": norm_updates,
    "LOHA": _loha,
    "LOKR": _lokr,
    "MISS": miss_updates,
    "OFT": oft_updates,
    "PVERA": pvera_updates,
    "RANDLORA": _randlora,
    "ROAD": road_updates,
    "SHIRA": shira_updates,
    "TRAINABLE_TOKENS": token_updates,
    "VBLORA": vblora_updates,
    "VERA": _vera,
}
"""From `peft_type` to the function that makes a module's updates."""


_WITHOUT_WEIGHTS: Final = frozenset(
    [
        *("ADAPTION_PROMPT", "CARTRIDGE", "CPT", "LILY", "MULTITASK_PROMPT_TUNING", "P_TUNING"),
        *("POLY", "PREFIX_TUNING", "PROMPT_TUNING", "SHADOW", "XLORA"),
    ]
)
"""Methods that add to what the model reads, or mix by what it reads."""


def unsupported_options(config: AdapterConfig) -> tuple[str, ...]:
    """Options of the config under which the formulas here are not known to hold."""
    found = list(config.other_formula)
    if config.method == "VBLORA" and config.raw.get("save_only_topk_weights"):
        found.append("save_only_topk_weights")
    return tuple(found)


def _unsupported(method: str) -> Finding:
    """That there is no formula, and what else tells."""
    if method in _WITHOUT_WEIGHTS:
        return finding(
            "unsupported_method",
            f"{method} changes no weight by itself: what it does depends on the input.",
            remedy="Run it: compare what the model says with and without it.",
        )
    return finding("unsupported_method", f"{method} has no formula here.")


def _rewritten(config: AdapterConfig) -> Finding:
    """That the factors started as part of the base, and what would tell where."""
    what = (
        f"init_lora_weights is {config.init!r}: the factors started as part of the base, so s·BA "
        f"is not what training changed"
    )
    if config.recomputable:
        return finding(
            "rewritten_base",
            f"{what}.",
            remedy="Give the original base (--base MODEL), or the adapter as it was before "
            "training (--initial DIR).",
        )
    inputs = {"pissa": "random numbers", "loftq": "a quantised copy of the base"}
    source = next((text for name, text in inputs.items() if config.init.startswith(name)), "data")
    return finding(
        "rewritten_base", f"{what}. The start depends on {source}, not on the base alone."
    )


def about_method(config: AdapterConfig) -> list[Finding]:
    """What the method, its options and its initialisation leave open."""
    if config.method not in BUILDERS:
        return [_unsupported(config.method)]
    unsupported = unsupported_options(config)
    if unsupported:
        return [finding("unsupported_option", f"{named(list(unsupported))} changes what ΔW is.")]
    if config.method == "LORA" and config.rewrites_base:
        return [_rewritten(config)]
    if config.method == "LORA" and config.unknown_init:
        return [
            finding(
                "rewritten_base",
                f"init_lora_weights is {config.init!r}, which is not known: it may have taken part "
                f"of the base into the factors.",
            )
        ]
    if config.raw.get("alora_invocation_tokens"):
        return [
            finding(
                "applied_after_invocation",
                "alora_invocation_tokens are set: only tokens from the invocation on see the "
                "change.",
            )
        ]
    if config.method == "LORA" and config.init in ("false", "none"):
        return [finding("random_initialisation", f"init_lora_weights is {config.init}.")]
    if config.method != "LORA" and (why := _random_start(config)) is not None:
        return [finding("random_initialisation", why)]
    return []


def _random_start(config: AdapterConfig) -> str | None:
    """Why an adapter of another method than LoRA starts with a change of its own, if it does."""
    options = [n for n in ("init_weights", "init_ia3_weights") if config.raw.get(n) is False]
    if options:
        return f"{options[0]} is false."
    if config.method == "C3A" and config.raw.get("init_weights", "xavier_uniform") is not True:
        return "C3A starts with random kernels unless init_weights is true."
    if config.method == "FOURIERFT" and not config.raw.get("init_weights"):
        return "FourierFT starts with a random spectrum unless init_weights is true."
    return "VB-LoRA starts with random mixtures." if config.method == "VBLORA" else None
