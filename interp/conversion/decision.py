"""The rubric: four criteria, four codes, and what goes together."""

from __future__ import annotations

import re
from typing import Final

from interp.conversion.log import CODES
from interp.conversion.turns import quote_occurs
from interp.errors import did_you_mean

__all__ = ["CODE_HELP", "CRITERIA", "decision_faults", "split_criteria", "with_criteria"]

CRITERIA: Final = {
    "a": "a peer has an identifiable role, knowledge, belief or intention",
    "b": "another agent acts without taking that into account",
    "c": "the trace shows what the better-coordinated action would have been",
    "d": "a clear question with a clear answer can be written",
}
"""All four must hold for an item (ToMAS, section III-B)."""

CODE_HELP: Final = {
    "clean": "all criteria hold",
    "ambiguous": "a peer is there, but readings conflict or another cause cannot be separated",
    "not_convertible": "a peer is there, but (b), (c) or (d) fails",
    "structural_mismatch": "(a) fails: there is no peer with a state",
}

_PREFIX: Final = re.compile(r"^\[fails: (?P<letters>[a-d](?:, [a-d])*)\] ")


def with_criteria(rationale: str, fails: str) -> str:
    """The rationale with the failing criteria before it, as the log keeps them."""
    letters = sorted(set(fails))
    return f"[fails: {', '.join(letters)}] {rationale}" if letters else rationale


def split_criteria(rationale: str) -> tuple[str, str]:
    """(failing letters, rationale without them): the inverse of `with_criteria`."""
    match = _PREFIX.match(rationale)
    if match is None:
        return "", rationale
    return match["letters"].replace(", ", ""), rationale[match.end() :]


def decision_faults(
    code: str, fails: str, rationale: str, quote: str, trajectory: str
) -> list[str]:
    """What is wrong with a decision about a trace; empty if nothing is.

    Args:
        code: one of `CODES`.
        fails: letters of the criteria that fail.
        rationale: why.
        quote: supporting quote; a clean trace needs one, and any must occur in the trace.
        trajectory: the trace's text.
    """
    if code not in CODES:
        return [f"{code!r} is no code. {did_you_mean(code, CODES)}"]
    faults = []
    odd = sorted(set(fails) - set(CRITERIA))
    if odd:
        faults.append(f"{', '.join(odd)} is no criterion; expected letters of abcd")
    elif code == "clean" and fails:
        faults.append(f"clean means that no criterion fails; got {fails!r}")
    elif code == "structural_mismatch" and "a" not in fails:
        faults.append("structural_mismatch means that (a) fails; name it")
    elif code in ("ambiguous", "not_convertible") and "a" in fails:
        faults.append(f"where (a) fails the code is structural_mismatch, not {code}")
    elif code == "not_convertible" and not fails:
        faults.append("not_convertible means that (b), (c) or (d) fails; name it")
    if not rationale.strip():
        faults.append("the rationale is empty")
    if not quote.strip():
        if code == "clean":
            faults.append("a clean trace needs a supporting quote")
    elif not quote_occurs(quote, trajectory):
        faults.append(f"the quote {quote[:60]!r} does not occur in the trace")
    return faults
