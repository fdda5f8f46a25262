"""Strategic Signaling: what a Lady holder's announcement reveals, conceals or would give away."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from random import Random
from typing import Final

from interp.sources.avalon.claims import (
    Claim,
    View,
    both,
    either,
    faction,
    holds,
    knows,
    negation,
    possible,
)
from interp.sources.avalon.deal import deal_seats, lady_event, quest_events
from interp.sources.avalon.rules import FACTIONS, faction_of
from interp.sources.avalon.scenario import Lady, Scenario
from interp.sources.avalon.twins import (
    Ability,
    Filling,
    Kind,
    Twin,
    card_blind_seats,
    from_some_seat,
    make_twins,
)

__all__ = ["SIGNALING"]


def _deal(rng: Random) -> Scenario:
    lineup, players, roles = deal_seats(rng, (5, 3, 2))
    history = quest_events(rng, lineup, players, roles, 2)
    evil = [p for p, r in zip(players, roles, strict=True) if faction_of(r) == "EVIL"]
    holder = rng.choice(evil if rng.random() < 0.6 else players)
    event = lady_event(rng, players, roles, 2, holder=holder, lies=0.7)
    # A decision still to be made: only an EVIL holder has a choice.
    waiting = holder in evil and rng.random() < 0.45
    history.append(replace(event, claim=None) if waiting else event)
    return Scenario(lineup.name, players, roles, tuple(history))


def _lady(view: View) -> tuple[int, Lady]:
    """The last event, which in these scenarios is the Lady's use."""
    number = len(view.history) - 1
    event = view.history[number]
    if not isinstance(event, Lady):
        raise TypeError(f"The last event is {event!r}; signaling scenarios end with the Lady.")
    return number, event


def _hearers(rng: Random, view: View, holder: str) -> list[str]:
    seats = [name for name in card_blind_seats(view.scenario) if name != holder]
    return rng.sample(seats, len(seats))


_CAUGHT: Final = (
    "{x} can tell that what {h} announced about {t} was false.",
    "{h}'s report on {t} cannot deceive {x}, who is able to see that it is a lie.",
    "I, {x}, know that {h} lied about {t}.",
)
_VOUCHED: Final = (
    "{x} can be certain that what {h} announced about {t} was true.",
    "I, {x}, know that {h} told the truth about {t}.",
    "Doubts about {h}'s report on {t} are settled for {x}: it has to be true.",
)
_DOUBTFUL: Final = (
    "{x} cannot tell whether {h}'s report on {t} was true or false.",
    "For {x}, it stays open whether {h} lied about {t}.",
    "I, {x}, have no way of checking what {h} said about {t}.",
)
_LEARNED: Final = (
    "It took {h}'s announcement for {x} to be certain that {y} is EVIL.",
    "{h}'s announcement let {x} find out that {y} is EVIL, which {x} could not know before.",
)
_EITHER: Final = (
    "After the announcement, {x} can be certain that {y} or {z} is EVIL, or both.",
    "What {h} said leaves {x} sure that {y} and {z} are not both GOOD.",
)
_IF_GOOD: Final = (
    "{x} can reason: if {h} is GOOD, then {y} is {side}.",
    "I, {x}, know this much: as long as {h} is GOOD, {y} must be {side}.",
    "{x} can hold on to this: {h} being GOOD would make {y} {side}.",
)


def _report(kind: str, templates: tuple[str, ...]) -> Kind:
    """Kinds that ask what different hearers make of the same announcement."""

    def build(rng: Random, view: View) -> list[Twin]:
        number, event = _lady(view)
        if event.claim is None:
            return []
        lied: Claim = {"op": "lied", "event": number}
        fillings = []
        for x in _hearers(rng, view, event.holder):
            claim = {
                "caught": knows(x, lied),
                "vouched": knows(x, negation(lied)),
                "doubtful": both(possible(x, lied), possible(x, negation(lied))),
            }[kind]
            names = {"x": x, "h": event.holder, "t": event.target}
            fillings.append(Filling(names, claim, x))
        return make_twins(rng, view, kind, templates, fillings)

    return build


def _learned(rng: Random, view: View) -> list[Twin]:
    number, event = _lady(view)
    if event.claim is None:
        return []
    fillings = []
    evil = [name for name in view.scenario.players if view.scenario.faction(name) == "EVIL"]
    for x in _hearers(rng, view, event.holder)[:4]:
        # Mostly about players who are EVIL in fact, so that this alone decides nothing.
        for y in evil if rng.random() < 0.7 else view.scenario.players:
            fact = knows(x, faction(y, "EVIL"))
            claim = both(fact, negation({"op": "at", "event": number, "of": fact}))
            if y != x:
                fillings.append(Filling({"x": x, "h": event.holder, "y": y}, claim, x))
    return make_twins(rng, view, "learned", _LEARNED, fillings)


