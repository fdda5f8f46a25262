"""A trace's turns, the ones a coder should see first, and whether a quote stands in it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = [
    "Turn",
    "excerpt",
    "find_turns",
    "printable",
    "quote_occurs",
    "relevant_turns",
    "split_turns",
]

# How the frameworks of MAST-Data begin a turn; the speaker, where the line names one. Some traces
# are JSON inside a string, with newlines still escaped.
_STARTS: Final = re.compile(
    r"""(?:^|(?<=\\n))[ \t]*"?(?:
      (?:Response\ from|Message\ to|Reply\ from|Entering)\ (?P<app>[\w ]{1,40}?)
      (?:\ message\ loop)?$
    | Code\ Execution\ Output$
    | -{5,}\ (?P<rule>[^\n-][^\n]{0,60}?)\ -{5,}$
    | HyperAgent_\S+\ -\ INFO\ -\ (?P<hyper>[\w-]+)(?:'s\ Response|->[\w-]+):
    | (?:"content":\ ")?\d{4}-\d\d-\d\d[^\n\\]{0,120}?-\ \w+\((?P<meta>\w+)\):
    | \[\d{4}-\d\d-\d\d[^\n\]]{0,30}\]\ (?P<chat>[A-Z][A-Za-z ]{2,40}):\ \*\*(?!\[)
    | (?P<plain>\[?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d)
    | "content":\ \[$
    | (?P<name>[A-Z]\w{1,30}(?:\ [A-Z]\w{1,30}){0,2})(?:\ \(to\ [\w ]+\))?:(?=\s|$)
    )""",
    re.M | re.X,
)
# Labels within a turn that look like a speaker's name.
_LABEL: Final = re.compile(
    r"""^(?:Action|Answer|Arguments|Codes?|Content|Description|Example|Format|Ideas|Input|Intern
    |Key|Language|Metadata|Modality|Name|Note|Output|Parameters|Plan|Problem|Programming|Question
    |Reason|Record|Result|Returns|Solution|Step|Steps|Status|Subgoal|Summary|Task|Thought|Title
    |Url|Warning)\b|Error$""",
    re.I | re.X,
)
_NAMED: Final = re.compile(r'"name":\s*"(\w+)"')
_BLOCK: Final = 1500
_SPACE: Final = re.compile(r"\s+")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


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
    found = [m for m in _STARTS.finditer(text) if not (m["name"] and _LABEL.search(m["name"]))]
    if any(match["meta"] or match["chat"] for match in found):
        # Log lines of nobody (requests, usage) are no turns where others name their speaker.
        found = [match for match in found if not match["plain"]]
    marks = [(match.start(), _speaker(match)) for match in found]
    if not marks:
        marks = [(start, "") for start in range(0, len(text), _BLOCK)]
    if not marks or marks[0][0] > 0:
        marks.insert(0, (0, ""))
    ends = [start for start, _ in marks[1:]] + [len(text)]
    turns = []
    for number, ((start, speaker), end) in enumerate(zip(marks, ends, strict=True), start=1):
        # In a JSON list of messages the name comes after what is said.
        named = "" if speaker else next(iter(_NAMED.findall(text[start:end])), "")
        turns.append(Turn(number, start, end, speaker or named))
    return tuple(turns)


def _speaker(match: re.Match[str]) -> str:
    names = ("app", "rule", "hyper", "meta", "chat", "name")
    return next((match[name].strip() for name in names if match[name]), "")


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


def printable(text: str) -> str:
    """A trace's text for a terminal: control characters, which could steer it, are made visible."""
    return _CONTROL.sub("�", text)


def excerpt(text: str, turns: tuple[Turn, ...], width: int = 600) -> str:
    """Turns as text to read; long ones cut, and what is left out said."""
    shown = []
    for turn in turns:
        body = printable(text[turn.start : turn.end].strip())
        cut = f" … ({len(body) - width} more characters)" if len(body) > width else ""
        speaker = f" {turn.speaker}" if turn.speaker else ""
        shown.append(f"[turn {turn.number}{speaker}] {body[:width]}{cut}")
    return "\n\n".join(shown)


def quote_occurs(quote: str, text: str) -> bool:
    """Whether a quote stands in a text; runs of white space count as one space."""
    wanted = _SPACE.sub(" ", quote).strip()
    return bool(wanted) and wanted in _SPACE.sub(" ", text)
