"""What one adapter does to one parameter of the base, and the tensors it does it with."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch

from interp.adapters.base import BaseModel
from interp.adapters.config import AdapterConfig
from interp.adapters.delta import Delta, Dense, Layout, from_matrix, materialise, to_matrix
from interp.adapters.findings import Finding, finding

__all__ = ["Context", "Group", "Kind", "Update", "full_delta", "layout_of", "multiplied", "working"]

Kind = Literal[
    "linear", "embedding", "conv", "experts", "dora", "bias", "saved", "tokens", "method"
]
"""`method`: a formula other than LoRA's. `saved`: a tensor that replaces the base's."""


@dataclass(frozen=True, slots=True)
class Group:
    """The tensors of one module.

    Attributes:
        module: its name in the base model.
        depth: nesting of `base_layer`, for parameters wrapped one over another.
        tensors: by part (`lora_A`, `lora_B.bias`, …).
        shared: tensors that all modules share (VeRA, RandLora).
        parameter: the parameter that the factors change.
        n_times: how often their product is added.
    """

    module: str
    depth: int
    tensors: Mapping[str, torch.Tensor]
    shared: Mapping[str, torch.Tensor] = field(default_factory=dict)
    parameter: str = "weight"
    n_times: int = 1


@dataclass(frozen=True, slots=True)
class Context:
    """What the formulas need beside a module's own tensors."""

    config: AdapterConfig
    base: BaseModel | None

    def turned(self, module: str) -> bool:
        """Whether the base stores a module's matrix (in, out), as Conv1D does.

        The base's family says so; where that is not known, the config. PEFT corrects the config as
        it wraps one module after the other, so that of a model with both kinds it keeps the last.
        """
        told = None if self.base is None else self.base.turned(module)
        return self.config.fan_in_fan_out if told is None else told


@dataclass(frozen=True, slots=True)
class Update:
    """The change of one parameter.

    Attributes:
        name: parameter of the base model, `….q_proj.weight`.
        module: the module it belongs to.
        kind: how it comes about.
        layout: how the base stores the parameter.
        delta: ΔW; None where it cannot be known without the base.
        complete: whether `delta` is all of the change (DoRA without a base has only s·BA).
        starts_zero: whether the part that training has to move from its start has not moved.
        a: factor A (or the like), for its norm.
        b: factor B.
        zero: the factor that starts at zero: B, or A of embeddings and MiCA.
        rank: rank of the factors.
        scaling: factor before their product.
        magnitude: DoRA's magnitudes, where there are any.
        fixed: the factor that does not start at zero, as (n, in or out, r) with the rank last:
            bounds what a bounded other factor can reach.
        index: rows that are replaced (trainable tokens); None for a whole parameter.
        origin: the base's parameter, where one was given; in its own layout.
        findings: what was noticed on the way.
    """

    name: str
    module: str
    kind: Kind
    layout: Layout = "plain"
    delta: Delta | None = None
    complete: bool = True
    starts_zero: bool = False
    a: torch.Tensor | None = None
    b: torch.Tensor | None = None
    zero: Literal["a", "b"] = "b"
    rank: int | None = None
    scaling: float | None = None
    magnitude: torch.Tensor | None = None
    fixed: torch.Tensor | None = None
    index: tuple[int, ...] | None = None
    origin: torch.Tensor | None = None
    findings: tuple[Finding, ...] = ()


Builder = Callable[[Group, Context], Iterator[Update]]


def working(*tensors: torch.Tensor) -> torch.dtype:
    """float32, or float64 where a tensor has it: what products are computed in."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def layout_of(
    shape: tuple[int, ...] | None, out: int, inner: int, *, turned: bool
) -> Layout | None:
    """How a base stores a matrix of `out` rows and `inner` columns; None if it does not fit.

    Args:
        shape: the base's, None where it is not known.
        out: output features.
        inner: input features.
        turned: what holds where the shape does not decide: for square matrices, or without it.
    """
    usual: Layout = "transposed" if turned else "plain"
    if shape is None:
        return usual
    last = tuple(shape[-2:])
    if last == (out, inner) == (inner, out):
        return usual
    if last == (out, inner):
        return "plain"
    return "transposed" if last == (inner, out) else None


def multiplied(
    group: Group,
    context: Context,
    kind: Kind,
    rows: Callable[[torch.Tensor, int, int], torch.Tensor],
    **fields: object,
) -> Update:
    """An update that is a function of the base's own rows (DoRA, IA3, OFT, …).

    Args:
        group: the module.
        context: with the base, or without: then `delta` is None.
        kind: of the update.
        rows: from (W's rows, start, stop) to rows of ΔW.
        fields: of the `Update`; `layout` as the method knows it.
    """
    name = f"{group.module}.weight"
    update = replace(Update(name, group.module, kind), **fields)  # type: ignore[arg-type]
    origin = None if context.base is None else context.base.get(name)
    if origin is None:
        return update
    layout: Layout = "conv" if origin.ndim > 2 else update.layout
    matrix = to_matrix(origin, layout)
    delta = Dense(
        matrix.shape[0],
        matrix.shape[1],
        lambda start, stop: rows(matrix[start:stop], start, stop),
    )
    return replace(update, delta=delta, layout=layout, origin=origin, complete=True)


def full_delta(update: Update, shape: tuple[int, ...]) -> torch.Tensor:
    """ΔW of the whole parameter in the base's own layout. For small models: it is materialised.

    Args:
        update: with a known `delta`.
        shape: of the base's parameter.
    """
    if update.delta is None:
        raise ValueError(f"The change of {update.name} is not known without the base.")
    matrix = materialise(update.delta)
    if update.index is None:
        return from_matrix(matrix, shape, update.layout)
    whole = torch.zeros(shape, dtype=matrix.dtype)
    whole[list(update.index)] = matrix
    return whole


def misfit(group: Group, expected: str, got: tuple[int, ...] | None) -> Update:
    """An update that cannot be, because the base's parameter has another shape."""
    found = finding(
        "shape_differs_from_base",
        f"{group.module}: the adapter fits {expected}, the base has {got}.",
    )
    return Update(f"{group.module}.weight", group.module, "linear", findings=(found,))
