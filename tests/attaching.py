"""Adapters for tests, written by peft."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model

__all__ = ["save_adapter"]


def save_adapter(model: Any, folder: Path, *, trained: bool = True, **options: Any) -> Any:
    """A LoRA adapter with random (or untouched) factors; returns the merged model."""
    torch.manual_seed(3)
    settings: dict[str, Any] = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        wrapped = get_peft_model(copy.deepcopy(model), LoraConfig(**settings | options))
    if trained:
        with torch.no_grad():
            for name, parameter in wrapped.named_parameters():
                if parameter.requires_grad and "lora_A" not in name:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
    wrapped.save_pretrained(folder)
    return wrapped.merge_and_unload().eval()
