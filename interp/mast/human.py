"""The human-labelled file: 19 traces, three annotators, three taxonomies.

Its schema is not that of the full file: no model, `trace` is text, modes are named in full, votes
are true, false or a bare NaN, and a code means another mode in each taxonomy.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any, Final

from interp.errors import SourceError
from interp.files import parse_json, require_file
from interp.mast.streaming import CountedFile, stream_objects
from interp.mast.taxonomy import FC2_CODES, MAST_CODES, MODE_NAMES

__all__ = ["HumanRecord", "human_summary", "is_human_file", "read_human"]

_FIELDS: Final = ("round", "mas_name", "benchmark_name", "trace_id", "trace", "annotations")
_MODE: Final = "failure mode"
_KNOWN_FRAMEWORKS: Final = frozenset(
    ("AG2", "AppWorld", "ChatDev", "HyperAgent", "Magentic", "MetaGPT", "OpenManus")
)
_ALIKE: Final = 0.6


@dataclass(frozen=True, slots=True)
class HumanRecord:
    """One trace with its votes.

    Attributes:
        round: of the annotation study.
        framework: `mas_name`, or `benchmark_name` where the two are swapped.
        benchmark: the other one.
        trace_id: unique in this file.
        trace: whole text.
        modes: code and name of each mode, in file order.
        votes: for each mode, the annotators' votes; None for NaN.
        swapped: whether framework and benchmark stood in each other's field.
    """

    round: str
    framework: str
    benchmark: str
    trace_id: int
    trace: str
    modes: tuple[tuple[str, str], ...]
    votes: tuple[tuple[bool | None, ...], ...]
    swapped: bool

    @property
    def is_mast(self) -> bool:
        """Whether the modes are the 14 of MAST."""
        return tuple(sorted(code for code, _ in self.modes)) == MAST_CODES

    @property
    def fc2(self) -> bool | None:
        """Whether most of the votes cast mark an FC2 mode; None in another taxonomy."""
        if not self.is_mast:
            return None
        by_code = {code: votes for (code, _), votes in zip(self.modes, self.votes, strict=True)}
        return any(_majority(by_code[code]) for code in FC2_CODES)


def _majority(votes: Sequence[bool | None]) -> bool:
    cast = [vote for vote in votes if vote is not None]
    return sum(cast) * 2 > len(cast)


def _vote(value: object, where: str) -> bool | None:
    if isinstance(value, bool):
        return value
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    raise SourceError(f"{where}: the vote is {value!r}; expected true, false or NaN.")


def _mode(text: object, where: str) -> tuple[str, str]:
    if not isinstance(text, str) or not text.strip():
        raise SourceError(f"{where}: {_MODE!r} is {text!r}; expected a code and a name.")
    code, _, name = text.strip().splitlines()[0].strip().partition(" ")
    return code, name.strip()


def _record(value: Any, where: str) -> HumanRecord:
    if not isinstance(value, dict) or any(name not in value for name in _FIELDS):
        raise SourceError(f"{where}: expected an object with {', '.join(_FIELDS)}.")
    if not isinstance(value["annotations"], list) or not isinstance(value["trace"], str):
        raise SourceError(f"{where}: `annotations` must be a list and `trace` text.")
    if not isinstance(value["trace_id"], int) or isinstance(value["trace_id"], bool):
        raise SourceError(f"{where}: trace_id is {value['trace_id']!r}; expected a whole number.")
    modes, votes = [], []
    for number, row in enumerate(value["annotations"], start=1):
        place = f"{where}, annotation {number}"
        if not isinstance(row, dict) or _MODE not in row:
            raise SourceError(f"{place}: expected an object with {_MODE!r} and votes.")
        modes.append(_mode(row[_MODE], place))
        names = sorted(name for name in row if name != _MODE)
        votes.append(tuple(_vote(row[name], f"{place}, {name}") for name in names))
    framework, benchmark = str(value["mas_name"]), str(value["benchmark_name"])
    swapped = benchmark in _KNOWN_FRAMEWORKS and framework not in _KNOWN_FRAMEWORKS
    return HumanRecord(
        round=str(value["round"]),
        framework=benchmark if swapped else framework,
        benchmark=framework if swapped else benchmark,
        trace_id=value["trace_id"],
        trace=value["trace"],
        modes=tuple(modes),
        votes=tuple(votes),
        swapped=swapped,
    )


def is_human_file(path: Path) -> bool:
    """Whether a file starts like the human-labelled one: a `trace` of text, and `annotations`.

    Only its first object is looked at.

    Raises:
        SourceError: the file is missing.
        InterpError: the extra `tomas` is not installed.
    """
    require_file(path, "MAST-Data: the full file or the human-labelled one", SourceError)
    with path.open("rb") as handle:
        try:
            first = next(stream_objects(path, CountedFile(handle)), {})
        except SourceError:
            return False  # the reader of the full file says what is wrong with it
    return "annotations" in first and "mast_annotation" not in first


def read_human(path: Path) -> tuple[HumanRecord, ...]:
    """Read `MAD_human_labelled_dataset.json`; bare NaN is a missing vote.

    Raises:
        SourceError: not JSON (with the byte offset), or not this schema (record and field named).
    """
    data = path.read_bytes()
    try:
        text = data.decode("utf-8")
        value = parse_json(text)
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 at byte {error.start}.") from error
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode())
        raise SourceError(f"{path} is not JSON at byte {offset} ({error.msg}).") from error
    if not isinstance(value, list) or not value:
        raise SourceError(f"{path}: expected a JSON array of human-labelled traces.")
    found = tuple(_record(each, f"{path}, record {n}") for n, each in enumerate(value, start=1))
    ids = [record.trace_id for record in found]
    if len(set(ids)) < len(ids):
        raise SourceError(f"{path}: a trace_id occurs twice ({sorted(ids)}).")
    return found


def _taxonomies(
    records: Sequence[HumanRecord],
) -> dict[tuple[tuple[str, str], ...], list[HumanRecord]]:
    """Records by their modes; names that differ in case or white space alone are the same."""
    found: dict[tuple[tuple[str, str], ...], list[HumanRecord]] = defaultdict(list)
    for record in records:
        key = tuple((code, " ".join(name.casefold().split())) for code, name in record.modes)
        found[key].append(record)
    return dict(found)


def _named_otherwise(modes: Sequence[tuple[str, str]]) -> list[str]:
    """Codes of MAST whose name here is not like MAST's: another mode, or the same reworded."""
    return [
        code
        for code, name in modes
        if code in MODE_NAMES
        and SequenceMatcher(None, name.casefold(), MODE_NAMES[code]).ratio() < _ALIKE
    ]


