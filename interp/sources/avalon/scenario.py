"""One state of a game: seats, roles, public history, and what the scenario declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final

from interp.errors import SourceError, did_you_mean
from interp.sources.avalon.rules import (
    FACTIONS,
    Faction,
    Lineup,
    faction_of,
    lineup_named,
)

__all__ = [
    "Event",
    "Lady",
    "Proposal",
    "Quest",
    "Scenario",
    "Switch",
    "event_to_json",
    "scenario_from_json",
    "scenario_to_json",
]


@dataclass(frozen=True, slots=True)
class Proposal:
    """A leader's team and the public vote on it.

    Attributes:
        quest: 1 to 5.
        leader: who proposes.
        team: proposed members.
        against: who votes to reject; all others approve. A strict majority approves.
    """

    quest: int
    leader: str
    team: tuple[str, ...]
    against: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Quest:
    """A quest that was played: its team, and how many fail cards came up."""

    quest: int
    team: tuple[str, ...]
    fails: int


@dataclass(frozen=True, slots=True)
class Lady:
    """The Lady of the Lake after a quest.

    The card shows `target`'s faction to `holder` alone; `claim` is what the holder announces,
    None while nothing is announced.
    """

    quest: int
    holder: str
    target: str
    claim: Faction | None


@dataclass(frozen=True, slots=True)
class Switch:
    """A public move of suspicion from one player to another, by a third."""

    by: str
    source: str
    target: str


Event = Proposal | Quest | Lady | Switch


@dataclass(frozen=True, slots=True)
class Scenario:
    """A complete annotated state; what a seat may use of it is the engine's business.

    Attributes:
        lineup: `A`, `B` or `C`.
        players: names in seat order.
        roles: one a player, in seat order: the actual assignment.
        history: public events in order.
        protocol: whether the scenario declares, to everyone, that EVIL follows the sabotage
            protocol; only then do fail counts say more than a lower bound on EVIL members.
        beliefs: Morgana's seat to the role (`Assassin` or `Mordred`) that she takes her only
            known teammate on the pending team for.
        goals: seat to a declared objective; `conceal` is the only one.
        pending: number and team of a quest about to be played, or None.
        pov: whose seat a statement is judged from; None for an observer who sees every role.
    """

    lineup: str
    players: tuple[str, ...]
    roles: tuple[str, ...]
    history: tuple[Event, ...] = ()
    protocol: bool = False
    beliefs: Mapping[str, str] = field(default_factory=dict)
    goals: Mapping[str, str] = field(default_factory=dict)
    pending: tuple[int, tuple[str, ...]] | None = None
    pov: str | None = None

    def __post_init__(self) -> None:
        lineup = lineup_named(self.lineup)
        if sorted(self.roles) != sorted(lineup.roles):
            raise SourceError(
                f"Lineup {self.lineup} has the roles {', '.join(lineup.roles)}; got "
                f"{', '.join(self.roles)}."
            )
        if len(set(self.players)) != lineup.n_seats or len(self.players) != lineup.n_seats:
            raise SourceError(
                f"Lineup {self.lineup} needs {lineup.n_seats} different names; got "
                f"{', '.join(self.players)}."
            )
        for event in self.history:
            _check_event(self, lineup, event)
        named = [*self.beliefs, *self.goals] + ([self.pov] if self.pov is not None else [])
        if self.pending is not None:
            _check_team(lineup, self.pending[0], self.pending[1])
            named += self.pending[1]
        for name in named:
            self.seat(name)

    @property
    def rules(self) -> Lineup:
        """The lineup's table."""
        return lineup_named(self.lineup)

    def seat(self, name: str) -> int:
        """Seat number of a player, from 0.

        Raises:
            SourceError: nobody of that name plays.
        """
        try:
            return self.players.index(name)
        except ValueError:
            raise SourceError(
                f"Nobody called {name!r} plays. {did_you_mean(name, self.players)}"
            ) from None

    def role(self, name: str) -> str:
        """Actual role of a player."""
        return self.roles[self.seat(name)]

    def faction(self, name: str) -> Faction:
        """Actual side of a player."""
        return faction_of(self.role(name))

    def from_seat(self, pov: str | None) -> Scenario:
        """The same state, judged from another seat."""
        return replace(self, pov=pov)


def _check_team(lineup: Lineup, quest: int, team: Sequence[str]) -> None:
    if not 1 <= quest <= len(lineup.quest_sizes):
        raise SourceError(f"Quests are numbered 1 to 5; got {quest}.")
    size = lineup.quest_sizes[quest - 1]
    if len(team) != size or len(set(team)) != size:
        raise SourceError(
            f"Quest {quest} of lineup {lineup.name} takes {size} different players; got "
            f"{', '.join(team)}."
        )


