"""The HDF5 activation cache: reader, writer, and the manifest that proves what is in it.

An unfinished cache lives beside its final path as `FILE.partial`. All its storage is allocated
when it is created, and a batch's rows are flushed before its `done` marks; so a process killed at
any moment leaves a file that opens, and whose marked rows are whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from activations.compression import load_filters, write_compressed
from activations.layout import DATASETS, FORMAT, SCHEMA_VERSION, create_file, sharing_text
from activations.manifests import flat, manifest_differences, refuse_mismatch
from activations.verifying import verify
from interp.errors import CacheError, DamagedCacheError
from interp.files import new_file, partial_path, require_file
from interp.items import Item, item_from_record
from interp.vocabulary import Compression, Store

if TYPE_CHECKING:
    import torch

    from activations.backend import Capture, Prompt

__all__ = [
    "SCHEMA_VERSION",
    "ActivationCache",
    "CacheWriter",
    "flat",
    "manifest_differences",
    "refuse_mismatch",
    "verify",
]

_OPEN_ERRORS: Final = (OSError, KeyError, RuntimeError, ValueError)
_BUSY: Final = (
    "Another process may be writing it: wait for it or choose another path. If this file system "
    "has no locks, use --no-file-locking."
)


def _locking(wanted: bool) -> str | bool:
    """What h5py calls it; where a file system has no locks at all, it goes on without."""
    return "best-effort" if wanted else False


class ActivationCache:
    """Reader of a cache file; arrays are read when asked for, one layer at a time.

    Use as a context manager. `resid_post(layer)` is (n_items, d_model).
    """

    def __init__(self, path: Path, file: h5py.File) -> None:
        """Wrap an open file; use `ActivationCache.open`."""
        self.path = path
        self._opened = file
        self.manifest: dict[str, Any] = json.loads(file.attrs["manifest"])
        self.n_items, self.n_layers, self.d_model = file["resid_post"].shape

    @classmethod
    def open(
        cls, path: str | Path, *, allow_unfinished: bool = False, file_locking: bool = True
    ) -> ActivationCache:
        """Open a cache for reading.

        Args:
            path: of the file.
            allow_unfinished: open a file in which rows are missing too.
            file_locking: False for a file system on which locks fail or hang.

        Raises:
            DamagedCacheError: truncated, or lacks a part.
            CacheError: missing, not one of ours, of another schema, or unfinished.
        """
        path = Path(path)
        if not path.exists() and partial_path(path).exists():
            raise CacheError(
                f"{path} is not finished: {partial_path(path).name} beside it is what was written "
                f"before the extraction stopped. Run the same `interp extract` again to finish it."
            )
        require_file(path, "an activation cache (HDF5)", CacheError)
        try:
            # Without HDF5's chunk cache a layer is read straight into its array: half the time.
            file = h5py.File(path, "r", locking=_locking(file_locking), rdcc_nbytes=0)
        except BlockingIOError as error:
            raise CacheError(f"{path} is locked. {_BUSY}") from error
        except _OPEN_ERRORS as error:
            raise DamagedCacheError(
                f"{path} is not a readable HDF5 file ({error}). It may be truncated; expected an "
                f"activation cache made by `interp extract`."
            ) from error
        try:
            if file.attrs.get("format") != FORMAT:
                raise CacheError(
                    f"{path} is an HDF5 file, but not an activation cache: it lacks the mark "
                    f"{FORMAT!r}. Make one with `interp extract`."
                )
            if int(file.attrs["schema_version"]) != SCHEMA_VERSION:
                raise CacheError(
                    f"{path} has schema version {file.attrs['schema_version']}; this version reads "
                    f"{SCHEMA_VERSION}. Extract again."
                )
            n_items = len(file["resid_post"])
            other = [name for name in DATASETS if name not in file or len(file[name]) != n_items]
            if other:
                raise DamagedCacheError(
                    f"{path} is a damaged activation cache: {', '.join(other)} missing or of "
                    f"another length than resid_post ({n_items}). Extract again."
                )
            load_filters(file)
            cache = cls(path, file)
            if not allow_unfinished and not cache.done.all():
                count, first = (~cache.done).sum(), cache.item_id[cache.done.argmin()]
                raise CacheError(f"{path}: {count} unfinished rows (first: {first!r}); extract on.")
        except CacheError:
            file.close()
            raise
        except _OPEN_ERRORS as error:
            file.close()
            raise DamagedCacheError(f"{path} is a damaged activation cache ({error}).") from error
        return cache

    def __enter__(self) -> ActivationCache:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    @property
    def _file(self) -> h5py.File:
        """The file, which must be open; for h5py a closed one is one without anything in it."""
        if not self._opened:
            raise CacheError(f"{self.path} is closed; open it again, or read it before it is.")
        return self._opened

    def _strings(self, name: str) -> tuple[str, ...]:
        return tuple(self._file[name].asstr()[:])

    @property
    def item_id(self) -> tuple[str, ...]:
        """(n_items,)."""
        return self._strings("item_id")

    @property
    def group_id(self) -> tuple[str, ...]:
        """(n_items,)."""
        return self._strings("group_id")

    @property
    def category(self) -> tuple[str, ...]:
        """(n_items,)."""
        return self._strings("category")

    @property
    def label(self) -> NDArray[np.int8]:
        """(n_items,): 1 True, 0 False, -1 none."""
        return np.asarray(self._file["label"][:])

    @property
    def done(self) -> NDArray[np.bool_]:
        """(n_items,): which rows are written."""
        return np.asarray(self._file["done"][:], dtype=bool)

    @property
    def n_tokens(self) -> NDArray[np.int32]:
        """(n_items,): tokens of each prompt, stub not counted."""
        return np.asarray(self._file["n_tokens"][:])

    @property
    def answer_logits(self) -> NDArray[np.float32]:
        """(n_items, 2): logits of True and False right after the answer stub."""
        return np.asarray(self._file["answer_logits"][:])

    @property
    def resid_norm(self) -> NDArray[np.float32]:
        """(n_items, n_layers): median norm over prompt and stub tokens, first one excluded."""
        return np.asarray(self._file["resid_norm"][:])

    @property
    def self_check_max_relative(self) -> float | None:
        """Largest relative difference of rows rerun alone; None in an unfinished file."""
        value = float(self._file.attrs["self_check_max_relative"])
        return None if np.isnan(value) else value

    def array(self, name: str, rows: slice) -> NDArray[Any]:
        """Some rows of a dataset, in the number type of the file."""
        return np.asarray(self._file[name][rows])

    @property
    def prefix_sharing(self) -> dict[str, Any] | None:
        """What the run that finished the file shared; None if unfinished, or not recorded.

        `prefixes` were run once each for `items` rows, so that `tokens_saved` of `tokens` were not
        run; `off` says why nothing was shared.
        """
        text = self._file.attrs.get("prefix_sharing", "")
        text = text.decode() if isinstance(text, bytes) else str(text)
        return dict(json.loads(text)) if text else None

    def items(self) -> tuple[Item, ...]:
        """The items themselves, prompts included."""
        return tuple(item_from_record(json.loads(text)) for text in self._strings("item"))

    def resid_pre0(self) -> NDArray[np.float32]:
        """(n_items, d_model): the embedding stream."""
        return np.asarray(self._file["resid_pre0"][:], dtype=np.float32)

    def resid_post(self, layer: int) -> NDArray[np.float32]:
        """(n_items, d_model): output of block `layer`.

        Raises:
            CacheError: the layer is out of range.
        """
        self.require_layer(layer)
        return np.asarray(self._file["resid_post"][:, layer, :], dtype=np.float32)

    def tensor(self, layer: int) -> torch.Tensor:
        """(n_items, d_model): `resid_post(layer)` as a torch tensor, float32 on the CPU."""
        import torch

        return torch.from_numpy(self.resid_post(layer))

    def require_layer(self, layer: int) -> None:
        """Raise `CacheError` unless 0 <= layer < n_layers."""
        if not 0 <= layer < self.n_layers:
            raise CacheError(
                f"Layer {layer} is out of range: {self.path} has layers 0 to {self.n_layers - 1}."
            )


class CacheWriter:
    """Writer of an unfinished cache, new or resumed; made by `CacheWriter.open`."""

    def __init__(self, path: Path, file: h5py.File) -> None:
        """Wrap an open unfinished file."""
        self.path = path
        self._file = file
        self._done = np.asarray(file["done"][:], dtype=bool)

    @classmethod
    @contextmanager
    def open(
        cls,
        path: Path,
        *,
        manifest: Mapping[str, Any],
        items: Sequence[Item],
        prompts: Sequence[Prompt],
        n_layers: int,
        d_model: int,
        store: Store = "float32",
        file_locking: bool = True,
    ) -> Iterator[CacheWriter]:
        """Start `path`, or go on with its `.partial` file if the manifest is the same.

        Args:
            path: of the finished cache.
            manifest: what the numbers depend on.
            items: (n_items,) in the order of the rows.
            prompts: (n_items,) their tokens.
            n_layers: decoder blocks.
            d_model: width of the residual stream.
            store: number type of the activations.
            file_locking: lock the file against other writers; False for a file system on which
                locks fail or hang, where having one writer is the caller's task.

        Raises:
            CacheError: the `.partial` file belongs to another extraction or cannot be opened (an
                other process may be writing it).
        """
        partial = partial_path(path)
        if not partial.exists():
            with new_file(partial) as aside:
                create_file(
                    aside,
                    manifest=manifest,
                    items=items,
                    n_tokens=[len(prompt.ids) for prompt in prompts],
                    n_layers=n_layers,
                    d_model=d_model,
                    store=store,
                )
        # Checked also where it was just made: another process may have been quicker.
        options = {"allow_unfinished": True, "file_locking": file_locking}
        with ActivationCache.open(partial, **options) as found:
            refuse_mismatch(partial, manifest_differences(found.manifest, manifest))
        try:
            file = h5py.File(partial, "r+", locking=_locking(file_locking))
        except OSError as error:
            raise CacheError(f"{partial} cannot be written to ({error}). {_BUSY}") from error
        try:
            yield cls(path, file)
        finally:
            file.close()

    def pending(self) -> NDArray[np.int64]:
        """Indices of the rows that are not written yet."""
        return np.flatnonzero(~self._done)

    def write(self, rows: Sequence[int], capture: Capture) -> None:
        """Write and flush the rows of one batch, then mark them done and flush again.

        Args:
            rows: item indices, in the order of the capture's first axis.
            capture: what the backend gave for them.
        """
        order = np.argsort(rows)
        index = np.asarray(rows)[order]
        for name, tensor in (
            ("resid_post", capture.resid_post),
            ("resid_pre0", capture.resid_pre0),
            ("answer_logits", capture.logits),
            ("resid_norm", capture.resid_norm),
        ):
            self._file[name][index] = self._checked(name, tensor.numpy()[order])
        self._file.flush()
        self._file["done"][index] = 1
        self._file.flush()
        self._done[index] = True

    def _checked(self, name: str, values: NDArray[np.float32]) -> NDArray[Any]:
        target = self._file[name].dtype
        if target == np.float16 and np.abs(values).max() > np.finfo(np.float16).max:
            raise CacheError(
                f"{name} reaches {np.abs(values).max():.3g}, beyond what float16 can hold "
                f"({np.finfo(np.float16).max:.0f}). Remove {partial_path(self.path)} and use "
                f"--store float32."
            )
        return values.astype(target, copy=False)

    def rows(self, index: Sequence[int]) -> NDArray[np.float32]:
        """(len(index), n_layers, d_model): rows as written; `index` ascending."""
        return np.asarray(self._file["resid_post"][list(index)], dtype=np.float32)

    def finish(
        self, checked: float, sharing: Mapping[str, Any], compression: Compression = "none"
    ) -> None:
        """Store how the file was made, close it and move it to its final place.

        Args:
            checked: largest relative difference of rows that were run again.
            sharing: see `ActivationCache.prefix_sharing`.
            compression: of the finished file.
        """
        self._file.attrs.modify("self_check_max_relative", checked)
        self._file.attrs.modify("prefix_sharing", sharing_text(sharing))
        self._file.flush()
        # Before the lock goes with the file: no other writer may take up a file that is finished.
        if compression == "none":
            partial_path(self.path).replace(self.path)
        else:
            write_compressed(self._file, self.path)
            partial_path(self.path).unlink(missing_ok=True)
        self._file.close()
