"""One coder's pass over the traces, in a terminal; every decision is saved at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from interp.conversion.decision import CODE_HELP, CRITERIA, decision_faults, with_criteria
from interp.conversion.log import CODES, ConversionEntry, ConversionLog, writable
from interp.conversion.turns import (
    Turn,
    excerpt,
    find_turns,
    printable,
    relevant_turns,
    split_turns,
)
from interp.mast.records import MastRecord

__all__ = ["Ask", "run_session"]

Ask = Callable[[str], str | None]
"""Asks for a line; None at the end of input."""

_MENU: Final = (
    "1 clean, 2 ambiguous, 3 not convertible, 4 structural mismatch; m more turns, t whole trace, "
    "/WORD find, ? criteria, s skip, q quit"
)
_PAGE: Final = 12


def _criteria() -> str:
    lines = [f"({letter}) {text}" for letter, text in CRITERIA.items()]
    lines += [f"{n} {code}: {CODE_HELP[code]}" for n, code in enumerate(CODES, start=1)]
    return "\n".join(lines)


def run_session(
    records: Iterable[MastRecord],
    log: ConversionLog,
    coder: str,
    ask: Ask,
    show: Callable[[str], None],
) -> int:
    """Code traces until the coder quits or none is left.

    Args:
        records: traces to code, in order; those that the log has are passed over.
        log: open log.
        coder: name that the entries carry.
        ask: asks for a line of input.
        show: prints a text.

    Returns:
        number of traces coded.
    """
    done = 0
    coded = set(log.coded)
    for record in records:
        if (record.trace_key, str(record.trace_id)) in coded:
            continue
        outcome = _code_one(record, coder, ask, show)
        if outcome == "quit":
            break
        if isinstance(outcome, ConversionEntry):
            log.append([outcome])
            done += 1
            show(f"Saved. The log has {len(log.entries)} entries.")
    return done


def _code_one(
    record: MastRecord, coder: str, ask: Ask, show: Callable[[str], None]
) -> ConversionEntry | str:
    """One trace: its entry, or `skip`, or `quit`."""
    text = record.trajectory
    turns = split_turns(text)
    first = relevant_turns(text, turns)
    show(
        f"\n{record.framework} / {record.model} / {record.benchmark}: {record.trace_key}/"
        f"{record.trace_id}, {len(turns)} turns, {len(text)} characters; {len(first)} shown\n\n"
        f"{excerpt(text, first)}\n"
    )
    rest = [turn for turn in turns if turn not in first]
    while True:
        choice = ask(f"Code ({_MENU})")
        if choice is None or choice.strip() == "q":
            return "quit"
        choice = choice.strip()
        if choice == "s":
            return "skip"
        if choice in ("1", "2", "3", "4") or choice in CODES:
            code = choice if choice in CODES else CODES[int(choice) - 1]
            entry = _decide(record, code, coder, ask, show)
            if entry is not None:
                return entry
            continue
        rest = _look(choice, text, turns, rest, show)


def _look(
    choice: str, text: str, turns: tuple[Turn, ...], rest: list[Turn], show: Callable[[str], None]
) -> list[Turn]:
    """Show more of the trace; returns the turns that `m` has not shown yet."""
    if choice == "m":
        show(excerpt(text, tuple(rest[:_PAGE])) if rest else "All turns have been shown.")
        return rest[_PAGE:]
    if choice == "t":
        show(printable(text))
    elif choice.startswith("/") and len(choice) > 1:
        found = find_turns(text, turns, choice[1:])
        show(excerpt(text, found[:_PAGE]) if found else f"{choice[1:]!r} is in no turn.")
        if len(found) > _PAGE:
            show(f"{len(found) - _PAGE} more turns hold it; search for more words.")
    else:
        show(_criteria())
    return rest


def _decide(
    record: MastRecord, code: str, coder: str, ask: Ask, show: Callable[[str], None]
) -> ConversionEntry | None:
    """Ask for what a code needs until it fits; None goes back to the choice of a code."""
    while True:
        fails: str | None = ""
        if code != "clean":
            fails = ask("Criteria that fail (letters of abcd)")
        rationale = ask("Rationale") if fails is not None else None
        quote = ask("Supporting quote, from the trace") if rationale is not None else None
        if fails is None or rationale is None or quote is None:
            return None
        fails = "".join(letter for letter in fails.casefold() if letter not in " ,()")
        faults = decision_faults(code, fails, rationale, quote, record.trajectory)
        if not (writable(rationale) and writable(quote)):
            faults = [*faults, "what was typed is not valid UTF-8"]
        if not faults:
            return ConversionEntry(
                trace_key=record.trace_key,
                trace_id=record.trace_id,
                framework=record.framework,
                model=record.model,
                code=code,
                rationale=with_criteria(rationale.strip(), fails),
                supporting_quote=quote.strip(),
                coder=coder,
            )
        show("Not saved: " + "; ".join(faults) + ".")
        again = ask("Enter to try again, b for another code")
        if again is None or again.strip() == "b":
            return None
