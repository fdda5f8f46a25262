"""A base and several adapters on it, run over the same items: one cache a model.

The caches hold the same items in the same order, so they can be compared row by row. Each is the
file that an extraction of that model alone would have written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Final

from activations.adapter import adapted, adapter_sha256, require_in_place
from activations.cache import ActivationCache
from activations.cluster import Job, extract_job, extract_on_ray
from activations.digests import parameters_sha256
from activations.hf import HFBackend
from activations.libraries import in_library, require_library
from activations.load import load_backend
from activations.running import running
from activations.spec import ModelSpec
from interp.errors import AdapterError, CacheError
from interp.items import Item

__all__ = ["cache_paths", "extract_each"]

_BASE: Final = "base"
_FILE_ENDINGS: Final = (".h5", ".hdf5")

Watch = Callable[[Path, HFBackend | None], AbstractContextManager[Callable[[int], None]]]
"""From a cache's path and its running model (None where workers run it) to a context in which the
model is run, and the function that is told how many more items are finished."""


@contextmanager
def _unwatched(_path: Path, _backend: HFBackend | None) -> Iterator[Callable[[int], None]]:
    yield lambda _: None


def cache_paths(folder: Path, adapters: Sequence[Path]) -> tuple[Path, ...]:
    """Where the caches of a base and of adapters on it go: `base.h5`, then one an adapter.

    They are called after the adapters' folders. Where two would be called the same, all get as many
    parent folders' names in front as it takes.

    Raises:
        AdapterError: an adapter is given twice, or names cannot be told apart.
        CacheError: `folder` is a file, or called like one.
    """
    if folder.is_file() or folder.suffix in _FILE_ENDINGS:
        raise CacheError(
            f"--out is {folder}; several models give a file each. Give a folder for them."
        )
    whole = [path.resolve() for path in adapters]
    for index, path in enumerate(whole):
        if path in whole[:index]:
            raise AdapterError(f"The adapter {adapters[index]} is given twice; give it once.")
    deepest = max((len(path.parts) for path in whole), default=1)
    for depth in count(1):
        names = [_BASE, *("-".join(path.parts[1:][-depth:]) for path in whole)]
        # Some file systems do not tell capitals apart.
        if len({name.casefold() for name in names}) == len(names):
            return tuple(folder / f"{name}.h5" for name in names)
        if depth >= deepest:
            break
    raise AdapterError(
        f"The caches of these adapters would have the same names: {', '.join(names[1:])}. Rename "
        f"one of the folders, or extract them apart."
    )


def extract_each(
    job: Job,
    adapters: Sequence[Path],
    items: Sequence[Item],
    folder: Path,
    *,
    workers: int | None = None,
    watch: Watch = _unwatched,
) -> tuple[Path, ...]:
    """Write the activations of the base and of every adapted model into a folder.

    The base is loaded once. Every adapter is attached once before anything is run, so that one that
    does not fit costs nothing; after each, the base is compared with what it was, and loaded again
    if it is not the same. Finished caches are kept and unfinished ones resumed, as `extract` does.

    Args:
        job: model and settings; its adapter is not looked at.
        adapters: PEFT adapter folders.
        items: what to run, in the order of the files' rows.
        folder: gets the caches; see `cache_paths`.
        workers: of a Ray cluster, whose workers load each model anew; None runs in this process.
        watch: what each model is run in, for a progress bar.

    Returns:
        the paths of the caches, the base's first.

    Raises:
        AdapterError: as `cache_paths`.
        CacheError: a file belongs to another extraction or is no cache, or `folder` is one.
        ModelError: the model cannot be loaded, or an adapter does not fit it. Caches that were
            finished before stay.
    """
    paths = cache_paths(folder, adapters)
    for checked in adapters:
        adapter_sha256(checked)  # its files are there
    for path in paths:
        if path.exists():
            ActivationCache.open(path, file_locking=job.file_locking).close()
    models = list(zip([None, *adapters], paths, strict=True))
    if workers is not None:
        for adapter, path in models:
            with watch(path, None) as progress:
                _one_on_ray(replace(job, adapter=adapter), items, path, workers, progress)
        return paths
    require_library(job.spec.library)
    base = _Base(job.spec)
    base.require_fit(adapters)
    for adapter, path in models:
        with base.model(adapter) as backend, watch(path, backend) as progress:
            _one_here(job, backend, items, path, progress)
        del backend  # not held while the base is loaded again
    return paths


class _Base:
    """A base model that adapters are attached to and taken off; it is the same each time."""

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._backend = load_backend(spec)
        self._digest = ""
        self._attached = False

    def require_fit(self, adapters: Sequence[Path]) -> None:
        """Attach every adapter once.

        Raises:
            ModelError: one does not fit.
        """
        for adapter in adapters:
            require_in_place(self._backend, adapter)
        self._digest = parameters_sha256(self._backend.model)
        self._attached = True
        for adapter in adapters:
            with adapted(self._backend, adapter):
                pass

    @contextmanager
    def model(self, adapter: Path | None) -> Iterator[HFBackend]:
        """The base with an adapter, or by itself."""
        if self._attached and parameters_sha256(self._backend.model) != self._digest:
            # An adapter has left something behind.
            del self._backend
            self._backend = load_backend(self._spec)
        self._attached = adapter is not None
        if adapter is None:
            yield self._backend
        else:
            with adapted(self._backend, adapter) as changed:
                yield changed


def _one_here(
    job: Job,
    backend: HFBackend,
    items: Sequence[Item],
    path: Path,
    progress: Callable[[int], None],
) -> None:
    # A library may copy the model; the copy goes with this function.
    own = in_library(backend, job.spec.library)
    extract_job(job, own, items, path, progress=progress).close()


def _one_on_ray(
    job: Job, items: Sequence[Item], path: Path, workers: int, progress: Callable[[int], None]
) -> None:
    # A finished file is only compared with this run, which needs no cluster.
    if path.exists():
        with running(job.spec, job.adapter) as backend:
            extract_job(job, backend, items, path, progress=progress).close()
    else:
        extract_on_ray(job, items, path, workers=workers, progress=progress).close()
