"""What the commands print: progress to standard error, tables and JSON to standard output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

__all__ = ["note", "print_json", "print_table", "progress", "say"]


def note(text: str) -> None:
    """One line for people, on standard error."""
    Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)


def print_json(value: Mapping[str, Any] | Sequence[Any]) -> None:
    """A JSON value on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str | None = None
) -> None:
    """A table on standard output; every column but the first is aligned right if numeric."""
    table = Table(title=title, title_justify="left", caption=caption, caption_justify="left")
    for index, column in enumerate(columns):
        numeric = bool(rows) and all(_looks_numeric(str(row[index])) for row in rows)
        table.add_column(column, justify="right" if index and numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    _standard_output().print(table)


def say(text: str) -> None:
    """A sentence of the result, on standard output."""
    _standard_output().print(text, markup=False)


def _standard_output() -> Console:
    # Rich takes 80 columns for a file or a pipe, which breaks most cells.
    return Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else 110)


def _looks_numeric(text: str) -> bool:
    return not text or text[0] in "+-−0123456789"


@contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar with an estimate of the time left; yields the function that advances it."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        task = bars.add_task(description, total=total)
        yield lambda done: bars.advance(task, done)
