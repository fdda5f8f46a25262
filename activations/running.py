"""A model as an extraction runs it: loaded, with its adapter, in its library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from activations.adapter import adapted, adapter_sha256
from activations.hf import HFBackend
from activations.libraries import in_library, require_library
from activations.load import load_backend
from activations.spec import ModelSpec

__all__ = ["running"]


@contextmanager
def running(spec: ModelSpec, adapter: Path | None = None) -> Iterator[HFBackend]:
    """Load a model, attach an adapter if one is given, and put it into the library asked for.

    Raises:
        ModelError: something of that is not possible; says what.
    """
    require_library(spec.library)
    if adapter is not None:
        adapter_sha256(adapter)  # its files are there, before a model is loaded
    backend = load_backend(spec)
    if adapter is None:
        yield in_library(backend, spec.library)
    else:
        with adapted(backend, adapter) as changed:
            yield in_library(changed, spec.library)
