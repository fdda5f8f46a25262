"""Values for a specification, so that exactly one candidate is eligible, or none."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, timedelta
from random import Random

from interp.sources.unco.solve import answer, necessary_roles
from interp.sources.unco.spec import Answer, Condition, Fact, Specification, Value

__all__ = ["SHARE_NONE", "Instance", "instantiate", "logical_violation"]

SHARE_NONE = 0.25
"""Share of tasks in which no candidate is eligible."""


@dataclass(frozen=True, slots=True)
class Instance:
    """A specification with the values of every candidate.

    Attributes:
        spec: what is asked.
        values: candidate to fact key to value, in the context that the decision asks about.
        others: the same for the other context that the records cover.
        gold: the one answer that `values` give.
        necessary_roles: the roles without whose facts the answer is not determined.
    """

    spec: Specification
    values: dict[str, dict[str, Value]]
    others: dict[str, dict[str, Value]]
    gold: Answer
    necessary_roles: tuple[str, ...]


def instantiate(spec: Specification, rng: Random) -> Instance | None:
    """Draw values; None where the draw leaves the answer open or a role without a part in it.

    With an eligible candidate, each other one misses one or two conditions. Without one, each
    candidate misses exactly one condition, and the three are of different roles, so that each of
    these replies decides.
    """
    misses = _misses(spec, rng)
    values: dict[str, dict[str, Value]] = {}
    others: dict[str, dict[str, Value]] = {}
    by_fact = {condition.fact: condition for condition in spec.conditions}
    for name in spec.candidates:
        values[name], others[name] = {}, {}
        for fact in spec.facts:
            condition = by_fact.get(fact.key)
            if condition is None:
                values[name][fact.key] = draw = _grid(fact, rng)
                others[name][fact.key] = _grid(fact, rng, apart_from=draw)
                continue
            met = condition.key not in misses[name]
            values[name][fact.key] = _side(fact, condition, met, rng)
            # The other context tells the opposite half of the time: it is no hint by itself.
            others[name][fact.key] = _side(fact, condition, rng.random() < 0.5, rng)
    gold = answer(spec, values)
    if gold is None:
        return None
    instance = Instance(spec, values, others, gold, necessary_roles(spec, values))
    return None if logical_violation(instance) else instance


def logical_violation(instance: Instance) -> str | None:
    """What is wrong with the logic of an instance (appendix A.2 of the paper); None if nothing."""
    spec, gold = instance.spec, answer(instance.spec, instance.values)
    if gold is None or gold != instance.gold:
        return f"the values give {gold}, not {instance.gold}"
    needed = necessary_roles(spec, instance.values)
    if needed != instance.necessary_roles:
        return f"the necessary roles are {', '.join(needed)}"
    if gold.decision == "select" and set(needed) != set(spec.roles):
        return "a role is not needed although a candidate is eligible"
    if len(needed) < 3:
        return f"only {len(needed)} roles are needed"
    return None


def _misses(spec: Specification, rng: Random) -> dict[str, set[str]]:
    role = {fact.key: fact.role for fact in spec.facts}
    kind = {fact.key: fact.kind for fact in spec.facts}
    keys = [condition.key for condition in spec.conditions]
    if rng.random() >= SHARE_NONE:
        gold = rng.choice(spec.candidates)
        return {
            name: set() if name == gold else set(rng.sample(keys, rng.randint(1, 2)))
            for name in spec.candidates
        }
    # One of the three must be a measure: only numbers can be reported as a range.
    shuffled = rng.sample(spec.conditions, len(spec.conditions))
    shuffled.sort(key=lambda condition: kind[condition.fact] != "measure")
    chosen: list[Condition] = []
    for condition in shuffled:
        if all(role[condition.fact] != role[other.fact] for other in chosen):
            chosen.append(condition)
    chosen = chosen[:1] + rng.sample(chosen[1:], len(chosen) - 1)
    order = rng.sample(spec.candidates, len(spec.candidates))
    return {name: {condition.key} for name, condition in zip(order, chosen, strict=False)}


def _grid(fact: Fact, rng: Random, apart_from: Value | None = None) -> int:
    while True:
        value = rng.randrange(fact.low, fact.high + 1, fact.step)
        if value != apart_from:
            return value


def _side(fact: Fact, condition: Condition, met: bool, rng: Random) -> Value:
    """A value that meets the condition, or misses it."""
    if fact.kind == "status":
        return fact.words[0 if met else 1]
    if fact.kind == "date":
        day = date.fromisoformat(str(condition.value))
        shift = -rng.randrange(0, 60) if met else rng.randrange(1, 60)
        return (day + timedelta(days=shift)).isoformat()
    edge = int(condition.value)
    if condition.test == "at_least":
        return rng.randint(edge, fact.high) if met else rng.randint(fact.low, edge - 1)
    return rng.randint(fact.low, edge) if met else rng.randint(edge + 1, fact.high)
