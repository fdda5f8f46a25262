"""Decoder blocks of a transformers model, and hooks on them that are always taken off again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from activations.backend import Edit
from interp.errors import ModelError

__all__ = [
    "count_hooks",
    "edited",
    "find_blocks",
    "has_foreign_hooks",
    "hidden_of",
    "input_device",
    "observed",
    "require_layers",
    "with_hidden",
]


def find_blocks(model: nn.Module) -> nn.ModuleList:
    """The list of decoder blocks: the outermost module list as long as the model has layers.

    Raises:
        ModelError: there is none, or several of that length at the same depth.
    """
    config: Any = getattr(model, "config", None)
    text_config = config.get_text_config(decoder=True) if config is not None else None
    n_layers = getattr(text_config, "num_hidden_layers", None)
    candidates = [
        (name.count("."), name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == n_layers
    ]
    if not candidates:
        raise ModelError(
            f"{type(model).__name__} has no list of {n_layers} decoder blocks; expected a decoder "
            f"model of transformers with config.num_hidden_layers blocks."
        )
    depth = min(candidates, key=lambda candidate: candidate[0])[0]
    outermost = [(name, module) for level, name, module in candidates if level == depth]
    if len(outermost) > 1:
        raise ModelError(
            f"{type(model).__name__} has several lists of {n_layers} blocks "
            f"({', '.join(name for name, _ in outermost)}); expected one."
        )
    return outermost[0][1]


def input_device(model: Any) -> torch.device:
    """Where token ids go: the device of the input embedding."""
    embedding = model.get_input_embeddings()
    # Weights that accelerate keeps elsewhere come to this device when they are needed.
    elsewhere = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    if elsewhere is not None:
        return torch.device(elsewhere)
    weight: Tensor = embedding.weight
    return weight.device


def hidden_of(output: object) -> Tensor:
    """The hidden states of a block's output: a tensor, or the first entry of a tuple."""
    first = output[0] if isinstance(output, tuple) else output
    if not isinstance(first, Tensor):
        raise ModelError(
            f"A decoder block returned {type(output).__name__}; expected hidden states."
        )
    if first.ndim != 3:
        raise ModelError(
            f"A decoder block has hidden states of shape {tuple(first.shape)}; expected (n, seq, "
            f"d_model). A model that carries several streams has no residual stream to read."
        )
    return first


def with_hidden(output: object, hidden: Tensor) -> object:
    """A block's output with other hidden states in it."""
    return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


def _block_input(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return hidden_of(args[0] if args else kwargs["hidden_states"])


@contextmanager
def observed(
    blocks: nn.ModuleList,
    on_resid_post: Callable[[int, Tensor], None],
    on_resid_pre0: Callable[[Tensor], None],
) -> Iterator[None]:
    """Call back with each block's output and the first block's input during forward passes.

    Args:
        blocks: the decoder blocks.
        on_resid_post: gets the layer and the hidden states (n, seq, d_model); must not keep them.
        on_resid_pre0: gets the hidden states that enter block 0.
    """
    handles = []
    try:
        handles.append(
            blocks[0].register_forward_pre_hook(
                lambda _module, args, kwargs: on_resid_pre0(_block_input(args, kwargs)),
                with_kwargs=True,
            )
        )
        for layer, block in enumerate(blocks):

            def post_hook(
                _module: nn.Module, _args: Any, output: object, layer: int = layer
            ) -> None:
                on_resid_post(layer, hidden_of(output))

            handles.append(block.register_forward_hook(post_hook))
        yield
    finally:
        for handle in handles:
            handle.remove()


def require_layers(edits: Sequence[Edit], n_layers: int) -> None:
    """Raise `ModelError` unless the model has the layer of every edit."""
    for edit in edits:
        if not 0 <= edit.layer < n_layers:
            raise ModelError(
                f"Layer {edit.layer} is out of range; this model has layers 0 to {n_layers - 1}."
            )


@contextmanager
def edited(blocks: nn.ModuleList, edits: Sequence[Edit]) -> Iterator[None]:
    """Apply edits to the residual stream during forward passes.

    Hooks are prepended, so no other hook sees a state from before the edit.

    Raises:
        ModelError: a layer is out of range.
    """
    require_layers(edits, len(blocks))
    handles = []
    try:
        # Prepending reverses the order of hooks of one block; registering in reverse restores it.
        for edit in reversed(edits):
            block = blocks[edit.layer]
            if edit.hook_point == "resid_post":

                def post_hook(_m: nn.Module, _a: Any, output: object, edit: Edit = edit) -> object:
                    return with_hidden(output, edit.apply(hidden_of(output)))

                handles.append(block.register_forward_hook(post_hook, prepend=True))
            else:

                def pre_hook(
                    _m: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], edit: Edit = edit
                ) -> tuple[tuple[Any, ...], dict[str, Any]]:
                    hidden = edit.apply(_block_input(args, kwargs))
                    if args:
                        return (hidden, *args[1:]), kwargs
                    return args, kwargs | {"hidden_states": hidden}

                handles.append(
                    block.register_forward_pre_hook(pre_hook, prepend=True, with_kwargs=True)
                )
        yield
    finally:
        for handle in handles:
            handle.remove()


def has_foreign_hooks(model: nn.Module) -> bool:
    """Whether a module has hooks beside those of this module and those transformers leaves behind.

    They may tell sequences apart by their rows.
    """
    return any(
        not (getattr(hook, "__module__", None) or "").startswith(("transformers.", __name__))
        for module in model.modules()
        for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    )


def count_hooks(model: nn.Module) -> int:
    """Forward hooks and pre-hooks on all modules; equal before and after when none is left."""
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )
