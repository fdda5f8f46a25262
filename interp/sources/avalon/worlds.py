"""All role assignments of a lineup as arrays, and those that public history leaves possible.

A world is one assignment, named by its row in the lineup's table. What a seat knows privately is
a function of the world: its role, the set of seats it is shown at night, and the cards it has
seen as Lady holder. Two worlds with equal private information are the same to that seat.

Single quest cards are nobody's evidence here. For a GOOD player that loses nothing (the card is
always success). An EVIL player whose own card was fail also loses nothing: then others' fails are
bounded exactly as by the public count. Only an EVIL player who played success on a quest that
shows fails would know more, so generated statements never ask about that seat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import permutations
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.sources.avalon.rules import LINEUPS, ROLES, SEES, Lineup
from interp.sources.avalon.scenario import Event, Lady, Quest, Scenario

__all__ = ["Table", "assignment_table", "private_keys", "public_rows"]

Rows = NDArray[np.intp]

_FIRST_EVIL: Final = ROLES.index("Assassin")
_CODE: Final = {role: code for code, role in enumerate(ROLES)}


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Every assignment of a lineup.

    Attributes:
        roles: (n_worlds, n_seats) int8 role codes, positions in `ROLES`.
        evil: (n_worlds, n_seats) bool.
        sight: (n_worlds, n_seats) int32, one number for a seat's role and the set of seats that
            it is shown at night.
    """

    roles: NDArray[np.int8]
    evil: NDArray[np.bool_]
    sight: NDArray[np.int32]

    def row_of(self, roles: Sequence[str]) -> int:
        """Row of one assignment, given as role names in seat order."""
        codes = np.array([_CODE[role] for role in roles], dtype=np.int8)
        return int(np.flatnonzero((self.roles == codes).all(axis=1))[0])


def _assignments(lineup: Lineup) -> NDArray[np.int8]:
    """(n_worlds, n_seats) role codes: seats for the special roles, servants on the rest."""
    special = [_CODE[role] for role in lineup.roles if role != "Loyal Servant"]
    n_seats = lineup.n_seats
    seats = np.array(list(permutations(range(n_seats), len(special))), dtype=np.intp)
    roles = np.full((len(seats), n_seats), _CODE["Loyal Servant"], dtype=np.int8)
    np.put_along_axis(roles, seats, np.array(special, dtype=np.int8)[None, :], axis=1)
    return roles


@lru_cache(maxsize=len(LINEUPS))
def assignment_table(name: str) -> Table:
    """The table of a lineup: 2,520 worlds for A, 6,720 for B, 151,200 for C."""
    roles = _assignments(LINEUPS[name])
    sees = np.array([[seen in SEES[role] for seen in ROLES] for role in ROLES])
    n_seats = roles.shape[1]
    sight = roles.astype(np.int32) << n_seats
    for seat in range(n_seats):
        for other in range(n_seats):
            if other != seat:
                sight[:, seat] |= sees[roles[:, seat], roles[:, other]].astype(np.int32) << other
    table = Table(roles, roles >= _FIRST_EVIL, sight)
    for array in (table.roles, table.evil, table.sight):
        array.flags.writeable = False
    return table


def public_rows(scenario: Scenario, history: Sequence[Event]) -> Rows:
    """Rows of the worlds that everyone may still hold possible after `history`.

    A world is dropped if a quest shows more fails than its team has EVIL members, if a Lady
    holder who is GOOD in it would have announced something false, or, where the scenario
    declares the sabotage protocol and one fail sinks the quest, if the protocol cannot produce
    the number of fails.

    Source: tables 5 and 7, appendix D.4.
    """
    table = assignment_table(scenario.lineup)
    fails_needed = scenario.rules.fails_needed
    keep = np.ones(len(table.roles), dtype=np.bool_)
    for event in history:
        if isinstance(event, Quest):
            team = [scenario.seat(name) for name in event.team]
            keep &= table.evil[:, team].sum(axis=1) >= event.fails
            if scenario.protocol and fails_needed[event.quest - 1] == 1:
                low, high = _protocol_fails(table.roles[:, team], scenario.rules)
                keep &= (low <= event.fails) & (event.fails <= high)
        elif isinstance(event, Lady) and event.claim is not None:
            holder, target = scenario.seat(event.holder), scenario.seat(event.target)
            keep &= table.evil[:, holder] | (table.evil[:, target] == (event.claim == "EVIL"))
    return np.flatnonzero(keep)


def _protocol_fails(team: NDArray[np.int8], lineup: Lineup) -> tuple[Any, Any]:
    """Least and largest number of fails under the protocol, by world, beliefs unstated.

    Args:
        team: (n_worlds, team_size) role codes.
        lineup: without Mordred in it, Morgana knows that her teammate is the Assassin.
    """
    present = {role: (team == _CODE[role]).any(axis=1) for role in ROLES[_FIRST_EVIL:]}
    assassin, morgana = present["Assassin"], present["Morgana"]
    mordred, oberon = present["Mordred"], present["Oberon"]
    alone = morgana & ~assassin & ~mordred
    torn = morgana & (assassin ^ mordred) & ("Mordred" in lineup.roles)
    low = assassin.astype(np.int8) + alone + (mordred & ~assassin & ~morgana)
    return low, low + torn + oberon


def private_keys(
    scenario: Scenario, seat: int, history: Sequence[Event], rows: Rows
) -> NDArray[np.int64]:
    """One number a world for all that `seat` has seen in private by the end of `history`.

    Args:
        scenario: gives the lineup and the names.
        seat: whose information.
        history: public events; the seat's own uses of the Lady among them show it cards.
        rows: (n,) worlds to look at.
    """
    table = assignment_table(scenario.lineup)
    keys: NDArray[np.int64] = table.sight[rows, seat].astype(np.int64)
    for event in history:
        if isinstance(event, Lady) and scenario.seat(event.holder) == seat:
            keys = 2 * keys + table.evil[rows, scenario.seat(event.target)]
    return keys
