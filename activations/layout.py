"""How an activation cache is laid out in its HDF5 file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np

from interp.hdf5 import new_hdf5
from interp.items import Item, item_to_record
from interp.vocabulary import Store

__all__ = ["DATASETS", "FORMAT", "ROWS_PER_CHUNK", "SCHEMA_VERSION", "create_file", "sharing_text"]

SCHEMA_VERSION: Final = 1
FORMAT: Final = "interp activation cache"
ROWS_PER_CHUNK: Final = 64
DATASETS: Final = (
    *("resid_post", "resid_pre0", "answer_logits", "resid_norm"),
    *("item_id", "group_id", "category", "item", "label", "n_tokens", "done"),
)
_LABELS: Final = {True: 1, False: 0, None: -1}
_SHARING_BYTES: Final = 1024


def create_file(
    path: Path,
    *,
    manifest: Mapping[str, Any],
    items: Sequence[Item],
    n_tokens: Sequence[int],
    n_layers: int,
    d_model: int,
    store: Store,
) -> None:
    """Make a cache with all its storage, no row of it done.

    Args:
        path: must not exist.
        manifest: what the numbers will depend on.
        items: (n_items,) in the order of the rows.
        n_tokens: (n_items,) tokens of each prompt, stub not counted.
        n_layers: decoder blocks.
        d_model: width of the residual stream.
        store: number type of the activations.
    """
    n = len(items)
    rows = min(ROWS_PER_CHUNK, n)
    text = h5py.string_dtype("utf-8")
    with new_hdf5(path) as file:
        file.attrs["format"] = FORMAT
        file.attrs["schema_version"] = SCHEMA_VERSION
        file.attrs["manifest"] = json.dumps(manifest, ensure_ascii=False, allow_nan=False)
        # Set when the file is finished; made here so that finishing only overwrites bytes.
        file.attrs["self_check_max_relative"] = np.nan
        file.attrs.create("prefix_sharing", b"", dtype=f"S{_SHARING_BYTES}")
        for name, shape, chunks, dtype in (
            ("resid_post", (n, n_layers, d_model), (rows, 1, d_model), store),
            ("resid_pre0", (n, d_model), (rows, d_model), store),
            ("answer_logits", (n, 2), None, np.float32),
            ("resid_norm", (n, n_layers), None, np.float32),
        ):
            early = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            early.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            file.create_dataset(
                name, shape, dtype=dtype, chunks=chunks, fillvalue=np.nan, dcpl=early
            )
        file["item_id"] = np.array([item.item_id for item in items], dtype=text)
        file["group_id"] = np.array([item.group_id for item in items], dtype=text)
        file["category"] = np.array([item.category for item in items], dtype=text)
        file["item"] = np.array(
            [json.dumps(item_to_record(item), ensure_ascii=False) for item in items], dtype=text
        )
        file["label"] = np.array([_LABELS[item.label] for item in items], dtype=np.int8)
        file["n_tokens"] = np.array(n_tokens, dtype=np.int32)
        file["done"] = np.zeros(n, dtype=np.uint8)


def sharing_text(sharing: Mapping[str, Any]) -> bytes:
    """JSON that fits into the attribute's fixed size; only the reason in `off` can be long."""
    off = sharing.get("off")
    short = dict(sharing) | {"off": off[: _SHARING_BYTES // 4] if off else None}
    return json.dumps(short).encode()
