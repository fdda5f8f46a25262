"""The same model in another library: TransformerLens or nnsight instead of plain transformers."""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import get_args

from activations.hf import HFBackend
from interp.errors import ModelError, require_choice
from interp.vocabulary import Library

__all__ = ["in_library", "require_library"]


def require_library(library: Library) -> None:
    """Raise `ModelError` that names the extra, if a library is not installed."""
    require_choice("library", library, get_args(Library), ModelError)
    if library != "hf" and find_spec(library) is None:
        raise ModelError(
            f"--backend {library} needs the package {library}, which is not installed. Install it "
            f"with: pip install 'interp[{library}]'"
        )


def in_library(backend: HFBackend, library: Library) -> HFBackend:
    """A backend that runs the same model in a library.

    Args:
        backend: a running model in plain transformers.
        library: `hf` gives `backend` itself. `transformer_lens` copies the model; `nnsight` runs
            the model itself.

    Raises:
        ModelError: the library is not installed, or does not know the model.
    """
    require_library(library)
    if library == "hf":
        return backend
    with warnings.catch_warnings():
        # Of other people's imports; nothing that the caller could do about them.
        warnings.simplefilter("ignore")
        if library == "transformer_lens":
            from activations.bridge import TransformerLensBackend

            return TransformerLensBackend(backend)
        from activations.traced import NNsightBackend

        return NNsightBackend(backend)
