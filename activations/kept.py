"""Keys and values of a shared prefix, lent to batches without being copied or changed."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from activations.tokens import PaddedBatch
from interp.errors import ModelError

__all__ = ["keeps_all", "lend", "lend_apart", "repeat", "why_not_continuable", "why_not_lendable"]

# Their `update` makes new tensors and nothing else; a subclass may keep more than that.
_LENDABLE: Final = (DynamicLayer, DynamicSlidingWindowLayer)


def why_not_continuable(cache: Any) -> str | None:
    """Why several tokens cannot safely follow what a model keeps, or None if they can.

    Recurrent states are refused: some families continue them by one token only, and give wrong
    numbers or fail for more.
    """
    if cache is None:
        return "the model keeps no keys and values"
    if type(cache) is not DynamicCache:
        return f"the model keeps its state in a {type(cache).__name__}"
    others = {type(layer).__name__ for layer in cache.layers if type(layer) not in _LENDABLE}
    if others:
        return f"the model keeps layers of the kind {', '.join(sorted(others))}"
    return None


def why_not_lendable(cache: Any) -> str | None:
    """Why what a model keeps of one row cannot be shared by a batch, or None if it can."""
    reason = why_not_continuable(cache)
    if reason is not None:
        return reason
    if not all(layer.is_initialized for layer in cache.layers):
        return "the model leaves layers of its cache empty"
    if any(layer.keys.shape[0] != 1 or layer.values.shape[0] != 1 for layer in cache.layers):
        return "the model keeps more than one row for one sequence"
    return None


def lend(cache: Any, n: int) -> Any:
    """A cache of `n` rows for one pass, every row being the one row of `cache`.

    Nothing is copied: rows are views, and what a pass appends to a layer lives only while that
    layer runs. So the memory is that of one expanded layer, not of all of them.

    Args:
        cache: one row, for which `why_not_lendable` is None, or `n` rows.
        n: rows.
    """
    lent = copy.copy(cache)
    lent.layers = [_lend_layer(layer, n) for layer in cache.layers]
    return lent


def _lend_layer(layer: Any, n: int) -> Any:
    lent = copy.copy(layer)
    if layer.is_initialized:
        lent.keys = layer.keys.expand(n, -1, -1, -1)
        lent.values = layer.values.expand(n, -1, -1, -1)
    kind = type(layer)

    def update(keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        # On a copy, which is forgotten: the layer stays as long as the prefix.
        result: tuple[Tensor, Tensor] = kind.update(copy.copy(lent), keys, values, *args, **kwargs)
        return result

    lent.update = update
    return lent


def lend_apart(layer: Any, tell: Callable[[Tensor, Tensor], None]) -> Any:
    """A cache layer that hands new keys and values back as they are.

    Args:
        layer: left as it is.
        tell: called with the kept keys and values, before the attention that should see them.
    """
    lent = copy.copy(layer)

    def update(keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        tell(layer.keys, layer.values)
        return keys, values

    lent.update = update
    return lent


def keeps_all(cache: Any, n_tokens: int) -> bool:
    """Whether every layer still holds all `n_tokens`; sliding windows drop the first ones."""
    return all(layer.keys.shape[2] == n_tokens for layer in cache.layers)


def repeat(cache: Any, n_tokens: int, batch: PaddedBatch) -> Any:
    """A cache of one row a sequence, to be continued for good.

    Args:
        cache: one row, for which `why_not_lendable` is None; left as it is.
        n_tokens: in the cache.
        batch: padded on the left; its first `n_tokens` columns are those that the cache gives. A
            row that starts later so gets fewer of the tokens.

    Raises:
        ModelError: no sequence is longer than the cache, or their lengths differ and a layer has
            dropped the tokens that a row would start with.
    """
    shifted = bool(batch.starts.any())
    if batch.ids.shape[1] <= n_tokens or (shifted and not keeps_all(cache, n_tokens)):
        raise ModelError(
            f"Got sequences of lengths {sorted(set(batch.lengths.tolist()))} after a prefix of "
            f"{n_tokens} tokens; expected longer ones, and of one length where the model keeps a "
            f"window only."
        )
    own = copy.copy(cache)
    own.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in own.layers:
        for name in ("keys", "values"):
            kept = getattr(layer, name)
            if shifted:
                columns = torch.arange(n_tokens, device=kept.device)
                columns = (columns - batch.starts.to(kept.device)[:, None]).clamp(min=0)
                setattr(layer, name, kept[0][:, columns].transpose(0, 1))
            else:
                setattr(layer, name, kept.expand(len(batch.ids), -1, -1, -1))
    return own
