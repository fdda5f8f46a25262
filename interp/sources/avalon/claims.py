"""Formal claims as JSON objects, and whether they hold in a scenario.

Epistemic operators follow the standard possible-worlds reading: a seat knows what holds in every
world that is the same to it as the actual one; the worlds all seats range over are those that the
public history leaves. `docs/avalon.md` documents every operator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.errors import SourceError, did_you_mean
from interp.sources.avalon.motives import motive_fits
from interp.sources.avalon.rules import (
    CARDS,
    FACTIONS,
    ROLES,
    SEES,
    Card,
    Faction,
    fail_range,
    protocol_card,
)
from interp.sources.avalon.scenario import Event, Lady, Proposal, Scenario
from interp.sources.avalon.worlds import Rows, assignment_table, private_keys, public_rows

__all__ = [
    "Claim",
    "View",
    "both",
    "card_of",
    "either",
    "faction",
    "holds",
    "knows",
    "negation",
    "open_view",
    "possible",
    "role",
]

Claim = Mapping[str, Any]
Truth = NDArray[np.bool_]


def role(seat: str, name: str) -> Claim:
    """`seat` has the role `name`."""
    return {"op": "role", "seat": seat, "role": name}


def faction(seat: str, side: str) -> Claim:
    """`seat` is on the side `side`."""
    return {"op": "faction", "seat": seat, "faction": side}


def negation(claim: Claim) -> Claim:
    """The claim does not hold."""
    return {"op": "not", "of": claim}


def both(*claims: Claim) -> Claim:
    """All claims hold."""
    return {"op": "and", "of": list(claims)}


def either(*claims: Claim) -> Claim:
    """At least one claim holds."""
    return {"op": "or", "of": list(claims)}


def knows(seat: str | None, claim: Claim) -> Claim:
    """`seat` knows the claim; None is an onlooker with the public history alone."""
    return {"op": "knows", "seat": seat, "of": claim}


def possible(seat: str | None, claim: Claim) -> Claim:
    """`seat` cannot rule the claim out."""
    return {"op": "possible", "seat": seat, "of": claim}


@dataclass(frozen=True, slots=True, eq=False)
class View:
    """A scenario with the worlds that its public history, or a part of it, leaves.

    Attributes:
        scenario: the state.
        history: the public events that count.
        rows: (n,) rows of the public worlds in the lineup's table.
        actual: row of the actual world.
    """

    scenario: Scenario
    history: tuple[Event, ...]
    rows: Rows
    actual: int


def open_view(scenario: Scenario) -> View:
    """The scenario with its whole history."""
    return View(
        scenario,
        scenario.history,
        public_rows(scenario, scenario.history),
        assignment_table(scenario.lineup).row_of(scenario.roles),
    )


def holds(claim: Claim, view: View | Scenario) -> bool:
    """Whether a claim holds in the actual world.

    Args:
        claim: the JSON object that `docs/avalon.md` documents.
        view: an opened scenario (cheaper for many claims), or a scenario.

    Raises:
        SourceError: the claim has an unknown operator, name, role or event.
    """
    opened = open_view(view) if isinstance(view, Scenario) else view
    op = claim.get("op")
    if op in _AT_THE_TABLE:
        return _AT_THE_TABLE[op](claim, opened)
    if op == "and":
        return all(holds(part, opened) for part in _parts(claim["of"]))
    if op == "or":
        return any(holds(part, opened) for part in _parts(claim["of"]))
    if op == "not":
        return not holds(claim["of"], opened)
    return bool(_truth(claim, opened, np.array([opened.actual]))[0])


def _truth(claim: Claim, view: View, at: Rows) -> Truth:
    """(len(at),) whether the claim holds in each of the worlds `at`."""
    op = claim.get("op")
    table = assignment_table(view.scenario.lineup)
    match op:
        case "role":
            _one_of(claim["role"], ROLES, "role")
            code = ROLES.index(claim["role"])
            return np.asarray(table.roles[at, view.scenario.seat(claim["seat"])] == code)
        case "faction":
            _one_of(claim["faction"], FACTIONS, "faction")
            evil = table.evil[at, view.scenario.seat(claim["seat"])]
            return np.asarray(evil == (claim["faction"] == "EVIL"))
        case "lied":
            event = _lady(view.scenario.history, claim["event"])
            evil = table.evil[at, view.scenario.seat(event.target)]
            return np.asarray(evil != (event.claim == "EVIL"))
        case "not":
            return ~_truth(claim["of"], view, at)
        case "and":
            return np.asarray(_truths(claim["of"], view, at).all(axis=0))
        case "or":
            return np.asarray(_truths(claim["of"], view, at).any(axis=0))
        case "knows":
            return _known(claim["seat"], claim["of"], view, at)
        case "possible":
            return ~_known(claim["seat"], negation(claim["of"]), view, at)
        case "at":
            return _truth(claim["of"], _cut(view, claim["event"]), at)
        case "announce":
            changed = _announced(view, claim["event"], claim["claim"])
            result = np.ones(len(at), dtype=np.bool_)
            inside = np.isin(at, changed.rows)
            result[inside] = _truth(claim["of"], changed, at[inside])
            return result
    raise SourceError(
        f"A claim has the operator {op!r}. {did_you_mean(str(op), (*_WORLD_OPS, *_AT_THE_TABLE))} "
        f"Those on cards, fails and motives cannot stand inside what a seat knows."
    )


def _truths(claims: Sequence[Claim], view: View, at: Rows) -> Truth:
    return np.array([_truth(part, view, at) for part in _parts(claims)])


def _parts(claims: Sequence[Claim]) -> Sequence[Claim]:
    """The parts of a compound; an empty list would be true or false by mere convention."""
    if not claims:
        raise SourceError("An `and` or `or` claim lists no claims; expected at least one.")
    return claims


_WORLD_OPS: Final = (
    *("role", "faction", "lied", "not", "and", "or"),
    *("knows", "possible", "at", "announce"),
)


def _known(seat: str | None, claim: Claim, view: View, at: Rows) -> Truth:
    """(len(at),) whether the seat knows the claim in each of the worlds `at`."""
    if len(at) == 0:
        return np.zeros(0, dtype=np.bool_)
    if seat is None:
        return np.full(len(at), bool(_truth(claim, view, view.rows).all()))
    number = view.scenario.seat(seat)
    keys = private_keys(view.scenario, number, view.history, view.rows)
    own = private_keys(view.scenario, number, view.history, at)
    if len(at) == 1:
        # One world asks about one cell only: most claims are decided here, and cheaply.
        return np.array([_truth(claim, view, view.rows[keys == own[0]]).all()])
    refuted = np.zeros(int(max(keys.max(), own.max())) + 1, dtype=np.bool_)
    refuted[keys[~_truth(claim, view, view.rows)]] = True
    return ~refuted[own]


def _cut(view: View, event: int) -> View:
    """The view before an event: its public history ends there."""
    if not 0 <= event <= len(view.history):
        raise SourceError(f"There are {len(view.history)} events; got `at` event {event}.")
    history = view.history[:event]
    return replace(view, history=history, rows=public_rows(view.scenario, history))


def _announced(view: View, event: int, claim: Faction) -> View:
    """The view as it would be after the Lady holder of an event announces `claim`."""
    _one_of(claim, FACTIONS, "claim")
    said = replace(_lady(view.history, event), claim=claim)
    history = (*view.history[:event], said, *view.history[event + 1 :])
    return replace(view, history=history, rows=public_rows(view.scenario, history))


def _lady(history: Sequence[Event], event: int) -> Lady:
    found = history[event] if 0 <= event < len(history) else None
    if not isinstance(found, Lady):
        raise SourceError(f"Event {event} is {found!r}; expected a use of the Lady of the Lake.")
    return found


def _one_of(value: str, known: Sequence[str], what: str) -> None:
    if value not in known:
        raise SourceError(f"There is no {what} {value!r}. {did_you_mean(str(value), known)}")


def card_of(scenario: Scenario, seat: str, team: Sequence[str]) -> Card:
    """The card that the protocol gives to one member of a team; beliefs as declared."""
    _require_members(scenario, [seat], team)
    return protocol_card(
        scenario.role(seat),
        [scenario.role(name) for name in team if name != seat],
        scenario.rules,
        _beliefs(scenario, team).get(seat),
    )


def _beliefs(scenario: Scenario, team: Sequence[str]) -> Mapping[str, str]:
    """Stated beliefs: they are about the pending team, and say nothing on any other."""
    if scenario.pending is None or set(scenario.pending[1]) != set(team):
        return {}
    return scenario.beliefs


def _require_members(scenario: Scenario, seats: Sequence[str], team: Sequence[str]) -> None:
    for name in seats:
        if name not in team:
            raise SourceError(f"{name} is not on the team {', '.join(team)}.")
    if not scenario.protocol:
        raise SourceError(
            "The claim is about the sabotage protocol, which the scenario does not declare."
        )


def _card(claim: Claim, view: View) -> bool:
    _one_of(claim["card"], CARDS, "card")
    card: str = claim["card"]
    return card_of(view.scenario, claim["seat"], claim["team"]) == card


def _known_teammates(claim: Claim, view: View) -> bool:
    """Exactly `count` of the team were shown at night, as EVIL, to an EVIL seat."""
    own, scenario = claim["seat"], view.scenario
    shown = [name for name in claim["team"] if scenario.role(name) in SEES[scenario.role(own)]]
    return scenario.faction(own) == "EVIL" and len(shown) == int(claim["count"])


def _approved(claim: Claim, view: View) -> bool:
    """A proposal got a strict majority."""
    number, history = claim["event"], view.scenario.history
    event = history[number] if 0 <= number < len(history) else None
    if not isinstance(event, Proposal):
        raise SourceError(f"Event {number} is {event!r}; expected a proposal.")
    return 2 * len(event.against) < len(view.scenario.players)


def _fail_bounds(view: View, team: Sequence[str]) -> tuple[int, int]:
    scenario = view.scenario
    _require_members(scenario, [], team)
    belief = next(iter(_beliefs(scenario, team).values()), None)
    return fail_range([scenario.role(name) for name in team], scenario.rules, belief)


def _fails_at_least(claim: Claim, view: View) -> bool:
    """The protocol brings up `count` fails or more, whatever it leaves open."""
    return _fail_bounds(view, claim["team"])[0] >= int(claim["count"])


def _fails(claim: Claim, view: View) -> bool:
    """Exactly `count` fails; `open` if the protocol leaves the number undetermined."""
    low, high = _fail_bounds(view, claim["team"])
    if claim["count"] == "open":
        return low < high
    return low == high == int(claim["count"])


def _profile(claim: Claim, view: View) -> bool:
    """A card for every member of a team, none of them against the protocol."""
    cards: Mapping[str, str] = claim["cards"]
    team = list(cards)
    return all(card_of(view.scenario, name, team) in (card, "open") for name, card in cards.items())


def _motive(claim: Claim, view: View) -> bool:
    return motive_fits(claim, view.scenario) and all(
        holds(premise, view) for premise in claim["premises"]
    )


_AT_THE_TABLE: Final = {
    "card": _card,
    "known_teammates": _known_teammates,
    "approved": _approved,
    "fails": _fails,
    "fails_at_least": _fails_at_least,
    "profile": _profile,
    "motive": _motive,
}
"""Operators that look at the complete state, so they never stand inside `knows`."""
