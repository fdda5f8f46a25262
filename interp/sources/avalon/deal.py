"""Random deals: names, seats, roles and a public history that keeps the rules."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Final

from interp.sources.avalon.rules import LINEUPS, Faction, Lineup, faction_of, fail_range
from interp.sources.avalon.scenario import Event, Lady, Proposal, Quest

__all__ = ["NAMES", "deal_seats", "lady_event", "proposal_event", "quest_events"]

_NAME_LINES: Final = (
    "Alice Bruno Carol Daisy Emil Felix Grace Hugo Irene Jonas Karin Liam Maya Nadia Oscar Paula",
    "Quinn Rosa Simon Tara Ulla Viktor Wendy Xenia Yusuf Zoe Anton Bella Clara Diego Edith Frida",
    "Gavin Helen Ivan Julia Kofi Laura Marco Nina Omar Petra Ravi Sofia Tomas Uma Vera Walt",
)
NAMES: Final = tuple(name for line in _NAME_LINES for name in line.split())
"""First names to deal from; none is part of another or a word of a template."""


def deal_seats(
    rng: Random, weights: Sequence[int]
) -> tuple[Lineup, tuple[str, ...], tuple[str, ...]]:
    """A lineup drawn with the weights of A, B and C, with names and roles in seat order."""
    lineup = LINEUPS[rng.choices(tuple(LINEUPS), weights)[0]]
    roles = list(lineup.roles)
    rng.shuffle(roles)
    return lineup, tuple(rng.sample(NAMES, lineup.n_seats)), tuple(roles)


def proposal_event(
    rng: Random,
    players: tuple[str, ...],
    past: Sequence[Event],
    quest: int,
    team: Sequence[str],
    *,
    approved: bool,
) -> Proposal:
    """A vote on a team that comes out as asked; leaders follow one another in seat order."""
    leaders = [event.leader for event in past if isinstance(event, Proposal)]
    seat = players.index(leaders[-1]) + 1 if leaders else rng.randrange(len(players))
    most = (len(players) - 1) // 2
    n_against = rng.randint(0, most) if approved else rng.randint(most + 1, len(players) - 1)
    against = set(rng.sample(players, n_against))
    ordered = tuple(name for name in players if name in against)
    return Proposal(quest, players[seat % len(players)], tuple(team), ordered)


def quest_events(
    rng: Random,
    lineup: Lineup,
    players: tuple[str, ...],
    roles: tuple[str, ...],
    n_quests: int,
    *,
    protocol: bool = False,
) -> list[Event]:
    """The first `n_quests` quests, at most two: each a vote and a result, some votes lost before.

    After two quests no side has won, so the game goes on whatever they show.
    """
    role_of = dict(zip(players, roles, strict=True))
    events: list[Event] = []
    for quest in range(1, n_quests + 1):
        size = lineup.quest_sizes[quest - 1]
        if rng.random() < 0.25:
            lost = rng.sample(players, size)
            events.append(proposal_event(rng, players, events, quest, lost, approved=False))
        team = tuple(rng.sample(players, size))
        events.append(proposal_event(rng, players, events, quest, team, approved=True))
        cast = [role_of[name] for name in team]
        if protocol:
            low, high = fail_range(cast, lineup)
            fails = rng.randint(low, high)
        else:
            evil = sum(faction_of(role) == "EVIL" for role in cast)
            fails = 0 if rng.random() < 0.3 else rng.randint(min(1, evil), evil)
        events.append(Quest(quest, team, fails))
    return events


def lady_event(
    rng: Random,
    players: tuple[str, ...],
    roles: tuple[str, ...],
    quest: int,
    *,
    holder: str | None = None,
    lies: float = 0.5,
) -> Lady:
    """The Lady after a quest: GOOD reports truthfully, EVIL lies with the given probability."""
    role_of = dict(zip(players, roles, strict=True))
    holder = holder or rng.choice(players)
    target = rng.choice([name for name in players if name != holder])
    truth = faction_of(role_of[target])
    claim: Faction = truth
    if faction_of(role_of[holder]) == "EVIL" and rng.random() < lies:
        claim = "GOOD" if truth == "EVIL" else "EVIL"
    return Lady(quest, holder, target, claim)