def _check_event(scenario: Scenario, lineup: Lineup, event: Event) -> None:
    match event:
        case Proposal(quest, leader, team, against):
            _check_team(lineup, quest, team)
            names = [leader, *team, *against]
        case Quest(quest, team, fails):
            _check_team(lineup, quest, team)
            names = list(team)
            evil = sum(scenario.faction(name) == "EVIL" for name in team)
            if not 0 <= fails <= evil:
                raise SourceError(
                    f"Quest {quest} shows {fails} fail cards, but its team has {evil} EVIL "
                    f"members, and GOOD never plays fail."
                )
        case Lady(_, holder, target, claim):
            names = [holder, target]
            if holder == target:
                raise SourceError(f"{holder} cannot use the Lady of the Lake on themselves.")
            if claim is not None and claim not in FACTIONS:
                raise SourceError(f"A Lady claim is {claim!r}; expected GOOD, EVIL or null.")
            truthful = claim in (None, scenario.faction(target))
            if scenario.faction(holder) == "GOOD" and not truthful:
                raise SourceError(
                    f"{holder} is GOOD and reports {target} as {claim}, which is false; a GOOD "
                    f"holder reports truthfully."
                )
        case Switch(by, source, target):
            names = [by, source, target]
            if len(set(names)) != 3:
                raise SourceError(f"A switch of suspicion involves three players; got {names}.")
    for name in names:
        scenario.seat(name)


_KINDS: Final[Mapping[str, type[Proposal] | type[Quest] | type[Lady] | type[Switch]]] = {
    "proposal": Proposal,
    "quest": Quest,
    "lady": Lady,
    "switch": Switch,
}
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def event_to_json(event: Event) -> dict[str, Any]:
    """The event as a JSON object; `event` names its kind, the rest are its fields."""
    values = {part.name: getattr(event, part.name) for part in fields(event)}
    return {"event": _NAMES[type(event)]} | {
        name: list(value) if isinstance(value, tuple) else value for name, value in values.items()
    }


def _event_from_json(record: Mapping[str, Any]) -> Event:
    kind = str(record.get("event"))
    if kind not in _KINDS:
        raise SourceError(f"There is no event {kind!r}. {did_you_mean(kind, _KINDS)}")
    expected = {"event", *(part.name for part in fields(_KINDS[kind]))}
    if set(record) != expected:
        raise SourceError(
            f"A {kind} event has the fields {sorted(record)}; expected {sorted(expected)}."
        )
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in record.items()
        if name != "event"
    }
    event: Event = _KINDS[kind](**values)
    return event


def scenario_to_json(scenario: Scenario) -> dict[str, Any]:
    """The scenario as the JSON object that `docs/avalon.md` documents."""
    return {
        "lineup": scenario.lineup,
        "players": list(scenario.players),
        "roles": dict(zip(scenario.players, scenario.roles, strict=True)),
        "history": [event_to_json(event) for event in scenario.history],
        "protocol": scenario.protocol,
        "beliefs": dict(scenario.beliefs),
        "goals": dict(scenario.goals),
        "pending": None
        if scenario.pending is None
        else {"quest": scenario.pending[0], "team": list(scenario.pending[1])},
        "pov": scenario.pov,
    }


def scenario_from_json(record: Mapping[str, Any]) -> Scenario:
    """The inverse of `scenario_to_json`.

    Raises:
        SourceError: a field is missing, or the state breaks a rule of the game.
    """
    names = [part.name for part in fields(Scenario)]
    missing = sorted(set(names) - set(record))
    if missing:
        raise SourceError(f"A scenario lacks {', '.join(missing)}; expected {', '.join(names)}.")
    pending = record["pending"]
    players = tuple(record["players"])
    absent = [name for name in players if name not in record["roles"]]
    if absent:
        raise SourceError(f"A scenario gives no role to {', '.join(absent)}.")
    return Scenario(
        lineup=record["lineup"],
        players=players,
        roles=tuple(record["roles"][name] for name in players),
        history=tuple(_event_from_json(event) for event in record["history"]),
        protocol=record["protocol"],
        beliefs=dict(record["beliefs"]),
        goals=dict(record["goals"]),
        pending=None if pending is None else (pending["quest"], tuple(pending["team"])),
        pov=record["pov"],
    )
