"""The rules exam: statements of bare recall, made from the rule tables.

Every question is asked with values that do and values that do not hold, in the same words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any, Final

from interp.sources.avalon.rules import (
    LINEUPS,
    PROTOCOL_ROLES,
    ROLES,
    SEES,
    faction_of,
    fail_range,
    protocol_card,
)

__all__ = ["EXAM_SIZE", "Question", "exam_questions", "rule_holds"]

EXAM_SIZE: Final = 34
"""Default number of questions, as in the paper."""

Question = tuple[str, Mapping[str, Any]]
"""A statement and its claim."""


def rule_holds(claim: Mapping[str, Any]) -> bool:
    """Whether a rule claim agrees with the tables."""
    value = claim.get("value")
    return bool(_RULES[claim["rule"]](claim, value))


def _card(claim: Mapping[str, Any]) -> str:
    others = [role for role in claim["team"] if role != claim["role"]]
    return protocol_card(claim["role"], others, LINEUPS["A"], claim["belief"])


_RULES: Final[Mapping[str, Callable[[Mapping[str, Any], Any], bool]]] = {
    "quest_size": lambda c, value: LINEUPS[c["lineup"]].quest_sizes[c["quest"] - 1] == value,
    "fails_needed": lambda c, value: LINEUPS[c["lineup"]].fails_needed[c["quest"] - 1] == value,
    "in_lineup": lambda c, _: c["role"] in LINEUPS[c["lineup"]].roles,
    "n_evil": lambda c, value: LINEUPS[c["lineup"]].n_evil == value,
    "faction": lambda c, value: faction_of(c["role"]) == value,
    "sees": lambda c, _: c["other"] in SEES[c["role"]],
    "card": lambda c, value: _card(c) == value,
    "fail_count": lambda c, value: (
        fail_range(c["team"], LINEUPS["A"], c["belief"]) == (value, value)
    ),
}


def _rule(rule: str, **values: Any) -> dict[str, Any]:
    return {"op": "rule", "rule": rule, **values}


_COUNTS: Final = ("no fail card", "one fail card", "two fail cards")


def _the(role: str) -> str:
    return {"Assassin": "the Assassin", "Loyal Servant": "a Loyal Servant"}.get(role, role)


def _questions() -> Iterator[Question]:
    for name, lineup in LINEUPS.items():
        game = f"In the {lineup.n_seats}-player game (lineup {name})"
        for quest in range(1, 6):
            for size in (2, 3, 4, 5):
                claim = _rule("quest_size", lineup=name, quest=quest, value=size)
                yield f"{game}, Quest {quest} is played by a team of {size}.", claim
            for fails in (1, 2):
                claim = _rule("fails_needed", lineup=name, quest=quest, value=fails)
                word = "one fail card sinks" if fails == 1 else "it takes two fail cards to sink"
                yield f"{game}, {word} Quest {quest}.", claim
        for role in ROLES[5:]:
            claim = _rule("in_lineup", lineup=name, role=role)
            yield f"{game}, one of the players is {role}.", claim
        for count in (3, 4):
            yield (
                f"{game}, there are {count} EVIL players.",
                _rule("n_evil", lineup=name, value=count),
            )
    for role in ROLES:
        for side in ("GOOD", "EVIL"):
            yield (
                f"{_the(role)} plays for the {side} side.",
                _rule("faction", role=role, value=side),
            )
        for other in ROLES:
            if other not in (role, "Loyal Servant") and role != "Loyal Servant":
                claim = _rule("sees", role=role, other=other)
                yield f"At night, {_the(other)} is among the players shown to {_the(role)}.", claim
    for belief in ("Assassin", "Mordred"):
        for other in ("Assassin", "Mordred"):
            for value in ("fail", "success"):
                claim = _rule(
                    "card", role="Morgana", team=["Morgana", other], belief=belief, value=value
                )
                yield (
                    f"Under the sabotage protocol, Morgana plays {value} on a team with "
                    f"{_the(other)} as her only known teammate, whom she takes for {_the(belief)}.",
                    claim,
                )
            for count in (0, 1, 2):
                claim = _rule("fail_count", team=["Morgana", other], belief=belief, value=count)
                taken = f"if Morgana takes {_the(other)} for {_the(belief)}"
                yield (
                    f"Under the sabotage protocol, a team whose EVIL members are Morgana and "
                    f"{_the(other)} shows {_COUNTS[count]} {taken}.",
                    claim,
                )
    for role in ("Assassin", "Mordred"):
        for other in PROTOCOL_ROLES:
            for value in ("fail", "success"):
                if other != role:
                    claim = _rule("card", role=role, team=[role, other], belief=None, value=value)
                    team = f"on a team with {_the(other)}"
                    yield f"Under the sabotage protocol, {_the(role)} plays {value} {team}.", claim


def exam_questions(rng: Random) -> list[tuple[str, Mapping[str, Any], bool]]:
    """All questions in random order, true and false by turns, for as long as both last."""
    found: dict[bool, dict[str, list[tuple[str, Mapping[str, Any], bool]]]] = {True: {}, False: {}}
    for text, claim in _questions():
        label = rule_holds(claim)
        sentence = text[0].upper() + text[1:]
        found[label].setdefault(claim["rule"], []).append((sentence, claim, label))
    mixed: dict[bool, list[tuple[str, Mapping[str, Any], bool]]] = {}
    for label, by_rule in found.items():
        for questions in by_rule.values():
            rng.shuffle(questions)
        # One of each rule by turns, so that a short exam touches every table.
        most = max(len(questions) for questions in by_rule.values())
        mixed[label] = [qs[k] for k in range(most) for qs in by_rule.values() if k < len(qs)]
    return [q for pair in zip(mixed[True], mixed[False], strict=False) for q in pair]
