"""Whether an activation cache holds what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from activations.manifests import self_check_fault
from interp.items import items_sha256

if TYPE_CHECKING:
    from activations.cache import ActivationCache

__all__ = ["verify"]


def verify(cache: ActivationCache) -> list[str]:
    """Faults of an open cache, one line each.

    There are none when every row is written and finite and the items are those of the manifest.
    """
    faults = []
    unfinished = int((~cache.done).sum())
    if unfinished:
        faults.append(f"{unfinished} of {cache.n_items} rows are not written")
    if cache.self_check_max_relative is None:
        faults.append("the self-check is missing: the extraction did not finish")
    else:
        dtype = str(cache.manifest["model"].get("dtype"))
        store = str(cache.manifest.get("store"))
        fault = self_check_fault(cache.self_check_max_relative, dtype, store)
        faults += [fault] if fault else []
    done = cache.done
    for layer in range(-1, cache.n_layers):
        name = f"resid_post, layer {layer}" if layer >= 0 else "resid_pre0"
        values = cache.resid_post(layer) if layer >= 0 else cache.resid_pre0()
        bad = int((~np.isfinite(values[done])).any(axis=1).sum())
        if bad:
            faults.append(f"{name}: {bad} written rows are not finite")
    if not np.isfinite(cache.answer_logits[done]).all():
        faults.append("answer_logits: some written rows are not finite")
    # A prompt of one token has no norm beyond the first position.
    if not np.isfinite(cache.resid_norm[done & (cache.n_tokens > 1)]).all():
        faults.append("resid_norm: some written rows are not finite")
    if len(set(cache.item_id)) < cache.n_items:
        faults.append("item ids are not unique")
    items = cache.items()
    for name in ("item_id", "group_id", "category"):
        if tuple(getattr(item, name) for item in items) != getattr(cache, name):
            faults.append(f"{name} differs from what the items say")
    labels = [-1 if item.label is None else int(item.label) for item in items]
    if labels != cache.label.tolist():
        faults.append("label differs from what the items say")
    if cache.manifest["source"].get("items_sha256") not in (None, items_sha256(items)):
        faults.append("the items are not those of the manifest")
    return faults
