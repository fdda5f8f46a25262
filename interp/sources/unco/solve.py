"""What a set of known values decides, and what unknown ones leave open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from itertools import product

from interp.sources.unco.operations import apply_rule
from interp.sources.unco.spec import Answer, Fact, Specification, Value, Values

__all__ = [
    "Options",
    "answer",
    "eligible",
    "necessary_roles",
    "possible_answers",
    "representatives",
]

Options = Mapping[str, Mapping[str, Sequence[Value | Fraction]]]
"""Candidate to fact key to the values that it may have."""


def eligible(spec: Specification, values: Values) -> tuple[str, ...]:
    """The candidates that meet every condition."""
    return tuple(
        name
        for name in spec.candidates
        if all(condition.met(values[name][condition.fact]) for condition in spec.conditions)
    )


def answer(spec: Specification, values: Values) -> Answer | None:
    """The one answer of complete values; None where several candidates are eligible."""
    names = eligible(spec, values)
    if len(names) > 1:
        return None
    if not names:
        return Answer("none", None, None)
    operands = [values[names[0]][key] for key in spec.rule.operands]
    return Answer("select", names[0], apply_rule(spec.rule, [int(v) for v in operands]))


def representatives(spec: Specification, fact: Fact) -> tuple[Value, ...]:
    """Values that stand for all that a fact can take.

    A condition only asks on which side of its value a fact lies, so one value a side is enough;
    an operand is represented by both ends of its range and its middle, between which each of the
    eight operations changes.
    """
    condition = next((c for c in spec.conditions if c.fact == fact.key), None)
    if fact.kind == "status":
        return fact.words
    if fact.kind == "date":
        assert condition is not None and isinstance(condition.value, str)  # structural rule
        return (condition.value, "9999-12-31")
    if condition is None:
        return (
            fact.low,
            fact.low + (fact.high - fact.low) // fact.step // 2 * fact.step,
            fact.high,
        )
    return (fact.low, fact.high)


def possible_answers(spec: Specification, options: Options) -> frozenset[Answer]:
    """Every answer that some completion of the unknown values gives.

    Completions with several eligible candidates are left out: a task promises that there is at
    most one (appendix A.2.1 of the paper). Facts vary independently, so a candidate can become
    eligible exactly if each of its conditions can be met, and ineligible if one can be missed.
    """
    can, cannot = {}, {}
    for name in spec.candidates:
        tests = [[c.met(v) for v in options[name][c.fact]] for c in spec.conditions]
        can[name] = all(any(test) for test in tests)
        cannot[name] = any(not all(test) for test in tests)
    found = set()
    if all(cannot.values()):
        found.add(Answer("none", None, None))
    for name in spec.candidates:
        if can[name] and all(cannot[other] for other in spec.candidates if other != name):
            operands = product(*(options[name][key] for key in spec.rule.operands))
            found |= {
                Answer("select", name, apply_rule(spec.rule, [Fraction(value) for value in values]))
                for values in operands
            }
    return frozenset(found)


def necessary_roles(spec: Specification, values: Values) -> tuple[str, ...]:
    """The roles without whose facts decision, candidate or number is not determined."""
    return tuple(
        role for role in spec.roles if len(possible_answers(spec, hide(spec, values, role))) > 1
    )


def hide(spec: Specification, values: Values, role: str) -> Options:
    """All values known, but those of one role."""
    return {
        name: {
            fact.key: representatives(spec, fact)
            if fact.role == role
            else (values[name][fact.key],)
            for fact in spec.facts
        }
        for name in spec.candidates
    }
