"""What tests of audits share: one audit, its codes, and files changed on purpose."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import torch
from adapter_models import llama
from safetensors.torch import load_file, save_file

from interp.adapters import AdapterAudit, audit_path


def codes(audit: AdapterAudit) -> set[str]:
    return {found.code for found in audit.findings}


def one(path: Path, **options: Any) -> AdapterAudit:
    (audit,) = audit_path(path, **options)
    return audit


def rewrite(folder: Path, change: Callable[[str, torch.Tensor], dict[str, torch.Tensor]]) -> None:
    """Replace each tensor of an adapter by what `change` makes of it."""
    file = folder / "adapter_model.safetensors"
    new: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(file).items():
        new |= change(name, tensor.clone())
    save_file(new, file)


def configure(folder: Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    raw = json.loads(path.read_text())
    for name, value in changes.items():
        if value is None:
            raw.pop(name, None)
        else:
            raw[name] = value
    path.write_text(json.dumps(raw))


def attached(folder: Path) -> float:
    """Largest entry of any B after PEFT has loaded the adapter: 0 if it attached nothing."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.PeftModel.from_pretrained(llama().double(), folder / "adapter")
    return max(float(p.abs().max()) for n, p in model.named_parameters() if "lora_B" in n)


def drop(part: str) -> Callable[[str, torch.Tensor], dict[str, torch.Tensor]]:
    return lambda n, t: {} if part in n else {n: t}


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return (Path.touch, (self.path,))


def wrapped(model: torch.nn.Module, config: peft.PeftConfig) -> peft.PeftModel:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return peft.get_peft_model(model, config)
