"""What the formulas of several methods end in."""

from __future__ import annotations

import math

import torch

from interp.adapters.delta import Delta, Layout, LowRank
from interp.adapters.findings import finding
from interp.adapters.updates import Context, Group, Update, layout_of, misfit, working

__all__ = ["factored", "fault", "open_question", "plain"]


def factored(
    group: Group,
    context: Context,
    left: torch.Tensor,
    right: torch.Tensor,
    scaling: float,
    *,
    starts_zero: bool,
    rank: int | None,
    a: torch.Tensor | None = None,
    b: torch.Tensor | None = None,
) -> Update:
    """Scaling · left @ right on the module's matrix.

    Args:
        group: the module.
        context: with the base, or without.
        left: (out, r).
        right: (r, in).
        scaling: factor before the product.
        starts_zero: whether nothing has moved.
        rank: of the factors, None where it says nothing.
        a: saved factor whose norm is reported as that of A.
        b: the same of B.
    """
    dtype = working(left, right)
    delta = LowRank(left.to(dtype)[None], right.to(dtype)[None], scaling)
    origin = None if context.base is None else context.base.get(f"{group.module}.weight")
    shape = None if origin is None else tuple(origin.shape)
    layout: Layout | None
    if shape is not None and len(shape) > 2:
        fits = shape[0] == delta.n_rows and math.prod(shape) == delta.n_rows * delta.n_columns
        layout = "conv" if fits else None
    else:
        turned = context.turned(group.module)
        layout = layout_of(shape, delta.n_rows, delta.n_columns, turned=turned)
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


def plain(
    group: Group,
    context: Context,
    delta: Delta,
    *,
    conv: bool = False,
    starts_zero: bool = False,
    scaling: float | None = None,
) -> Update:
    """An update of full rank on the module's weight, in the base's own layout."""
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
        scaling=scaling,
        origin=origin,
    )


def open_question(group: Group, *, starts_zero: bool, why: str | None = None) -> Update:
    """An update that cannot be computed from what was given, or for the reason that is named."""
    found = () if why is None else (finding("unsupported_option", f"{group.module}: {why}."),)
    return Update(
        f"{group.module}.weight",
        group.module,
        "method",
        complete=False,
        starts_zero=starts_zero,
        findings=found,
    )


def fault(group: Group, code: str, what: str) -> Update:
    """Tensors of a module that do not make an update."""
    found = finding(code, f"{group.module} {what}.")
    return Update(f"{group.module}.weight", group.module, "method", findings=(found,))
