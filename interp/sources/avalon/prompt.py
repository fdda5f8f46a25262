"""What a reader is told: the state as setup, the public events as history.

Blocks follow the prompt contract of Avalon-ToM-Bench (appendix on prompts): the complete state
(`full`), what the designated seat is entitled to (`pov`), or no setup at all (`no-facts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from interp.sources.avalon.rules import SEES, Lineup
from interp.sources.avalon.scenario import Event, Lady, Proposal, Quest, Scenario, Switch

__all__ = ["QUESTION", "history_text", "listed", "setup_text"]

QUESTION: Final = (
    "By the game's information rules, and from no more than the seat in question may use, is the "
    "following statement a sound inference?"
)


def listed(names: Sequence[str]) -> str:
    """`A, B and C`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _times(count: int, word: str) -> str:
    number = "no" if count == 0 else str(count)
    return f"{number} {word}{'' if count == 1 else 's'}"


def _event_text(event: Event, lineup: Lineup, n_players: int) -> str:
    match event:
        case Proposal(quest, leader, team, against):
            approve = n_players - len(against)
            verdict = "approved" if approve > len(against) else "rejected"
            said = f" (against: {listed(against)})" if against else ""
            return (
                f"Quest {quest}: {leader} proposed {listed(team)}; {verdict} "
                f"{approve} to {len(against)}{said}."
            )
        case Quest(quest, team, fails):
            sunk = fails >= lineup.fails_needed[quest - 1]
            return (
                f"Quest {quest} was played by {listed(team)} and showed "
                f"{_times(fails, 'fail card')}: it {'failed' if sunk else 'succeeded'}."
            )
        case Lady(quest, holder, target, claim):
            opening = f"After Quest {quest}, {holder} used the Lady of the Lake on {target}"
            if claim is None:
                return f"{opening} and has not announced anything yet."
            return f"{opening} and announced that {target} is {claim}."
        case Switch(by, source, target):
            return (
                f"The table was suspecting {source}; {by} argued that {target} should be "
                f"suspected instead."
            )


def history_text(scenario: Scenario) -> str:
    """The public events, and the quest about to be played; empty if nothing has happened."""
    lines = [
        _event_text(event, scenario.rules, len(scenario.players)) for event in scenario.history
    ]
    if scenario.pending is not None:
        quest, team = scenario.pending
        needed = scenario.rules.fails_needed[quest - 1]
        lines.append(
            f"Quest {quest} is about to be played by {listed(team)}; "
            f"{_times(needed, 'fail card')} will sink it."
        )
    return "\n".join(lines)


def _night(scenario: Scenario, name: str) -> str:
    """What one player was shown at night."""
    own = scenario.role(name)
    shown = [
        other for other in scenario.players if other != name and scenario.role(other) in SEES[own]
    ]
    match own:
        case "Percival":
            return f"At night {name} was shown {listed(shown)} as Merlin and Morgana, unordered."
        case "Merlin":
            return f"At night {name} was shown {listed(shown)} as EVIL."
        case "Assassin" | "Morgana" | "Mordred":
            mates = f"{listed(shown)} as EVIL" if shown else "no EVIL teammate"
            return f"At night {name} was shown {mates}."
    return f"At night {name} was shown nobody."


def _cards(scenario: Scenario, holder: str | None) -> list[str]:
    """Lady cards: all of them, or those of one holder."""
    return [
        f"The Lady's card showed {event.holder} that {event.target} is "
        f"{scenario.faction(event.target)}."
        for event in scenario.history
        if isinstance(event, Lady) and holder in (None, event.holder)
    ]


def _declared(scenario: Scenario, seat: str | None) -> list[str]:
    """What the scenario declares: to everyone, and about the seats that may be known of."""
    lines = []
    if scenario.protocol:
        lines.append("EVIL follows the sabotage protocol in this game, and everyone knows it.")
    for name, believed in scenario.beliefs.items():
        if seat in (None, name):
            lines.append(
                f"{name} thinks that the EVIL teammate on the coming quest is more likely to be "
                f"{believed} than {'Mordred' if believed == 'Assassin' else 'Assassin'}."
            )
    for name in scenario.goals:
        if seat in (None, name):
            lines.append(f"{name}'s declared aim is concealment: keep EVIL as unseen as possible.")
    return lines


def setup_text(scenario: Scenario, *, complete: bool) -> str:
    """The setup block.

    Args:
        scenario: the state; without a `pov` the judge is an observer who sees everything.
        complete: the whole state with every role, or what the designated seat is entitled to.
    """
    name, seat = scenario.rules.name, scenario.pov
    lines = [
        f"Lineup {name}, {len(scenario.players)} players, seated in this order: "
        f"{listed(scenario.players)}."
    ]
    if complete or seat is None:
        lines.append(
            "Roles: "
            + "; ".join(
                f"{player} is {_a(role)}"
                for player, role in zip(scenario.players, scenario.roles, strict=True)
            )
            + "."
        )
        lines += _cards(scenario, None) + _declared(scenario, None)
    else:
        lines.append(f"{seat} is {_a(scenario.role(seat))}. {_night(scenario, seat)}")
        lines += _cards(scenario, seat) + _declared(scenario, seat)
    lines.append(
        "Judge as an observer who is given the complete state."
        if seat is None
        else f"Judge from the seat of {seat}."
    )
    return "\n".join(lines)


def _a(role: str) -> str:
    return f"a {role}" if role == "Loyal Servant" else role
