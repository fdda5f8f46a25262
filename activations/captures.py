"""Turning one watched forward pass into a `Capture`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

import torch
from torch import Tensor

from activations.backend import Capture

__all__ = ["Observe", "record", "relative"]

Observe: TypeAlias = Callable[
    [Callable[[int, Tensor], None], Callable[[Tensor], None]], AbstractContextManager[None]
]
"""Calls back with each block's layer and output, and with the first block's input, during the
forward passes inside the context."""


def relative(got: Tensor, expected: Tensor) -> float:
    """Largest ‖got − expected‖ / ‖expected‖ over the vectors of (…, d_model)."""
    size = expected.norm(dim=-1).clamp(min=torch.finfo(torch.float32).tiny)
    return float(((got - expected).norm(dim=-1) / size).max())


def record(
    observe: Observe,
    columns: Tensor,
    counted: Tensor,
    norms_before: Tensor,
    d_model: int,
    run: Callable[[], Tensor],
    *,
    packed: Tensor | None = None,
) -> Capture:
    """Watch one pass.

    Args:
        observe: of the backend.
        columns: (n,) of the wanted tokens.
        counted: (n, seq) of bool, tokens that the median norm is taken over.
        norms_before: (n_layers, k) norms of tokens before these, the same for all rows, that the
            median is taken over too.
        d_model: width of the residual stream.
        run: the pass; gives the logits.
        packed: (n, seq) of bool, which columns are tokens, if the pass runs these alone, one after
            another in one row; None if it runs all columns.
    """
    n, n_layers = len(columns), len(norms_before)
    # Copies from a GPU do not hold it up if they go to pinned memory.
    on_gpu = columns.device.type == "cuda"
    resid_post = torch.empty(n_layers, n, d_model, pin_memory=on_gpu)
    resid_norm = torch.empty(n_layers, n, pin_memory=on_gpu)
    resid_pre0 = torch.empty(n, d_model, pin_memory=on_gpu)
    devices: set[torch.device] = set()

    starts = None if packed is None else packed.sum(dim=1).cumsum(0) - packed.sum(dim=1)

    def at_columns(hidden: Tensor) -> Tensor:
        if starts is not None:
            return hidden[0, (starts + columns).to(hidden.device)].float()
        rows = torch.arange(n, device=hidden.device)
        return hidden[rows, columns.to(hidden.device)].float()

    def padded_norms(hidden: Tensor) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(hidden.float(), dim=-1)
        if packed is None:
            return norms
        return torch.empty(packed.shape).masked_scatter_(packed, norms)

    def on_resid_post(layer: int, hidden: Tensor) -> None:
        devices.add(hidden.device)
        resid_post[layer].copy_(at_columns(hidden), non_blocking=on_gpu)
        norms = padded_norms(hidden)
        norms = norms.masked_fill(~counted.to(hidden.device), float("nan"))
        before = norms_before[layer].to(hidden.device).expand(n, -1)
        median = torch.cat([before, norms], dim=1).nanmedian(dim=1).values
        resid_norm[layer].copy_(median, non_blocking=on_gpu)

    def on_resid_pre0(hidden: Tensor) -> None:
        devices.add(hidden.device)
        resid_pre0.copy_(at_columns(hidden), non_blocking=on_gpu)

    with observe(on_resid_post, on_resid_pre0):
        logits = run()
    for device in devices:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return Capture(resid_post.transpose(0, 1), resid_pre0, logits, resid_norm.T)
