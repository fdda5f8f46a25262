"""What must not be in a prompt, and what train and held-out items must not share."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from interp.conversion.turns import quote_occurs, split_turns
from interp.errors import SourceError
from interp.mast.records import MastRecord
from interp.mast.taxonomy import MODE_NAMES
from interp.sources.tomas.schema import TomasItem

__all__ = ["NEAR", "Fault", "TraceCheck", "find_leaks", "label_faults", "trace_faults"]

NEAR: Final = 0.8
"""Share of the shorter text's word 5-grams from which two texts are near-duplicates."""

_N: Final = 5
_MIN_LINE: Final = 25

Kind = Literal["shared_trace", "near_duplicate", "label", "gold_in_prompt", "trace"]
"""`gold_in_prompt` is for a reader to judge: a question may list its options."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One reason why items must not be used as they are.

    Attributes:
        kind: what it is about.
        items: ids of the items concerned; for a leak, the train item first.
        detail: what was found.
    """

    kind: Kind
    items: tuple[str, ...]
    detail: str


def _label_pattern() -> re.Pattern[str]:
    names = "|".join(
        re.escape(name).replace(r"\ ", r"[\s_-]+").replace(r"\-", r"[\s-]").replace("'", "['’]?")
        for name in MODE_NAMES.values()
    )
    return re.compile(
        rf"\bFC-?[123]\b|\bFM[- ]?[123]\.\d\b|\b(?-i:MAST)\b|\b(?:failure[\s_-]+)mode\b"
        rf"|\bmode\s+[123]\.\d\b|\binter-?agent\s+misalignment\b|\bmast_annotation\b|\b(?:{names})\b",
        re.I,
    )


_LABEL: Final = _label_pattern()


def label_faults(items: Sequence[TomasItem]) -> list[Fault]:
    """Items whose prompt or question names a MAST label, or holds the gold word for word."""
    found = []
    for item in items:
        for name in ("prompt", "question"):
            match = _LABEL.search(getattr(item, name))
            if match:
                found.append(Fault("label", (item.id,), f"{name} has the label {match[0]!r}"))
        if (
            quote_occurs(item.gold, f"{item.prompt}\n{item.question}")
            and len(item.gold.split()) > 3
        ):
            found.append(Fault("gold_in_prompt", (item.id,), "the gold stands in the prompt"))
    return found


def _shingles(item: TomasItem) -> frozenset[tuple[str, ...]]:
    words = re.findall(r"\w+", f"{item.prompt} {item.question}".casefold())
    if len(words) <= _N:
        return frozenset([tuple(words)])
    return frozenset(tuple(words[i : i + _N]) for i in range(len(words) - _N + 1))


def find_leaks(
    train: Sequence[TomasItem], held_out: Sequence[TomasItem], *, near: float = NEAR
) -> list[Fault]:
    """Pairs of a train and a held-out item that share their source trace or their text.

    Args:
        train: items of one pool.
        held_out: items of the other.
        near: share of the shorter text's word 5-grams (prompt and question) from which two texts
            count as one; in (0, 1].

    Raises:
        SourceError: `near` is out of range.
    """
    if not 0 < near <= 1:
        raise SourceError(f"--near is {near}; expected a share above 0 and up to 1.")
    found = []
    held = [(item, _shingles(item)) for item in held_out]
    for item in train:
        grams = _shingles(item)
        for other, others in held:
            pair = (item.id, other.id)
            if item.source.strip().casefold() == other.source.strip().casefold():
                found.append(Fault("shared_trace", pair, f"both are of the trace {item.source}"))
            share = len(grams & others) / min(len(grams), len(others))
            if share >= near:
                found.append(Fault("near_duplicate", pair, f"{share:.0%} of the text is the same"))
    return found


@dataclass(frozen=True, slots=True)
class TraceCheck:
    """Items against their traces.

    Attributes:
        faults: what was found.
        uncut: ids of items that do not say where their context ends (`cut`), so that of later
            turns only the trace's last one was looked for.
    """

    faults: tuple[Fault, ...]
    uncut: tuple[str, ...]


def trace_faults(items: Sequence[TomasItem], records: Iterable[MastRecord]) -> TraceCheck:
    """Check that a prompt shows no later turn, and that the quote is one.

    An item may say in the key `cut` how many characters of the trajectory come before the
    miscoordinated action. A line of the prompt that occurs after that place only is a later turn.
    Without `cut`, the last turn of the trace must not be in the prompt: something must be left to
    have gone wrong.

    Args:
        items: `source` is `trace.key/trace_id` or `framework/benchmark/model/trace_id`.
        records: the traces, streamed.
    """
    wanted: dict[str, list[TomasItem]] = {}
    for item in items:
        wanted.setdefault(item.source.strip(), []).append(item)
    found: list[Fault] = []
    seen: set[str] = set()
    for record in records:
        cell = f"{record.framework}/{record.benchmark}/{record.model}/{record.trace_id}"
        for name in (f"{record.trace_key}/{record.trace_id}", cell):
            if name in wanted:
                seen.add(name)
                for item in wanted[name]:
                    found += _of_trace(item, record.trajectory)
    found += [
        Fault("trace", (item.id,), f"there is no trace {name}")
        for name, members in wanted.items()
        if name not in seen
        for item in members
    ]
    uncut = tuple(item.id for item in items if not isinstance(item.extra.get("cut"), int))
    return TraceCheck(tuple(found), uncut)


def _of_trace(item: TomasItem, text: str) -> list[Fault]:
    found = []
    if item.supporting_quote.strip() and not quote_occurs(item.supporting_quote, text):
        found.append(Fault("trace", (item.id,), "the supporting quote is not in the trace"))
    cut = item.extra.get("cut")
    if isinstance(cut, int):
        before, after = text[: max(cut, 0)], text[max(cut, 0) :]
        for line in item.prompt.splitlines():
            long = len(" ".join(line.split())) >= _MIN_LINE
            if long and quote_occurs(line, after) and not quote_occurs(line, before):
                shown = " ".join(line.split())[:60]
                found.append(Fault("trace", (item.id,), f"the prompt has a later turn: {shown!r}"))
        return found
    turns = split_turns(text)
    last = text[turns[-1].start : turns[-1].end]
    if len(turns) > 2 and len(last.split()) > 3 and quote_occurs(last, item.prompt):
        found.append(Fault("trace", (item.id,), "the prompt has the last turn of the trace"))
    return found
