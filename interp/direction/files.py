"""Direction files: `.npz` (one direction), safetensors and GGUF (one a layer).

safetensors hold one tensor `direction.<layer>` a direction, of unit norm, and the other fields as
JSON in the metadata. GGUF files are control vectors; see `interp.direction.control_vector`. Nothing
in a file is executed.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.direction.control_vector import read_control_vector, write_control_vector
from interp.direction.core import Direction, unit_direction
from interp.errors import SteeringError
from interp.files import atomic_path, require_file

__all__ = [
    "read_direction",
    "read_directions",
    "require_model",
    "write_direction",
    "write_directions",
]

_SUFFIXES: Final = (".npz", ".safetensors", ".gguf")
_FORMAT: Final = "interp directions"
_NPZ_ERRORS: Final = (
    *(OSError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error),
    *(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError),
)


def _suffix(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise SteeringError(
            f"{path} ends in {suffix or 'nothing'!r}; a direction file ends in "
            f"{', '.join(_SUFFIXES[:-1])} or {_SUFFIXES[-1]}."
        )
    return suffix


def _fields(direction: Direction) -> dict[str, Any]:
    return {name: value for name, value in asdict(direction).items() if name != "vector"}


def write_direction(
    path: str | Path, direction: Direction, *, model_hint: str | None = None
) -> None:
    """Write one direction; see `write_directions`."""
    path = Path(path)
    write_directions(path, [direction], model_hint=model_hint)


def write_directions(
    path: str | Path, directions: Sequence[Direction], *, model_hint: str | None = None
) -> None:
    """Write directions in the format that the file's ending names; atomically.

    Args:
        path: ends in `.npz` (one direction only), `.safetensors` or `.gguf`.
        directions: of different layers.
        model_hint: of a GGUF file: the model's type (`llama`, `qwen2`); None takes its id.

    Raises:
        SteeringError: another ending, no direction, several at one layer or of several widths, or
            one that the format cannot hold.
    """
    path = Path(path)
    suffix = _suffix(path)
    layers = [direction.layer for direction in directions]
    if not layers or len(set(layers)) < len(layers):
        raise SteeringError(
            f"Got directions at layers {layers}; expected at least one, and one a layer."
        )
    widths = {direction.vector.shape[0] for direction in directions}
    if len(widths) > 1:
        raise SteeringError(
            f"The directions have {sorted(widths)} entries; those of one model have equally many."
        )
    ordered = sorted(directions, key=lambda direction: direction.layer)
    if suffix == ".npz":
        if len(ordered) > 1:
            raise SteeringError(
                f"{path}: an .npz file holds one direction; got {len(ordered)}. Write .safetensors "
                f"or .gguf."
            )
        with atomic_path(path) as aside, aside.open("wb") as handle:
            fields = np.array(json.dumps(_fields(ordered[0])))
            np.savez(handle, vector=ordered[0].vector, fields=fields)
    elif suffix == ".safetensors":
        from safetensors.numpy import save

        tensors = {f"direction.{direction.layer}": direction.vector for direction in ordered}
        texts = {
            f"direction.{direction.layer}": json.dumps(_fields(direction)) for direction in ordered
        }
        with atomic_path(path) as aside:
            aside.write_bytes(save(tensors, metadata={"format": _FORMAT} | texts))
    else:
        write_control_vector(path, ordered, [_fields(d) for d in ordered], model_hint)


def read_directions(path: str | Path) -> tuple[Direction, ...]:
    """Read all directions of a file, in the order of their layers.

    Files of other programs: GGUF control vectors, and safetensors with tensors `direction.<layer>`.
    These say nothing of the residual stream's size, so their `median_norm` is the norm of what the
    file holds: one alpha adds the vector as the file has it.

    Raises:
        SteeringError: missing, damaged, not a direction file, or a vector that is zero, not finite
            or of another width than the others.
    """
    path = Path(path)
    require_file(path, "a direction (.npz, .safetensors or .gguf)", SteeringError)
    suffix = _suffix(path)
    if suffix == ".npz":
        return (_read_npz(path),)
    if suffix == ".gguf":
        hint, tensors, texts = read_control_vector(path)
    else:
        hint, (tensors, texts) = "", _read_safetensors(path)
    return tuple(
        _restored(path, layer, tensors[layer], texts.get(layer), hint) for layer in sorted(tensors)
    )


def read_direction(path: str | Path, layer: int | None = None) -> Direction:
    """Read one direction of a file.

    Args:
        path: see `read_directions`.
        layer: which, where the file holds several; None takes the only one.

    Raises:
        SteeringError: see `read_directions`; or the layer is not there, or not said.
    """
    path = Path(path)
    found = read_directions(path)
    kept = [direction for direction in found if layer in (None, direction.layer)]
    if len(kept) != 1:
        layers = ", ".join(str(direction.layer) for direction in found)
        wanted = "no layer was named" if layer is None else f"layer {layer} was asked for"
        raise SteeringError(f"{path} holds directions of layers {layers}, and {wanted}.")
    return kept[0]


def require_model(direction: Direction, *, model_id: str, d_model: int, n_layers: int) -> None:
    """Raise `SteeringError` unless a direction belongs to a model.

    A file of another program may not name the model exactly; then width and layer decide.
    """
    width = direction.vector.shape[0]
    if width != d_model:
        raise SteeringError(
            f"The direction has {width} entries, but {model_id} has d_model {d_model}: it belongs "
            f"to another model ({direction.model_id or 'not named'})."
        )
    if direction.layer >= n_layers:
        raise SteeringError(
            f"The direction is for layer {direction.layer}, but {model_id} has layers 0 to "
            f"{n_layers - 1}."
        )
    if direction.method != "file" and direction.model_id != model_id:
        raise SteeringError(
            f"The direction was read from {direction.model_id!r}, not from {model_id!r}; residual "
            f"streams of two models have nothing in common. Fit one on a cache of {model_id!r}."
        )


def _read_npz(path: Path) -> Direction:
    try:
        # Opened here: numpy would leave its own handle open where the file turns out damaged.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as data:
            return Direction(vector=data["vector"], **json.loads(str(data["fields"])))
    except _NPZ_ERRORS as error:
        raise SteeringError(f"{path} is not a direction file ({error}).") from error


def _read_safetensors(path: Path) -> tuple[dict[int, NDArray[np.float32]], dict[int, str]]:
    from safetensors import SafetensorError, safe_open

    tensors: dict[int, NDArray[np.float32]] = {}
    texts: dict[int, str] = {}
    try:
        with safe_open(path, framework="numpy") as file:
            metadata: Mapping[str, str] = file.metadata() or {}
            for name in file.keys():  # noqa: SIM118  # not a mapping
                prefix, _, number = name.partition(".")
                if prefix != "direction" or not number.isdecimal():
                    raise SteeringError(
                        f"{path} holds a tensor {name!r}; expected direction.<layer> only."
                    )
                tensors[int(number)] = file.get_tensor(name)
                if name in metadata:
                    texts[int(number)] = metadata[name]
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise SteeringError(f"{path} is not a direction file ({error}).") from error
    if not tensors:
        raise SteeringError(f"{path} holds no tensor; expected direction.<layer>.")
    return tensors, texts


def _restored(
    path: Path, layer: int, vector: NDArray[np.floating[Any]], text: str | None, hint: str
) -> Direction:
    """A direction from a file's tensor, with the fields that we or nobody wrote beside it."""
    if vector.ndim != 1 or vector.dtype.kind != "f":
        raise SteeringError(
            f"{path}: direction.{layer} has shape {vector.shape} and type {vector.dtype}; expected "
            f"one vector of floating-point numbers."
        )
    try:
        found = unit_direction(
            vector,
            method="file",
            layer=layer,
            median_norm=float(np.linalg.norm(vector.astype(np.float64))) or 1.0,
            model_id=hint,
            token_rule="unknown",  # noqa: S106  # no password
            details={"file": path.name},
        )
        if text is None:
            return found
        return Direction(**{"vector": found.vector, **json.loads(text), "layer": layer})
    except SteeringError as error:
        raise SteeringError(f"{path}: {error}") from error
    except (ValueError, TypeError) as error:
        raise SteeringError(f"{path} is not a direction file ({error}).") from error
