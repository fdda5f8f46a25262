"""Forced-choice logits of many changed runs, with everything below the change run once.

`branch_logits` serves changes from the last prompt token on: see `activations.branches`.
`resumed_logits` serves changes anywhere: the residual stream at the output of a block is kept, and
each changed run starts there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from activations.backend import Prefix
from activations.branches import (
    Branches,
    branching,
    head_rows,
    replaced_forward,
    why_not_branchable,
)
from activations.hf import HFBackend
from activations.hooks import hidden_of, with_hidden

__all__ = ["Kept", "branch_logits", "keep_residuals", "resumed_logits", "why_not_reusable"]


def why_not_reusable(backend: object) -> str | None:
    """Why a backend cannot reuse what lies below a change; None if nothing is known against it."""
    if not isinstance(backend, HFBackend) or backend.library != "hf":
        return f"the backend is a {type(backend).__name__}; only transformers itself can"
    reason = why_not_branchable(backend.model)
    return None if reason is None else f"{type(backend.model).__name__}: {reason}"


@torch.inference_mode()
def branch_logits(
    backend: HFBackend,
    prefix: Prefix,
    suffixes: Sequence[Sequence[int]],
    logit_ids: Sequence[int],
    branches: Branches,
) -> Tensor:
    """(1 + n_branches, n_items, n_ids) logits after the suffixes, the unchanged run first.

    Args:
        backend: one that `why_not_reusable` allows.
        prefix: of the items, from `prefill`.
        suffixes: one an item, all of one length; branches change the first token or all.
        logit_ids: vocabulary ids.
        branches: what to run beside the unchanged suffixes.
    """
    ids = torch.tensor([list(suffix) for suffix in suffixes], device=backend.device)
    n_items, seq = ids.shape
    mask = None
    if not bool(prefix.is_token.all()):
        mask = torch.cat([prefix.is_token, torch.ones_like(ids, dtype=torch.bool)], dim=1).long()
    positions = prefix.lengths[:, None].to(ids.device) + torch.arange(seq, device=ids.device)
    if bool((prefix.lengths == prefix.lengths[0]).all()):
        positions = positions[:1]  # then rotary tables have one row, which fits any batch
    with (
        head_rows(backend.model, logit_ids) as few,
        branching(backend.model, backend.blocks, prefix.state, branches) as cache,
    ):
        output = backend._forward(
            torch.tensor([seq - 1], device=ids.device),
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            use_cache=True,
            **{backend._cache_name: cache},
        )
    logits = output.logits[:, -1]
    if not few:
        logits = logits[:, torch.tensor(list(logit_ids), device=logits.device)]
    result: Tensor = logits.float().cpu().view(-1, n_items, len(logit_ids))
    return result


@dataclass(frozen=True, slots=True)
class Kept:
    """What changed runs of one batch start from.

    Attributes:
        sequences: token ids of the batch.
        outputs: layer to what its block returned, hidden states (n, seq, d_model) in it.
        logits: (n, n_ids) of the unchanged run.
    """

    sequences: Sequence[Sequence[int]]
    outputs: Mapping[int, object]
    logits: Tensor


def keep_residuals(
    backend: HFBackend,
    sequences: Sequence[Sequence[int]],
    logit_ids: Sequence[int],
    layers: Sequence[int],
) -> Kept:
    """Run a batch plainly and keep the residual stream at the output of some blocks."""
    outputs: dict[int, object] = {}

    def keeping(layer: int) -> Callable[[nn.Module, Any, object], None]:
        def hook(_module: nn.Module, _args: Any, output: object) -> None:
            outputs[layer] = output

        return hook

    with ExitStack() as stack:
        for layer in set(layers):
            handle = backend.blocks[layer].register_forward_hook(keeping(layer))
            stack.callback(handle.remove)
        logits = backend.logits(sequences, logit_ids)
    return Kept(sequences, outputs, logits)


def resumed_logits(
    backend: HFBackend,
    kept: Kept,
    logit_ids: Sequence[int],
    layer: int,
    change: Callable[[Tensor], Tensor],
) -> Tensor:
    """(n, n_ids) logits with the output of block `layer` changed; blocks up to it are not run.

    Args:
        backend: the one that `kept` is from.
        kept: from `keep_residuals`, with this layer.
        logit_ids: vocabulary ids.
        layer: 0-based block index.
        change: from hidden states (n, seq, d_model) to new ones; must not write in place.
    """
    output = kept.outputs[layer]
    with (
        _skipped(backend.blocks[:layer], output),
        _replaced(backend.blocks[layer], with_hidden(output, change(hidden_of(output)))),
    ):
        return backend.logits(kept.sequences, logit_ids)


def _skipped(blocks: nn.ModuleList, like: object) -> ExitStack:
    """Blocks that hand on what they are given."""
    stack = ExitStack()
    for block in blocks:

        def passing(*args: Any, **kwargs: Any) -> object:
            return with_hidden(like, args[0] if args else kwargs["hidden_states"])

        stack.enter_context(replaced_forward(block, passing))
    return stack


def _replaced(block: nn.Module, output: object) -> Any:
    return replaced_forward(block, lambda *_, **__: output)
