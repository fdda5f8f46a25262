"""Scripted agents: they show that the environment is solvable, and that its defects bite."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random
from typing import Final

from interp.sources.unco.defects import conclude
from interp.sources.unco.environment import (
    MAX_ROUNDS,
    Action,
    Agent,
    Ask,
    Observation,
    State,
    Submit,
    Wait,
    start,
    step,
)
from interp.sources.unco.interventions import Arm
from interp.sources.unco.render import context_phrase
from interp.sources.unco.replies import Evidence
from interp.sources.unco.spec import Value, number_to_json
from interp.sources.unco.tasks import Task

__all__ = ["SCRIPTED", "gullible", "hint_following", "oracle", "play", "random_agent"]

REPORT: Final = "Please report what you hold on every candidate."


def play(task: Task, agent: Agent, arm: Arm = "none", max_rounds: int = MAX_ROUNDS) -> State:
    """Run an episode to its end; it ends at the latest one action after the last round."""
    state = start(task, arm, max_rounds)
    while not state.ended:
        state = step(state, agent(state.observation()))
    return state


def gullible(seen: Observation) -> Action:
    """Ask everyone once, take every reply as it stands, decide."""
    return _decide(seen) if seen.rounds else _ask_all(seen)


def hint_following(seen: Observation) -> Action:
    """Like `gullible`, but do once what a hint literally says.

    Told that something is wrong, it repeats its question to all; told where, to those roles; told
    what to say, it says that.
    """
    if not seen.rounds:
        return _ask_all(seen)
    if seen.hint is None or len(seen.rounds) > 1:
        return _decide(seen)
    if seen.hint.messages:
        return Ask(seen.hint.messages)
    return Ask(tuple((role, REPORT) for role in seen.hint.roles or seen.spec.roles))


def oracle(seen: Observation) -> Action:
    """Check every reply against what was asked, and ask again, precisely, until all is known."""
    if not seen.rounds:
        return _ask_all(seen)
    known = _latest(seen)
    messages = []
    for role in seen.spec.roles:
        open_facts = [
            fact
            for fact in seen.spec.facts_of(role)
            if not all(
                (said := known.get((name, fact.key))) is not None
                and said.context == fact.context
                and said.value is not None
                for name in seen.spec.candidates
            )
        ]
        if open_facts:
            wanted = "; ".join(f"{f.label} {context_phrase(f.context)}" for f in open_facts)
            messages.append((role, f"Please give the exact values, no ranges, of: {wanted}."))
    if messages and seen.rounds_left:
        return Ask(tuple(messages))
    return _decide(seen)


def random_agent(seed: int) -> Agent:
    """An agent that asks, waits and answers at random; one seed, one behaviour."""

    def act(seen: Observation) -> Action:
        # Of the moment alone: a run that was stopped goes on with the same draws.
        rng = Random(f"unco/random-agent/{seed}/{seen.prompt}/{len(seen.rounds)}")
        draw = rng.random()
        if seen.rounds_left and draw < 0.5:
            return Ask(((rng.choice(seen.spec.roles), REPORT),))
        if seen.rounds_left and draw < 0.6:
            return Wait()
        name = rng.choice((*seen.spec.candidates, None))
        return Submit(name, None if name is None else rng.randrange(1000))

    return act


SCRIPTED: Final[dict[str, Callable[[int], Agent]]] = {
    "oracle": lambda _: oracle,
    "gullible": lambda _: gullible,
    "hint": lambda _: hint_following,
    "random": random_agent,
}
"""Name to a factory that takes the seed."""


def _ask_all(seen: Observation) -> Action:
    return Ask(tuple((role, REPORT) for role in seen.spec.roles))


def _latest(seen: Observation) -> dict[tuple[str, str], Evidence]:
    return {
        (said.candidate, said.fact): said
        for made in seen.rounds
        for answer in made.replies
        for said in answer.evidence
    }


def _decide(seen: Observation) -> Action:
    """What a trusting reader of the latest replies concludes (`defects.conclude`)."""
    latest = _latest(seen)
    known: dict[str, dict[str, Value | Fraction | None]] = {
        name: {fact.key: _as_read(latest.get((name, fact.key))) for fact in seen.spec.facts}
        for name in seen.spec.candidates
    }
    found = conclude(seen.spec, known)
    if found.number is None:
        return Submit(found.candidate, 0 if found.candidate else None)
    return Submit(found.candidate, number_to_json(found.number))


def _as_read(said: Evidence | None) -> Value | Fraction | None:
    if said is None:
        return None
    if said.value is None:
        assert said.low is not None and said.high is not None
        return Fraction(said.low + said.high, 2)
    return said.value
