"""A second, deliberately naive Avalon engine: from an item's JSON metadata alone to its label.

Written from `docs/avalon.md` with the tables typed again: worlds are tuples of role names, and
every question is answered by going through them one by one. It imports nothing of the package.
"""

from __future__ import annotations

import json
from functools import lru_cache

EVIL = {"Assassin", "Morgana", "Mordred", "Oberon"}
SIZES = {"A": (2, 3, 3, 4, 4), "B": (3, 4, 4, 5, 5), "C": (3, 4, 4, 5, 5)}
CAST = {
    "A": ["Merlin", "Percival", "Loyal Servant", "Loyal Servant", "Assassin", "Morgana", "Mordred"],
    "B": ["Merlin", "Percival"] + 3 * ["Loyal Servant"] + ["Assassin", "Morgana", "Oberon"],
    "C": ["Merlin", "Percival"]
    + 4 * ["Loyal Servant"]
    + ["Assassin", "Morgana", "Mordred", "Oberon"],
}
GOOD_ROLES = {"Merlin", "Percival", "Loyal Servant"}
TEAMED = {"Assassin", "Morgana", "Mordred"}
OBJECTIVES = {
    "shield_teammate": ("switch", TEAMED),
    "sacrifice_teammate": ("switch", TEAMED),
    "frame_good": ("switch", EVIL),
    "expose_evil": ("switch", GOOD_ROLES),
    "clear_good": ("switch", GOOD_ROLES),
    "shelter_merlin": ("switch", {"Percival"}),
    "flush_out_merlin": ("switch", {"Assassin"}),
    "pass_as_merlin": ("switch", {"Morgana"}),
    "unlike_mordred": ("switch", {"Mordred"}),
    "keep_evil_off": ("reject", GOOD_ROLES),
    "send_clean_team": ("approve", GOOD_ROLES),
    "place_saboteur": ("approve", EVIL),
    "block_clean_team": ("reject", EVIL),
    "vote_with_crowd": ("approve", EVIL),
}


@lru_cache(maxsize=3)
def all_worlds(lineup: str) -> list[tuple[str, ...]]:
    """Every different way to deal the cast, one seat after the other."""
    dealt = [((), tuple(CAST[lineup]))]
    for _ in CAST[lineup]:
        dealt = [
            ((*world, card), (*rest[: rest.index(card)], *rest[rest.index(card) + 1 :]))
            for world, rest in dealt
            for card in sorted(set(rest))
        ]
    return [world for world, _ in dealt]


def shown(viewer: str, other: str) -> bool:
    """Whether a role is shown the seat of another at night."""
    if viewer == "Merlin":
        return other in EVIL and other != "Mordred"
    if viewer == "Percival":
        return other in ("Merlin", "Morgana")
    if viewer in TEAMED:
        return other in TEAMED
    return False


def cards(lineup: str, team: list[str], belief: str | None) -> dict[str, str]:
    """Card of every EVIL role on a team, row by row of the published table."""
    bound = "".join(role[:2] for role in ("Assassin", "Morgana", "Mordred") if role in team)
    if bound in ("AsMo", "MoMo"):
        bound = "+".join(role for role in ("Assassin", "Morgana", "Mordred") if role in team)
    if lineup == "B" and belief is None:
        belief = "Assassin"
    torn = {None: "open", "Assassin": "success", "Mordred": "fail"}[belief]
    table = {
        "": {},
        "As": {"Assassin": "fail"},
        "Mo": {role: "fail" for role in team if role in ("Morgana", "Mordred")},
        "Assassin+Morgana": {"Assassin": "fail", "Morgana": torn},
        "Assassin+Mordred": {"Assassin": "fail", "Mordred": "success"},
        "Morgana+Mordred": {"Morgana": torn, "Mordred": "success"},
        "AsMoMo": {"Assassin": "fail", "Morgana": "success", "Mordred": "success"},
    }
    return table[bound] | ({"Oberon": "open"} if "Oberon" in team else {})


def counts(lineup: str, team: list[str], belief: str | None = None) -> set[int]:
    """Numbers of fails that the protocol allows."""
    played = list(cards(lineup, team, belief).values())
    return {played.count("fail") + free for free in range(played.count("open") + 1)}


