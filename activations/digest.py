"""Identity of a model in memory."""

from __future__ import annotations

from hashlib import sha256

import torch
from torch import nn

__all__ = ["parameters_sha256"]


def parameters_sha256(model: nn.Module) -> str:
    """Digest of all parameters and buffers: names, types, shapes and bytes."""
    digest = sha256()
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
