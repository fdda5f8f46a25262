"""Steering as a context manager, on a backend or on a user's own model object."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._dynamo import OptimizedModule

from activations import Edit
from activations.hooks import edited, find_blocks
from interp.errors import SteeringError
from steering.interventions import Intervention
from steering.positions import selected

__all__ = ["change_at", "require_fit", "steer"]

_CACHE_NAMES = ("past_key_values", "cache")


@contextmanager
def steer(
    model: Any,
    interventions: Sequence[Intervention],
    *,
    prompt_lengths: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
) -> Iterator[None]:
    """Apply interventions to every forward pass inside the context.

    Works with `model(...)` and `model.generate(...)`, with and without a key/value cache, with any
    padding that an `attention_mask` describes. The hooks come before any other hook of a block, and
    are removed when the context ends, however it ends.

    Args:
        model: a causal language model of transformers or peft, or a backend that wraps one.
        interventions: from `add` and its like; several at one layer are applied in order.
        prompt_lengths: tokens of each prompt without padding. None takes the first pass as the
            prompt, and passes that go on from it, in a cache or by repeating it, as its
            continuation; a pass over other tokens is a new prompt.
        lengths: tokens of each sequence without padding, for batches that are padded on the right
            and come without an `attention_mask`. A mask is believed before this is.

    Raises:
        SteeringError: a compiled model, a direction of another width (or of another model, where
            a backend tells its name), a layer out of range, coefficients for another number of
            sequences, or a pass whose tokens cannot be placed.
    """
    module = getattr(model, "model", model) if not isinstance(model, nn.Module) else model
    if not isinstance(module, nn.Module):
        raise SteeringError(
            f"Got a {type(model).__name__}; expected a model of transformers or peft, or a backend "
            f"that wraps one."
        )
    _refuse_compiled(module)
    blocks = find_blocks(module)
    width = int(module.config.get_text_config(decoder=True).hidden_size)  # type: ignore[operator, union-attr]
    name = str(getattr(model, "model_id", type(module).__name__))
    for intervention in interventions:
        require_fit(intervention, width, len(blocks), name)
        if module is not model:
            _require_same_model(intervention, name)
    tracker = _Tracker(prompt_lengths, lengths)
    owner = _owner(module, blocks)
    handle = owner.register_forward_pre_hook(tracker.before, prepend=True, with_kwargs=True)
    edits = [Edit(item.layer, item.hook_point, tracker.applying(item)) for item in interventions]
    try:
        with edited(blocks, edits):
            yield
    finally:
        handle.remove()


def require_fit(intervention: Intervention, d_model: int, n_layers: int, name: str) -> None:
    """Raise `SteeringError` unless an intervention fits a model's width and layers."""
    if intervention.d_model != d_model:
        raise SteeringError(
            f"The direction has {intervention.d_model} entries, but {name} has d_model {d_model}: "
            f"it belongs to another model ({intervention.model_id or 'not named'})."
        )
    if not 0 <= intervention.layer < n_layers:
        raise SteeringError(
            f"The direction is for layer {intervention.layer}, but {name} has layers 0 to "
            f"{n_layers - 1}."
        )


def _require_same_model(intervention: Intervention, name: str) -> None:
    """A backend knows its model's name; a user's own object does not, only a path of its files.

    A model and the same with an adapter (`name+adapter`) share a stream, so either fits the other.
    """
    made_for = intervention.model_id
    if not made_for or intervention.any_model:
        return
    shorter, longer = sorted((made_for, name), key=len)
    if longer != shorter and not longer.startswith(shorter + "+"):
        raise SteeringError(
            f"The direction was read from {made_for!r}, not from {name!r}; residual streams of two "
            f"models have nothing in common. Fit one on a cache of {name!r}, or steer the model "
            f"object itself, where only width and layer are checked."
        )


