"""Which objective belongs to which role: the table that motives are judged by.

A motive is true only if the action took place as described, every factual premise holds, the
objective belongs to the actor's role, and, where the objective is to stay out of sight, the
scenario declares that aim for the actor (appendix D.3: visibility counts only when asked for).
Premises are about what the actor knew when acting: nobody acts on what their seat cannot see, or
sees only later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from interp.errors import SourceError, did_you_mean
from interp.sources.avalon.rules import EVIL_ROLES, ROLES
from interp.sources.avalon.scenario import Proposal, Scenario, Switch

__all__ = ["OBJECTIVES", "Objective", "motive_fits"]

_GOOD: Final = ROLES[:3]
_TEAMED: Final = ("Assassin", "Morgana", "Mordred")


@dataclass(frozen=True, slots=True)
class Objective:
    """One row of the role-objective table.

    Attributes:
        action: `switch` (moving suspicion), `approve` or `reject` (a vote).
        roles: roles that may hold it.
        premise: what must hold, in words; `docs/avalon.md` gives the formula.
        needs_goal: a goal that the scenario must declare for the actor, or None.
    """

    action: str
    roles: tuple[str, ...]
    premise: str
    needs_goal: str | None = None


OBJECTIVES: Final[Mapping[str, Objective]] = {
    "shield_teammate": Objective(
        "switch", _TEAMED, "the actor knows that the player let off is EVIL"
    ),
    "sacrifice_teammate": Objective(
        "switch", _TEAMED, "the actor knows that the player now suspected is EVIL"
    ),
    "frame_good": Objective(
        "switch", EVIL_ROLES, "the actor knows that the player now suspected is GOOD"
    ),
    "expose_evil": Objective(
        "switch", _GOOD, "the actor knows that the player now suspected is EVIL"
    ),
    "clear_good": Objective("switch", _GOOD, "the actor knows that the player let off is GOOD"),
    "shelter_merlin": Objective(
        "switch", ("Percival",), "for all the actor knows, the player let off may be Merlin"
    ),
    "flush_out_merlin": Objective(
        "switch",
        ("Assassin",),
        "for all the actor knows, the player now suspected may be Merlin",
    ),
    "pass_as_merlin": Objective(
        "switch",
        ("Morgana",),
        "the actor knows that the player now suspected is EVIL and shown to Merlin",
    ),
    "unlike_mordred": Objective(
        "switch",
        ("Mordred",),
        "the actor knows that the player now suspected is EVIL and shown to Merlin",
    ),
    "keep_evil_off": Objective("reject", _GOOD, "the actor knows an EVIL player on the team"),
    "send_clean_team": Objective(
        "approve", _GOOD, "the actor knows that everyone else on the team is GOOD"
    ),
    "place_saboteur": Objective(
        "approve", EVIL_ROLES, "the actor knows an EVIL player on the team"
    ),
    "block_clean_team": Objective(
        "reject", EVIL_ROLES, "the actor knows that everyone on the team is GOOD"
    ),
    "vote_with_crowd": Objective(
        "approve", EVIL_ROLES, "the team was approved", needs_goal="conceal"
    ),
}


def motive_fits(claim: Mapping[str, Any], scenario: Scenario) -> bool:
    """Whether the action took place and the objective belongs to the actor; premises aside.

    Raises:
        SourceError: the objective or the event is unknown.
    """
    name, actor = str(claim["objective"]), claim["seat"]
    if name not in OBJECTIVES:
        raise SourceError(f"There is no objective {name!r}. {did_you_mean(name, OBJECTIVES)}")
    if not 0 <= claim["event"] < len(scenario.history):
        raise SourceError(
            f"There are {len(scenario.history)} events; got a motive for event {claim['event']}."
        )
    objective = OBJECTIVES[name]
    match scenario.history[claim["event"]]:
        case Switch(by=by):
            done = objective.action == "switch" and by == actor
        case Proposal(against=against):
            done = objective.action == ("reject" if actor in against else "approve")
        case _:
            done = False
    aimed = objective.needs_goal in (None, scenario.goals.get(actor))
    return done and aimed and scenario.role(actor) in objective.roles
