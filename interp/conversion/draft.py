"""From clean traces to items: drafts that hold everything but the question and its gold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

from interp.conversion.log import ConversionEntry
from interp.conversion.turns import split_turns
from interp.errors import ResultError
from interp.mast.records import MastRecord
from interp.sources.tomas.schema import TomasItem

__all__ = ["MAX_CHARS", "draft_items"]

MAX_CHARS: Final = 2000
"""Characters of a drafted prompt: about the 512 tokens that the paper trains with."""

_GAP: Final = "\n[…]\n"


def draft_items(
    entries: Sequence[ConversionEntry], records: Iterable[MastRecord], *, max_chars: int = MAX_CHARS
) -> tuple[TomasItem, ...]:
    """One draft for every clean entry, in the order of the log.

    The prompt is the trace up to the end of the turn that holds the supporting quote; a longer one
    keeps its beginning, a quarter, and its end. That place is noted as `cut`. Where the action that
    went wrong comes later or earlier, the writer of the item moves both. Question and gold are left
    empty, which the reader of items refuses.

    Args:
        entries: a conversion log.
        records: the traces, streamed.
        max_chars: of a prompt, at least 200.

    Raises:
        ResultError: no clean entry, a clean trace is missing, or its quote is not in it.
    """
    if max_chars < 200:
        raise ResultError(f"--max-chars is {max_chars}; expected at least 200.")
    wanted = {entry.key: entry for entry in entries if entry.code == "clean"}
    if not wanted:
        raise ResultError("The log has no clean entry, so there is nothing to make items of.")
    found: dict[tuple[str, str], TomasItem] = {}
    for record in records:
        entry = wanted.get((record.trace_key, str(record.trace_id)))
        if entry is not None:
            found[entry.key] = _draft(entry, record.trajectory, max_chars)
    missing = [entry.name for key, entry in wanted.items() if key not in found]
    if missing:
        raise ResultError(
            f"{len(missing)} clean traces of the log are not in the file (first: {missing[0]})."
        )
    return tuple(found[key] for key in wanted)


def _draft(entry: ConversionEntry, text: str, max_chars: int) -> TomasItem:
    words = entry.supporting_quote.split()
    match = re.search(r"\s+".join(map(re.escape, words)), text) if words else None
    if match is None:
        raise ResultError(
            f"line {entry.line}: the quote {entry.supporting_quote[:60]!r} does not occur in "
            f"{entry.name}; `interp tomas accounting --traces` lists all such lines."
        )
    cut = next(turn.end for turn in split_turns(text) if turn.end >= match.end())
    shown = text[:cut].strip()
    if len(shown) > max_chars:
        head = max_chars // 4
        shown = shown[:head] + _GAP + shown[len(shown) - (max_chars - head - len(_GAP)) :]
    return TomasItem(
        id=f"{entry.trace_key}-{entry.trace_id}",
        source=f"{entry.trace_key}/{entry.trace_id}",
        prompt=shown,
        question="",
        gold="",
        supporting_quote=entry.supporting_quote,
        extra={"cut": cut, "rationale": entry.rationale},
    )
