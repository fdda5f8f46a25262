"""Perspective-Taking: what a seat can or cannot know."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from random import Random
from typing import Final

from interp.sources.avalon.claims import (
    View,
    both,
    either,
    faction,
    knows,
    possible,
    role,
)
from interp.sources.avalon.deal import deal_seats, lady_event, quest_events
from interp.sources.avalon.rules import FACTIONS, ROLES
from interp.sources.avalon.scenario import Scenario
from interp.sources.avalon.twins import Ability, Filling, card_blind_seats, from_some_seat, over_all

__all__ = ["PERSPECTIVE"]


def _deal(rng: Random) -> Scenario:
    lineup, players, roles = deal_seats(rng, (5, 3, 2))
    n_quests = rng.choice((1, 2, 2))
    history = quest_events(rng, lineup, players, roles, n_quests)
    if n_quests == 2 and rng.random() < 0.6:
        history.append(lady_event(rng, players, roles, 2))
    return Scenario(lineup.name, players, roles, tuple(history))


_KNOWN: Final = (
    "{i} can be certain that {j} is EVIL.",
    "From what this seat has seen and heard, {i} can rightly conclude that {j} is EVIL.",
    "I, {i}, know for sure that {j} belongs to the EVIL side.",
    "Nothing that {i} knows leaves room for {j} being GOOD.",
)
_CLEARED: Final = (
    "{i} can be certain that {j} is GOOD.",
    "From what this seat has seen and heard, {i} can rightly conclude that {j} is GOOD.",
    "I, {i}, know for sure that {j} belongs to the GOOD side.",
    "Nothing that {i} knows leaves room for {j} being EVIL.",
)
_UNSETTLED: Final = (
    "{i} cannot tell yet whether {j} is GOOD or EVIL.",
    "I, {i}, have no way of settling which side {j} is on.",
    "For {i}, both sides are still possible for {j}.",
)
_MAY_BE: Final = (
    "For all {i} can tell, {j} may be {role}.",
    "{i} cannot rule out that {j} is {role}.",
    "I, {i}, have to reckon with {j} being {role}.",
)
_PINNED: Final = (
    "{i} can work out that {j} is {role}.",
    "I, {i}, can be certain that {j} is {role}.",
    "What {i} knows leaves only one reading: {j} is {role}.",
)
_SECOND: Final = (
    "{i} can be certain that {j} knows {k} to be EVIL.",
    "I, {i}, can be sure of this: {j} knows that {k} is EVIL.",
    "{i} can conclude that {j} has the knowledge that {k} is on the EVIL side.",
)
_SECOND_NOT: Final = (
    "{i} can be certain that {j} does not know which side {k} is on.",
    "I, {i}, can be sure of this: {j} cannot tell whether {k} is GOOD or EVIL.",
)
_ONE_EACH: Final = (
    "{i} can be certain that exactly one of {j} and {k} is EVIL.",
    "{i} can conclude that {j} and {k} are on different sides.",
)
_SOME: Final = (
    "{i} can be certain that at least one of {j} and {k} is EVIL.",
    "I, {i}, know that {j} and {k} cannot both be GOOD.",
)


def _others(view: View, seat: str) -> list[str]:
    return [name for name in view.scenario.players if name != seat]


def _known(side: str) -> Callable[[Random, View, str], list[Filling]]:
    def fillings(rng: Random, view: View, i: str) -> list[Filling]:
        others = _others(view, i)
        # Mostly all candidates are on that side in fact, so that reading the full state does
        # not help: the false statement is true, but not to be known from the seat.
        so = [j for j in others if view.scenario.faction(j) == side]
        chosen = so if rng.random() < 0.7 else others
        return [Filling({"i": i, "j": j}, knows(i, faction(j, side)), i) for j in chosen]

    return fillings


def _unsettled(_rng: Random, view: View, i: str) -> list[Filling]:
    return [
        Filling({"i": i, "j": j}, both(*(possible(i, faction(j, side)) for side in FACTIONS)), i)
        for j in _others(view, i)
    ]


def _may_be(rng: Random, view: View, i: str) -> list[Filling]:
    name = rng.choice([name for name in ROLES if name in view.scenario.rules.roles])
    return [
        Filling({"i": i, "j": j}, possible(i, role(j, name)), i, {"role": _with_article(name)})
        for j in _others(view, i)
        # What is so in fact cannot be ruled out: it would be too easy a truth.
        if view.scenario.role(j) != name or rng.random() < 0.3
    ]


def _pinned(rng: Random, view: View) -> list[Filling]:
    scenario = view.scenario
    names = [name for name in ROLES[:1] + ROLES[3:] if name in scenario.rules.roles]
    name = rng.choice(names)
    seats = card_blind_seats(scenario)
    if rng.random() < 0.75:
        # The role is right in fact, and the question is who can tell.
        pairs = [(i, scenario.players[scenario.roles.index(name)]) for i in seats]
    else:
        i = rng.choice(seats)
        pairs = [(i, j) for j in scenario.players]
    return [
        Filling({"i": i, "j": j}, knows(i, role(j, name)), i, {"role": name})
        for i, j in pairs
        if i != j
    ]


def _with_article(name: str) -> str:
    return f"a {name}" if name == "Loyal Servant" else name


def _mostly_evil(rng: Random, view: View, seats: list[str]) -> list[str]:
    """Mostly the EVIL ones among the seats: that they are EVIL is then no clue to the answer."""
    evil = [name for name in seats if view.scenario.faction(name) == "EVIL"]
    return evil if rng.random() < 0.7 else seats


def _second(rng: Random, view: View, i: str) -> list[Filling]:
    return [
        Filling({"i": i, "j": j, "k": k}, knows(i, knows(j, faction(k, "EVIL"))), i)
        for j in _others(view, i)
        for k in _mostly_evil(rng, view, list(view.scenario.players))
        if k != j
    ]


def _second_not(rng: Random, view: View, i: str) -> list[Filling]:
    return [
        Filling(
            {"i": i, "j": j, "k": k},
            knows(i, both(*(possible(j, faction(k, side)) for side in FACTIONS))),
            i,
        )
        for j in _others(view, i)
        for k in _mostly_evil(rng, view, list(view.scenario.players))
        if k != j
    ]


def _pairs(rng: Random, view: View, i: str, *, n_evil: tuple[int, ...]) -> list[tuple[str, str]]:
    """Pairs of other seats, mostly those with a number of EVIL among them that fits the claim."""
    pairs = list(combinations(_others(view, i), 2))
    so = [p for p in pairs if sum(view.scenario.faction(j) == "EVIL" for j in p) in n_evil]
    return so if rng.random() < 0.7 else pairs


def _one_each(rng: Random, view: View, i: str) -> list[Filling]:
    return [
        Filling(
            {"i": i, "j": j, "k": k},
            knows(
                i,
                either(
                    both(faction(j, "EVIL"), faction(k, "GOOD")),
                    both(faction(j, "GOOD"), faction(k, "EVIL")),
                ),
            ),
            i,
        )
        for j, k in _pairs(rng, view, i, n_evil=(1,))
    ]


def _some(rng: Random, view: View, i: str) -> list[Filling]:
    return [
        Filling(
            {"i": i, "j": j, "k": k},
            knows(i, either(faction(j, "EVIL"), faction(k, "EVIL"))),
            i,
        )
        for j, k in _pairs(rng, view, i, n_evil=(1, 2))
    ]


PERSPECTIVE: Final = Ability(
    _deal,
    {
        "known-evil": from_some_seat("known-evil", _KNOWN, _known("EVIL")),
        "known-good": from_some_seat("known-good", _CLEARED, _known("GOOD")),
        "unsettled": from_some_seat("unsettled", _UNSETTLED, _unsettled),
        "may-be": from_some_seat("may-be", _MAY_BE, _may_be),
        "pinned-role": over_all("pinned-role", _PINNED, _pinned),
        "second-order": from_some_seat("second-order", _SECOND, _second),
        "second-order-not": from_some_seat("second-order-not", _SECOND_NOT, _second_not),
        "one-of-each": from_some_seat("one-of-each", _ONE_EACH, _one_each),
        "at-least-one": from_some_seat("at-least-one", _SOME, _some),
    },
)
