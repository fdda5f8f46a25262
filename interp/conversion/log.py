"""The conversion log: one coded trace a line, written so that no entry is ever lost."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from interp.errors import ResultError, did_you_mean
from interp.files import numbered_lines

__all__ = [
    "CODES",
    "COUNTED",
    "KEYS_AND_CODES",
    "LOG_FIELDS",
    "ConversionEntry",
    "ConversionLog",
    "LogKey",
    "parse_entry",
    "read_log",
    "require_unique",
    "writable",
]

CODES: Final = ("clean", "ambiguous", "not_convertible", "structural_mismatch")
LOG_FIELDS: Final = (
    *("trace_key", "trace_id", "framework", "model"),
    *("code", "rationale", "supporting_quote", "coder"),
)
"""Keys of a line, in order."""

KEYS_AND_CODES: Final = ("trace_key", "trace_id", "code")
COUNTED: Final = ("trace_key", "trace_id", "framework", "model", "code")
_SHOWN: Final = 10

LogKey = tuple[str, str]
"""`trace_key`, and `trace_id` as text."""


@dataclass(frozen=True, slots=True)
class ConversionEntry:
    """What one coder decided about one trace.

    Attributes:
        trace_key: run of the trace (`trace.key` of MAST-Data).
        trace_id: number within the run.
        framework: `mas_name`; empty where the reader did not ask for it.
        model: `llm_name`; the same.
        code: one of `CODES`.
        rationale: why, in the coder's words.
        supporting_quote: text of the trace; needed for `clean`.
        coder: who decided.
        line: 1-based line of the log; 0 for an entry made here.
    """

    trace_key: str
    trace_id: int | str
    framework: str
    model: str
    code: str
    rationale: str = ""
    supporting_quote: str = ""
    coder: str = ""
    line: int = field(default=0, compare=False)

    @property
    def key(self) -> LogKey:
        """What tells its trace from all others."""
        return self.trace_key, str(self.trace_id)

    @property
    def name(self) -> str:
        """Its trace, for messages."""
        return f"{self.trace_key}/{self.trace_id}"


def parse_entry(record: object, needed: Sequence[str] = COUNTED, line: int = 0) -> ConversionEntry:
    """An entry from a JSON object.

    Raises:
        ResultError: a needed key is missing, a value has another type, or the code is unknown.
    """
    if not isinstance(record, Mapping):
        raise ResultError(f"got a {type(record).__name__}, expected an object")
    for name in needed:
        if name not in record:
            raise ResultError(f"the key {name!r} is missing")
    values: dict[str, Any] = {name: record.get(name, "") for name in LOG_FIELDS}
    # What is not needed may also be null.
    values |= {name: "" for name in LOG_FIELDS if values[name] is None and name not in needed}
    number = values["trace_id"]
    if isinstance(number, bool) or not (isinstance(number, int) or (number and _text(number))):
        raise ResultError(f"trace_id is {number!r}, expected a number or text")
    for name in LOG_FIELDS:
        if name != "trace_id" and not isinstance(values[name], str):
            raise ResultError(f"{name} is {values[name]!r}, expected text")
        if name != "trace_id" and not writable(values[name]):
            raise ResultError(f"{name} is {values[name]!r}, which UTF-8 cannot hold")
    for name in ("trace_key", *(each for each in needed if each in ("framework", "model"))):
        if not values[name].strip():
            raise ResultError(f"{name} is empty")
    if values["code"] not in CODES:
        raise ResultError(f"{values['code']!r} is no code. {did_you_mean(values['code'], CODES)}")
    return ConversionEntry(**values, line=line)


def _text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def read_log(path: str | Path, needed: Sequence[str] = COUNTED) -> tuple[ConversionEntry, ...]:
    """Read a log.

    Args:
        path: a JSONL file.
        needed: keys that every line must have; agreement asks for keys and codes only. The
            others of `LOG_FIELDS` are read where they are.

    Raises:
        ResultError: the file is missing or holds nothing, or up to ten faults with their lines: not
            JSON, a key missing, an unknown code, a trace coded twice.
    """
    path = Path(path)
    entries: list[ConversionEntry] = []
    faults: list[str] = []
    what = "a conversion log (one JSON object a line)"
    for number, line in numbered_lines(path, what, ResultError):
        try:
            entries.append(parse_entry(json.loads(line), needed, number))
        except (ValueError, RecursionError) as error:
            faults.append(f"line {number}: not JSON ({error})")
        except ResultError as error:
            faults.append(f"line {number}: {error}")
    faults += require_unique(entries)
    if faults:
        more = f" … and {len(faults) - _SHOWN} more" if len(faults) > _SHOWN else ""
        raise ResultError(
            f"{path} has {len(faults)} fault{'s' * (len(faults) > 1)}: "
            f"{'; '.join(faults[:_SHOWN])}{more}. A line has the keys {', '.join(needed)}."
        )
    if not entries:
        raise ResultError(f"{path} holds no entries; code traces with `interp tomas code`.")
    return tuple(entries)


def require_unique(entries: Sequence[ConversionEntry]) -> list[str]:
    """Faults of a log that codes a trace twice: its rows would not add up to its traces."""
    seen: dict[LogKey, int] = {}
    faults = []
    for entry in entries:
        if entry.key in seen:
            faults.append(
                f"line {entry.line}: the trace {entry.name} has line {seen[entry.key]} already"
            )
        seen.setdefault(entry.key, entry.line)
    return faults


def writable(text: str) -> bool:
    """Whether a text can be written as UTF-8; half a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_line(entry: ConversionEntry) -> str:
    """One line of the log, keys in order."""
    record = {name: getattr(entry, name) for name in LOG_FIELDS}
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


