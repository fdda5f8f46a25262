"""Turning one watched forward pass into a `Capture`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeAlias

import torch
from torch import Tensor

from activations.backend import Capture

__all__ = ["Observe", "record"]

Observe: TypeAlias = Callable[
    [Callable[[int, Tensor], None], Callable[[Tensor], None]], AbstractContextManager[None]
]
"""Calls back with each block's layer and output, and with the first block's input, during the
forward passes inside the context."""


def record(
    observe: Observe,
    columns: Tensor,
    counted: Tensor,
    norms_before: Tensor,
    d_model: int,
    run: Callable[[], Tensor],
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
    """
    n, n_layers = len(columns), len(norms_before)
    resid_post = torch.empty(n, n_layers, d_model)
    resid_norm = torch.empty(n, n_layers)
    resid_pre0 = torch.empty(n, d_model)

    def at_columns(hidden: Tensor) -> Tensor:
        rows = torch.arange(n, device=hidden.device)
        return hidden[rows, columns.to(hidden.device)].float()

    def on_resid_post(layer: int, hidden: Tensor) -> None:
        resid_post[:, layer] = at_columns(hidden).cpu()
        norms = hidden.float().norm(dim=-1)
        norms = norms.masked_fill(~counted.to(hidden.device), float("nan"))
        before = norms_before[layer].to(hidden.device).expand(n, -1)
        resid_norm[:, layer] = torch.cat([before, norms], dim=1).nanmedian(dim=1).values.cpu()

    def on_resid_pre0(hidden: Tensor) -> None:
        resid_pre0.copy_(at_columns(hidden))

    with observe(on_resid_post, on_resid_pre0):
        logits = run()
    return Capture(resid_post, resid_pre0, logits, resid_norm)
