"""Compressed caches: blosc-lz4, applied when a file is finished.

An unfinished file is never compressed: chunks whose size depends on their content have to be moved
around while they are written, and a process killed in between would leave a damaged file.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, get_args

import h5py

from activations.layout import ROWS_PER_CHUNK
from interp.errors import CacheError, require_choice
from interp.files import atomic_path
from interp.hdf5 import new_hdf5
from interp.vocabulary import Compression

__all__ = ["load_filters", "require_compression", "write_compressed"]

_BLOSC: Final = 32001
"""Number of the filter in the registry of HDF5 filters."""

_ACTIVATIONS: Final = ("resid_post", "resid_pre0")


def require_compression(compression: Compression) -> None:
    """Raise `CacheError` that names the extra, if the compression's package is not installed."""
    require_choice("compression", compression, get_args(Compression), CacheError)
    if compression == "blosc" and find_spec("hdf5plugin") is None:
        raise CacheError(
            "Blosc compression needs the package hdf5plugin, which is not installed. Install it "
            "with: pip install 'interp[blosc]'"
        )


def load_filters(file: h5py.File) -> None:
    """Make an open cache readable, whatever it is compressed with.

    Raises:
        CacheError: it is compressed with blosc, and hdf5plugin is not installed.
    """
    plist = file["resid_post"].id.get_create_plist()
    filters = {plist.get_filter(i)[0] for i in range(plist.get_nfilters())}
    if _BLOSC in filters:
        require_compression("blosc")
        import hdf5plugin  # noqa: F401


def write_compressed(file: h5py.File, out: Path) -> None:
    """Write a copy of an open cache to `out`, its activations compressed with blosc-lz4.

    Args:
        file: a finished cache, not compressed.
        out: replaced if it exists.
    """
    import hdf5plugin

    # Bytes of like significance side by side: the exponents of neighbours are alike.
    options: dict[str, Any] = dict(
        hdf5plugin.Blosc(cname="lz4", clevel=5, shuffle=hdf5plugin.Blosc.SHUFFLE)
    )
    with atomic_path(out) as aside, new_hdf5(aside) as target:
        for name, value in file.attrs.items():
            target.attrs.create(name, value, dtype=file.attrs.get_id(name).dtype)
        for name, dataset in file.items():
            if name not in _ACTIVATIONS:
                file.copy(dataset, target, name)
                continue
            copy = target.create_dataset(
                name,
                dataset.shape,
                dtype=dataset.dtype,
                chunks=dataset.chunks,
                fillvalue=dataset.fillvalue,
                **options,
            )
            # A chunk's worth at a time: the memory does not grow with the file.
            for first in range(0, len(dataset), ROWS_PER_CHUNK):
                rows = slice(first, min(first + ROWS_PER_CHUNK, len(dataset)))
                copy[rows] = dataset[rows]
