"""The ToMAS item file: one JSON object a line, checked whole before any item is used."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from interp.errors import SourceError, did_you_mean
from interp.files import atomic_path, numbered_lines, parse_json
from interp.open_grading import has_scored_words

__all__ = [
    "TOMAS_FIELDS",
    "TomasItem",
    "framework_of",
    "read_tomas",
    "tomas_to_record",
    "write_tomas",
]

TOMAS_FIELDS: Final = ("id", "source", "prompt", "question", "gold", "supporting_quote")
"""The schema's fields, in order; all are strings."""

_MAY_BE_EMPTY: Final = ("supporting_quote",)
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class TomasItem:
    """One partner-state question made from a failure trace.

    Attributes:
        id: unique within its file.
        source: id of the source trace, its framework first (`AppWorld/Test-C/GPT-4o/18`).
        prompt: the coordination context up to the miscoordinated action.
        question: what a peer knew, or what the acting agent should therefore do.
        gold: the fixed answer.
        supporting_quote: text of the trace that the gold rests on; may be empty.
        extra: further keys of the line (a rationale, for instance); never shown to a model.
        line: 1-based line in the file it was read from; 0 for one made here.
    """

    id: str
    source: str
    prompt: str
    question: str
    gold: str
    supporting_quote: str
    extra: Mapping[str, Any] = field(default_factory=dict)
    line: int = field(default=0, compare=False)


def framework_of(source: str) -> str:
    """The framework a source trace id starts with: what precedes the first `/`, `:` or `_`."""
    return re.split(r"[/:_]", source.strip(), maxsplit=1)[0].strip() or source


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON value")


def _problems(record: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with one line's object, field by field."""
    for name in TOMAS_FIELDS:
        if name not in record:
            others = [key for key in record if key not in TOMAS_FIELDS]
            near = f" {did_you_mean(name, others)}" if others else ""
            yield f"{name}: the key is missing.{near}"
        elif not isinstance(record[name], str):
            yield f"{name}: got a {type(record[name]).__name__}, expected a string"
        elif not record[name].strip() and name not in _MAY_BE_EMPTY:
            yield f"{name}: empty"
    gold = record.get("gold")
    if isinstance(gold, str) and gold.strip() and not has_scored_words(gold):
        yield f"gold: {gold!r} has no letter a-z and no digit, so every answer would score 0"


def _record(line: str) -> Mapping[str, Any]:
    """One line as an object; a lone surrogate, which no UTF-8 file can hold, is refused here."""
    value = parse_json(line, parse_constant=_no_constant)
    json.dumps(value, ensure_ascii=False).encode()
    if not isinstance(value, dict):
        raise ValueError(f"got a {type(value).__name__}, expected an object")
    return value


def read_tomas(path: Path) -> tuple[TomasItem, ...]:
    """Read an item file.

    Raises:
        SourceError: the file is missing or not UTF-8, or has faults, of which up to ten are listed
            with line and field: not JSON, a key missing, a value that is no string or empty, an id
            given twice.
    """
    items: list[TomasItem] = []
    faults: list[str] = []
    seen: dict[str, int] = {}
    what = "a ToMAS item file (one JSON object a line)"
    for number, line in numbered_lines(path, what, SourceError):
        try:
            record = _record(line)
        except (ValueError, RecursionError) as error:
            faults.append(f"line {number}: not a JSON object ({error})")
            continue
        found = [f"line {number}, {problem}" for problem in _problems(record)]
        name = record.get("id")
        if isinstance(name, str) and name.strip():
            if name in seen:
                found.append(f"line {number}, id: {name!r} is that of line {seen[name]}")
            seen.setdefault(name, number)
        faults += found
        if not found:
            extra = {key: value for key, value in record.items() if key not in TOMAS_FIELDS}
            values = {name: record[name] for name in TOMAS_FIELDS}
            items.append(TomasItem(**values, extra=extra, line=number))
    if faults:
        more = f" … and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise SourceError(
            f"{path} has {len(faults)} fault{'s' * (len(faults) > 1)}: "
            f"{'; '.join(faults[:_SHOWN])}{more}. A line is an object with the strings "
            f"{', '.join(TOMAS_FIELDS)}."
        )
    if not items:
        raise SourceError(f"{path} holds no items; expected one JSON object a line.")
    return tuple(items)


def tomas_to_record(item: TomasItem) -> dict[str, Any]:
    """The item as a JSON object: the schema's keys in order, then its further ones."""
    return {name: getattr(item, name) for name in TOMAS_FIELDS} | dict(item.extra)


def write_tomas(path: Path, items: Iterable[TomasItem]) -> None:
    """Write an item file, atomically; `read_tomas` gives equal items back."""
    with atomic_path(path) as aside, aside.open("w", encoding="utf-8") as handle:
        for item in items:
            record = tomas_to_record(item)
            handle.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
