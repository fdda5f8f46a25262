"""Reading tensors from files one at a time, without executing anything.

A `.safetensors` file holds data only. A `.bin` is a pickle; it is read with `weights_only`, which
allows tensors and plain containers and refuses everything else.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from interp.adapters.findings import Finding, finding
from interp.errors import AdapterError

__all__ = [
    "LookedUpTensors",
    "MemoryTensors",
    "NamedTensors",
    "TensorSource",
    "Tensors",
    "open_tensors",
    "shards",
]


class NamedTensors(Protocol):
    """Tensors by name, wherever they come from; read on demand."""

    def __contains__(self, name: str) -> bool:
        """Whether there is a tensor of this name."""

    def __iter__(self) -> Iterator[str]:
        """All names that are known; a lookup may answer to more."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it where that can be."""

    def get(self, name: str) -> torch.Tensor:
        """The tensor, on the CPU."""


class TensorSource(Protocol):
    """Named tensors, read on demand."""

    def names(self) -> Iterable[str]:
        """All names."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, without reading it where the format allows that."""

    def get(self, name: str) -> torch.Tensor:
        """The tensor, on the CPU."""


class MemoryTensors:
    """Tensors of a mapping that is already loaded (a `.bin`, memory-mapped)."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> Iterable[str]:
        return self._tensors.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._tensors[name].shape)

    def get(self, name: str) -> torch.Tensor:
        return self._tensors[name].detach().cpu()


class LookedUpTensors:
    """Tensors that a function gives by name (None: there is none), such as a live model's."""

    def __init__(self, look_up: Callable[[str], torch.Tensor | None]) -> None:
        self._look_up = look_up

    def __contains__(self, name: str) -> bool:
        return self._look_up(name) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return tuple(self._found(name).shape)

    def get(self, name: str) -> torch.Tensor:
        """The tensor, on the CPU."""
        return self._found(name).detach().cpu()

    def _found(self, name: str) -> torch.Tensor:
        tensor = self._look_up(name)
        if tensor is None:
            raise AdapterError(f"The lookup has no tensor {name}.")
        return tensor


class _Safetensors:
    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._names = frozenset(handle.keys())

    def names(self) -> Iterable[str]:
        return self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._handle.get_slice(name).get_shape())

    def get(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._handle.get_tensor(name)
        return tensor


class Tensors:
    """Tensors of one or several files under one roof; a context manager.

    Attributes:
        findings: why a file could not be opened; then it contributes no tensors.
    """

    def __init__(
        self, paths: Iterable[Path], *, loaded: Mapping[str, torch.Tensor] | None = None
    ) -> None:
        """Take files, tensors that are already in memory, or both.

        Args:
            paths: files to open.
            loaded: tensors by name.
        """
        self.findings: list[Finding] = []
        self._paths = tuple(paths)
        self._loaded = loaded or {}
        self._stack = ExitStack()
        self._where: dict[str, TensorSource] = {}

    def __enter__(self) -> Tensors:
        self._where.update(dict.fromkeys(self._loaded, MemoryTensors(self._loaded)))
        for path in self._paths:
            source = _open(path, self._stack)
            if isinstance(source, Finding):
                self.findings.append(source)
            else:
                self._where.update(dict.fromkeys(source.names(), source))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        self._where = {}

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._where))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self._where[name].shape(name)

    def get(self, name: str) -> torch.Tensor:
        """The tensor, on the CPU.

        Raises:
            AdapterError: the file cannot be read any more.
        """
        try:
            return self._where[name].get(name)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise AdapterError(f"The tensor {name} cannot be read ({error}).") from error


def open_tensors(*paths: Path) -> Tensors:
    """Open files of tensors for `with`; what cannot be opened becomes a finding."""
    return Tensors(paths)


def _open(path: Path, stack: ExitStack) -> TensorSource | Finding:
    if path.suffix == ".safetensors":
        try:
            return _Safetensors(stack.enter_context(safe_open(str(path), framework="pt")))
        except (SafetensorError, OSError, ValueError) as error:
            return finding("weights_unreadable", f"{path.name} is no safetensors file ({error}).")
    try:
        try:
            loaded = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError:
            # Files in the format before zip cannot be mapped into memory.
            loaded = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        return finding(
            "unsafe_pickle",
            f"{path.name} holds more than tensors and was not loaded: {_first_line(error)}",
        )
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # noqa: BLE001 - junk can end the reader of pickles in any way
        return finding("weights_unreadable", f"{path.name} cannot be read ({_first_line(error)}).")
    if not isinstance(loaded, Mapping) or not all(
        isinstance(name, str) and isinstance(value, torch.Tensor) for name, value in loaded.items()
    ):
        return finding("weights_unreadable", f"{path.name} is not a mapping of names to tensors.")
    return MemoryTensors(loaded)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def shards(folder: Path, stem: str, pickled: str) -> tuple[Path, ...]:
    """Weight files of a model folder: one file, or the shards that its index names."""
    for name in (f"{stem}.safetensors", pickled):
        if (folder / name).is_file():
            return (folder / name,)
        index = folder / f"{name}.index.json"
        if index.is_file():
            try:
                files = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise AdapterError(f"{index} is no index of weight files ({error}).") from error
            # Only names inside the folder: an index may come from anywhere.
            return tuple(folder / Path(str(file)).name for file in sorted(files))
    return ()
