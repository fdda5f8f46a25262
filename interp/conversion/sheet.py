"""The conversion pass in a spreadsheet: a CSV out, the same CSV filled in back."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from interp.conversion.decision import decision_faults, split_criteria, with_criteria
from interp.conversion.log import ConversionEntry, LogKey
from interp.conversion.turns import excerpt, relevant_turns, split_turns
from interp.errors import ResultError
from interp.files import atomic_path, require_file
from interp.mast.records import MastRecord

__all__ = ["SHEET_COLUMNS", "read_sheet", "write_sheet"]

SHEET_COLUMNS: Final = (
    *("trace_key", "trace_id", "framework", "model", "benchmark"),
    *("code", "fails", "rationale", "supporting_quote", "coder", "excerpt"),
)
_NEEDED: Final = ("trace_key", "trace_id", "code", "fails", "rationale", "supporting_quote")
_SHOWN: Final = 10
# A cell holds 32,767 characters in the spreadsheets in use.
_CELL: Final = 30_000


def write_sheet(
    path: Path, records: Iterable[MastRecord], entries: Mapping[LogKey, ConversionEntry]
) -> int:
    """Write one row a trace, with what the log has on it; returns the number of rows."""
    n = 0
    with atomic_path(path) as aside, aside.open("w", encoding="utf-8-sig", newline="") as handle:
        writer = csv.DictWriter(handle, SHEET_COLUMNS)
        writer.writeheader()
        for record in records:
            entry = entries.get((record.trace_key, str(record.trace_id)))
            fails, rationale = split_criteria(entry.rationale) if entry else ("", "")
            text = record.trajectory
            shown = excerpt(text, relevant_turns(text, split_turns(text)))
            writer.writerow(
                {
                    "trace_key": record.trace_key,
                    "trace_id": record.trace_id,
                    "framework": record.framework,
                    "model": record.model,
                    "benchmark": record.benchmark,
                    "code": entry.code if entry else "",
                    "fails": fails,
                    "rationale": rationale,
                    "supporting_quote": entry.supporting_quote if entry else "",
                    "coder": entry.coder if entry else "",
                    "excerpt": shown[:_CELL],
                }
            )
            n += 1
    return n


def _rows(path: Path) -> dict[LogKey, tuple[int, dict[str, str]]]:
    """Coded rows by trace, with their row numbers (the header is row 1)."""
    require_file(path, "a coding sheet (CSV)", ResultError)
    try:
        text = path.read_text(encoding="utf-8-sig")
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        rows = list(reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ResultError(f"{path} cannot be read as a UTF-8 CSV ({error}).") from error
    missing = [name for name in _NEEDED if name not in (reader.fieldnames or ())]
    if missing:
        raise ResultError(
            f"{path} lacks the columns {', '.join(missing)}; keep the exported header."
        )
    found: dict[LogKey, tuple[int, dict[str, str]]] = {}
    for number, row in enumerate(rows, start=2):
        if not (row["code"] or "").strip():
            continue
        key = ((row["trace_key"] or "").strip(), (row["trace_id"] or "").strip())
        if key in found:
            raise ResultError(
                f"{path}, row {number}: the trace {'/'.join(key)} is that of row {found[key][0]}."
            )
        found[key] = (number, {name: (row.get(name) or "").strip() for name in SHEET_COLUMNS})
    if not found:
        raise ResultError(f"{path} has no row with a code; fill in the column `code`.")
    return found


def read_sheet(
    path: Path, records: Iterable[MastRecord], coder: str
) -> tuple[ConversionEntry, ...]:
    """Entries of the rows that have a code, checked against their traces; all rows or none.

    Args:
        path: the CSV.
        records: the traces, streamed.
        coder: for rows that name none.

    Raises:
        ResultError: up to ten faults with their rows; or a row's trace is not in the file.
    """
    rows = _rows(path)
    found: list[tuple[int, ConversionEntry]] = []
    faults: list[tuple[int, str]] = []
    for record in records:
        taken = rows.pop((record.trace_key, str(record.trace_id)), None)
        if taken is None:
            continue
        number, row = taken
        code = row["code"].casefold().replace(" ", "_")
        fails = "".join(letter for letter in row["fails"].casefold() if letter not in " ,()")
        wrong = decision_faults(
            code, fails, row["rationale"], row["supporting_quote"], record.trajectory
        )
        faults += [(number, fault) for fault in wrong]
        found.append(
            (
                number,
                ConversionEntry(
                    trace_key=record.trace_key,
                    trace_id=record.trace_id,
                    framework=record.framework,
                    model=record.model,
                    code=code,
                    rationale=with_criteria(row["rationale"], fails),
                    supporting_quote=row["supporting_quote"],
                    coder=row["coder"] or coder,
                ),
            )
        )
    faults += [
        (number, f"the trace {'/'.join(key)} is not in the file of traces")
        for key, (number, _) in rows.items()
    ]
    if faults:
        listed = [f"row {number}: {fault}" for number, fault in sorted(faults)]
        more = f" … and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        raise ResultError(
            f"{path} has {len(listed)} fault{'s' * (len(listed) > 1)}, nothing was taken: "
            f"{'; '.join(listed[:_SHOWN])}{more}."
        )
    return tuple(entry for _, entry in sorted(found, key=lambda pair: pair[0]))
