"""The accounting table: coded traces by framework, model and code."""

from __future__ import annotations

import csv
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.conversion.log import CODES, ConversionEntry
from interp.errors import ResultError
from interp.files import read_json, require_file

__all__ = ["Accounting", "AccountingRow", "account", "compare_tables", "read_table"]


@dataclass(frozen=True, slots=True)
class AccountingRow:
    """One framework and model.

    Attributes:
        framework: `mas_name`.
        model: `llm_name`.
        counts: (4,) traces in the order of `CODES`.
    """

    framework: str
    model: str
    counts: tuple[int, ...]

    @property
    def coded(self) -> int:
        """All traces of the row."""
        return sum(self.counts)

    def as_dict(self) -> dict[str, Any]:
        """The row with one key a code."""
        return {
            "framework": self.framework,
            "model": self.model,
            "coded": self.coded,
            **dict(zip(CODES, self.counts, strict=True)),
        }


@dataclass(frozen=True, slots=True)
class Accounting:
    """The whole table.

    Attributes:
        rows: sorted by framework and model.
        totals: (4,) traces in the order of `CODES`.
        warnings: runs that stand in more than one row.
    """

    rows: tuple[AccountingRow, ...]
    totals: tuple[int, ...]
    warnings: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Rows and totals as a JSON object."""
        return {
            "rows": [row.as_dict() for row in self.rows],
            "totals": {
                "coded": sum(self.totals),
                **dict(zip(CODES, self.totals, strict=True)),
            },
            "warnings": list(self.warnings),
        }


def account(entries: Sequence[ConversionEntry]) -> Accounting:
    """Count a log (its entries are of different traces: `read_log` sees to that).

    Raises:
        ResultError: the rows do not add up: rows, columns and entries give different sums.
    """
    places: dict[str, dict[tuple[str, str], int]] = defaultdict(dict)
    counts: Counter[tuple[str, str, str]] = Counter()
    for entry in entries:
        places[entry.trace_key].setdefault((entry.framework, entry.model), entry.line)
        counts[entry.framework, entry.model, entry.code] += 1
    warnings = []
    for run, rows in places.items():
        if len(rows) > 1:
            listed = " and ".join(
                f"{framework}/{model} (line {line})" for (framework, model), line in rows.items()
            )
            warnings.append(
                f"The run {run!r} stands in {len(rows)} rows, {listed}. If a run has one framework "
                f"and one model, one of them is a slip; --traces tells."
            )
    cells = sorted({(framework, model) for framework, model, _ in counts})
    rows_found = tuple(
        AccountingRow(framework, model, tuple(counts[framework, model, code] for code in CODES))
        for framework, model in cells
    )
    totals = tuple(sum(entry.code == code for entry in entries) for code in CODES)
    columns = tuple(sum(row.counts[place] for row in rows_found) for place in range(len(CODES)))
    if columns != totals or sum(row.coded for row in rows_found) != len(entries):
        raise ResultError(f"The rows do not add up: columns {columns}, codes {totals}.")
    return Accounting(rows_found, totals, tuple(warnings))


def _count(value: object, where: str) -> int:
    try:
        number = int(str(value))
    except ValueError:
        number = -1
    if number < 0:
        raise ResultError(f"{where} is {value!r}; expected a count.")
    return number


def read_table(path: Path) -> Accounting:
    """A stated table: CSV (framework, model, coded and one column a code) or what `--json` printed.

    A row named `Total` is taken as the stated totals.

    Raises:
        ResultError: a column is missing, or a row, a column or the total does not add up.
    """
    columns = ("framework", "model", "coded", *CODES)
    if path.suffix == ".json":
        value = read_json(path, "an accounting table")
        stated_rows, total = value.get("rows") or [], value.get("totals")
        if not isinstance(stated_rows, list) or not isinstance(total, Mapping | None):
            raise ResultError(
                f"{path}: rows is a {type(stated_rows).__name__} and totals a "
                f"{type(total).__name__}; expected a list and an object, as --json prints them."
            )
        rows: list[Mapping[str, Any]] = list(stated_rows)
    else:
        require_file(path, "an accounting table (CSV or JSON)", ResultError)
        with path.open(encoding="utf-8-sig", newline="") as handle:
            rows = list(csv.DictReader(handle))
        stated = [row for row in rows if str(row.get("framework", "")).casefold() == "total"]
        rows = [row for row in rows if row not in stated]
        total = stated[0] if stated else None
    found = []
    for number, row in enumerate(rows, start=1):
        missing = [
            name for name in columns if not isinstance(row, Mapping) or row.get(name) is None
        ]
        if missing:
            raise ResultError(f"{path}, row {number}: no {', '.join(missing)}.")
        where = f"{path}, row {number} ({row['framework']}, {row['model']})"
        counts = tuple(_count(row[code], f"{where}: {code}") for code in CODES)
        coded = _count(row["coded"], f"{where}: coded")
        if coded != sum(counts):
            raise ResultError(
                f"{where} does not add up: coded is {coded}, its codes {sum(counts)}."
            )
        found.append(AccountingRow(str(row["framework"]), str(row["model"]), counts))
    totals = tuple(sum(row.counts[place] for row in found) for place in range(len(CODES)))
    if total is not None:
        stated_totals = tuple(_count(total.get(code), f"{path}, total {code}") for code in CODES)
        coded = _count(total.get("coded"), f"{path}, total coded")
        if stated_totals != totals or coded != sum(totals):
            raise ResultError(
                f"{path}: the totals do not add up: stated {coded} = {stated_totals}, the "
                f"rows give {sum(totals)} = {totals}."
            )
    return Accounting(tuple(sorted(found, key=lambda row: (row.framework, row.model))), totals)


def compare_tables(log: Accounting, stated: Accounting) -> None:
    """Refuse a log whose table is not the stated one.

    Raises:
        ResultError: names every row that differs.
    """
    ours = {(row.framework, row.model): row.counts for row in log.rows}
    theirs = {(row.framework, row.model): row.counts for row in stated.rows}
    differ = [
        f"{framework}/{model}: the log has {ours.get(cell)}, stated {theirs.get(cell)}"
        for cell in sorted(ours | theirs)
        if ours.get(cell) != theirs.get(cell)
        for framework, model in [cell]
    ]
    if differ:
        raise ResultError(f"The log does not add up to the stated table: {'; '.join(differ)}.")
