"""Structural validation: every rule that a specification breaks, by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import Final

from interp.sources.unco.operations import OPERAND_COUNTS, unit_violation
from interp.sources.unco.spec import Condition, Fact, Specification

__all__ = ["N_CANDIDATES", "RULES", "Violation", "violations"]

N_CANDIDATES: Final = 3
ROLES: Final = (5, 7)
CONDITIONS: Final = (5, 7)
CONDITION_ROLES: Final = 4
OPERAND_ROLES: Final = 2

RULES: Final = {
    "candidates": f"exactly {N_CANDIDATES} candidates, all different",
    "roles": f"{ROLES[0]} to {ROLES[1]} roles, all different",
    "idle_role": "every role holds a fact that a condition or the rule uses",
    "conditions": f"{CONDITIONS[0]} to {CONDITIONS[1]} conditions with keys of their own",
    "condition_roles": f"conditions over at least {CONDITION_ROLES} roles",
    "condition_fact": "a condition names a fact of the specification, and no two the same fact",
    "condition_value": "a condition's test and value fit its fact, and can be met and missed",
    "facts": "facts with keys and labels of their own, each used by a condition or the rule",
    "fact_role": "a fact's role is one of the roles",
    "fact_values": "a fact can take at least two values",
    "contexts": "a fact's two contexts differ",
    "operands": "operands are different numerical facts outside the conditions, as many as fit",
    "operand_roles": f"operands from at least {OPERAND_ROLES} roles",
    "weights": "a weighted sum has positive weights that add up to 100, other rules have none",
    "units": "the units of operands and result go together",
    "divisor": "a divisor cannot be 0",
}
"""Codes of the rules and what each demands (section 3.1 and appendix A.1 of the paper)."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken rule.

    Attributes:
        code: key of `RULES`.
        detail: what was found.
    """

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: expected {RULES[self.code]}; got {self.detail}"


def violations(spec: Specification) -> tuple[Violation, ...]:
    """Every rule that the specification breaks; empty for a sound one."""
    return tuple(
        Violation(code, detail)
        for check in (_people, _facts, _conditions, _rule)
        for code, detail in check(spec)
    )


_Found = Iterator[tuple[str, str]]


def _people(spec: Specification) -> _Found:
    if len(spec.candidates) != N_CANDIDATES or len(set(spec.candidates)) != len(spec.candidates):
        yield "candidates", ", ".join(spec.candidates) or "none"
    if not ROLES[0] <= len(spec.roles) <= ROLES[1] or len(set(spec.roles)) != len(spec.roles):
        yield "roles", ", ".join(spec.roles) or "none"
    used = {condition.fact for condition in spec.conditions} | set(spec.rule.operands)
    busy = {fact.role for fact in spec.facts if fact.key in used}
    if idle := [role for role in spec.roles if role not in busy]:
        yield "idle_role", f"nothing for {', '.join(idle)}"


def _facts(spec: Specification) -> _Found:
    for name in ("key", "label"):
        counts = Counter(getattr(fact, name) for fact in spec.facts)
        if twice := [value for value, count in counts.items() if count > 1]:
            yield "facts", f"the {name} {twice[0]!r} more than once"
    used = {condition.fact for condition in spec.conditions} | set(spec.rule.operands)
    if spare := [fact.key for fact in spec.facts if fact.key not in used]:
        yield "facts", f"{', '.join(spare)} unused"
    for fact in spec.facts:
        if fact.role not in spec.roles:
            yield "fact_role", f"{fact.key} held by {fact.role!r}"
        if fact.context == fact.other_context:
            yield "contexts", f"{fact.key} twice for {fact.context!r}"
        if detail := _values(fact):
            yield "fact_values", f"{fact.key} with {detail}"


def _values(fact: Fact) -> str | None:
    if fact.kind == "status":
        return None if len(set(fact.words)) == 2 else f"the words {list(fact.words)}"
    if fact.kind == "date":
        return None
    if fact.step < 1 or fact.low < 0 or fact.low + fact.step > fact.high:
        return f"the range {fact.low} to {fact.high} in steps of {fact.step}"
    return None if fact.unit else "no unit"


def _conditions(spec: Specification) -> _Found:
    keys = {condition.key for condition in spec.conditions}
    if not CONDITIONS[0] <= len(spec.conditions) <= CONDITIONS[1] or len(keys) < len(
        spec.conditions
    ):
        yield "conditions", f"{len(spec.conditions)} with {len(keys)} keys"
    known = {fact.key: fact for fact in spec.facts}
    roles = {known[c.fact].role for c in spec.conditions if c.fact in known}
    if len(roles) < CONDITION_ROLES:
        yield "condition_roles", f"{len(roles)}: {', '.join(sorted(roles)) or 'none'}"
    for name, count in Counter(condition.fact for condition in spec.conditions).items():
        if name not in known:
            yield "condition_fact", f"the unknown fact {name!r}"
        elif count > 1:
            yield "condition_fact", f"{name!r} {count} times"
    for condition in spec.conditions:
        fact = known.get(condition.fact)
        if fact is not None and (detail := _mismatch(condition, fact)):
            yield "condition_value", f"{condition.key}: {detail}"


def _mismatch(condition: Condition, fact: Fact) -> str | None:
    value, test = condition.value, condition.test
    asked = f"{test} {value!r} of a {fact.kind}"
    if fact.kind == "status":
        return None if test == "equals" and value in fact.words else asked
    if fact.kind == "date":
        try:
            # Days are compared as text, so the form matters too.
            day = date.fromisoformat(value) if isinstance(value, str) else None
            return None if test == "by" and day and day.isoformat() == value else asked
        except ValueError:
            return asked
    if test not in ("at_least", "at_most") or not isinstance(value, int):
        return asked
    inside = fact.low < value <= fact.high if test == "at_least" else fact.low <= value < fact.high
    return None if inside else f"{asked} from {fact.low} to {fact.high}"


def _rule(spec: Specification) -> _Found:
    rule = spec.rule
    known = {fact.key: fact for fact in spec.facts}
    operands = [known[key] for key in rule.operands if key in known]
    conditioned = {condition.fact for condition in spec.conditions}
    fewest, most = OPERAND_COUNTS[rule.operation]
    numerical = all(fact.kind not in ("status", "date") for fact in operands)
    if (
        len(operands) < len(rule.operands)
        or len(set(rule.operands)) < len(rule.operands)
        or not fewest <= len(operands) <= most
        or conditioned & set(rule.operands)
        or not numerical
    ):
        yield "operands", f"{rule.operation} of {', '.join(rule.operands) or 'nothing'}"
        return
    if len({fact.role for fact in operands}) < OPERAND_ROLES:
        yield "operand_roles", f"all from {operands[0].role!r}"
    if rule.operation == "weighted_sum":
        if len(rule.weights) != len(operands) or sum(rule.weights) != 100 or min(rule.weights) < 1:
            yield "weights", str(list(rule.weights))
    elif rule.weights:
        yield "weights", f"{list(rule.weights)} for {rule.operation}"
    if (detail := unit_violation(rule, operands)) is not None:
        yield "units", detail
    if rule.operation in ("quotient", "percentage") and operands[1].low <= 0:
        yield "divisor", f"{operands[1].key} from {operands[1].low}"
