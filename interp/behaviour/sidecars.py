"""What the manifest beside an answer file says of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.behaviour.taxonomy import CONDITIONS, Condition
from interp.errors import ResultError, did_you_mean
from interp.files import read_json

__all__ = ["Sidecar", "read_sidecar", "sidecar_path"]


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What a report takes from a manifest.

    Attributes:
        model_id: of the model that answered; None where there is no manifest.
        condition: how it was asked; None where the manifest does not say.
    """

    model_id: str | None = None
    condition: Condition | None = None


def sidecar_path(path: Path) -> Path:
    """Where the manifest of an answer file is."""
    return path.with_name(path.name + ".manifest.json")


def read_sidecar(path: Path) -> Sidecar:
    """Read the manifest beside an answer file, if there is one.

    Raises:
        ResultError: it is not JSON, or names a condition that there is not.
    """
    sidecar = sidecar_path(path)
    if not sidecar.is_file():
        return Sidecar()
    manifest = read_json(sidecar, "the manifest of an answer file")
    model_id = _field(manifest, "model", "model_id")
    condition = _field(manifest, "asked", "condition")
    for known in CONDITIONS:
        if condition == known:
            return Sidecar(model_id, known)
    if condition is not None:
        raise ResultError(
            f"{sidecar}, field 'asked.condition': got {condition!r}. "
            f"{did_you_mean(condition, CONDITIONS)}"
        )
    return Sidecar(model_id)


def _field(manifest: Mapping[str, Any], part: str, name: str) -> str | None:
    value = manifest.get(part)
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None
