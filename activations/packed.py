"""Captures of sequences that stand one after another in a single row, on a CPU.

No padding is run, and a kept prefix is attended to once for all sequences: the two parts of a
token's attention, over the prefix and over its own sequence, are merged by the logarithms of their
softmax denominators. The prefix's keys and values are neither copied nor repeated, so a batch needs
no memory for them.

This works through transformers' interface for attention functions. Whether a model's numbers stay
the same is tried before the first use; a model for which they do not (windows, biases and caps of
the attention, anything else that mixes tokens) is run padded.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from activations.attention import attend_causally, attend_to_all
from activations.backend import Capture, Edit, SharedPrefix
from activations.branches import head_rows
from activations.captures import record, relative
from activations.cpu import through_onednn
from activations.kept import lend_apart
from activations.manifests import tolerance_of
from activations.tokens import PaddedBatch, pad

if TYPE_CHECKING:
    from activations.hf import HFBackend

__all__ = ["UnpackableError", "capture_packed", "in_rows", "why_not_packable"]

_NAME: Final = "interp_packed"
_TRIED: Final = ((3, 7), (40, 4), (23, 9))
"""First token and length of the sequences that a model is tried with."""


class UnpackableError(Exception):
    """The model's attention needs what a packed pass does not have; caught where passes are run."""


def why_not_packable(backend: HFBackend, parameters: frozenset[str]) -> str | None:
    """Why a model is not run packed, or None: two short sequences are run both ways to see.

    Args:
        backend: the running model.
        parameters: names that the model's `forward` takes.
    """
    model = backend.model
    if backend.library != "hf" or backend.padding == "left":
        return "packing was not asked for"
    if backend.device.type != "cpu":
        return "it runs on a GPU"
    if not getattr(model, "_supports_attention_backend", False):
        return "its attention is not exchangeable"
    if model.config._attn_implementation != "sdpa":
        return f"its attention is {model.config._attn_implementation}"
    if "position_ids" not in parameters:
        return "it takes no positions"
    n_vocab = model.get_input_embeddings().weight.shape[0]
    ids = [[token % n_vocab for token in range(first, first + n)] for first, n in _TRIED]
    batch = pad(ids, "right", backend.device)
    where = (batch.lengths - 1, batch.is_token)
    with torch.inference_mode():
        padded = record(
            *(backend.observed, *where, torch.empty(backend.n_layers, 0), backend.d_model),
            lambda: backend._plain_pass(batch, [0]),
        )
        try:
            packed = capture_packed(backend, batch, *where, [0])
        except (UnpackableError, RuntimeError, TypeError, ValueError) as error:
            return f"it cannot be run packed ({str(error).splitlines()[0][:200]})"
    difference = relative(packed.resid_post, padded.resid_post)
    # What overflows does so either way, and the run itself will report it.
    if difference > tolerance_of(str(model.dtype).removeprefix("torch.")):
        return f"packed, it differs by {difference:.1g}"
    return None


@dataclass(slots=True)
class _Pass:
    """What the attention function needs to know of the pass it is called in.

    Attributes:
        lengths: tokens of each sequence.
        kept: keys and values (1, n_kv_heads, n_prefix, width) of the layer that runs.
        calls: how often attention was computed.
    """

    lengths: Sequence[int]
    kept: list[Tensor] = field(default_factory=list)
    calls: int = 0

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """Attention of every token over the prefix and the earlier tokens of its own sequence.

        Args:
            query: (1, n_heads, n_tokens, width).
            key: (1, n_kv_heads, n_tokens, width).
            value: (1, n_kv_heads, n_tokens, width).
            scaling: of the scores; None is 1/√width.

        Returns:
            (1, n_tokens, n_heads, width).
        """
        self.calls += 1
        groups, n_tokens, width = key.shape[1:]
        scaling = width**-0.5 if scaling is None else scaling
        # Heads that share a key are rows of one product; keys are lent to them, not repeated.
        queries = query.view(groups, -1, n_tokens, width)
        each = queries.shape[1]
        result = query.new_empty(1, n_tokens, groups * each, width)
        output = result.view(n_tokens, groups, each, width).permute(1, 2, 0, 3)
        wide = torch.promote_types(query.dtype, torch.float32)
        size = query.new_empty(groups, each, n_tokens, dtype=wide)
        start = 0
        for length in self.lengths:
            own = slice(start, start + length)
            attend_causally(
                *(queries[:, :, own], key[0, :, own], value[0, :, own], scaling),
                *(output[:, :, own], size[:, :, own]),
            )
            start += length
        if self.kept:
            kept_key, kept_value = self.kept
            shape = (groups, width)
            if kept_key.shape[1::2] != shape or kept_value.shape[1::2] != shape:
                raise UnpackableError("it keeps other things than keys and values of every head")
            before, before_size = attend_to_all(queries, kept_key[0], kept_value[0], scaling)
            # Of e^a / (e^a + e^b) and the rest, where a and b are the logarithms of the sums that
            # the two softmaxes divide by.
            share = torch.sigmoid(before_size - size)[..., None]
            output.lerp_(before, share.to(output.dtype))
        return result


