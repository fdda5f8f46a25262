"""Audits of adapters from their files: did training change the model, and if not, why?

torch is imported only when something is used that needs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from interp.adapters.audit import audit_adapter, audit_path, audit_tensors
    from interp.adapters.locate import find_adapters
    from interp.adapters.results import AdapterAudit, ModuleAudit
    from interp.adapters.runs import RunAudit, audit_runs
    from interp.adapters.writing import audit_to_json, write_audits

__all__ = [
    "AdapterAudit",
    "ModuleAudit",
    "RunAudit",
    "audit_adapter",
    "audit_path",
    "audit_runs",
    "audit_tensors",
    "audit_to_json",
    "find_adapters",
    "write_audits",
]

_HOMES = {
    "AdapterAudit": "results",
    "ModuleAudit": "results",
    "RunAudit": "runs",
    "audit_adapter": "audit",
    "audit_path": "audit",
    "audit_runs": "runs",
    "audit_tensors": "audit",
    "audit_to_json": "writing",
    "find_adapters": "locate",
    "write_audits": "writing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'interp.adapters' has no attribute {name!r}")
    return getattr(import_module(f"interp.adapters.{_HOMES[name]}"), name)
