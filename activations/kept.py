"""Keys and values of a shared prefix, lent to batches without being copied or changed."""

from __future__ import annotations

import copy
from typing import Any, Final

from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

__all__ = ["lend", "why_not_lendable"]

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
        cache: one row, for which `why_not_lendable` is None.
        n: rows.
    """
    lent = copy.copy(cache)
    lent.layers = [_lend_layer(layer, n) for layer in cache.layers]
    return lent


def _lend_layer(layer: Any, n: int) -> Any:
    lent = copy.copy(layer)
    lent.keys = layer.keys.expand(n, -1, -1, -1)
    lent.values = layer.values.expand(n, -1, -1, -1)
    kind = type(layer)

    def update(keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        # On a copy, which is forgotten: the layer stays as long as the prefix.
        result: tuple[Tensor, Tensor] = kind.update(copy.copy(lent), keys, values, *args, **kwargs)
        return result

    lent.update = update
    return lent