class ConversionLog:
    """A log that is being written; open it with `opened`, which keeps other writers out.

    Every append writes the whole file aside, syncs it and renames it: the log is at all times
    either without the entry or with all of it. What `append` has returned from is on the disk.
    """

    def __init__(self, path: Path):
        self.path = path
        self.entries: tuple[ConversionEntry, ...] = read_log(path) if _holds(path) else ()

    @classmethod
    @contextmanager
    def opened(cls, path: str | Path) -> Iterator[ConversionLog]:
        """The log under a lock that ends with the process.

        Raises:
            ResultError: another session writes to it, or it has faults.
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock")
        with lock.open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ResultError(
                    f"Another session writes to {path}. End it first, or give another --log."
                ) from error
            for left in path.parent.glob(f".{path.name}.*"):
                if re.fullmatch(r"\.\d+", left.name.removeprefix(f".{path.name}")):
                    left.unlink()  # of a writer that was killed; its entry was not acknowledged
            yield cls(path)

    @property
    def coded(self) -> Collection[LogKey]:
        """Traces that have an entry."""
        return {entry.key for entry in self.entries}

    def append(self, entries: Sequence[ConversionEntry]) -> None:
        """Add entries, all or none.

        Raises:
            ResultError: a trace has an entry already.
        """
        self._write((*self.entries, *entries), "".join(map(as_line, entries)), keep=True)

    def replace(self, entries: Sequence[ConversionEntry]) -> None:
        """Set entries in the place of those of the same traces; the others stay."""
        new = {entry.key: entry for entry in entries}
        kept = tuple(new.pop(entry.key, entry) for entry in self.entries)
        changed = (*kept, *new.values())
        self._write(changed, "".join(map(as_line, changed)), keep=False)

    def _write(self, entries: tuple[ConversionEntry, ...], text: str, *, keep: bool) -> None:
        faults = require_unique(entries)
        if faults:
            raise ResultError(f"{self.path}: {faults[0]}.")
        before = self.path.read_bytes() if keep and self.path.exists() else b""
        if before and not before.endswith(b"\n"):
            before += b"\n"
        aside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        with aside.open("wb") as handle:
            handle.write(before + text.encode())
            handle.flush()
            os.fsync(handle.fileno())
        aside.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the rename itself
        finally:
            os.close(folder)
        self.entries = entries


def _holds(path: Path) -> bool:
    return path.exists() and bool(path.read_bytes().strip())
