"""Items from files: `truth:PATH`, `csv:PATH` and `jsonl:PATH`, with a field map."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from interp.errors import ItemError, SourceError, did_you_mean
from interp.files import parse_json, require_file, sha256_file, sha256_json
from interp.items import Item, Message, read_items
from interp.prompts import true_false_messages
from interp.registry import register_source

__all__ = ["FIELDS", "CsvSource", "JsonlSource", "parse_label", "sample_groups"]

FIELDS: Final = ("statement", "label", "item_id", "group_id", "category", "setup", "history")
"""What a column can be mapped to. `statement` and `label` are needed, the rest is optional."""

_LABELS: Final = {"1": True, "true": True, "0": False, "false": False}
_LICENSE: Final = "the file's own"

Row = Mapping[str, Any]


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def parse_label(value: object, where: str) -> bool:
    """A file's truth value as a bool; anything but 0, 1, true and false is refused."""
    label = _LABELS.get(str(value).strip().casefold())
    if label is None:
        raise SourceError(f"{where}: the label is {value!r}; expected 0, 1, true or false.")
    return label


def _column_map(
    columns: Mapping[str, None], field_map: Mapping[str, str], path: Path
) -> dict[str, str]:
    """From our fields to the file's columns: the map first, equal names otherwise."""
    for name, column in field_map.items():
        if name not in FIELDS:
            raise SourceError(
                f"--map {name}={column}: {name!r} is no field. {did_you_mean(name, FIELDS)}"
            )
        if column not in columns:
            raise SourceError(
                f"{path} has no column {column!r} (mapped to {name}). "
                f"{did_you_mean(column, columns)}"
            )
    result = {name: name for name in FIELDS if name in columns} | dict(field_map)
    for name in ("statement", "label"):
        if name not in result:
            raise SourceError(
                f"{path}, row 1: there is no column {name!r} in the header "
                f"({', '.join(columns)}). Name the column with --map {name}=COLUMN."
            )
    return result


def _items_of_rows(
    rows: Iterator[tuple[str, Row]], columns: Mapping[str, str], path: Path, view: str
) -> Iterator[Item]:
    """Items of numbered rows; every error names the file, the row and the column."""

    def text(row: Row, where: str, name: str, default: str | None) -> str | None:
        if name not in columns:
            return default
        value = row.get(columns[name])
        if value is None or not str(value).strip():
            if name in ("setup", "history"):
                return None
            raise SourceError(
                f"{path}, {where}, column {columns[name]!r}: empty; expected the {name}."
            )
        return str(value).strip()

    for number, (where, row) in enumerate(rows):
        statement = text(row, where, "statement", None) or ""
        label = parse_label(
            row.get(columns["label"]), f"{path}, {where}, column {columns['label']!r}"
        )
        setup, history = text(row, where, "setup", None), text(row, where, "history", None)
        metadata: dict[str, Any] = {
            key: value for key, value in row.items() if key not in columns.values()
        }
        # Ours last: a column of the file must not pass for the statement that was asked.
        metadata |= {"statement": statement, "row": where}
        if view == "statement":
            messages: tuple[Message, ...] = (Message("user", statement),)
        else:
            messages = true_false_messages(
                statement, setup=setup if view == "full" else None, history=history
            )
        yield Item(
            item_id=text(row, where, "item_id", None) or f"{path.stem}-{number:06d}",
            messages=messages,
            label=label,
            gold=None,
            # Without a group column, equal statements still stay together.
            group_id=text(row, where, "group_id", None) or f"statement:{statement}",
            category=text(row, where, "category", None) or path.stem,
            metadata=metadata,
        )


def sample_groups(items: tuple[Item, ...], n: int | None, seed: int, name: str) -> tuple[Item, ...]:
    """`n` of the items, whole groups in a seeded order (the last one cut), in file order."""
    if n is None or n == len(items):
        return items
    if n > len(items):
        raise SourceError(f"{name!r} holds {len(items)} items; got n = {n}. Ask for at most that.")
    groups = list(dict.fromkeys(item.group_id for item in items))
    Random(f"{name}/{seed}").shuffle(groups)
    rank = {group: position for position, group in enumerate(groups)}
    chosen = sorted(range(len(items)), key=lambda index: (rank[items[index].group_id], index))[:n]
    return tuple(items[index] for index in sorted(chosen))


