"""Caches put together, and caches written for other programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import save_file

from activations.cache import ActivationCache, manifest_differences
from activations.layout import ROWS_PER_CHUNK, create_file, sharing_text
from interp.errors import CacheError
from interp.files import atomic_path
from interp.items import Item, items_sha256

__all__ = ["export_cache", "merge_caches"]

_ITEM_SET: Final = ("fingerprint", "items_sha256", "n", "seed")
"""Fields of `manifest.source` in which shards may differ."""

_ARRAYS: Final = ("resid_post", "resid_pre0", "answer_logits", "resid_norm")
_NUMBERS: Final = (*_ARRAYS, "label", "n_tokens")


def merge_caches(out: Path, shards: Sequence[Path]) -> int:
    """Write one cache that holds the rows of several, in the order given.

    The shards are only read. The result is what one extraction over all the items would have
    written, so it is reopened by such a one.

    Args:
        out: of the merged file; must not exist.
        shards: finished caches whose manifests differ in their items alone.

    Returns:
        the number of rows.

    Raises:
        CacheError: `out` exists, a shard is unfinished, manifests differ in more than the items
            (the fields are named), or an item occurs twice.
    """
    if out.exists():
        raise CacheError(f"{out} exists and is left as it is. Choose another path to merge into.")
    if len(shards) < 2:
        raise CacheError(f"Got {len(shards)} shard; expected at least two caches to merge.")
    with ExitStack() as stack:
        caches = [stack.enter_context(ActivationCache.open(path)) for path in shards]
        _require_shards(caches)
        items = tuple(item for cache in caches for item in cache.items())
        with atomic_path(out) as aside:
            create_file(
                aside,
                manifest=_merged_manifest(caches, items),
                items=items,
                n_tokens=[int(n) for cache in caches for n in cache.n_tokens],
                n_layers=caches[0].n_layers,
                d_model=caches[0].d_model,
                store=caches[0].manifest["store"],
            )
            with h5py.File(aside, "r+") as file:
                _copy_rows(caches, file)
        return len(items)


def _without_item_set(manifest: dict[str, Any]) -> dict[str, Any]:
    source = {k: v for k, v in manifest["source"].items() if k not in _ITEM_SET}
    return manifest | {"source": source}


def _require_shards(caches: Sequence[ActivationCache]) -> None:
    first = caches[0]
    seen: dict[str, Path] = {}
    for cache in caches:
        differences = manifest_differences(
            _without_item_set(first.manifest), _without_item_set(cache.manifest)
        )
        if differences:
            raise CacheError(
                f"{cache.path} and {first.path} are not shards of one extraction. Fields that "
                f"differ (file: {first.path.name}, run: {cache.path.name}): "
                f"{'; '.join(differences)}. Extract both with the same settings."
            )
        for item_id in cache.item_id:
            if item_id in seen:
                raise CacheError(
                    f"The item {item_id!r} is in {seen[item_id]} and in {cache.path}; expected "
                    f"every item once."
                )
            seen[item_id] = cache.path


def _merged_manifest(caches: Sequence[ActivationCache], items: Sequence[Item]) -> dict[str, Any]:
    sources = [cache.manifest["source"] for cache in caches]
    merged = dict(sources[0])
    for field in _ITEM_SET:
        values = [source.get(field) for source in sources]
        merged[field] = values[0] if all(value == values[0] for value in values) else values
    merged |= {"n": len(items), "items_sha256": items_sha256(items)}
    return caches[0].manifest | {"source": merged}


def _copy_rows(caches: Sequence[ActivationCache], file: h5py.File) -> None:
    start = 0
    for cache in caches:
        # A chunk's worth at a time: the memory does not grow with the file.
        for first in range(0, cache.n_items, ROWS_PER_CHUNK):
            rows = slice(first, min(first + ROWS_PER_CHUNK, cache.n_items))
            for name in _ARRAYS:
                file[name][start + rows.start : start + rows.stop] = cache.array(name, rows)
        start += cache.n_items
    file["done"][:] = 1
    checks = [cache.self_check_max_relative for cache in caches]
    file.attrs.modify(
        "self_check_max_relative",
        np.nan if None in checks else max(filter(None, checks), default=0),
    )
    records = [cache.prefix_sharing for cache in caches]
    if all(records):
        whole: dict[str, Any] = {
            name: sum(record[name] for record in records if record)
            for name in ("prefixes", "items", "tokens", "tokens_saved")
        }
        reasons = {record["off"] for record in records if record}
        whole["off"] = None if None in reasons else "; ".join(sorted(reasons))
        file.attrs.modify("prefix_sharing", sharing_text(whole))


def export_cache(cache: ActivationCache, out: Path) -> None:
    """Write a cache's arrays to `.safetensors` or `.npz`, for programs that do not read HDF5.

    All arrays are in memory at once while they are written. Numbers keep their type. What is text
    (`item_id`, `group_id`, `category`, `manifest`) is in the metadata of a safetensors file, as
    JSON, and in string arrays of an npz file; none of it is pickled.

    Args:
        cache: open cache.
        out: path that ends in `.safetensors` or `.npz`.

    Raises:
        CacheError: another ending.
    """
    if out.suffix not in (".safetensors", ".npz"):
        raise CacheError(f"--out is {out}; expected a path that ends in .safetensors or .npz.")
    arrays = {name: cache.array(name, slice(None)) for name in _NUMBERS}
    manifest = json.dumps(cache.manifest, ensure_ascii=False)
    texts = {"item_id": cache.item_id, "group_id": cache.group_id, "category": cache.category}
    with atomic_path(out) as aside:
        if out.suffix == ".npz":
            members: dict[str, Any] = arrays | {"manifest": np.array(manifest)}
            for name, values in texts.items():
                members[name] = np.array(values, dtype=np.str_)
            with aside.open("wb") as handle:
                np.savez(handle, **members)
        else:
            metadata = {name: json.dumps(values) for name, values in texts.items()}
            try:
                save_file(arrays, aside, metadata=metadata | {"manifest": manifest})
            except SafetensorError as error:
                raise CacheError(f"{out} cannot be written ({error}).") from error