_passes: list[_Pass] = []
"""The pass that runs, last: attention functions are found by name only."""


def _attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **further: Any,
) -> tuple[Tensor, None]:
    present = {name for name in _FOREIGN if further.get(name) is not None}
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if present or attention_mask is not None or not causal:
        raise UnpackableError(f"its attention has {', '.join(sorted(present)) or 'another mask'}")
    if query.device.type != "cpu" or query.shape[-1] != value.shape[-1]:
        raise UnpackableError("the attention of a CPU does not take its keys and values")
    return _passes[-1].attend(query, key, value, scaling), None


_FOREIGN: Final = ("position_bias", "s_aux", "sliding_window", "softcap")
"""Arguments of attention functions that the one here knows nothing of."""


def _no_mask(*, local_size: int | None = None, use_vmap: bool = False, **_: Any) -> None:
    """Which token sees which is settled by the attention function."""
    if local_size is not None or use_vmap:
        raise UnpackableError("its attention has a window")


def in_rows(edit: Edit, packed: Sequence[Tensor]) -> Edit:
    """An edit that is given (n, seq, d_model) also where a packed pass runs.

    Args:
        edit: tells tokens apart by row and column.
        packed: which columns are tokens, last, while a packed pass runs; else empty.
    """

    def apply(hidden: Tensor) -> Tensor:
        if not packed:
            return edit.apply(hidden)
        rows = hidden.new_zeros(*packed[-1].shape, hidden.shape[-1])
        rows[packed[-1]] = hidden[0]
        return edit.apply(rows)[packed[-1]][None]

    return replace(edit, apply=apply)


@contextmanager
def _packing(
    backend: HFBackend, batch: PaddedBatch, prefix: SharedPrefix | None
) -> Iterator[_Pass]:
    """Within the context, the model's attention is that of packed sequences."""
    AttentionInterface.register(_NAME, _attend)
    AttentionMaskInterface.register(_NAME, _no_mask)
    config = backend.model.config.get_text_config(decoder=True)
    implementation = config._attn_implementation
    _passes.append(_Pass(batch.lengths.tolist()))
    backend.packed.append(batch.is_token)
    config._attn_implementation = _NAME
    try:
        # What goes on after a prefix rounds as the prefix's own pass did. oneDNN rounds more, and
        # the numbers of a shared pass should be those of a plain one.
        with through_onednn(backend.blocks) if prefix is None else nullcontext():
            yield _passes[-1]
    finally:
        config._attn_implementation = implementation
        _passes.pop()
        backend.packed.pop()


def capture_packed(
    backend: HFBackend,
    batch: PaddedBatch,
    columns: Tensor,
    counted: Tensor,
    logit_ids: Sequence[int],
    prefix: SharedPrefix | None = None,
) -> Capture:
    """What a padded pass captures; see `activations.captures.record`.

    Args:
        backend: a model for which `why_not_packable` is None.
        batch: sequences, padded on the right; their padding is not run.
        columns: (n,) of the wanted tokens.
        counted: (n, seq) of bool, tokens that the median norm is taken over.
        logit_ids: vocabulary ids whose logits are wanted after the last token of each sequence.
        prefix: what the sequences go on after; their positions count from its end.

    Raises:
        UnpackableError: the model's attention needs what is not there.
    """
    begun, state = 0, {}
    norms_before = torch.empty(backend.n_layers, 0)
    if prefix is not None:
        begun, norms_before = prefix.n_tokens, prefix.resid_norm[:, 1:]
    ends = batch.lengths.cumsum(0) - 1

    def run() -> Tensor:
        with head_rows(backend.model, logit_ids) as few, _packing(backend, batch, prefix) as own:
            if prefix is not None:
                state[backend._cache_name] = _lent(prefix.state, own)
            output = backend._forward(
                ends,
                input_ids=batch.ids[batch.is_token][None],
                position_ids=batch.position_ids[batch.is_token][None] + begun,
                use_cache=prefix is not None,
                **state,
            )
        if own.calls != backend.n_layers:
            raise UnpackableError("not every layer has attention")
        logits: Tensor = output.logits[0]
        if len(logits) != len(ends):
            logits = logits[ends]
        chosen = logits if few else logits[:, torch.tensor(logit_ids)]
        return chosen.float()

    return record(
        backend.observed,
        columns,
        counted,
        norms_before,
        backend.d_model,
        run,
        packed=batch.is_token,
    )


def _lent(cache: Any, own: _Pass) -> Any:
    """A cache that gives back new keys and values alone, and tells the pass of the kept ones."""
    lent = copy.copy(cache)

    def tell(keys: Tensor, values: Tensor) -> None:
        own.kept[:] = [keys, values]

    lent.layers = [lend_apart(layer, tell) for layer in cache.layers]
    return lent
