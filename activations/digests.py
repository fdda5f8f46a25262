"""Fingerprints of weights: from a model's files, or from its parameters."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from activations.spec import ModelSpec
from interp.files import sha256_file, sha256_json

__all__ = ["identity", "parameters_sha256", "weights_sha256"]

_WEIGHT_FILES: Final = ("*.safetensors", "*.bin", "config.json", "generation_config.json")


def weights_sha256(spec: ModelSpec) -> str | None:
    """Fingerprint of a model's files, without loading it; None for a model on the Hub."""
    if spec.kind == "gguf":
        return sha256_file(Path(spec.location))
    if spec.kind == "hub":
        return None
    folder = Path(spec.location)
    files = sorted(file for pattern in _WEIGHT_FILES for file in folder.glob(pattern))
    return sha256_json({file.name: sha256_file(file) for file in files})


def parameters_sha256(model: nn.Module) -> str:
    """Digest of all parameters and buffers: names, types, shapes and bytes."""
    digest = sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


def identity(model: Any, tokenizer: Any) -> dict[str, Any]:
    """What the numbers depend on beside the weights: text to ids, number type, attention."""
    template = tokenizer.chat_template
    quantized = getattr(model.config, "quantization_config", None)
    return {
        "tokenizer": sha256(tokenizer.backend_tokenizer.to_str().encode()).hexdigest(),
        "chat_template": None if template is None else sha256(str(template).encode()).hexdigest(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "attn_implementation": model.config._attn_implementation,
        "quantization": None if quantized is None else quantized.to_dict(),
    }
