"""One trace of MAST-Data: what it is of, its text, and its 14 labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from interp.errors import SourceError
from interp.mast.streaming import CountedFile, stream_objects
from interp.mast.taxonomy import FC2_CODES, MAST_CODES

__all__ = ["MastRecord", "TraceId", "iterate_records", "parse_record"]

_TEXT: Final = ("mas_name", "llm_name", "benchmark_name")

TraceId = tuple[str, int]
"""`trace.key` and `trace_id`: together unique; `trace_id` alone is not."""


@dataclass(frozen=True, slots=True)
class MastRecord:
    """One annotated trace.

    Attributes:
        framework: `mas_name`.
        model: `llm_name`.
        benchmark: `benchmark_name`.
        trace_key: `trace.key`, the run that the trace is of.
        trace_id: number within the run.
        trajectory: the trace's whole text.
        labels: (14,) in the order of `MAST_CODES`; None where the annotation is null.
    """

    framework: str
    model: str
    benchmark: str
    trace_key: str
    trace_id: int
    trajectory: str
    labels: tuple[bool | None, ...]

    @property
    def key(self) -> TraceId:
        """What tells this trace from all others."""
        return self.trace_key, self.trace_id

    @property
    def fc2_codes(self) -> tuple[str, ...]:
        """The FC2 modes that are marked as present."""
        marked = zip(MAST_CODES, self.labels, strict=True)
        return tuple(code for code, label in marked if label and code in FC2_CODES)

    @property
    def fc2(self) -> bool | None:
        """Whether an FC2 mode is present; None where nulls leave it open."""
        if self.fc2_codes:
            return True
        labels = dict(zip(MAST_CODES, self.labels, strict=True))
        return None if any(labels[code] is None for code in FC2_CODES) else False


def _label(value: object, code: str, where: str) -> bool | None:
    if value is None:
        return None
    if isinstance(value, bool) or value not in (0, 1):
        raise SourceError(f"{where}: the label of {code} is {value!r}; expected 1, 0 or null.")
    return value == 1


def parse_record(record: Mapping[str, Any], where: str) -> MastRecord:
    """One object of `MAD_full_dataset.json`.

    Args:
        record: the object.
        where: file and record number, for messages.

    Raises:
        SourceError: a field is missing or of another type, or a code is unknown or missing.
    """
    for name in (*_TEXT, "trace_id", "trace", "mast_annotation"):
        if name not in record:
            raise SourceError(
                f"{where}: there is no {name!r}; its keys are {', '.join(record) or 'none'}. "
                f"Expected the schema of MAD_full_dataset.json."
            )
    for name in _TEXT:
        if not isinstance(record[name], str) or not record[name].strip():
            raise SourceError(f"{where}: {name} is {record[name]!r}; expected text.")
    trace, number, labels = record["trace"], record["trace_id"], record["mast_annotation"]
    if not isinstance(number, int) or isinstance(number, bool):
        raise SourceError(f"{where}: trace_id is {number!r}; expected a whole number.")
    if (
        not isinstance(trace, dict)
        or not isinstance(trace.get("key"), str)
        or not isinstance(trace.get("trajectory"), str)
    ):
        raise SourceError(f"{where}: `trace` must hold the strings `key` and `trajectory`.")
    if not isinstance(labels, dict):
        raise SourceError(f"{where}: mast_annotation is a {type(labels).__name__}, not an object.")
    unknown = sorted(set(labels) - set(MAST_CODES))
    missing = [code for code in MAST_CODES if code not in labels]
    if unknown or missing:
        raise SourceError(
            f"{where}: mast_annotation "
            + " and ".join(
                [f"has the unknown code{'s' * (len(unknown) > 1)} {', '.join(unknown)}"]
                * bool(unknown)
                + [f"lacks {', '.join(missing)}"] * bool(missing)
            )
            + f"; expected the 14 codes {MAST_CODES[0]} to {MAST_CODES[-1]}."
        )
    return MastRecord(
        framework=record["mas_name"].strip(),
        model=record["llm_name"].strip(),
        benchmark=record["benchmark_name"].strip(),
        trace_key=trace["key"],
        trace_id=number,
        trajectory=trace["trajectory"],
        labels=tuple(_label(labels[code], code, where) for code in MAST_CODES),
    )


def iterate_records(
    path: str | Path, *, progress: Callable[[int], None] | None = None
) -> Iterator[MastRecord]:
    """The traces of `MAD_full_dataset.json`, streamed; memory holds one at a time.

    Raises:
        SourceError: not JSON (with the byte offset), not this schema, or a key given twice.
    """
    path = Path(path)
    seen: dict[TraceId, int] = {}
    with path.open("rb") as handle:
        file = CountedFile(handle, progress)
        for number, record in enumerate(stream_objects(path, file), start=1):
            parsed = parse_record(record, f"{path}, record {number}")
            if parsed.key in seen:
                raise SourceError(
                    f"{path}, record {number}: the trace {parsed.trace_key!r} number "
                    f"{parsed.trace_id} is that of record {seen[parsed.key]}; (trace.key, "
                    f"trace_id) must be unique."
                )
            seen[parsed.key] = number
            yield parsed
