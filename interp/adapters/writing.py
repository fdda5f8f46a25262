"""An audit as JSON and CSV."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Final

from interp.adapters.results import AdapterAudit, ModuleAudit, Totals, by_layer, by_projection
from interp.files import atomic_path, drawn_files, replaced_together, write_json

__all__ = ["audit_to_json", "write_audits"]

_FIGURES: Final = drawn_files("heat_map", "spectrum", "trajectory")
"""Drawn from an audit, below its folder: they go when it goes."""


def audit_to_json(audit: AdapterAudit) -> dict[str, Any]:
    """The object that scripts rely on: path, verdict, findings, totals, modules, budget, and more.

    JSON has no infinity and no NaN: they become null.
    """
    value: dict[str, Any] = _finite(
        {
            "path": str(audit.path),
            "verdict": audit.verdict,
            "findings": [asdict(found) for found in audit.findings],
            "totals": asdict(audit.totals),
            "modules": [asdict(module) for module in audit.modules],
            "budget": audit.budget,
            "summary": audit.summary,
            "by_layer": [
                {"layer": layer, **asdict(found)}
                for layer, found in by_layer(audit.modules).items()
            ],
            "by_projection": [
                {"projection": name, **asdict(found)}
                for name, found in by_projection(audit.modules).items()
            ],
            "direction": None if audit.direction is None else asdict(audit.direction),
            "compared": [{**asdict(found), "other": str(found.other)} for found in audit.compared],
        }
    )
    return value


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    if not isinstance(value, float):
        return value
    # A negative zero is a zero.
    return value + 0.0 if math.isfinite(value) else None


def write_audits(folder: str | Path, audits: Sequence[AdapterAudit]) -> tuple[Path, ...]:
    """Write an audit's files into a folder, in place of those of an older one.

    `audit.json` ({"audits": […]}), `modules.csv`, `totals.csv` (whole, by layer, by projection)
    and, where runs were compared, `compared.csv`.

    Returns:
        the files.
    """
    folder = Path(folder)
    columns = [field.name for field in fields(ModuleAudit) if field.name != "singular_values"]
    modules = (
        [audit.path, *(_cell(getattr(module, column)) for column in columns)]
        for audit in audits
        for module in audit.modules
    )
    names = [field.name for field in fields(Totals)]
    totals = (
        [audit.path, part, *(getattr(found, name) for name in names)]
        for audit in audits
        for part, found in _parts(audit)
    )
    pairs = [
        [audit.path, other.other, *(pair.name, pair.cosine, pair.left_alignment, pair.chance)]
        for audit in audits
        for other in audit.compared
        for pair in other.modules
    ]
    with replaced_together(folder, last="audit.json", gone=("compared.csv", *_FIGURES)) as aside:
        written = [
            _write(aside / "modules.csv", ["path", *columns], modules),
            _write(aside / "totals.csv", ["path", "part", *names], totals),
        ]
        if pairs:
            header = ["path", "other", "name", "cosine", "left_alignment", "chance"]
            written.append(_write(aside / "compared.csv", header, pairs))
        result = aside / "audit.json"
        write_json(result, {"audits": [audit_to_json(audit) for audit in audits]})
    return tuple(folder / path.name for path in (result, *written))


def _parts(audit: AdapterAudit) -> Iterable[tuple[str, Totals]]:
    yield "all", audit.totals
    for layer, found in by_layer(audit.modules).items():
        yield f"layer {layer}", found
    yield from by_projection(audit.modules).items()


def _write(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> Path:
    with atomic_path(path) as aside, aside.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(header)
        writer.writerows(rows)
    return path


def _cell(value: object) -> object:
    return "x".join(map(str, value)) if isinstance(value, tuple) else value
