"""A trace's turns, the ones a coder should see first, and whether a quote stands in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["Turn", "excerpt", "find_turns", "quote_occurs", "relevant_turns", "split_turns"]

# How the frameworks of MAST-Data begin a turn; the speaker, where the line names one.
_STARTS: Final = re.compile(
    r"""^[ \t]*(?:
      (?:Response\ from|Message\ to|Reply\ from|Entering)\ (?P<app>[\w ]{1,40}?)
      (?:\ message\ loop)?$
    | Code\ Execution\ Output$
    | -{5,}\ (?P<rule>[^\n-][^\n]{0,60}?)\ -{5,}$
    | \[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[^\n]*?(?:-\ (?P<log>\w+\(\w+\)|\w+)(?=:))?
    | "content":\ \[$
    | (?P<name>[A-Z]\w{1,30}(?:\ [A-Z]\w{1,30}){0,2})(?:\ \(to\ [\w ]+\))?:(?=\s|$)
    )""",
    re.M | re.X,
)
_BLOCK: Final = 1500
_SPACE: Final = re.compile(r"\s+")


@dataclass(frozen=True, slots=True)
class Turn:
    """A stretch of a trajectory.

    Attributes:
        number: 1-based place in the trace.
        start: offset of its first character.
        end: offset after its last.
        speaker: who speaks, as the trace writes it; empty where it does not say.
    """

    number: int
    start: int
    end: int
    speaker: str


def split_turns(text: str) -> tuple[Turn, ...]:
    """Turns that cover the whole text, in order.

    Where no framework's turn marks are found, blocks of 1,500 characters stand in for turns.
    """
    marks = [
        (match.start(), next((name.strip() for name in match.groups() if name), ""))
        for match in _STARTS.finditer(text)
    ]
    if not marks:
        marks = [(start, "") for start in range(0, len(text), _BLOCK)]
    if not marks or marks[0][0] > 0:
        marks.insert(0, (0, ""))
    ends = [start for start, _ in marks[1:]] + [len(text)]
    return tuple(
        Turn(number, start, end, speaker)
        for number, ((start, speaker), end) in enumerate(zip(marks, ends, strict=True), start=1)
    )


def relevant_turns(text: str, turns: tuple[Turn, ...], limit: int = 12) -> tuple[Turn, ...]:
    """The turns to show first: the task, turns in which a speaker names another, the last two.

    Where an agent disregards a peer is for the coder to find; these are the places to start from.
    """
    speakers = {turn.speaker for turn in turns if len(turn.speaker) > 2}
    chosen = {1, *(turn.number for turn in turns[-2:])}
    for turn in turns:
        if len(chosen) >= limit:
            break
        body = text[turn.start : turn.end]
        others = speakers - {turn.speaker}
        if turn.speaker and any(name in body for name in others):
            chosen.add(turn.number)
    for turn in turns:  # room that is left goes to the beginning
        if len(chosen) >= limit:
            break
        chosen.add(turn.number)
    return tuple(turn for turn in turns if turn.number in chosen)


def find_turns(text: str, turns: tuple[Turn, ...], word: str) -> tuple[Turn, ...]:
    """Turns that hold a word, whatever its case."""
    wanted = word.casefold()
    return tuple(turn for turn in turns if wanted in text[turn.start : turn.end].casefold())


def excerpt(text: str, turns: tuple[Turn, ...], width: int = 600) -> str:
    """Turns as text to read; long ones cut, and what is left out said."""
    shown = []
    for turn in turns:
        body = text[turn.start : turn.end].strip()
        cut = f" … ({len(body) - width} more characters)" if len(body) > width else ""
        speaker = f" {turn.speaker}" if turn.speaker else ""
        shown.append(f"[turn {turn.number}{speaker}] {body[:width]}{cut}")
    return "\n\n".join(shown)


def quote_occurs(quote: str, text: str) -> bool:
    """Whether a quote stands in a text; runs of white space count as one space."""
    wanted = _SPACE.sub(" ", quote).strip()
    return bool(wanted) and wanted in _SPACE.sub(" ", text)
