"""GGUF control vectors, as llama.cpp and repeng read them.

One float32 tensor `direction.<N>` a layer, `general.architecture` = `controlvector`,
`controlvector.model_hint` (the model's type) and `controlvector.layer_count` (the number of
tensors). N counts blocks from 0, as `layer` does here: llama.cpp adds `direction.N` to the output
of block N, at every position, and so does repeng. But llama.cpp has no entry for block 0, and drops
a file that names it: such a direction is refused here.

llama.cpp adds tensor · strength. The tensors are written at the length of one alpha (unit vector
times median residual norm), so that the strength is alpha: `--control-vector-scaled FILE:4`.

Source: llama.cpp, `common_control_vector_load_one` and `llama_adapter_cvec`; repeng,
`ControlVector.import_gguf` and `ControlModel`.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.direction.core import Direction
from interp.errors import SteeringError
from interp.files import atomic_path

__all__ = ["read_control_vector", "write_control_vector"]

_ARCHITECTURE: Final = "controlvector"
_FIELDS_KEY: Final = "interp.directions"


def write_control_vector(
    path: Path,
    directions: Sequence[Direction],
    fields: Sequence[Mapping[str, Any]],
    model_hint: str | None,
) -> None:
    """Write a control vector, atomically.

    Args:
        path: ends in `.gguf`.
        directions: of different layers, in order, none of layer 0.
        fields: of each direction, everything but its vector; kept as JSON under
            `interp.directions`, which other programs pass over.
        model_hint: see the module; None takes the model's id.

    Raises:
        SteeringError: a direction that the format cannot hold.
    """
    from gguf import GGUFWriter

    for direction in directions:
        if direction.hook_point != "resid_post":
            raise SteeringError(
                f"A control vector is added to a block's output; this direction is for the input "
                f"of layer {direction.layer}, which is the output of layer {direction.layer - 1}."
            )
        if direction.layer == 0:
            raise SteeringError(
                "A control vector cannot hold layer 0: llama.cpp has no entry for it and drops "
                "the whole file. Take a layer from 1 on, or write .safetensors or .npz."
            )
    with atomic_path(path) as aside:
        writer = GGUFWriter(aside, _ARCHITECTURE)
        try:
            hint = directions[0].model_id if model_hint is None else model_hint
            writer.add_string(f"{_ARCHITECTURE}.model_hint", hint)
            writer.add_uint32(f"{_ARCHITECTURE}.layer_count", len(directions))
            writer.add_string(_FIELDS_KEY, json.dumps(list(fields)))
            for direction in directions:
                scaled = direction.vector.astype(np.float64) * direction.median_norm
                writer.add_tensor(f"direction.{direction.layer}", scaled.astype(np.float32))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
        except OSError as error:
            if error.errno is not None:
                raise
            # numpy says how much it wrote, but not what kept it from writing more.
            raise OSError(errno.EIO, str(error), str(path)) from error
        finally:
            writer.close()


def read_control_vector(
    path: Path,
) -> tuple[str, dict[int, NDArray[np.float32]], dict[int, str]]:
    """Read a control vector of ours, of llama.cpp or of repeng.

    Returns:
        The model hint; the tensor of each layer; and the JSON of its other fields, where we wrote
        it.

    Raises:
        SteeringError: not a GGUF file, damaged, not a control vector, or a tensor that no reader
            would take.
    """
    from gguf import GGMLQuantizationType, GGUFReader

    try:
        # A damaged file can ask for sizes beyond any integer; numpy warns before it fails.
        with np.errstate(all="ignore"):
            reader = GGUFReader(path)
    except (OSError, ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise SteeringError(
            f"{path} is not a readable GGUF file ({type(error).__name__}: {error}). It may be "
            f"truncated; expected a control vector."
        ) from error
    architecture = _text(reader, "general.architecture")
    if architecture != _ARCHITECTURE:
        raise SteeringError(
            f"{path} has the architecture {architecture!r}; a control vector has "
            f"{_ARCHITECTURE!r}. A model's file is no direction."
        )
    tensors: dict[int, NDArray[np.float32]] = {}
    for tensor in reader.tensors:
        prefix, _, number = str(tensor.name).partition(".")
        if prefix != "direction" or not (number.isascii() and number.isdecimal()):
            raise SteeringError(
                f"{path} holds a tensor {tensor.name!r}; expected direction.<layer> only."
            )
        if tensor.tensor_type != GGMLQuantizationType.F32:
            raise SteeringError(
                f"{path}: {tensor.name} has the type {tensor.tensor_type.name}; expected F32."
            )
        if int(number) in tensors:
            raise SteeringError(f"{path} holds several tensors of layer {int(number)}.")
        tensors[int(number)] = np.array(tensor.data)  # a copy: the file is only mapped
    if not tensors:
        raise SteeringError(f"{path} holds no tensor; expected direction.<layer>.")
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        raise SteeringError(
            f"{path} holds vectors of several widths: "
            f"{sorted({tensor.size for tensor in tensors.values()})}."
        )
    return (_text(reader, f"{_ARCHITECTURE}.model_hint") or "", tensors, _ours(path, reader))


def _text(reader: Any, key: str) -> str | None:
    """A string of the file's metadata; None where it is missing or no string."""
    field = reader.get_field(key)
    if field is None:
        return None
    try:
        value = field.contents()
    except (ValueError, IndexError):  # not UTF-8, or cut short
        return None
    return value if isinstance(value, str) else None


def _ours(path: Path, reader: Any) -> dict[int, str]:
    text = _text(reader, _FIELDS_KEY)
    if text is None:
        return {}
    try:
        return {int(fields["layer"]): json.dumps(fields) for fields in json.loads(text)}
    except (ValueError, TypeError, KeyError) as error:
        raise SteeringError(
            f"{path}: {_FIELDS_KEY} is not what this package writes ({error})."
        ) from error
