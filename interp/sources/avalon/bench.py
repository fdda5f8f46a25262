"""The `avalon-tom-bench` source: the released benchmark's file, in JSON, JSONL or CSV.

The file's column names are not fixed here: a field map names them. Every row is checked before
any item is made, and the error lists each row that cannot be used with the field and the reason.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from interp.errors import SourceError, did_you_mean
from interp.files import parse_json, require_file, sha256_file, sha256_json
from interp.items import Item
from interp.prompts import QUESTION as RULE_QUESTION
from interp.prompts import true_false_messages
from interp.registry import register_source, split_options
from interp.sources.avalon.source import PROPORTIONS
from interp.sources.tabular import parse_label, sample_groups

__all__ = ["FIELDS", "AvalonBenchSource"]

FIELDS: Final = ("item_id", "group_id", "category", "setup", "pov_setup", "history", "statement")
FIELDS_WITH_LABEL: Final = (*FIELDS, "label")
_NEEDED: Final = ("group_id", "category", "statement", "label")
_OPTIONS: Final = ("inject-truth", "expect-paper")
_RULES: Final = "rules"
_N_SCENARIOS: Final = 97
_N_RULES: Final = 34
_SHOWN: Final = 10


@dataclass(frozen=True, slots=True)
class _Row:
    where: str
    values: Mapping[str, str]
    label: bool


@register_source(
    "avalon-tom-bench",
    usage="avalon-tom-bench:PATH[,inject-truth,expect-paper] [--map FIELD=COLUMN …]",
    summary=f"the released benchmark (JSON, JSONL, CSV); fields: {', '.join(FIELDS_WITH_LABEL)}",
    license="the file's own",
    options=_OPTIONS,
)
class AvalonBenchSource:
    """The released benchmark: 408 statements in 97 scenarios, and 34 on the rules.

    `category` is an ability in any spelling ("Perspective-Taking"), or `rules`. `expect-paper`
    refuses a file whose counts are not the paper's (section 3.3, table 1).
    """

    version = "2"
    license = "the file's own"
    views = ("full", "pov", "no-facts")

    def __init__(self, argument: str | None = None, field_map: Mapping[str, str] | None = None):
        path, options = split_options(argument, _OPTIONS)
        if path is None:
            raise SourceError("`avalon-tom-bench` needs a file: avalon-tom-bench:PATH.")
        self.path = require_file(Path(path).expanduser(), "the benchmark's file", SourceError)
        self.field_map = dict(field_map or {})
        self.inject_truth = "inject-truth" in options
        self.expect_paper = "expect-paper" in options
        self.name = f"avalon-tom-bench:{argument}"

    def fingerprint(self) -> str:
        """Digest of version, file, field map and what is injected."""
        return sha256_json(
            [self.version, sha256_file(self.path), self.field_map, self.inject_truth]
        )

    def items(self, *, view: str, n: int | None, seed: int) -> tuple[Item, ...]:
        """All rows in file order, or `n` of them in whole scenarios drawn with `seed`.

        Raises:
            SourceError: rows that cannot be used, or counts that are not the paper's.
        """
        from interp.sources.avalon.prompt import QUESTION
        from interp.sources.avalon.ruleset import RULESET

        rows = _checked(self.path, self.field_map)
        if self.expect_paper:
            _require_paper(self.path, rows)
        if view == "pov":
            _require_projected(self.path, rows)
        setups = {"full": "setup", "pov": "pov_setup"}
        items = tuple(
            Item(
                item_id=row.values["item_id"],
                messages=true_false_messages(
                    row.values["statement"],
                    system=RULESET,
                    setup=row.values.get(setups[view]) if view in setups else None,
                    history=row.values.get("history"),
                    question=RULE_QUESTION if row.values["category"] == _RULES else QUESTION,
                    ground_truth=row.label if self.inject_truth else None,
                ),
                label=row.label,
                gold=None,
                group_id=row.values["group_id"],
                category=row.values["category"],
                metadata={"statement": row.values["statement"], "row": row.where},
            )
            for row in rows
        )
        return sample_groups(items, n, seed, self.name)


def _raw_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Numbered rows: CSV below a header line, JSON objects one a line, or one JSON list."""
    suffix = path.suffix.casefold()
    if suffix not in (".csv", ".jsonl", ".json"):
        raise SourceError(f"{path} ends in {suffix!r}; expected .json, .jsonl or .csv.")
    try:
        text = path.read_text(encoding="utf-8-sig")
        if suffix == ".csv":
            lines = csv.DictReader(text.splitlines(keepends=True), strict=True)
            found: Sequence[Any] = list(lines)
        elif suffix == ".jsonl":
            found = _json_lines(path, text)
        else:
            found = parse_json(text)
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        raise SourceError(f"{path} cannot be read as a {suffix} file ({error}).") from error
    if not isinstance(found, list) or not found:
        raise SourceError(f"{path} holds no rows; expected a list of objects.")
    for number, row in enumerate(found, start=1):
        if not isinstance(row, dict):
            raise SourceError(f"{path}, row {number}: expected an object; got {row!r:.40}.")
        if None in row:
            raise SourceError(
                f"{path}, row {number}: more values than the header has columns; the first too "
                f"many is {row[None][0]!r:.40}."
            )
        yield f"row {number}", row


