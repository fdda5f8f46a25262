"""A GGUF file as a base: its tensors under the names of transformers, dequantised one at a time.

Only the header is read on opening; a tensor is dequantised when it is asked for. What llama.cpp's
converter does to weights of these architectures (rows of q and k in another order, 1 added to
norms) is undone, so that each tensor is the one that transformers would load.
"""

from __future__ import annotations

import mmap
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from interp.adapters.base import BaseModel
from interp.errors import AdapterError

__all__ = ["open_gguf"]

_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Two norms more in each block, under other names.
_GEMMA: Final = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_PERMUTED: Final = ("llama",)
_SHIFTED_NORMS: Final = ("gemma2", "gemma3")
_ARCHITECTURES: Final = (*_PERMUTED, *_SHIFTED_NORMS, "qwen2", "qwen3")
_BLOCK: Final = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_OUTER: Final = re.compile(r"(\w+)\.(weight|bias)")

# Formats of the header's values, by number; 8 is a text, 9 an array.
_SCALARS: Final = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"
}  # fmt: skip
_MOST_ENTRIES: Final = 10_000_000


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where a tensor lies, and how it is stored; `shape` with the rows first."""

    shape: tuple[int, ...]
    kind: int
    start: int
    n_heads: int = 0
    shift: float = 0.0


class _Header:
    """Reads values one after the other; raises ValueError beyond the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self.place = 0

    def take(self, form: str) -> Any:
        size = struct.calcsize(f"<{form}")
        if self.place + size > len(self._data):
            raise ValueError("the header is cut short")
        (value,) = struct.unpack_from(f"<{form}", self._data, self.place)
        self.place += size
        return value

    def text(self) -> str:
        size = self.take("Q")
        if size > len(self._data) - self.place:
            raise ValueError("the header is cut short")
        self.place += size
        return self._data[self.place - size : self.place].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """A value; of an array only its first one, because tokenizers are long and not needed."""
        if kind == 8:
            return self.text()
        if kind in _SCALARS:
            return self.take(_SCALARS[kind])
        if kind != 9:
            raise ValueError(f"a value of unknown kind {kind}")
        inner, count = self.take("I"), self.take("Q")
        if count > _MOST_ENTRIES:
            raise ValueError(f"an array of {count} values")
        first = self.value(inner) if count else None
        if inner in _SCALARS:
            self.place += max(count - 1, 0) * struct.calcsize(f"<{_SCALARS[inner]}")
        else:
            for _ in range(count - 1):
                self.value(inner)
        return first


class _GGUFTensors:
    """Tensors of the file, by the names of transformers."""

    def __init__(self, path: Path, data: mmap.mmap, entries: dict[str, _Entry]) -> None:
        self._path = path
        self._data = data
        self._entries = entries

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self._entries[name].shape

    def get(self, name: str) -> torch.Tensor:
        """The tensor in float32.

        Raises:
            AdapterError: its format is not known, or the file is cut short.
        """
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
        from gguf.quants import dequantize

        entry = self._entries[name]
        try:
            kind = GGMLQuantizationType(entry.kind)
            block, size = GGML_QUANT_SIZES[kind]
            width = entry.shape[-1] // block * size
            n_rows = int(np.prod(entry.shape[:-1], dtype=np.int64))
            end = entry.start + n_rows * width
            if end > len(self._data):
                raise ValueError("the file ends before it")
            raw = np.frombuffer(self._data[entry.start : end], dtype=np.uint8)
            values = dequantize(raw.reshape(n_rows, width), kind)
        except (ValueError, KeyError, NotImplementedError) as error:
            raise AdapterError(
                f"{name} of {self._path} cannot be dequantised ({error}). Give a folder instead."
            ) from error
        whole = torch.from_numpy(np.array(values, dtype=np.float32)).reshape(entry.shape)
        if entry.n_heads:
            # The converter puts the two halves of each head's rotary pairs beside each other.
            half = entry.shape[0] // entry.n_heads // 2
            cut = whole.reshape(entry.n_heads, half, 2, *entry.shape[1:])
            whole = cut.swapaxes(1, 2).reshape(entry.shape)
        return whole - entry.shift if entry.shift else whole


@contextmanager
def open_gguf(path: Path) -> Iterator[BaseModel]:
    """Open a GGUF file of a dense model with the names of Llama.

    Raises:
        AdapterError: no GGUF file, one that is cut short, or of an architecture whose names and
            conversions are not known here.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            entries = _entries(path, data)
            yield BaseModel.of(
                _GGUFTensors(path, data, entries),
                path=path,
                tied="lm_head.weight" not in entries,
                dequantised=True,
            )
    except (OSError, ValueError, struct.error) as error:
        raise AdapterError(
            f"{path} is no GGUF file that can be read ({error}). Give the base as a folder with "
            f"model.safetensors."
        ) from error


def _entries(path: Path, data: mmap.mmap) -> dict[str, _Entry]:
    header = _Header(data)
    if header.take("I") != 0x46554747:
        raise ValueError("it does not start with GGUF")
    if header.take("I") not in (2, 3):
        raise ValueError("its version is neither 2 nor 3")
    n_tensors, n_values = header.take("Q"), header.take("Q")
    if max(n_tensors, n_values) > _MOST_ENTRIES:
        raise ValueError("its header is damaged")
    fields: dict[str, Any] = {}
    for _ in range(n_values):
        name = header.text()
        fields[name] = header.value(header.take("I"))
    architecture = str(fields.get("general.architecture"))
    if architecture not in _ARCHITECTURES:
        raise AdapterError(
            f"{path} holds a model of architecture {architecture!r}, whose names are not known "
            f"here; known are {', '.join(_ARCHITECTURES)}. Give the base as a folder."
        )
    found = []
    for _ in range(n_tensors):
        name = header.text()
        shape = tuple(header.take("Q") for _ in range(header.take("I")))
        found.append((name, shape[::-1], header.take("I"), header.take("Q")))
    alignment = int(fields.get("general.alignment", 32))
    start = -(-header.place // alignment) * alignment
    heads = {
        "attn_q": int(fields.get(f"{architecture}.attention.head_count", 0)),
        "attn_k": int(
            fields.get(f"{architecture}.attention.head_count_kv")
            or fields.get(f"{architecture}.attention.head_count", 0)
        ),
    }
    entries = {}
    for name, shape, kind, offset in found:
        short, called = _renamed(name, architecture)
        if called is None:
            if name.startswith("rope_"):
                continue  # computed, no parameter
            raise AdapterError(
                f"{path} holds {name}, whose name in transformers is not known here. Give the base "
                f"as a folder."
            )
        entries[called] = _Entry(
            shape,
            kind,
            start + offset,
            n_heads=heads.get(short, 0) if architecture in _PERMUTED else 0,
            shift=1.0 if architecture in _SHIFTED_NORMS and short.endswith("norm") else 0.0,
        )
    return entries


def _renamed(name: str, architecture: str) -> tuple[str, str | None]:
    """GGUF's short name, and the whole name in transformers; None if there is none."""
    names = _NAMES
    if architecture in ("gemma2", "gemma3"):
        names = _NAMES | _GEMMA
    match = _BLOCK.fullmatch(name)
    if match and match[2] in names:
        return match[2], f"model.layers.{match[1]}.{names[match[2]]}.{match[3]}"
    match = _OUTER.fullmatch(name)
    if match and match[1] in names:
        return match[1], f"{names[match[1]]}.{match[2]}"
    return "", None
