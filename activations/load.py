"""From a `ModelSpec` to a running backend."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
from transformers.utils import logging as transformers_logging

from activations.digests import weights_sha256
from activations.hf import HFBackend
from activations.spec import ModelSpec
from activations.tokens import require_template_args
from interp.adapters.device import usable_device
from interp.errors import ModelError

__all__ = ["load_backend"]

_PROGRESS_BAR: Final = re.compile(r"\d+%\|")


def load_backend(spec: ModelSpec) -> HFBackend:
    """Load a model with transformers; `activations.libraries.in_library` puts it into another.

    GGUF weights are dequantised to `spec.dtype`. Remote code is never run.

    Raises:
        ModelError: the device cannot be used, or the model cannot be found or read; says what was
            tried.
    """
    device = usable_device(spec.device, ModelError)
    files: dict[str, Any] = {}
    options: dict[str, Any] = {}
    where = spec.location
    weights = weights_sha256(spec)
    if spec.kind == "gguf":
        path = Path(spec.location)
        where, files["gguf_file"] = str(path.parent), path.name
        # Left to itself, transformers keeps some families' weights packed where it finds kernels
        # for them, and takes another attention.
        options["quantization_config"] = GgufConfig(dequantize=True)
    elif spec.kind == "hub":
        files["revision"] = spec.revision or "main"
    if spec.device_map is not None:
        named = spec.device_map.lstrip().startswith("{")
        options["device_map"] = json.loads(spec.device_map) if named else spec.device_map
    if spec.quantization is not None:
        options["quantization_config"] = _quantized(spec)
    try:
        with _without_progress_bars(), _parsed_once(spec):
            tokenizer = AutoTokenizer.from_pretrained(where, **files)
            model = AutoModelForCausalLM.from_pretrained(
                where,
                dtype=getattr(torch, spec.dtype),
                attn_implementation=spec.attn,
                **files,
                **options,
            )
        if spec.device_map is None and spec.quantization is None:
            model = model.to(device)
    except Exception as error:
        raise ModelError(_why_not(spec, error)) from error
    revision = spec.revision
    if spec.kind == "hub":
        commit = getattr(model.config, "_commit_hash", None)
        revision = commit or spec.revision
        weights = f"hub:{commit}" if commit else None
    require_template_args(tokenizer, spec.template_args)
    return HFBackend(
        model,
        tokenizer,
        model_id=spec.model_id,
        weights=weights,
        revision=revision,
        template_args=spec.template_args,
    )


def _quantized(spec: ModelSpec) -> Any:
    """How transformers is told to quantise while it loads."""
    if find_spec("bitsandbytes") is None:
        raise ModelError(
            "--quantization needs the package bitsandbytes, which is not installed. Install it "
            "with: pip install 'interp[quantization]'"
        )
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_8bit=spec.quantization == "int8",
        load_in_4bit=spec.quantization == "int4",
        bnb_4bit_compute_dtype=getattr(torch, spec.dtype),
    )


def _why_not(spec: ModelSpec, error: Exception) -> str:
    lines = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        hint = "There is no room for it; use --dtype bfloat16 or another --device."
    elif "attn_implementation" in reason or (spec.attn and "attention" in reason.lower()):
        hint = "Give another --attn: eager and sdpa need nothing installed."
    elif spec.kind == "gguf":
        size = Path(spec.location).stat().st_size
        hint = f"The file has {size:,} bytes; it may be truncated: copy or download it again."
    elif spec.kind == "local":
        hint = "Expected a complete model folder that transformers can load."
    else:
        hint = (
            "Check the id, the revision, and that the Hub can be reached or has the model cached."
        )
    return f"The model {spec.location!r} cannot be loaded ({reason}). {hint}"


@contextmanager
def _parsed_once(spec: ModelSpec) -> Iterator[None]:
    """Within the context the header of a GGUF file is read once.

    transformers reads it for the configuration, the tokenizer and the weights, and makes the table
    of tensor names for every module: more than half of the time that loading takes.
    """
    if spec.kind != "gguf":
        yield
        return
    import gguf

    own = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = map(cache, own)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = own


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Hold standard error back, and pass on what is not a progress bar.

    transformers has a switch for its bars, but the one of the GGUF reader does not obey it.
    """
    transformers_logging.disable_progress_bar()
    held = io.StringIO()
    try:
        with redirect_stderr(held):
            yield
    finally:
        lines = [line.rsplit("\r", 1)[-1] for line in held.getvalue().split("\n")]
        for line in lines:
            if line.strip() and not _PROGRESS_BAR.search(line):
                sys.stderr.write(line + "\n")
