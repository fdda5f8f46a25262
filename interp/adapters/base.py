"""The base model's weights, read one tensor at a time; no model is built."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from interp.adapters.tensors import LookedUpTensors, NamedTensors, Tensors, shards
from interp.errors import AdapterError

__all__ = ["BaseModel", "leading", "live_base", "open_base"]

_EMBEDDINGS: Final = (
    "embed_tokens.weight",
    "wte.weight",
    "word_embeddings.weight",
    "shared.weight",
)
# Fused experts that files keep apart: parameter to the names whose rows are stacked, in order.
_UNFUSED: Final = {
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")),
    "down_proj": (("down_proj",), ("w2",)),
}
# Models whose modules are called otherwise than the tensors in their files.
_RENAMED: Final = ((".mlp.", ".block_sparse_moe."),)
# Families whose modules and files are called by names of their own, which are not known here.
_RENAMED_FAMILIES: Final = ("beit", "deit", "dinov2", "dinov2_with_registers", "vit")
# Families with Conv1D, which stores its matrix (in, out), and what of them is a Linear.
_CONV1D_FAMILIES: Final = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer")
_LINEAR_HEADS: Final = ("lm_head", "score", "classifier", "qa_outputs", "summary", "wte", "wpe")
# From the segment before the first number on.
_NUMBERED: Final = re.compile(r"(?:^|\.)([^.]+\.\d+\..+)$")
# The text part of a model for several kinds of input.
_PARTS: Final = frozenset({"language_model", "text_model"})


@dataclass(frozen=True, slots=True)
class BaseModel:
    """Names and tensors of a base model.

    Attributes:
        path: its folder or file; None for the weights of a live model.
        tensors: the open files.
        tied: whether input and output embeddings are one tensor.
        by_tail: from a name's end, counted from the block index on, to full names.
        multimodal: whether its config has parts for several kinds of input.
        dequantised: whether its weights were stored in fewer bits than they have here.
        family: `model_type` of its config; empty where it is not known.
    """

    path: Path | None
    tensors: NamedTensors
    tied: bool
    by_tail: dict[str, list[str]]
    multimodal: bool = False
    dequantised: bool = False
    family: str = ""

    @classmethod
    def of(
        cls,
        tensors: NamedTensors,
        *,
        path: Path | None = None,
        tied: bool = False,
        multimodal: bool = False,
        dequantised: bool = False,
        family: str = "",
    ) -> BaseModel:
        """A base with an index of its names."""
        by_tail: dict[str, list[str]] = {}
        for name in tensors:
            by_tail.setdefault(_tail(name), []).append(name)
        return cls(path, tensors, tied, by_tail, multimodal, dequantised, family)

    @property
    def renamed(self) -> bool:
        """Whether its files may call modules by names that are not known here."""
        return self.family in _RENAMED_FAMILIES

    @property
    def label(self) -> str:
        """What messages call it."""
        return "the live model" if self.path is None else str(self.path)

    def turned(self, module: str) -> bool | None:
        """Whether a module's matrix is stored (in, out); None where the family is not known."""
        if not self.family:
            return None
        linear = set(module.split(".")) & set(_LINEAR_HEADS)
        return self.family in _CONV1D_FAMILIES and not linear

    def find(self, name: str) -> str | None:
        """Name in the files of the tensor that a module calls `name`, None if there is none.

        Files may lack or add leading segments (`transformer.`, `model.`): then the end of the
        name, from the block index on, must fit one tensor. Of several, the one that shares the
        most leading segments is taken (the text and the vision part of one model).
        """
        if name in self.tensors:
            return name
        best = self._candidates(name)
        if len(best) == 1:
            return best[0]
        if self.tied and name.endswith(("lm_head.weight", "embed_out.weight")):
            return next((n for n in self.tensors if n.endswith(_EMBEDDINGS)), None)
        return None

    def holds(self, name: str) -> bool:
        """Whether there is such a parameter in any form; nothing is read."""
        forms = (self.find(name), self._stray_expert(name), self.find(f"{name}_blocks"))
        return any(form is not None for form in forms)

    def ambiguous(self, name: str) -> bool:
        """Whether several tensors could be meant by `name`."""
        return name not in self.tensors and len(self._candidates(name)) > 1

    def astray(self, name: str, *, headless: bool = False) -> str | None:
        """The tensor that fits the end of `name` only, so that the module is not where `name` says.

        Differences between a model's files and its modules that loading takes care of do not count.

        Args:
            name: of a parameter.
            headless: whether the adapter's model lacks the outer module that the files may have.
        """
        found = self.find(name) or self._stray_expert(name)
        if found is None or found == name:
            return None
        if found not in self._candidates(name) and self.find(name) is not None:
            return None
        ours, files = leading(name), leading(found)
        outermost = bool(ours) or headless or not _NUMBERED.search(name)
        if self.multimodal and outermost and _parts(ours) == _parts(files):
            return None
        if headless and ours == files[1:]:
            return None
        outer = ours[:1]
        if (
            ours[1:] == files
            and not _PARTS.intersection(outer)
            and not any(
                tensor.startswith((f"{outer[0]}.", "model.", "transformer."))
                for tensor in self.tensors
            )
        ):
            return None  # files of the bare model, as GPT-2's are
        return None if ours == files else found

    def _stray_expert(self, name: str) -> str | None:
        """The first tensor of fused experts that files keep apart."""
        module, _, parameter = name.rpartition(".")
        for parts in _UNFUSED.get(parameter, ()):
            found = self.find(f"{module}.0.{parts[0]}.weight")
            if found is not None:
                return found
        return None

    def _candidates(self, name: str) -> list[str]:
        """The tensors that fit the end of `name` best."""
        for called in (name, *(name.replace(ours, files) for ours, files in _RENAMED)):
            found = self.by_tail.get(_tail(called), [])
            if not _NUMBERED.search(called):
                # `dense.weight` alone says little: a new head is not the old one.
                found = [one for one in found if _related(leading(called), leading(one))]
            if len(found) > 1:
                shared = [len(set(leading(called)) & set(leading(one))) for one in found]
                best = max(shared)
                found = [one for one, n in zip(found, shared, strict=True) if n == best]
            if found:
                return found
        return []

    def get(self, name: str) -> torch.Tensor | None:
        """The tensor that a module calls `name`; fused experts are put together.

        None if there is none, or if it is stored in a form that takes more than its own numbers
        to read (integers, floats of one byte).
        """
        found = self.find(name)
        tensor = self.tensors.get(found) if found is not None else self._experts(name)
        if tensor is None or not tensor.is_floating_point() or tensor.element_size() < 2:
            return None
        return tensor

    def quantized(self, name: str) -> bool:
        """Whether a parameter is there in a quantised form only."""
        if self.get(name) is not None:
            return False
        module = name.removesuffix(".weight")
        forms = (name, f"{module}.qweight", f"{name}_blocks", f"{module}.weight_packed")
        return any(self.find(form) is not None for form in forms)

    def _experts(self, name: str) -> torch.Tensor | None:
        module, _, parameter = name.rpartition(".")
        for parts in _UNFUSED.get(parameter, ()):
            experts: list[torch.Tensor] = []
            while True:
                names = [self.find(f"{module}.{len(experts)}.{part}.weight") for part in parts]
                found = [n for n in names if n is not None]
                if len(found) < len(parts):
                    break
                experts.append(torch.cat([self.tensors.get(n) for n in found]))
            if experts:
                return torch.stack(experts)
        return None