def human_summary(records: Sequence[HumanRecord]) -> dict[str, Any]:
    """Counts, and what cannot be compared with the full file."""
    taxonomies = [
        {
            "rounds": sorted({record.round for record in members}),
            "n_modes": len(modes),
            "n_traces": len(members),
            "is_mast": members[0].is_mast,
            "codes_named_otherwise": _named_otherwise(modes),
        }
        for modes, members in _taxonomies(records).items()
    ]
    return {
        "n_traces": len(records),
        "n_fc2": sum(record.fc2 is True for record in records),
        "n_not_comparable": sum(record.fc2 is None for record in records),
        "taxonomies": taxonomies,
        "traces": [
            {
                "trace_id": r.trace_id,
                "round": r.round,
                "framework": r.framework,
                "benchmark": r.benchmark,
                "n_modes": len(r.modes),
                "fc2": r.fc2,
            }
            for r in records
        ],
        "warnings": [*_not_comparable(records, taxonomies), *_defects(records)],
    }


def _not_comparable(
    records: Sequence[HumanRecord], taxonomies: Sequence[Mapping[str, Any]]
) -> list[str]:
    foreign = [record.trace_id for record in records if not record.is_mast]
    found = [
        "There is no llm_name, so there are no counts or splits by model, and a trace cannot be "
        "matched with one of the full file by (trace.key, trace_id).",
        "Votes are of three people; the full file's labels are of a language model.",
    ]
    if foreign:
        meaning = sorted({c for t in taxonomies for c in t["codes_named_otherwise"]})
        found.append(
            f"{len(taxonomies)} taxonomies: traces {', '.join(map(str, foreign))} are annotated "
            f"with modes that are not the 14 of MAST ({', '.join(meaning)} name others, or the "
            f"same otherwise). FC2 is not defined for them: they count as neither positive nor "
            f"negative."
        )
    return found


def _defects(records: Sequence[HumanRecord]) -> list[str]:
    found = []
    swapped = [record.trace_id for record in records if record.swapped]
    if swapped:
        found.append(
            f"Traces {', '.join(map(str, swapped))}: mas_name and benchmark_name are swapped in "
            f"the file, and put right here."
        )
    missing = {r.trace_id: sum(v is None for votes in r.votes for v in votes) for r in records}
    if sum(missing.values()):
        where = ", ".join(f"{n} in trace {key}" for key, n in missing.items() if n)
        found.append(f"Missing votes (null or NaN): {where}; majorities are of the votes cast.")
    texts: dict[str, list[int]] = defaultdict(list)
    blocks: dict[object, list[int]] = defaultdict(list)
    for record in records:
        texts[record.trace.strip()].append(record.trace_id)
        blocks[record.modes, record.votes].append(record.trace_id)
    for ids in texts.values():
        if len(ids) > 1:
            found.append(f"Traces {', '.join(map(str, ids))} have the same text.")
    same = [ids for ids in blocks.values() if len(ids) > 1]
    if same:
        listed = "; ".join(", ".join(map(str, ids)) for ids in same)
        found.append(
            f"Only {len(blocks)} different annotation blocks for {len(records)} traces: all votes "
            f"are the same in traces {listed}."
        )
    return found
