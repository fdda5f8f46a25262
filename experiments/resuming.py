"""Is a folder a finished run of these settings, an unfinished one, or something else?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from activations.cache import manifest_differences, refuse_mismatch
from interp.errors import ResultError
from interp.files import read_json, require_writable
from interp.records import RunRecord, read_run, run_folder

__all__ = ["CONFIG", "finished_run", "place_of_run"]

CONFIG: Final = "config.json"
"""The resolved settings of a run, written before anything else."""


def place_of_run(out: Path | None, slug: str) -> Path:
    """The folder of a run, where results can be written or a finished one lies.

    Args:
        out: as given; None takes the default place.
        slug: of the default place.

    Raises:
        ResultError: something is in the way.
        OSError: the place cannot be written to.
    """
    folder = out or run_folder(slug)
    if not (folder / "run.json").exists():
        require_writable(folder, folder=True)
    return folder


def finished_run(
    folder: Path,
    settings: Mapping[str, Any],
    *,
    source: Mapping[str, Any] | None = None,
    weights: str | None = None,
) -> RunRecord | None:
    """The record of a finished run in `folder`; None if there is an unfinished one, or nothing.

    Args:
        folder: of the run.
        settings: what its `config.json` must hold.
        source: the described items that it must have been made of; None leaves them unchecked.
        weights: digest of the model's weights; None likewise.

    Raises:
        CacheError: the folder holds a run of other settings, items or weights.
        ResultError: the folder holds files that are not a run.
    """
    if not (folder / CONFIG).exists():
        if folder.exists() and any(folder.iterdir()):
            raise ResultError(
                f"{folder} is not empty and holds no run. Give a new or an empty folder as --out."
            )
        return None
    found = read_json(folder / CONFIG, "the configuration of a run")
    refuse_mismatch(folder, manifest_differences(found, settings))
    if not (folder / "run.json").exists():
        return None
    record = read_run(folder)
    differences = []
    if source is not None:
        differences += manifest_differences({"source": record.source}, {"source": source})
    if weights is not None:
        was = {"model": {"weights": record.model["weights"]}}
        differences += manifest_differences(was, {"model": {"weights": weights}})
    refuse_mismatch(folder, differences)
    return record