def _either(rng: Random, view: View, x: str) -> list[Filling]:
    _, event = _lady(view)
    if event.claim is None or x == event.holder:
        return []
    pairs = list(combinations([name for name in view.scenario.players if name != x], 2))
    if rng.random() < 0.8:
        pairs = [pair for pair in pairs if "EVIL" in map(view.scenario.faction, pair)]
    return [
        Filling(
            {"x": x, "h": event.holder, "y": y, "z": z},
            knows(x, either(faction(y, "EVIL"), faction(z, "EVIL"))),
            x,
        )
        for y, z in pairs
    ]


def _if_good(_rng: Random, view: View, x: str) -> list[Filling]:
    _, event = _lady(view)
    if event.claim is None or x == event.holder:
        return []
    if not holds(possible(x, faction(event.holder, "GOOD")), view):
        # A condition that the seat knows to be false would make everything true.
        return []
    return [
        Filling(
            {"x": x, "h": event.holder, "y": y},
            knows(x, either(faction(event.holder, "EVIL"), faction(y, event.claim))),
            x,
            {"side": event.claim},
        )
        for y in view.scenario.players
        if y not in (x, event.holder)
    ]


_EXPOSES: Final = (
    "Were {t} announced as {side}, {x} would know that {h} is EVIL, and {h} can be certain of it.",
    "{h} can foresee that, told that {t} is {side}, {x} will know {h} to be EVIL.",
)
_PASSES: Final = (
    "For all {h} can tell, {x} will not see through the announcement that {t} is {side}.",
    "Should {h} call {t} {side}, {h} has to reckon with {x} not knowing it for a lie.",
)
_SILENT: Final = (
    "As long as {h} says nothing, {x} cannot tell which side {t} is on.",
    "{h}'s silence leaves {x} unable to say whether {t} is GOOD or EVIL.",
)
_CARD: Final = (
    "Having seen the card, {h} can be certain that {y} is {side}.",
    "{h}, after looking at {t}'s card, knows that {y} is {side}.",
)


def _waiting(view: View) -> tuple[int, Lady] | None:
    """A Lady holder who still has to choose, and whose own cards add no evidence."""
    number, event = _lady(view)
    free = event.claim is None and event.holder in card_blind_seats(view.scenario)
    return (number, event) if free else None


def _foresight(kind: str, templates: tuple[str, ...], exposes: bool) -> Kind:
    """What an EVIL holder can foresee about hearers of an announcement still to be made."""

    def build(rng: Random, view: View) -> list[Twin]:
        found = _waiting(view)
        if found is None:
            return []
        number, event = found
        truth = view.scenario.faction(event.target)
        lie = "GOOD" if truth == "EVIL" else "EVIL"
        side = lie if not exposes or rng.random() < 0.8 else truth
        lied: Claim = {"op": "lied", "event": number}
        fillings = []
        for x in _hearers(rng, view, event.holder):
            said = {"op": "announce", "event": number, "claim": side}
            claim = (
                knows(event.holder, {**said, "of": knows(x, faction(event.holder, "EVIL"))})
                if exposes
                else possible(event.holder, {**said, "of": negation(knows(x, lied))})
            )
            names = {"h": event.holder, "t": event.target, "x": x}
            fillings.append(Filling(names, claim, event.holder, {"side": side}))
        return make_twins(rng, view, kind, templates, fillings)

    return build


def _silent(rng: Random, view: View) -> list[Twin]:
    _, event = _lady(view)
    if event.claim is not None:
        return []
    fillings = [
        Filling(
            {"h": event.holder, "t": event.target, "x": x},
            both(*(possible(x, faction(event.target, side)) for side in FACTIONS)),
            x,
        )
        for x in _hearers(rng, view, event.holder)
    ]
    return make_twins(rng, view, "silent", _SILENT, fillings)


def _card(rng: Random, view: View) -> list[Twin]:
    found = _waiting(view)
    if found is None:
        return []
    _, event = found
    side = view.scenario.faction(event.target)
    fillings = [
        Filling(
            {"h": event.holder, "t": event.target, "y": y},
            knows(event.holder, faction(y, side)),
            event.holder,
            {"side": side},
        )
        for y in view.scenario.players
        # Mostly players of that side in fact, as before.
        if y != event.holder and (view.scenario.faction(y) == side or rng.random() < 0.15)
    ]
    return make_twins(rng, view, "card", _CARD, fillings)


SIGNALING: Final = Ability(
    _deal,
    {
        "caught": _report("caught", _CAUGHT),
        "vouched": _report("vouched", _VOUCHED),
        "doubtful": _report("doubtful", _DOUBTFUL),
        "learned": _learned,
        "either": from_some_seat("either", _EITHER, _either),
        "if-good": from_some_seat("if-good", _IF_GOOD, _if_good),
        "exposes": _foresight("exposes", _EXPOSES, exposes=True),
        "passes": _foresight("passes", _PASSES, exposes=False),
        "silent": _silent,
        "card": _card,
    },
)