class Naive:
    """A scenario, as JSON, with the worlds that its history (or another) leaves."""

    def __init__(self, scenario: dict, history: list | None = None):
        self.scenario = scenario
        self.history = scenario["history"] if history is None else history
        self.seat = {name: number for number, name in enumerate(scenario["players"])}
        self.actual = tuple(scenario["roles"][name] for name in scenario["players"])
        self.worlds = [w for w in all_worlds(scenario["lineup"]) if self.consistent(w)]
        self.cells: dict = {}
        self.others: dict[str, Naive] = {}

    def consistent(self, world) -> bool:
        for event in self.history:
            if event["event"] == "quest":
                team = [world[self.seat[name]] for name in event["team"]]
                if event["fails"] > sum(member in EVIL for member in team):
                    return False
                bound = self.scenario["protocol"] and event["quest"] != 4
                if bound and event["fails"] not in counts(self.scenario["lineup"], team):
                    return False
            if event["event"] == "lady" and event["claim"] is not None:
                truth = "EVIL" if world[self.seat[event["target"]]] in EVIL else "GOOD"
                if world[self.seat[event["holder"]]] not in EVIL and event["claim"] != truth:
                    return False
        return True

    def private(self, name: str, world):
        own = self.seat[name]
        seen = [
            number
            for number, other in enumerate(world)
            if number != own and shown(world[own], other)
        ]
        looked = [
            world[self.seat[event["target"]]] in EVIL
            for event in self.history
            if event["event"] == "lady" and event["holder"] == name
        ]
        return world[own], tuple(seen), tuple(looked)

    def cell(self, name, world):
        if name is None:
            return self.worlds
        if name not in self.cells:
            found: dict = {}
            for other in self.worlds:
                found.setdefault(self.private(name, other), []).append(other)
            self.cells[name] = found
        return self.cells[name][self.private(name, world)]

    def after(self, history: list) -> Naive:
        key = json.dumps(history)
        if key not in self.others:
            self.others[key] = Naive(self.scenario, history)
        return self.others[key]

    def belief(self, team) -> str | None:
        pending = self.scenario["pending"]
        if pending is None or set(pending["team"]) != set(team):
            return None
        return next(iter(self.scenario["beliefs"].values()), None)

    def card(self, seat: str, team) -> str:
        role_of = self.scenario["roles"]
        played = cards(self.scenario["lineup"], [role_of[name] for name in team], self.belief(team))
        return played.get(role_of[seat], "success")

    def true(self, claim, world) -> bool:
        match claim["op"]:
            case "role":
                return world[self.seat[claim["seat"]]] == claim["role"]
            case "faction":
                return (world[self.seat[claim["seat"]]] in EVIL) == (claim["faction"] == "EVIL")
            case "not":
                return not self.true(claim["of"], world)
            case "and":
                return all(self.true(part, world) for part in claim["of"])
            case "or":
                return any(self.true(part, world) for part in claim["of"])
            case "knows":
                return all(self.true(claim["of"], w) for w in self.cell(claim["seat"], world))
            case "possible":
                return any(self.true(claim["of"], w) for w in self.cell(claim["seat"], world))
            case "lied":
                event = self.scenario["history"][claim["event"]]
                evil = world[self.seat[event["target"]]] in EVIL
                return evil != (event["claim"] == "EVIL")
            case "at":
                return self.after(self.history[: claim["event"]]).true(claim["of"], world)
            case "announce":
                history = list(self.history)
                history[claim["event"]] = {**history[claim["event"]], "claim": claim["claim"]}
                said = self.after(history)
                return not said.consistent(world) or said.true(claim["of"], world)
            case "card":
                return self.card(claim["seat"], claim["team"]) == claim["card"]
            case "known_teammates":
                role_of = self.scenario["roles"]
                own = role_of[claim["seat"]]
                known = sum(shown(own, role_of[name]) for name in claim["team"])
                return own in EVIL and known - (own in TEAMED) == claim["count"]
            case "fails" | "fails_at_least":
                team = [self.scenario["roles"][name] for name in claim["team"]]
                allowed = counts(self.scenario["lineup"], team, self.belief(claim["team"]))
                if claim["op"] == "fails_at_least":
                    return min(allowed) >= claim["count"]
                return len(allowed) > 1 if claim["count"] == "open" else allowed == {claim["count"]}
            case "profile":
                team = list(claim["cards"])
                return all(
                    self.card(name, team) in (card, "open") for name, card in claim["cards"].items()
                )
            case "approved":
                against = self.scenario["history"][claim["event"]]["against"]
                return len(against) < len(self.seat) / 2
            case "motive":
                return self.motive(claim, world)
        raise AssertionError(claim)

    def motive(self, claim, world) -> bool:
        action, roles = OBJECTIVES[claim["objective"]]
        event, actor = self.scenario["history"][claim["event"]], claim["seat"]
        if event["event"] == "switch":
            done = action == "switch" and event["by"] == actor
        else:
            done = action == ("reject" if actor in event["against"] else "approve")
        if claim["objective"] == "vote_with_crowd":
            done = done and self.scenario["goals"].get(actor) == "conceal"
        held = all(self.true(premise, world) for premise in claim["premises"])
        return done and held and self.scenario["roles"][actor] in roles


@lru_cache(maxsize=4)
def _opened(state: str) -> Naive:
    return Naive(json.loads(state))


def label(metadata: dict) -> bool:
    """The label that follows from an item's `metadata.scenario` and `metadata.claim`."""
    # Statements of one scenario share their worlds; the seat of judgement is no part of them.
    state = json.dumps({**metadata["scenario"], "pov": None})
    naive = _opened(state)
    return naive.true(metadata["claim"], naive.actual)
