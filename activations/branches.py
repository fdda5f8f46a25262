"""Many continuations of one kept prompt in one pass, each leaving the model's own path at a layer.

A branch changes the residual stream of the first suffix token (or of all of them) at the output of
one block. Below that block it is the unchanged run, so it joins the batch there: one pass up the
layers carries the unchanged suffix and every branch that has left it so far. The rows of an item
read the item's kept keys and values where they lie; nothing of the prompt is copied or run again.

A block runs its rows in tiles, so that what it computes on the way stays small however many
branches there are, and all of them can go up the layers in one pass. Of the last block only what
the logits need is run: the keys and values of all suffix tokens, and the rest for the last one.

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
from interp.errors import ModelError

__all__ = [
    "TILE_TOKENS",
    "Branches",
    "branching",
    "head_rows",
    "replaced_forward",
    "why_not_branchable",
]

_NAME: Final = "interp_branches"

TILE_TOKENS: Final = 1280
"""On a CPU. It bounds the memory of what a block computes on the way; tiles of 320 tokens took 4 to
6% longer."""


class _KeysKnown(Exception):  # noqa: N818  # no error: the rest of a block is not wanted
    """Leaves a block as soon as its attention was given keys and values."""


@dataclass(frozen=True, slots=True)
class Branches:
    """Where each branch leaves the unchanged run, and by what.

    Attributes:
        layers: (n_branches,) ascending; block whose output is changed.
        shifts: (n_branches, n_items, d_model), added to the residual stream.
        every: whether all suffix tokens are changed, or the first one only.
        trimmed: whether the last block leaves out what no logit needs. Its output is then zero but
            at the last token.
        tile_tokens: tokens that a block runs at once.
        vectors: (n_branches, d_model) unit norm; None takes no projection out.
        shares: (n_branches, n_items) of the stream's projection on the branch's vector that is
            taken out before the shift is added.
    """

    layers: Sequence[int]
    shifts: Tensor
    every: bool = False
    trimmed: bool = True
    tile_tokens: int = TILE_TOKENS
    vectors: Tensor | None = None
    shares: Tensor | None = None


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
        self.collecting = False
        self.earlier: tuple[Tensor, Tensor] | None = None

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
            key: (n_rows, n_kv_heads, seq, d_head). Those of `earlier` tokens come before.
            value: (n_rows, n_kv_heads, seq, d_value).
            mask: (n_items or 1, 1, seq, n_kept + n_earlier + seq), added to the scores.
            scaling: of the scores; None is 1/√d_head.
            softcap: scores are bent to stay within ±softcap.
            sinks: (n_heads,) scores of a column that holds no value.

        Returns:
            (n_rows, seq, n_heads, d_value).
        """
        if self.collecting:
            self.earlier = key, value
            raise _KeysKnown
        if self.earlier is not None:
            key = torch.cat([self.earlier[0], key], dim=2)
            value = torch.cat([self.earlier[1], value], dim=2)
        rows, heads, seq, width = query.shape
        groups, items, n_own = key.shape[1], self.n_items, key.shape[2]
        each, branches = heads // groups, rows // items
        queries = query * (width**-0.5 if scaling is None else scaling)
        # (items, kv heads, queries a kv head, branches, seq, width): all rows of an item at once.
        parts = queries.reshape(branches, items, groups, each, seq, width).permute(1, 2, 3, 0, 4, 5)
        flat = parts.reshape(items, groups, each * branches * seq, width)
        kept = (flat @ self.keys.transpose(-1, -2)).view(items, groups, each, branches, seq, -1)
        own = queries.reshape(rows, groups, each * seq, width) @ key.transpose(-1, -2)
        own = own.view(branches, items, groups, each, seq, n_own).permute(1, 2, 3, 0, 4, 5)
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
        after = weights[..., n_kept : n_kept + n_own].permute(3, 0, 1, 2, 4, 5)
        after = after.reshape(rows, groups, each * seq, n_own) @ value
        output = output.reshape(rows, groups, each * seq, -1) + after
        return output.view(rows, heads, seq, -1).transpose(1, 2)


_runs: list[_Run] = []
"""The run of the innermost `branching`, last: attention functions are found by name only."""