class _FileSource(ABC):
    """What the file sources share: one file, one map, a fingerprint of both."""

    version = "1"
    license = _LICENSE
    views: tuple[str, ...] = ("full", "no-facts", "statement")
    kind = ""

    def __init__(self, argument: str | None = None, field_map: Mapping[str, str] | None = None):
        if not argument:
            raise SourceError(f"`{self.kind}` needs a path: {self.kind}:PATH.")
        self.path = require_file(Path(argument).expanduser(), f"a {self.kind} file", SourceError)
        self.field_map = dict(field_map or {})
        self.name = f"{self.kind}:{argument}"

    def fingerprint(self) -> str:
        """Digest of version, file content and field map."""
        return sha256_json([self.version, sha256_file(self.path), self.field_map])

    def items(self, *, view: str, n: int | None, seed: int) -> tuple[Item, ...]:
        """All rows in file order, or `n` of them in whole groups drawn with `seed`."""
        try:
            return sample_groups(tuple(self.read(view)), n, seed, self.name)
        except (UnicodeDecodeError, csv.Error) as error:
            raise SourceError(
                f"{self.path} cannot be read as a UTF-8 {self.kind} file ({error})."
            ) from error
        except ItemError as error:
            raise SourceError(f"{self.path}: {error}") from error

    @abstractmethod
    def read(self, view: str) -> Iterator[Item]:
        """All items of the file under one view."""


@register_source(
    "csv",
    usage="csv:PATH [--map FIELD=COLUMN …]",
    summary=f"rows of a CSV file with a header; fields: {', '.join(FIELDS)}",
    license=_LICENSE,
)
class CsvSource(_FileSource):
    """True/False statements from a comma-separated file with a header line."""

    kind = "csv"

    def read(self, view: str) -> Iterator[Item]:
        """All rows as items; row numbers count the header as row 1."""
        with self.path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle, strict=True)
            header = next(reader, None)
            if not header:
                raise SourceError(
                    f"{self.path} is empty; expected a header line with column names."
                )
            if len(set(header)) < len(header):
                raise SourceError(f"{self.path}, row 1: a column name occurs twice ({header}).")
            columns = _column_map(dict.fromkeys(header), self.field_map, self.path)

            def rows() -> Iterator[tuple[str, Row]]:
                for number, values in enumerate(reader, start=2):
                    if not values:
                        continue  # a blank line
                    if len(values) != len(header):
                        raise SourceError(
                            f"{self.path}, row {number}: {len(values)} values where the header has "
                            f"{len(header)} columns. Quote values that contain a comma."
                        )
                    yield f"row {number}", dict(zip(header, values, strict=True))

            yield from _items_of_rows(rows(), columns, self.path, view)


@register_source(
    "truth",
    usage="truth:PATH [--map FIELD=COLUMN …]",
    summary="public true/false statement files: a CSV with the columns statement and label",
    license=_LICENSE,
)
class TruthSource(CsvSource):
    """A statement file in the layout of Geometry of Truth: `statement,label`, 1 is true."""

    kind = "truth"


@register_source(
    "jsonl",
    usage="jsonl:PATH [--map FIELD=KEY …]",
    summary="one JSON object a line: items as `interp items` writes them, or mapped fields",
    license=_LICENSE,
)
class JsonlSource(_FileSource):
    """Items written by `interp items`, or objects whose keys a field map names."""

    kind = "jsonl"

    def read(self, view: str) -> Iterator[Item]:
        """Items as written (prompts kept, `full` only), or built from mapped fields."""
        rows = list(self._rows())
        if not rows:
            raise SourceError(f"{self.path} is empty; expected one JSON object a line.")
        keys: dict[str, None] = dict.fromkeys(key for _, row in rows for key in row)
        if "messages" in keys and not self.field_map:
            if view != "full":
                raise SourceError(
                    f"{self.path} holds finished prompts, so it has the view 'full' only; "
                    f"got {view!r}."
                )
            yield from read_items(self.path)
            return
        yield from _items_of_rows(
            iter(rows), _column_map(keys, self.field_map, self.path), self.path, view
        )

    def _rows(self) -> Iterator[tuple[str, Row]]:
        with self.path.open(encoding="utf-8-sig") as handle:
            for number, line in enumerate(handle, start=1):
                if not line.strip():
                    continue
                try:
                    row = parse_json(line, parse_constant=_no_constant)
                    json.dumps(row, ensure_ascii=False).encode()
                except ValueError as error:
                    raise SourceError(f"{self.path}, line {number}: not JSON ({error}).") from error
                if not isinstance(row, dict):
                    raise SourceError(
                        f"{self.path}, line {number}: got a {type(row).__name__}; "
                        f"expected an object."
                    )
                yield f"line {number}", row
