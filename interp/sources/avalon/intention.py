"""Intention Attribution: motives behind a switch of suspicion or a vote."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Final

from interp.sources.avalon.claims import (
    Claim,
    View,
    both,
    either,
    faction,
    knows,
    possible,
    role,
)
from interp.sources.avalon.deal import deal_seats, lady_event, proposal_event, quest_events
from interp.sources.avalon.motives import OBJECTIVES
from interp.sources.avalon.rules import SEES, faction_of
from interp.sources.avalon.scenario import Proposal, Scenario, Switch
from interp.sources.avalon.twins import Ability, Filling, Kind, card_blind_seats, over_all

__all__ = ["INTENTION"]


def _deal(rng: Random) -> Scenario:
    lineup, players, roles = deal_seats(rng, (6, 3, 1))
    history = quest_events(rng, lineup, players, roles, 2)
    if rng.random() < 0.3:
        history.append(lady_event(rng, players, roles, 2))
    # Those who know something are the ones with motives to tell apart.
    keen = [p for p, r in zip(players, roles, strict=True) if r != "Loyal Servant"]
    evil = [p for p, r in zip(players, roles, strict=True) if faction_of(r) == "EVIL"]
    actors = rng.sample(keen, 4) if rng.random() < 0.7 else rng.sample(players, 4)
    for actor in actors:
        source, target = rng.sample([name for name in players if name != actor], 2)
        if rng.random() < 0.4:
            target = rng.choice([name for name in evil if name not in (actor, source)])
        history.append(Switch(actor, source, target))
    team = rng.sample(players, lineup.quest_sizes[2])
    history.append(proposal_event(rng, players, history, 3, team, approved=rng.random() < 0.7))
    goals = {rng.choice(evil): "conceal"} if rng.random() < 0.4 else {}
    return Scenario(lineup.name, players, roles, tuple(history), goals=goals)


_SWITCH: Final = (
    "By turning suspicion from {f} to {t}, {a} means to {aim}.",
    "{a} moves the talk from {f} to {t} in order to {aim}.",
    "I, {a}, press {t} instead of {f} so as to {aim}.",
)
_VOTE: Final = (
    "With the vote to {vote} the team that {l} proposed for Quest {q}, {a} means to {aim}.",
    "{a} votes to {vote} {l}'s team for Quest {q} in order to {aim}.",
)
_AIMS: Final[Mapping[str, tuple[str, ...]]] = {
    "shield_teammate": (
        "take the heat off a player known to {a} as a fellow EVIL player",
        "shield {f}, whom {a} knows as an EVIL teammate",
    ),
    "sacrifice_teammate": (
        "look GOOD by giving up {t}, whom {a} knows as an EVIL teammate",
        "buy trust for {a} at the cost of an EVIL teammate known to {a}",
    ),
    "frame_good": (
        "have {t}, whom {a} as an EVIL player knows to be GOOD, taken for EVIL",
        "turn the table against {t}, a player that EVIL {a} knows to be GOOD",
    ),
    "expose_evil": (
        "help GOOD catch {t}, whom {a} knows to be EVIL",
        "bring out, for the GOOD side, what {a} knows: {t} is EVIL",
    ),
    "clear_good": (
        "spare the GOOD side the loss of {f}, whom {a} knows to be GOOD",
        "clear {f}, known to {a} as a fellow GOOD player",
    ),
    "shelter_merlin": (
        "shelter {f}, who as far as Percival in {a}'s seat can see may be Merlin",
        "keep attention off a possible Merlin, as is Percival's task, in {a}'s case with {f}",
    ),
    "flush_out_merlin": (
        "test {t} as a possible Merlin, which is the Assassin's business",
        "find out, as the Assassin must, whether {t} is Merlin, which {a} cannot rule out",
    ),
    "pass_as_merlin": (
        "look like Merlin, as Morgana does, by pressing an EVIL player whom {a} knows Merlin sees",
        "play Merlin's part for Percival, {t} being EVIL and, as Morgana in {a}'s seat knows, "
        "visible to Merlin",
    ),
    "unlike_mordred": (
        "look less like the hidden Mordred that {a} is, {t} being EVIL and visible to Merlin",
        "hide being Mordred behind an attack on an EVIL player whom, as {a} knows, Merlin sees",
    ),
    "keep_evil_off": (
        "keep a player whom {a} knows to be EVIL from playing a card, as GOOD wants",
        "stop, for the GOOD side, a team with an EVIL member known to {a}",
    ),
    "send_clean_team": (
        "send, for the GOOD side, a team whose other members {a} knows to be GOOD",
        "let a quest go ahead with members who, but for {a}, are all known to {a} as GOOD, "
        "as GOOD wants",
    ),
    "place_saboteur": (
        "get an EVIL player known to {a} onto the quest for the EVIL side",
        "give EVIL the chance of a fail card through a member whom {a} knows to be EVIL",
    ),
    "block_clean_team": (
        "stop, for the EVIL side, a team on which {a} knows everyone to be GOOD",
        "deny GOOD a quest with members who are all GOOD, as EVIL {a} knows",
    ),
    "vote_with_crowd": (
        "keep the EVIL side out of sight, as {a} has set out to do, by voting with the majority",
        "stay unnoticed as an EVIL player, the declared aim of {a}, by going along with most votes",
    ),
}


def _premises(name: str, view: View, a: str, number: int) -> list[Claim] | None:
    """The factual premises of an objective for one action; None if it is another kind of action."""
    match view.history[number]:
        case Switch(_, f, t) if OBJECTIVES[name].action == "switch":
            visible = [role(t, seen) for seen in SEES["Merlin"]]
            by_switch: dict[str, list[Claim]] = {
                "shield_teammate": [knows(a, faction(f, "EVIL"))],
                "sacrifice_teammate": [knows(a, faction(t, "EVIL"))],
                "frame_good": [knows(a, faction(t, "GOOD"))],
                "expose_evil": [knows(a, faction(t, "EVIL"))],
                "clear_good": [knows(a, faction(f, "GOOD"))],
                "shelter_merlin": [possible(a, role(f, "Merlin"))],
                "flush_out_merlin": [possible(a, role(t, "Merlin"))],
                "pass_as_merlin": [knows(a, either(*visible))],
                "unlike_mordred": [knows(a, either(*visible))],
            }
            return by_switch[name]
        case Proposal(team=team) if OBJECTIVES[name].action != "switch":
            others = [member for member in team if member != a]
            by_vote: dict[str, list[Claim]] = {
                "keep_evil_off": [either(*(knows(a, faction(m, "EVIL")) for m in others))],
                "send_clean_team": [both(*(knows(a, faction(m, "GOOD")) for m in others))],
                "place_saboteur": [either(*(knows(a, faction(m, "EVIL")) for m in others))],
                "block_clean_team": [both(*(knows(a, faction(m, "GOOD")) for m in team))],
                "vote_with_crowd": [],
            }
            return by_vote[name]
    return None


def _unique(view: View, event: Proposal) -> bool:
    """Whether leader and quest name this proposal and no other."""
    alike = [
        other
        for other in view.history
        if isinstance(other, Proposal)
        and (other.leader, other.quest) == (event.leader, event.quest)
    ]
    return len(alike) == 1


def _fillings(name: str) -> Callable[[Random, View], list[Filling]]:
    def fillings(_rng: Random, view: View) -> list[Filling]:
        found = []
        blind = card_blind_seats(view.scenario)
        for number, event in enumerate(view.history):
            actors = [event.by] if isinstance(event, Switch) else list(view.scenario.players)
            for a in actors:
                premises = _premises(name, view, a, number)
                if premises is None or a not in blind:
                    continue
                # What counts is what the actor knew when acting, not what came out later.
                premises = [{"op": "at", "event": number, "of": premise} for premise in premises]
                names, words = {"a": a}, {}
                if isinstance(event, Switch):
                    names |= {"f": event.source, "t": event.target}
                elif isinstance(event, Proposal):
                    vote = "reject" if a in event.against else "approve"
                    if vote != OBJECTIVES[name].action or not _unique(view, event):
                        continue
                    if name == "place_saboteur" and a in event.team:
                        # Whether one's own seat counts as "known to" oneself is a quibble.
                        continue
                    names |= {"l": event.leader}
                    words = {"vote": vote, "q": str(event.quest)}
                if name == "vote_with_crowd":
                    premises = [{"op": "approved", "event": number}]
                claim = {
                    "op": "motive",
                    "seat": a,
                    "event": number,
                    "objective": name,
                    "premises": premises,
                }
                found.append(Filling(names, claim, a, words))
        return found

    return fillings


def _kind(name: str) -> Kind:
    frames = _SWITCH if OBJECTIVES[name].action == "switch" else _VOTE
    templates = tuple(frame.replace("{aim}", aim) for frame in frames for aim in _AIMS[name])
    return over_all(name, templates, _fillings(name))


INTENTION: Final = Ability(_deal, {name: _kind(name) for name in OBJECTIVES})
