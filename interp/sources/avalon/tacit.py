"""Tacit Coordination: who plays which card under the sabotage protocol, and what comes up."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations
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
    open_view,
    possible,
    role,
)
from interp.sources.avalon.deal import deal_seats, quest_events
from interp.sources.avalon.prompt import listed
from interp.sources.avalon.rules import CARDS, PROTOCOL_ROLES, SEES, faction_of
from interp.sources.avalon.scenario import Quest, Scenario
from interp.sources.avalon.twins import (
    Ability,
    Filling,
    Kind,
    card_blind_seats,
    from_some_seat,
    over_all,
)

__all__ = ["TACIT"]


def _deal(rng: Random) -> Scenario:
    lineup, players, roles = deal_seats(rng, (6, 1, 3))
    n_quests = rng.choice((0, 1, 1, 2))
    history = quest_events(rng, lineup, players, roles, n_quests, protocol=True)
    quest = n_quests + 1
    role_of = dict(zip(players, roles, strict=True))
    evil = [name for name in players if role_of[name] in PROTOCOL_ROLES]
    evil += [name for name in players if role_of[name] == "Oberon" and rng.random() < 0.5]
    good = [name for name in players if faction_of(role_of[name]) == "GOOD"]
    size = lineup.quest_sizes[quest - 1]
    n_evil = min(size, len(evil), rng.choice((1, 2, 2, 2, 3)))
    team = rng.sample(evil, n_evil) + rng.sample(good, size - n_evil)
    rng.shuffle(team)
    beliefs = {}
    morgana = players[roles.index("Morgana")]
    mates = [name for name in team if role_of[name] in SEES["Morgana"]]
    if morgana in team and len(mates) == 1 and "Mordred" in lineup.roles:
        believed = rng.choice((None, "Assassin", "Mordred"))
        beliefs = {} if believed is None else {morgana: believed}
        # Earlier fail counts must not have settled what she is said to believe, or not to.
        past = open_view(Scenario(lineup.name, players, roles, tuple(history), protocol=True))
        unsettled = all(
            holds(possible(morgana, role(mates[0], name)), past) for name in SEES["Morgana"]
        )
        if not unsettled or morgana not in card_blind_seats(past.scenario):
            return _deal(rng)
    return Scenario(
        lineup.name,
        players,
        roles,
        tuple(history),
        protocol=True,
        beliefs=beliefs,
        pending=(quest, tuple(team)),
    )


def _team(view: View) -> tuple[str, ...]:
    if view.scenario.pending is None:
        raise TypeError("The scenario has no pending team; tacit scenarios have one.")
    return view.scenario.pending[1]


_FAIL: Final = (
    "The protocol has {a} play fail.",
    "{a} should submit a fail card here.",
    "I, {a}, have to play fail under our protocol.",
)
_SUCCESS: Final = (
    "The protocol has {a} play success.",
    "{a} should submit a success card here.",
    "I, {a}, have to play success under our protocol.",
)
_OPEN: Final = (
    "The protocol, with what is stated, does not settle which card {a} plays.",
    "Which card {a} should submit here cannot be determined.",
    "For me, {a}, neither fail nor success is prescribed here.",
)
_WORD: Final = (
    "{a}'s card for this quest: {card}.",
    "As things stand, the protocol makes {a}'s card {card}.",
)
_CARD_WORDS: Final = {"fail": "a fail", "success": "a success", "open": "not determined"}
_ALONE: Final = (
    "{a} plays fail because {a} knows of no EVIL teammate on the team.",
    "With no EVIL teammate known to {a} on the team, the fail card is up to {a}.",
)
_YIELDS: Final = (
    "{a} plays success, knowing that someone with an earlier duty to sabotage is on the team.",
    "{a} can leave the fail card to another member who is sure to stand before {a} in the order.",
)
_COUNT: Final = (
    "Following the protocol, this team produces {count}.",
    "The cards of this quest will show {count} if EVIL keeps to the protocol.",
)
_COUNT_WORDS: Final = {
    0: "no fail card",
    1: "exactly one fail card",
    2: "exactly two fail cards",
    "open": "a number of fail cards that cannot be determined",
}
_OTHER_ONE: Final = (
    "Were the team {team}, the protocol would bring up exactly one fail card.",
    "A team of {team} would show one fail card, no more and no less, under the protocol.",
)
_OTHER_SINKS: Final = (
    "Were the team {team}, the protocol would be certain to sink the quest.",
    "A team of {team} cannot but fail if EVIL keeps to the protocol.",
)
_OTHER_OPEN: Final = (
    "Were the team {team}, the protocol would leave the number of fail cards open.",
    "How many fail cards a team of {team} would show is not settled by the protocol.",
)
_PROFILE: Final = (
    "Fail from {a}, success from {b} and from everyone else on the team: that fits the protocol.",
    "If {a} plays fail while {b} and the rest of the team play success, the protocol is kept.",
)
_NOT_ASSASSIN: Final = (
    "Given the protocol and the results so far, {x} can be certain that {y} is not the Assassin.",
    "{x} can rule out, knowing that EVIL keeps to the protocol, that {y} is the Assassin.",
)
_TRACED: Final = (
    "Given the protocol and the results so far, {x} can be certain that {y} is EVIL.",
    "{x}, knowing that EVIL keeps to the protocol, can conclude that {y} is on the EVIL side.",
)


def _evil_members(view: View) -> list[str]:
    return [name for name in _team(view) if view.scenario.faction(name) == "EVIL"]


def _card_claim(view: View, a: str, card: str) -> Claim:
    return {"op": "card", "seat": a, "team": list(_team(view)), "card": card}


def _card_kind(card: str) -> Callable[[Random, View], list[Filling]]:
    def fillings(_rng: Random, view: View) -> list[Filling]:
        # GOOD members are no question: they always play success.
        return [
            Filling({"a": a}, _card_claim(view, a, card), a)
            for a in _evil_members(view)
            if view.scenario.role(a) != "Oberon" or card != "open"
        ]

    return fillings


def _one_card(rng: Random, view: View) -> list[Filling]:
    actors = _evil_members(view) * 3 + list(_team(view))
    a = rng.choice(actors)
    return [
        Filling({"a": a}, _card_claim(view, a, card), a, {"card": _CARD_WORDS[card]})
        for card in CARDS
    ]


def _alone(_rng: Random, view: View) -> list[Filling]:
    team = list(_team(view))
    return [
        Filling(
            {"a": a},
            both(
                _card_claim(view, a, "fail"),
                {"op": "known_teammates", "seat": a, "team": team, "count": 0},
            ),
            a,
        )
        for a in team
    ]


def _yields(_rng: Random, view: View) -> list[Filling]:
    found = []
    for a in _evil_members(view):
        own = view.scenario.role(a)
        before = PROTOCOL_ROLES[: PROTOCOL_ROLES.index(own)] if own in PROTOCOL_ROLES else ()
        others = [name for name in _team(view) if name != a]
        if before:
            earlier = knows(a, either(*(role(name, r) for name in others for r in before)))
            found.append(Filling({"a": a}, both(_card_claim(view, a, "success"), earlier), a))
        else:
            found.append(Filling({"a": a}, _card_claim(view, a, "success"), a))
    return found


def _count(_rng: Random, view: View) -> list[Filling]:
    return [
        Filling(
            {}, {"op": "fails", "team": list(_team(view)), "count": count}, None, {"count": words}
        )
        for count, words in _COUNT_WORDS.items()
    ]


def _other_team(claim: Claim) -> Callable[[Random, View], list[Filling]]:
    def fillings(rng: Random, view: View) -> list[Filling]:
        if view.scenario.beliefs:
            # A belief is stated about the pending team only.
            return []
        scenario, size = view.scenario, len(_team(view))
        evil = [name for name in scenario.players if scenario.faction(name) == "EVIL"]
        good = [name for name in scenario.players if scenario.faction(name) == "GOOD"]
        found = []
        for _ in range(12):
            n_evil = min(size, len(evil), rng.choice((1, 2, 2, 3)))
            members = rng.sample(evil, n_evil) + rng.sample(good, size - n_evil)
            rng.shuffle(members)
            if set(members) == set(_team(view)):
                continue
            found.append(Filling({"team": listed(members)}, {**claim, "team": members}, None))
        return found

    return fillings


def _profile(_rng: Random, view: View) -> list[Filling]:
    team, found = _team(view), []
    for a, b in permutations(_evil_members(view), 2):
        cards = {name: "fail" if name == a else "success" for name in team}
        found.append(Filling({"a": a, "b": b}, {"op": "profile", "cards": cards}, None))
    return found


def _not_assassin(_rng: Random, view: View, x: str) -> list[Filling]:
    if view.scenario.faction(x) == "EVIL":
        # An EVIL seat knows too much: most of the others are no Assassin to it anyway.
        return []
    return [
        Filling({"x": x, "y": y}, knows(x, negation(role(y, "Assassin"))), x)
        for y in _veterans(view)
        if y != x
    ]


def _traced(_rng: Random, view: View, x: str) -> list[Filling]:
    return [
        Filling({"x": x, "y": y}, knows(x, faction(y, "EVIL")), x)
        for y in _veterans(view)
        if y != x
    ]


def _veterans(view: View) -> list[str]:
    """Who has been on a quest so far, in seat order."""
    quests = [event for event in view.history if isinstance(event, Quest)]
    return [name for name in view.scenario.players if any(name in quest.team for quest in quests)]


_FILLINGS: Final = {
    "plays-fail": (_FAIL, _card_kind("fail")),
    "plays-success": (_SUCCESS, _card_kind("success")),
    "left-open": (_OPEN, _card_kind("open")),
    "card-word": (_WORD, _one_card),
    "alone": (_ALONE, _alone),
    "yields": (_YIELDS, _yields),
    "fail-count": (_COUNT, _count),
    "one-fail-team": (_OTHER_ONE, _other_team({"op": "fails", "count": 1})),
    "open-team": (_OTHER_OPEN, _other_team({"op": "fails", "count": "open"})),
    "sinking-team": (_OTHER_SINKS, _other_team({"op": "fails_at_least", "count": 1})),
    "profile": (_PROFILE, _profile),
}

_KINDS: Final[dict[str, Kind]] = {
    kind: over_all(kind, templates, fillings) for kind, (templates, fillings) in _FILLINGS.items()
}

TACIT: Final = Ability(
    _deal,
    {
        **_KINDS,
        "not-assassin": from_some_seat("not-assassin", _NOT_ASSASSIN, _not_assassin),
        "traced": from_some_seat("traced", _TRACED, _traced),
    },
)
