"""GRPO runs, and the evidence that they changed anything.

trl, peft and datasets (extra `train`) are imported only when something is used that needs them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from experiments.grpo.callback import AdapterAuditCallback
    from experiments.grpo.config import GrpoConfig, read_config
    from experiments.grpo.evaluate import evaluate
    from experiments.grpo.train import train

__all__ = [
    "AdapterAuditCallback",
    "GrpoConfig",
    "evaluate",
    "read_config",
    "train",
]

_HOMES = {
    "AdapterAuditCallback": "callback",
    "GrpoConfig": "config",
    "evaluate": "evaluate",
    "read_config": "config",
    "train": "train",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'experiments.grpo' has no attribute {name!r}")
    return getattr(import_module(f"experiments.grpo.{_HOMES[name]}"), name)
