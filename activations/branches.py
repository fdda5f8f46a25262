"""Many continuations of one kept prompt in one pass, each leaving the model's own path at a layer.

A branch changes the residual stream of the first suffix token (or of all of them) at the output of
one block. Below that block it is the unchanged run, so it joins the batch there: one pass up the
layers carries the unchanged suffix and every branch that has left it so far. The rows of an item
read the item's kept keys and values where they lie; nothing of the prompt is copied or run again.

This works through transformers' interface for attention functions, so a model has to use it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from activations.hooks import hidden_of, with_hidden
from activations.kept import lend_apart

__all__ = ["Branches", "branching", "head_rows", "why_not_branchable"]

_NAME: Final = "interp_branches"


@dataclass(frozen=True, slots=True)
class Branches:
    """Where each branch leaves the unchanged run, and by what.

    Attributes:
        layers: (n_branches,) ascending; block whose output is changed.
        shifts: (n_branches, n_items, d_model), added to the residual stream.
        every: whether all suffix tokens are changed, or the first one only.
    """

    layers: Sequence[int]
    shifts: Tensor
    every: bool = False


def why_not_branchable(model: Any) -> str | None:
    """Why a model cannot run branches, or None if nothing is known against it."""
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention is not exchangeable"
    return None


class _Run:
    """What the attention function needs to know of the pass it is called in."""

    def __init__(self, n_items: int) -> None:
        self.n_items = n_items
        self.keys = self.values = torch.empty(0)

    def tell(self, keys: Tensor, values: Tensor) -> None:
        """Say where the kept keys and values of the layer are that runs next."""
        self.keys, self.values = keys, values

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float | None,
        softcap: float | None,
        sinks: Tensor | None,
    ) -> Tensor:
        """Attention of every row over its item's kept keys and its own.

        Args:
            query: (n_rows, n_heads, seq, d_head); row = branch · n_items + item.
            key: (n_rows, n_kv_heads, seq, d_head).
            value: (n_rows, n_kv_heads, seq, d_value).
            mask: (n_items or 1, 1, seq, n_kept + seq), added to the scores.
            scaling: of the scores; None is 1/√d_head.
            softcap: scores are bent to stay within ±softcap.
            sinks: (n_heads,) scores of a column that holds no value.

        Returns:
            (n_rows, seq, n_heads, d_value).
        """
        rows, heads, seq, width = query.shape
        groups, items = key.shape[1], self.n_items
        each, branches = heads // groups, rows // items
        queries = query * (width**-0.5 if scaling is None else scaling)
        # (items, kv heads, queries a kv head, branches, seq, width): all rows of an item at once.
        parts = queries.reshape(branches, items, groups, each, seq, width).permute(1, 2, 3, 0, 4, 5)
        flat = parts.reshape(items, groups, each * branches * seq, width)
        kept = (flat @ self.keys.transpose(-1, -2)).view(items, groups, each, branches, seq, -1)
        own = queries.reshape(rows, groups, each * seq, width) @ key.transpose(-1, -2)
        own = own.view(branches, items, groups, each, seq, seq).permute(1, 2, 3, 0, 4, 5)
        scores = torch.cat([kept, own], dim=-1)
        if softcap is not None:
            scores = torch.tanh(scores / softcap) * softcap
        if mask is not None:
            # (items or 1, 1, seq, n) → the same for every head and branch.
            scores = scores + mask[:, :, None, None]
        if sinks is not None:
            column = sinks.view(1, groups, each, 1, 1, 1).expand(*scores.shape[:-1], 1)
            scores = torch.cat([scores, column.to(scores.dtype)], dim=-1)
        weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
        n_kept = self.keys.shape[2]
        before = weights[..., :n_kept].reshape(items, groups, each * branches * seq, n_kept)
        output = (before @ self.values).view(items, groups, each, branches, seq, -1)
        output = output.permute(3, 0, 1, 2, 4, 5)  # branches, items, kv heads, each, seq, d_value
        after = weights[..., n_kept : n_kept + seq].permute(3, 0, 1, 2, 4, 5)
        after = after.reshape(rows, groups, each * seq, seq) @ value
        output = output.reshape(rows, groups, each * seq, -1) + after
        return output.view(rows, heads, seq, -1).transpose(1, 2)


_runs: list[_Run] = []
"""The run of the innermost `branching`, last: attention functions are found by name only."""


def _attention(
    _module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    if position_bias is not None:
        raise NotImplementedError("position biases")
    run = _runs[-1]
    return run.attend(query, key, value, attention_mask, scaling, softcap, s_aux), None


@contextmanager
def branching(model: Any, blocks: nn.ModuleList, state: Any, branches: Branches) -> Iterator[Any]:
    """Within the context, a pass over suffixes also carries the branches.

    Args:
        model: a model for which `why_not_branchable` is None.
        blocks: its decoder blocks.
        state: kept keys and values of the items, a `DynamicCache`; left as it is.
        branches: what to carry.

    Yields:
        the cache to give to the pass. The model's output then has (1 + n_branches) · n_items rows,
        the unchanged ones first, then branch by branch.
    """
    AttentionInterface.register(_NAME, _attention)
    AttentionMaskInterface.register(_NAME, eager_mask)
    n_items = branches.shifts.shape[1]
    run = _Run(n_items)
    lent = copy.copy(state)
    lent.layers = [lend_apart(layer, run.tell) for layer in state.layers]
    config = model.config.get_text_config(decoder=True)
    implementation = config._attn_implementation
    with ExitStack() as stack:
        for layer, block in enumerate(blocks):
            first = [index for index, at in enumerate(branches.layers) if at == layer]
            shifts = branches.shifts[first[0] : first[-1] + 1] if first else None
            hook = _widen(n_items)
            stack.callback(block.register_forward_pre_hook(hook, with_kwargs=True).remove)
            if shifts is not None:
                join = _join(shifts, branches.every)
                stack.callback(block.register_forward_hook(join, prepend=True).remove)
        _runs.append(run)
        stack.callback(_runs.pop)
        config._attn_implementation = _NAME
        stack.callback(setattr, config, "_attn_implementation", implementation)
        yield lent


def _join(shifts: Tensor, every: bool) -> Callable[[nn.Module, Any, object], object]:
    def hook(_module: nn.Module, _args: Any, output: object) -> object:
        hidden = hidden_of(output)
        n_branches, n_items, _ = shifts.shape
        joining = hidden[:n_items].repeat(n_branches, 1, 1)
        moved = shifts.to(hidden.device).flatten(0, 1).to(hidden.dtype)
        if every:
            joining += moved[:, None]
        else:
            joining[:, 0] += moved
        return with_hidden(output, torch.cat([hidden, joining]))

    return hook


def _widen(n_items: int) -> Callable[..., Any]:
    """What a model hands each block (rotary tables, positions) has the rows it started with."""

    def hook(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if n_items == 1:
            return None
        hidden = args[0] if args else kwargs["hidden_states"]
        repeats = hidden.shape[0] // n_items
        if repeats == 1:
            return None

        def wide(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(wide(part) for part in value)
            # Masks have four axes; the attention above spreads those itself.
            if isinstance(value, Tensor) and value.ndim in (2, 3) and value.shape[0] == n_items:
                return value.repeat(repeats, *[1] * (value.ndim - 1))
            return value

        rest = {name: v if name == "hidden_states" else wide(v) for name, v in kwargs.items()}
        return (*args[:1], *(wide(value) for value in args[1:])), rest

    return hook


@contextmanager
def head_rows(model: Any, ids: Sequence[int]) -> Iterator[bool]:
    """Let the output head compute some rows of the vocabulary only, where it is a plain layer.

    Yields:
        whether it does: then the logits have `len(ids)` entries.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear or "forward" in vars(head):
        yield False
        return
    index = torch.tensor(list(ids), device=head.weight.device)
    weight = head.weight[index]
    bias = None if head.bias is None else head.bias[index]
    head.forward = lambda input: nn.functional.linear(input, weight, bias)  # type: ignore[method-assign]
    try:
        yield True
    finally:
        del head.forward
