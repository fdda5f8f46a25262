"""The rules as tables: lineups, quests, who sees whom, and the sabotage protocol.

Source: Avalon-ToM-Bench, appendix D (tables 5 to 8).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from interp.errors import SourceError, did_you_mean

__all__ = [
    "CARDS",
    "EVIL_ROLES",
    "FACTIONS",
    "LINEUPS",
    "PROTOCOL_ROLES",
    "ROLES",
    "SEES",
    "Card",
    "Faction",
    "Lineup",
    "faction_of",
    "fail_range",
    "lineup_named",
    "protocol_card",
]

Faction = Literal["GOOD", "EVIL"]
FACTIONS: Final = get_args(Faction)

Card = Literal["fail", "success", "open"]
"""`open`: the protocol does not determine the card."""
CARDS: Final = get_args(Card)

ROLES: Final = (
    "Merlin",
    "Percival",
    "Loyal Servant",
    "Assassin",
    "Morgana",
    "Mordred",
    "Oberon",
)
"""Role names; a role's code in assignment arrays is its position here, EVIL from 3 onwards."""

EVIL_ROLES: Final = ROLES[3:]
PROTOCOL_ROLES: Final = ("Assassin", "Morgana", "Mordred")
"""Roles that the sabotage protocol binds, the first in duty first."""

SEES: Final[Mapping[str, tuple[str, ...]]] = {
    "Merlin": ("Assassin", "Morgana", "Oberon"),
    "Percival": ("Merlin", "Morgana"),
    "Loyal Servant": (),
    "Assassin": ("Morgana", "Mordred"),
    "Morgana": ("Assassin", "Mordred"),
    "Mordred": ("Assassin", "Morgana"),
    "Oberon": (),
}
"""Whose seats a role is shown at night. The seats are shown as one unordered set, so a specific
role among them stays unknown (table 6)."""


@dataclass(frozen=True, slots=True)
class Lineup:
    """One configuration of the game (table 5).

    Attributes:
        name: `A`, `B` or `C`.
        roles: one a seat, in the order of `ROLES`.
        quest_sizes: team size of quests 1 to 5.
        fails_needed: fail cards that sink quests 1 to 5.
    """

    name: str
    roles: tuple[str, ...]
    quest_sizes: tuple[int, ...]
    fails_needed: tuple[int, ...] = (1, 1, 1, 2, 1)

    @property
    def n_seats(self) -> int:
        """Number of players."""
        return len(self.roles)

    @property
    def n_evil(self) -> int:
        """Number of EVIL players."""
        return sum(role in EVIL_ROLES for role in self.roles)


def _lineup(name: str, servants: int, evil: tuple[str, ...], sizes: tuple[int, ...]) -> Lineup:
    return Lineup(name, ("Merlin", "Percival", *["Loyal Servant"] * servants, *evil), sizes)


LINEUPS: Final[Mapping[str, Lineup]] = {
    lineup.name: lineup
    for lineup in (
        _lineup("A", 2, ("Assassin", "Morgana", "Mordred"), (2, 3, 3, 4, 4)),
        _lineup("B", 3, ("Assassin", "Morgana", "Oberon"), (3, 4, 4, 5, 5)),
        _lineup("C", 4, ("Assassin", "Morgana", "Mordred", "Oberon"), (3, 4, 4, 5, 5)),
    )
}


def lineup_named(name: str) -> Lineup:
    """The lineup of that name.

    Raises:
        SourceError: there is none.
    """
    if name not in LINEUPS:
        raise SourceError(f"There is no Avalon lineup {name!r}. {did_you_mean(name, LINEUPS)}")
    return LINEUPS[name]


def faction_of(role: str) -> Faction:
    """The side a role belongs to."""
    return "EVIL" if role in EVIL_ROLES else "GOOD"


def protocol_card(
    role: str, others: Iterable[str], lineup: Lineup, belief: str | None = None
) -> Card:
    """The card that the sabotage protocol gives to one player of a team.

    It depends on no more than the player's seat shows: how many of the teammates seen at night
    are on the team. Oberon is not bound, so his card is `open`; GOOD always plays success.

    Args:
        role: the player's role.
        others: roles of the rest of the team.
        lineup: the game's; without Mordred in it, Morgana's one known teammate is the Assassin.
        belief: which role Morgana takes her only known teammate on the team for, if stated.

    Raises:
        SourceError: the belief names a role that Morgana's teammate cannot have.

    Source: appendix D.4 and table 8.
    """
    if role not in PROTOCOL_ROLES:
        return "open" if role == "Oberon" else "success"
    known = sum(other in SEES[role] for other in others)
    if known == 0 or role == "Assassin":
        return "fail"
    if role == "Mordred" or known > 1:
        return "success"
    candidates = [name for name in SEES["Morgana"] if name in lineup.roles]
    if belief is None and len(candidates) == 1:
        belief = candidates[0]
    if belief is None:
        return "open"
    if belief not in candidates:
        raise SourceError(
            f"Morgana's stated belief is {belief!r}; in lineup {lineup.name} her teammate can be "
            f"{' or '.join(candidates)}."
        )
    return "success" if belief == "Assassin" else "fail"


def fail_range(
    team_roles: Iterable[str], lineup: Lineup, belief: str | None = None
) -> tuple[int, int]:
    """Least and largest number of fail cards that the protocol allows for a team.

    Every number between the two is possible as well, for each open card is free on its own.
    """
    roles = list(team_roles)
    cards = [
        protocol_card(
            role, roles[:seat] + roles[seat + 1 :], lineup, belief if role == "Morgana" else None
        )
        for seat, role in enumerate(roles)
    ]
    fails = cards.count("fail")
    return fails, fails + cards.count("open")
