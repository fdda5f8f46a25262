"""The models table: which answer file belongs to which model and condition."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from interp.behaviour.sidecars import read_sidecar
from interp.behaviour.taxonomy import CONDITIONS, Condition
from interp.errors import ResultError, did_you_mean
from interp.files import require_file

__all__ = ["ROSTER_COLUMNS", "Access", "ModelEntry", "TableRow", "read_roster", "read_rows"]

Access = Literal["open", "proprietary"]

ROSTER_COLUMNS: Final = ("file", "model", "condition", "family", "access", "reasoning", "base")
"""Columns of a models table. `model` is required, `file` too with answer files. An empty or missing
`condition` is what the manifest beside the file says, else `base`."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One line of a models table.

    Attributes:
        model: name under which results are shown; files of the same model share it.
        condition: how it was asked.
        file: its answer file; None in a table that goes with published results.
        family: for instance `Qwen3`; empty where unknown.
        access: weights at hand or not; None where unknown.
        reasoning: whether it was trained to reason; None where unknown.
        base: name of the model it was trained from; None where there is none in the set.
    """

    model: str
    condition: Condition = "base"
    file: Path | None = None
    family: str = ""
    access: Access | None = None
    reasoning: bool | None = None
    base: str | None = None

    @property
    def model_class(self) -> str | None:
        """The leaderboard's class, None where the table does not say.

        Source: Avalon-ToM-Bench, section 4.1 (proprietary models form one class).
        """
        if self.access == "proprietary":
            return "proprietary"
        if self.access is None or self.reasoning is None:
            return None
        return "open reasoning" if self.reasoning else "open non-reasoning"


@dataclass(frozen=True, slots=True)
class TableRow:
    """One data row of a CSV file.

    Attributes:
        where: file and row, for messages; the header is row 1.
        cells: text by column, stripped.
    """

    where: str
    cells: dict[str, str]

    def required(self, column: str) -> str:
        """The cell's text.

        Raises:
            ResultError: it is empty.
        """
        if not (text := self.cells.get(column, "")):
            raise ResultError(f"{self.where}, field '{column}': empty; expected a value.")
        return text

    def choice(self, column: str, known: Sequence[str]) -> str:
        """The cell's text, one of `known`; empty is allowed.

        Raises:
            ResultError: it is another word.
        """
        text = self.cells.get(column, "")
        if text and text not in known:
            raise ResultError(
                f"{self.where}, field '{column}': got {text!r}. {did_you_mean(text, known)}"
            )
        return text


def read_rows(path: Path, what: str, required: Sequence[str]) -> tuple[TableRow, ...]:
    """Read a CSV file with a header.

    Raises:
        ResultError: no such file, no rows, a required column is missing, or a row is ragged.
    """
    require_file(path, what, ResultError)
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle)
            header = [name.strip() for name in next(reader, [])]
            lines = [(reader.line_num, line) for line in reader if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ResultError(
            f"{path} is not a CSV file in UTF-8 ({error}); expected {what}."
        ) from error
    for column in required:
        if column not in header:
            raise ResultError(
                f"{path}, row 1: the column '{column}' is missing; the file has "
                f"{', '.join(header) or 'nothing'}. Expected {', '.join(required)}."
            )
    rows = []
    for number, line in lines:
        if len(line) != len(header):
            raise ResultError(
                f"{path}, row {number}: {len(line)} cells under {len(header)} columns."
            )
        cells = dict(zip(header, (cell.strip() for cell in line), strict=True))
        rows.append(TableRow(f"{path}, row {number}", cells))
    if not rows:
        raise ResultError(f"{path} has no rows under its header; expected {what}.")
    return tuple(rows)


def read_roster(path: str | Path, *, with_files: bool = True) -> tuple[ModelEntry, ...]:
    """Read a models table.

    Args:
        path: CSV file with the columns `ROSTER_COLUMNS`; file names are relative to its folder.
        with_files: whether `file` is needed (not for a published table).

    Raises:
        ResultError: a column is missing or unknown, or a cell is; row and field are named.
    """
    path = Path(path)
    required = ("file", "model") if with_files else ("model",)
    rows = read_rows(path, "a models table (CSV)", required)
    for column in rows[0].cells:
        # A misspelt column would silently drop the classes or the pairs.
        if column not in ROSTER_COLUMNS:
            raise ResultError(
                f"{path}, row 1: unknown column {column!r}. {did_you_mean(column, ROSTER_COLUMNS)}"
            )
    entries = tuple(_entry(row, path.parent, with_files) for row in rows)
    _require_consistent(rows, entries)
    return entries


def _entry(row: TableRow, folder: Path, with_files: bool) -> ModelEntry:
    file = folder / row.required("file") if with_files else None
    said = None if file is None else read_sidecar(file).condition
    condition = row.choice("condition", CONDITIONS) or said or "base"
    access = row.choice("access", get_args(Access)) or None
    reasoning = row.choice("reasoning", ("yes", "no"))
    return ModelEntry(
        model=row.required("model"),
        condition=condition,  # type: ignore[arg-type]  # checked against the same words
        file=file,
        family=row.cells.get("family", ""),
        access=access,  # type: ignore[arg-type]
        reasoning=reasoning == "yes" if reasoning else None,
        base=row.cells.get("base") or None,
    )


def _require_consistent(rows: Sequence[TableRow], entries: Sequence[ModelEntry]) -> None:
    first: dict[str, ModelEntry] = {}
    for row, entry in zip(rows, entries, strict=True):
        known = first.setdefault(entry.model, entry)
        for name in ("family", "access", "reasoning", "base"):
            if getattr(known, name) != getattr(entry, name):
                raise ResultError(
                    f"{row.where}, field '{name}': {row.cells.get(name)!r} differs from an earlier "
                    f"row of {entry.model!r}. Make them agree."
                )
    for row, entry in zip(rows, entries, strict=True):
        if entry.base is not None and entry.base not in first:
            raise ResultError(
                f"{row.where}, field 'base': no model {entry.base!r} in the table. "
                f"{did_you_mean(entry.base, first)}"
            )