def _json_lines(path: Path, text: str) -> list[Any]:
    """JSON objects, one a line; numbered like rows, so that a broken one can be found."""
    found = []
    for line in text.split("\n"):
        if not line.strip():
            continue
        try:
            found.append(parse_json(line))
        except json.JSONDecodeError as error:
            raise SourceError(
                f"{path}, row {len(found) + 1}: not a JSON object ({error.msg}, column "
                f"{error.colno})."
            ) from error
    return found


def _columns(path: Path, present: Mapping[str, None], mapped: Mapping[str, str]) -> dict[str, str]:
    for name, column in mapped.items():
        if name not in FIELDS_WITH_LABEL:
            raise SourceError(
                f"--map {name}={column}: {name!r} is no field. "
                f"{did_you_mean(name, FIELDS_WITH_LABEL)}"
            )
        if column not in present:
            raise SourceError(
                f"{path} has no column {column!r} (mapped to {name}). "
                f"{did_you_mean(column, present)}"
            )
    columns = {name: name for name in FIELDS_WITH_LABEL if name in present} | dict(mapped)
    missing = [name for name in _NEEDED if name not in columns]
    if missing:
        raise SourceError(
            f"{path} has no column {', '.join(missing)}; its columns are {', '.join(present)}. "
            f"Name them with --map FIELD=COLUMN."
        )
    return columns


def _ability(text: str) -> str | None:
    plain = text.strip().casefold().replace("-", "_").replace(" ", "_")
    return plain if plain in (*PROPORTIONS, _RULES) else None


def _checked(path: Path, field_map: Mapping[str, str]) -> list[_Row]:
    raw = list(_raw_rows(path))
    columns = _columns(path, dict.fromkeys(key for _, row in raw for key in row), field_map)
    rows: list[_Row] = []
    faults: list[str] = []
    seen: dict[str, str] = {}
    for number, (where, row) in enumerate(raw):
        try:
            rows.append(_row(where, row, columns, f"{path.stem}-{number:04d}"))
        except SourceError as error:
            faults.append(str(error))
            continue
        name = rows[-1].values["item_id"]
        if name in seen:
            column = columns.get("item_id", "item_id")
            faults.append(f"{where}, {column}: the id {name!r} is that of {seen[name]}")
        seen.setdefault(name, where)
    if faults:
        more = f"\n  and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise SourceError(
            f"{path}: {len(faults)} of {len(raw)} rows cannot be used. Correct or remove them:\n  "
            + "\n  ".join(faults[:_SHOWN])
            + more
        )
    return rows


def _row(where: str, row: Mapping[str, Any], columns: Mapping[str, str], default_id: str) -> _Row:
    values = {"item_id": default_id}
    for name, column in columns.items():
        value = row.get(column)
        text = "" if value is None else str(value).strip()
        if text:
            values[name] = text
        elif name in (*_NEEDED, "item_id"):
            raise SourceError(f"{where}, {column}: empty; expected the {name}")
    ability = _ability(values["category"])
    if ability is None:
        raise SourceError(
            f"{where}, {columns['category']}: unknown ability {values['category']!r}; expected "
            f"{', '.join(PROPORTIONS)} or {_RULES}"
        )
    label = parse_label(values.pop("label"), f"{where}, {columns['label']}")
    return _Row(where, {**values, "category": ability}, label)


def _require_projected(path: Path, rows: Sequence[_Row]) -> None:
    """Every statement about a scenario needs its projected setup; without one it is `no-facts`."""
    lacking = [
        row.where
        for row in rows
        if row.values["category"] != _RULES and "pov_setup" not in row.values
    ]
    if lacking:
        some = ", ".join(lacking[:_SHOWN]) + (", …" if len(lacking) > _SHOWN else "")
        raise SourceError(
            f"{path} has no projected setup, field 'pov_setup', in {len(lacking)} of {len(rows)} "
            f"rows ({some}), so it has no view 'pov'. Name the column with --map "
            f"pov_setup=COLUMN, or take the view full or no-facts."
        )


def _require_paper(path: Path, rows: Sequence[_Row]) -> None:
    """Compare counts with the paper's: items an ability, half of them true, scenarios, rules."""
    got = Counter(row.values["category"] for row in rows)
    true = Counter(row.values["category"] for row in rows if row.label)
    groups = {row.values["group_id"] for row in rows if row.values["category"] != _RULES}
    expected = {**PROPORTIONS, _RULES: _N_RULES}
    faults = [
        f"{name}: {got[name]} rows, expected {count}"
        for name, count in expected.items()
        if got[name] != count
    ]
    faults += [
        f"{name}: {true[name]} are true, expected {count // 2}"
        for name, count in PROPORTIONS.items()
        if got[name] == count and true[name] != count // 2
    ]
    if len(groups) != _N_SCENARIOS:
        faults.append(f"{len(groups)} scenarios, expected {_N_SCENARIOS}")
    if faults:
        raise SourceError(
            f"{path} does not have the paper's counts ({'; '.join(faults)}). Leave expect-paper "
            f"out to use it as it is."
        )