@contextmanager
def open_base(path: Path) -> Iterator[BaseModel]:
    """Open a local model folder (safetensors, or `pytorch_model.bin` with `weights_only`).

    A GGUF file is opened as `interp.adapters.gguf_base.open_gguf` does.

    Raises:
        AdapterError: not a folder with weights, or they cannot be read.
    """
    if path.suffix == ".gguf" and path.is_file():
        from interp.adapters.gguf_base import open_gguf

        with open_gguf(path) as base:
            yield base
        return
    files = shards(path, "model", "pytorch_model.bin") if path.is_dir() else ()
    if not files:
        raise AdapterError(
            f"{path} is no base model: expected a folder with model.safetensors or its shards, or "
            f"a GGUF file. "
            f"Give the folder of the model that the adapter was trained on."
        )
    with Tensors(files) as tensors:
        if tensors.findings:
            raise AdapterError(f"The base model in {path}: {tensors.findings[0].message}")
        raw = _config(path / "config.json")
        parts = ("text_config", "vision_config", "audio_config")
        multimodal = any(isinstance(raw.get(part), dict) for part in parts)
        yield BaseModel.of(
            tensors,
            path=path,
            tied=_tied(raw),
            multimodal=multimodal,
            family=str(raw.get("model_type") or ""),
        )


@contextmanager
def live_base(
    weights: Mapping[str, torch.Tensor] | Callable[[str], torch.Tensor | None], *, tied: bool
) -> Iterator[BaseModel]:
    """The weights of a model in memory.

    Args:
        weights: by the names that the model had before the adapter was put into it, as a mapping
            or as a function that gives None for an unknown name.
        tied: whether input and output embeddings are one tensor.
    """
    if isinstance(weights, Mapping):
        with Tensors((), loaded=weights) as tensors:
            yield BaseModel.of(tensors, tied=tied)
    else:
        yield BaseModel.of(LookedUpTensors(weights), tied=tied)


def _tail(name: str) -> str:
    """A name from the segment before its first number on; without one, its last two segments."""
    match = _NUMBERED.search(name)
    return match[1] if match else ".".join(name.split(".")[-2:])


def leading(name: str) -> list[str]:
    """The segments before a name's tail."""
    return name.split(".")[: -(_tail(name).count(".") + 1)]


def _related(ours: list[str], files: list[str]) -> bool:
    """Whether two names' leading segments can mean one place: one more in front, or some shared."""
    return ours in (files, files[1:]) or ours[1:] == files or not set(ours).isdisjoint(files)


def _parts(leading: list[str]) -> list[str]:
    """Leading segments without those that versions of transformers put in different orders."""
    return [segment for segment in leading if segment != "model" and segment not in _PARTS]


def _config(path: Path) -> dict[str, Any]:
    try:
        raw: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return raw if isinstance(raw, dict) else {}


def _tied(raw: dict[str, Any]) -> bool:
    text = raw.get("text_config")
    inner = text if isinstance(text, dict) else {}
    # transformers leaves the field out where it is the family's default, which is "tied" for GPT-2.
    default = raw.get("model_type") in ("gpt2", "gemma", "gemma2", "gemma3", "gemma3_text")
    return bool(raw.get("tie_word_embeddings", inner.get("tie_word_embeddings", default)))