def _attention(
    module: nn.Module,
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
        raise ModelError(
            f"{type(module).__name__} adds position biases to its attention, which branches of a "
            f"kept prompt do not carry. Run the model plainly."
        )
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
            if first:
                join = _join(branches, slice(first[0], first[-1] + 1))
                stack.callback(block.register_forward_hook(join, prepend=True).remove)
            trimmed = branches.trimmed and layer == len(blocks) - 1
            tiled = _tiled(block.forward, run, branches.tile_tokens, trimmed=trimmed)
            stack.enter_context(replaced_forward(block, tiled))
        _runs.append(run)
        stack.callback(_runs.pop)
        config._attn_implementation = _NAME
        stack.callback(setattr, config, "_attn_implementation", implementation)
        yield lent


def _join(branches: Branches, part: slice) -> Callable[[nn.Module, Any, object], object]:
    """A hook that appends the branches that leave the unchanged run here."""
    shifts = branches.shifts[part]
    n_branches, n_items, _ = shifts.shape

    def hook(_module: nn.Module, _args: Any, output: object) -> object:
        hidden = hidden_of(output)
        joining = hidden[:n_items].repeat(n_branches, 1, 1)
        changed = joining if branches.every else joining[:, :1]
        moved = shifts.to(hidden.device).flatten(0, 1)[:, None]
        if branches.vectors is None or branches.shares is None:
            changed += moved.to(hidden.dtype)
        else:
            # Rounded once, so that a projection taken out is gone as far as the dtype allows.
            vectors = branches.vectors[part].to(hidden.device).repeat_interleave(n_items, dim=0)
            shares = branches.shares[part].to(hidden.device).reshape(-1, 1, 1)
            exact = changed.to(torch.promote_types(hidden.dtype, torch.float32))
            along = exact @ vectors.to(exact.dtype)[:, :, None]
            changed.copy_(exact + moved - shares * along * vectors[:, None])
        return with_hidden(output, torch.cat([hidden, joining]))

    return hook


def _tiled(
    forward: Callable[..., Any], run: _Run, tile_tokens: int, *, trimmed: bool
) -> Callable[..., object]:
    """A block's forward that runs a few rows at a time, and of the last block what is needed."""

    def tiles(*args: Any, **kwargs: Any) -> object:
        hidden = args[0] if args else kwargs["hidden_states"]
        rest, named = args[1:], {n: v for n, v in kwargs.items() if n != "hidden_states"}
        seq = hidden.shape[1]
        step = max(1, tile_tokens // (seq * run.n_items)) * run.n_items

        def call(some: Tensor, tokens: slice) -> Any:
            def fitted(value: Any) -> Any:
                return _of_tokens(_of_rows(value, run.n_items, len(some)), tokens, seq)

            own = {name: fitted(value) for name, value in named.items()}
            others = [fitted(value) for value in rest]
            if args:
                return forward(some[:, tokens], *others, **own)
            return forward(hidden_states=some[:, tokens], **own)

        def last_token(some: Tensor) -> Any:
            run.collecting = True
            try:
                call(some, slice(0, seq - 1))
            except _KeysKnown:
                pass
            finally:
                run.collecting = False
            if run.earlier is None:  # a block without attention
                return call(some, slice(0, seq))
            try:
                output = call(some, slice(seq - 1, seq))
            finally:
                run.earlier = None
            last = hidden_of(output)
            padded = last.new_zeros(len(some), seq, last.shape[-1])
            padded[:, -1:] = last
            return with_hidden(output, padded)

        outputs = [
            last_token(some) if trimmed and seq > 1 else call(some, slice(0, seq))
            for some in hidden.split(step)
        ]
        if len(outputs) == 1:
            return outputs[0]
        return with_hidden(outputs[0], torch.cat([hidden_of(output) for output in outputs]))

    return tiles


def _of_rows(value: Any, n_items: int, n_rows: int) -> Any:
    """What a model hands each block (rotary tables, positions) for the rows of a tile."""
    if isinstance(value, tuple):
        return tuple(_of_rows(part, n_items, n_rows) for part in value)
    # Masks have four axes; the attention above spreads those itself.
    wide = isinstance(value, Tensor) and value.ndim in (2, 3) and value.shape[0] == n_items
    if not wide or n_items == 1 or n_rows == n_items:
        return value
    return value.repeat(n_rows // n_items, *[1] * (value.ndim - 1))


def _of_tokens(value: Any, tokens: slice, seq: int) -> Any:
    """The same for some tokens: (seq,), (n, seq), (n, seq, d), and masks (n, 1, seq, n_keys)."""
    if tokens == slice(0, seq):
        return value
    if isinstance(value, tuple):
        return tuple(_of_tokens(part, tokens, seq) for part in value)
    if not isinstance(value, Tensor):
        return value
    axis = {1: 0, 2: 1, 3: 1, 4: 2}.get(value.ndim)
    if axis is None or value.shape[axis] != seq:
        return value
    return value[(slice(None),) * axis + (tokens,)]


@contextmanager
def replaced_forward(module: nn.Module, forward: Callable[..., object]) -> Iterator[None]:
    """Within the context a module runs another function; its hooks stay."""
    own = vars(module).get("forward")  # accelerate puts one there
    module.forward = forward
    try:
        yield
    finally:
        if own is None:
            del module.forward
        else:
            module.forward = own


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