def change_at(hidden: Tensor, chosen: Tensor, change: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Hidden states with the chosen tokens changed; everything else is copied as it is.

    Args:
        hidden: (n, seq, d_model).
        chosen: (n, seq) of bool.
        change: see `Intervention`.
    """
    chosen = chosen.to(hidden.device)
    if not bool(chosen.any()):
        return hidden
    rows = torch.nonzero(chosen)[:, 0]
    changed = hidden.clone()
    changed[chosen] = change(hidden[chosen], rows)
    return changed


def _refuse_compiled(module: nn.Module) -> None:
    compiled = isinstance(module, OptimizedModule) or any(
        part._compiled_call_impl is not None for part in module.modules()
    )
    if compiled:
        raise SteeringError(
            "The model is compiled (torch.compile): a compiled graph may never call the hooks that "
            "steering works through, and would then run unsteered without a word. Steer the model "
            "that was compiled, not the result."
        )


def _owner(module: nn.Module, blocks: nn.ModuleList) -> nn.Module:
    """The module that runs the blocks: it is given masks and caches, however the model is called.

    `generate` of a wrapped model (peft) calls the model inside, so the wrapper would not do.
    """
    name = next(name for name, part in module.named_modules() if part is blocks)
    return module.get_submodule(name.rpartition(".")[0])


class _Tracker:
    """Knows for each forward pass which token of which sequence stands in which column."""

    def __init__(self, prompt_lengths: Sequence[int] | None, lengths: Sequence[int] | None) -> None:
        self._given = None if prompt_lengths is None else torch.tensor(list(prompt_lengths))
        self._lengths = None if lengths is None else torch.tensor(list(lengths))
        self._prompt_lengths: Tensor | None = self._given
        self._tokens: Tensor | None = None
        self._index = torch.empty(0, 0)

    def before(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Pre-hook of the module that runs the blocks."""
        inputs = _named(module, args, kwargs)
        tokens = inputs.get("input_ids")
        if tokens is None:
            tokens = inputs.get("inputs_embeds")
        if tokens is None:
            raise SteeringError("A pass has neither input_ids nor inputs_embeds to steer.")
        kept = next((inputs[name] for name in _CACHE_NAMES if inputs.get(name) is not None), None)
        offset = 0 if kept is None else int(kept.get_seq_length())
        self._index = self._place(inputs.get("attention_mask"), tokens, offset)
        if self._given is None and offset == 0:
            self._find_prompt(tokens)

    def _place(self, mask: Any, tokens: Tensor, offset: int) -> Tensor:
        n, seq = tokens.shape[:2]
        if mask is None:
            index = torch.arange(offset, offset + seq, device=tokens.device).expand(n, seq)
            if self._lengths is None:
                return index
            _require_rows(len(self._lengths), n, "lengths")
            over = index >= self._lengths.to(tokens.device)[:, None]
            return index.masked_fill(over, -1)
        if not isinstance(mask, Tensor) or mask.shape != (n, offset + seq):
            shape = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
            raise SteeringError(
                f"A pass over {seq} tokens after {offset} kept ones has an attention mask of shape "
                f"{shape}; expected ({n}, {offset + seq}), 0 on padding, so that padding is not "
                f"steered. A static cache hides it: use the default cache."
            )
        real = mask.bool()
        index = (real.long().cumsum(dim=1) - 1).masked_fill(~real, -1)
        return index[:, offset:]

    def _find_prompt(self, tokens: Tensor) -> None:
        """A pass from the first token: a new prompt, or the old one with what came after it."""
        before = self._tokens
        if (
            before is not None
            and before.shape[0] == tokens.shape[0]
            and before.ndim == tokens.ndim
            and before.shape[1] <= tokens.shape[1]
            and torch.equal(before, tokens[:, : before.shape[1]])
        ):
            return
        self._tokens = tokens
        self._prompt_lengths = (self._index >= 0).sum(dim=1)

    def applying(self, intervention: Intervention) -> Callable[[Tensor], Tensor]:
        """What a block's hook does for one intervention."""

        def apply(hidden: Tensor) -> Tensor:
            index = self._index
            if hidden.shape[:2] != index.shape:
                raise SteeringError(
                    f"A block has hidden states of shape {tuple(hidden.shape)}, but the model was "
                    f"given {tuple(index.shape)} tokens; they cannot be matched."
                )
            if intervention.n_rows is not None:
                _require_rows(intervention.n_rows, len(index), "coefficients")
            lengths = self._prompt_lengths
            if lengths is None:
                if intervention.positions != "all":
                    raise SteeringError(
                        "The first pass goes on from kept keys and values, so where the prompt "
                        "ends is unknown. Give prompt_lengths= to steer()."
                    )
                lengths = torch.ones(len(index), dtype=torch.long)
            _require_rows(len(lengths), len(index), "prompt_lengths")
            chosen = selected(intervention.positions, index, lengths.to(index.device))
            return change_at(hidden, chosen, intervention.change)

        return apply


def _named(
    module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    if not args:
        return kwargs
    names = list(inspect.signature(module.forward).parameters)
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def _require_rows(got: int, n: int, what: str) -> None:
    if got != n:
        raise SteeringError(
            f"Got {what} for {got} sequences, but the batch has {n}; expected one a sequence. "
            f"(Beams and several returned sequences multiply the rows of a batch.)"
        )
