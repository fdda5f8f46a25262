"""The inventory of MAST-Data: FC2-positive traces by framework, model, benchmark and split."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from interp.errors import SourceError
from interp.mast.records import MastRecord, TraceId, iterate_records
from interp.mast.split import Split, SplitUnit
from interp.mast.taxonomy import MAST_CODES

__all__ = ["Cell", "Inventory", "TraceEntry", "inventory_of", "take_inventory"]

_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """What the inventory keeps of a trace.

    Attributes:
        key: (`trace.key`, `trace_id`).
        framework: `mas_name`.
        model: `llm_name`.
        benchmark: `benchmark_name`.
        labels: (14,) as in `MastRecord`.
        fc2: whether an FC2 mode is present; None where nulls leave it open.
        fc2_codes: the FC2 modes that are.
        n_chars: length of the trajectory.
        digest: of the trajectory's text.
        unit: label of its unit in the split, or None.
        side: `train`, `hold_out`, or None.
    """

    key: TraceId
    framework: str
    model: str
    benchmark: str
    labels: tuple[bool | None, ...]
    fc2: bool | None
    fc2_codes: tuple[str, ...]
    n_chars: int
    digest: bytes
    unit: str | None
    side: str | None


@dataclass(frozen=True, slots=True)
class Cell:
    """Traces of one framework, model and benchmark.

    Attributes:
        framework: `mas_name`.
        model: `llm_name`.
        benchmark: `benchmark_name`.
        n: traces.
        fc2: FC2-positive ones.
        unlabelled: traces whose nulls leave FC2 open.
    """

    framework: str
    model: str
    benchmark: str
    n: int
    fc2: int
    unlabelled: int


@dataclass(frozen=True, slots=True)
class Inventory:
    """Counts of a file under a split.

    Attributes:
        entries: one a trace, in file order.
        split: the units.
        cells: by framework, model, benchmark, sorted.
        code_counts: how often each of the 14 modes is present.
        warnings: what a reader of the counts must know.
    """

    entries: tuple[TraceEntry, ...]
    split: Split
    cells: tuple[Cell, ...]
    code_counts: dict[str, int]
    warnings: tuple[str, ...]

    def unit_rows(self, side: str) -> list[dict[str, Any]]:
        """Rows of the train or hold-out table: label, n, fc2, role."""
        counts = Counter(entry.unit for entry in self.entries)
        fc2 = Counter(entry.unit for entry in self.entries if entry.fc2)
        return [
            {"label": u.label, "n": counts[u.label], "fc2": fc2[u.label], "role": u.role}
            for u in self.split.units
            if u.side == side
        ]

    def unassigned(self) -> list[dict[str, Any]]:
        """FC2-positive traces that no unit takes, by framework, model, benchmark."""
        counts = Counter(
            (e.framework, e.model, e.benchmark) for e in self.entries if e.fc2 and e.unit is None
        )
        return [
            {"framework": f, "model": m, "benchmark": b, "fc2": n}
            for (f, m, b), n in sorted(counts.items())
        ]

    def summary(self) -> dict[str, Any]:
        """Everything but the entries, as a JSON object."""
        sides = {side: self.unit_rows(side) for side in ("train", "hold_out")}
        return {
            "n_traces": len(self.entries),
            "n_fc2": sum(entry.fc2 is True for entry in self.entries),
            "n_unlabelled": sum(entry.fc2 is None for entry in self.entries),
            "code_counts": self.code_counts,
            "cells": [
                {name: getattr(cell, name) for name in Cell.__slots__} for cell in self.cells
            ],
            "split": {
                "name": self.split.name,
                **{
                    side: {"units": rows, "fc2": sum(row["fc2"] for row in rows)}
                    for side, rows in sides.items()
                },
                "unassigned": self.unassigned(),
            },
            "warnings": list(self.warnings),
        }


def _entry(record: MastRecord, unit: SplitUnit | None) -> TraceEntry:
    text = record.trajectory.strip().encode("utf-8", "surrogatepass")
    return TraceEntry(
        key=record.key,
        framework=record.framework,
        model=record.model,
        benchmark=record.benchmark,
        labels=record.labels,
        fc2=record.fc2,
        fc2_codes=record.fc2_codes,
        n_chars=len(record.trajectory),
        digest=hashlib.sha256(text).digest()[:16],
        unit=unit.label if unit else None,
        side=unit.side if unit else None,
    )


def take_inventory(
    path: str | Path, split: Split, *, progress: Callable[[int], None] | None = None
) -> Inventory:
    """Stream `MAD_full_dataset.json` and count.

    Raises:
        SourceError: as `iterate_records`; or the file holds no traces.
    """
    path = Path(path)
    found = inventory_of(iterate_records(path, progress=progress), split)
    if not found.entries:
        raise SourceError(f"{path} holds no traces; expected the 1,642 of MAST-Data.")
    return found


def inventory_of(records: Iterable[MastRecord], split: Split) -> Inventory:
    """Count records; none is kept."""
    entries = tuple(
        _entry(record, split.unit_of(record.framework, record.model, record.benchmark))
        for record in records
    )
    total: Counter[tuple[str, str, str]] = Counter()
    positive: Counter[tuple[str, str, str]] = Counter()
    unknown: Counter[tuple[str, str, str]] = Counter()
    codes: Counter[str] = Counter()
    for entry in entries:
        cell = (entry.framework, entry.model, entry.benchmark)
        total[cell] += 1
        positive[cell] += entry.fc2 is True
        unknown[cell] += entry.fc2 is None
        codes.update(code for code, label in zip(MAST_CODES, entry.labels, strict=True) if label)
    return Inventory(
        entries=entries,
        split=split,
        cells=tuple(
            Cell(*cell, total[cell], positive[cell], unknown[cell]) for cell in sorted(total)
        ),
        code_counts={code: codes[code] for code in MAST_CODES},
        warnings=(
            *_null_warnings(entries),
            *_duplicate_warnings(entries),
            *_replication_warnings(entries),
            *_split_warnings(entries, split),
        ),
    )


def _name(entry: TraceEntry) -> str:
    return f"{entry.key[0]}/{entry.key[1]}"


def _some(names: Iterable[str]) -> str:
    """The first few of many names."""
    listed = list(names)
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return ", ".join(listed[:_SHOWN]) + more


def _null_warnings(entries: tuple[TraceEntry, ...]) -> list[str]:
    null = [entry for entry in entries if None in entry.labels]
    if not null:
        return []
    n_open = sum(entry.fc2 is None for entry in null)
    return [
        f"{len(null)} traces have null annotations ({_some(map(_name, null))}); for {n_open} of "
        f"them FC2 is open, and they are counted neither as positive nor as negative."
    ]


def _duplicate_warnings(entries: tuple[TraceEntry, ...]) -> list[str]:
    by_text: dict[bytes, list[TraceEntry]] = defaultdict(list)
    for entry in entries:
        by_text[entry.digest].append(entry)
    groups = [group for group in by_text.values() if len(group) > 1]
    if not groups:
        return []
    first = " = ".join(_name(entry) for entry in groups[0][:_SHOWN])
    differ = sum(len({entry.labels for entry in group}) > 1 for group in groups)
    found = [
        f"{sum(map(len, groups))} traces are copies of another: {len(groups)} texts occur more "
        f"than once ({first}). {differ} of these texts are annotated in more than one way."
    ]
    both = [g for g in groups if {"train", "hold_out"} <= {entry.side for entry in g}]
    if both:
        found.append(
            f"{len(both)} texts stand in train and in hold-out alike "
            f"({' = '.join(_name(entry) for entry in both[0][:_SHOWN])}): the split leaks."
        )
    return found


def _replication_warnings(entries: tuple[TraceEntry, ...]) -> list[str]:
    from interp.mast.replicated import replicated_blocks

    runs: dict[str, list[TraceEntry]] = defaultdict(list)
    for entry in entries:
        runs[entry.key[0]].append(entry)
    for run in runs.values():
        run.sort(key=lambda entry: entry.key[1])
    blocks = replicated_blocks({key: [e.labels for e in run] for key, run in runs.items()})
    frameworks = {key: {entry.framework for entry in run} for key, run in runs.items()}
    found = []
    for block in blocks:
        across = frameworks[block.first] != frameworks[block.second]
        start, other = runs[block.first][block.first_start], runs[block.second][block.second_start]
        found.append(
            f"{block.n} annotations in a row are the same in {_name(start)} onwards and in "
            f"{_name(other)} onwards{', runs of different frameworks' * across}: one of them was "
            f"probably copied."
        )
    return found


def _split_warnings(entries: tuple[TraceEntry, ...], split: Split) -> list[str]:
    used = {entry.unit for entry in entries}
    empty = [unit.label for unit in split.units if unit.label not in used]
    found = []
    if empty:
        found.append(
            f"No trace belongs to the unit{'s' * (len(empty) > 1)} {', '.join(empty)} of the split "
            f"{split.name!r}: names must be those of the file."
        )
    out = Counter(
        f"{e.framework}/{e.benchmark}/{e.model}" for e in entries if e.fc2 and e.unit is None
    )
    if out:
        listed = _some(f"{name} {n}" for name, n in sorted(out.items()))
        found.append(
            f"{sum(out.values())} FC2-positive traces belong to no unit of the split "
            f"{split.name!r} ({listed}) and are in neither table."
        )
    return found
