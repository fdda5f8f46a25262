"""Specifications: a seeded program that writes them, and a seam for an LLM that does."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from random import Random
from typing import Any, get_args

from interp.errors import SourceError
from interp.sources.unco.operations import OPERAND_COUNTS
from interp.sources.unco.spec import (
    Condition,
    Fact,
    Operation,
    Rule,
    Specification,
    Value,
    specification_from_json,
    specification_to_json,
)
from interp.sources.unco.validate import N_CANDIDATES, RULES, Violation, violations
from interp.sources.unco.vocabulary import MONTHS, Domain, domains

__all__ = ["Author", "LlmAuthor", "author_with_llm", "cells", "llm_author", "write_specification"]

Author = Callable[[Random, Domain, Operation], Specification | None]
"""Writes a specification of a domain and an operation; None where it could not."""

LlmAuthor = Callable[[str], str]
"""Takes a prompt, returns the text of a JSON object in the form of docs/unco.md."""


def cells() -> tuple[tuple[Domain, Operation], ...]:
    """Every domain with every operation."""
    return tuple((domain, operation) for domain in domains() for operation in get_args(Operation))


def write_specification(rng: Random, domain: Domain, operation: Operation) -> Specification:
    """Draw a specification; it may break a structural rule, and is drawn again where it does.

    Args:
        rng: every choice comes from it.
        domain: vocabulary.
        operation: of the numerical rule.
    """
    contexts = _Contexts(rng, domain)
    drawn = rng.sample(domain.conditions, rng.randint(5, 7))
    facts = [_condition_fact(f"f{i}", row, domain, contexts) for i, row in enumerate(drawn, 1)]
    conditions = tuple(
        _condition(f"c{i}", fact, row, rng)
        for i, (fact, row) in enumerate(zip(facts, drawn, strict=True), 1)
    )
    operands, unit = _operands(rng, domain, operation, contexts)
    first = rng.randrange(20, 81, 5)
    facts += operands
    held = {fact.role for fact in facts}
    return Specification(
        domain=domain.key,
        title=domain.title,
        noun=domain.candidate_noun,
        adopt=domain.adopt,
        purpose=rng.choice(domain.purposes),
        candidates=tuple(rng.sample(domain.names, N_CANDIDATES)),
        roles=tuple(role for role in rng.sample(domain.roles, len(domain.roles)) if role in held),
        facts=tuple(facts),
        conditions=conditions,
        rule=Rule(
            operation,
            tuple(fact.key for fact in operands),
            (first, 100 - first) if operation == "weighted_sum" else (),
            unit,
        ),
    )


def author_with_llm(
    llm: LlmAuthor, prompt: str
) -> tuple[Specification | None, tuple[Violation | str, ...]]:
    """A specification by an LLM, under the same validation, with one attempt at repair.

    Args:
        llm: called once, and once more with what was wrong (appendix A.1.3 of the paper).
        prompt: what the LLM is asked to write.

    Returns:
        The specification, or None with what was still wrong after the repair.
    """
    request = prompt
    problems: tuple[Violation | str, ...] = ()
    for _ in range(2):
        reply = llm(request)
        spec, problems = _read(reply)
        if spec is not None:
            return spec, ()
        listed = "\n".join(f"- {problem}" for problem in problems)
        request = (
            f"{prompt}\n\nYour last answer was:\n{reply}\n\nIt was refused:\n{listed}\n"
            "Answer with the whole corrected JSON object and nothing else."
        )
    return None, problems


def llm_author(llm: LlmAuthor) -> Author:
    """An author for `build_groups` that asks an LLM, with a specification of ours as example."""

    def write(rng: Random, domain: Domain, operation: Operation) -> Specification | None:
        example = write_specification(rng, domain, operation)
        rules = "\n".join(f"- {rule}" for rule in RULES.values())
        prompt = (
            f"Write a decision problem about {domain.title} whose numerical rule is a {operation}, "
            f"as one JSON object in the form of this example:\n"
            f"{json.dumps(specification_to_json(example))}\nIt must keep these rules:\n{rules}"
        )
        spec, _ = author_with_llm(llm, prompt)
        fits = spec is not None and spec.rule.operation == operation
        return replace(spec, domain=domain.key) if spec is not None and fits else None

    return write


def _read(reply: str) -> tuple[Specification | None, tuple[Violation | str, ...]]:
    try:
        record = json.loads(reply[reply.find("{") : reply.rfind("}") + 1])
        spec = specification_from_json(record)
    except (ValueError, RecursionError) as error:
        return None, (f"not a JSON object: {error}",)
    except SourceError as error:
        return None, (str(error),)
    found = violations(spec)
    return (None, found) if found else (spec, ())


class _Contexts:
    """Periods and places for the facts of one task."""

    def __init__(self, rng: Random, domain: Domain):
        self._rng = rng
        self._places = domain.places

    def draw(self, *, place: bool) -> tuple[str, str]:
        """What is asked about, and something else that the records cover too."""
        if place or self._rng.random() < 0.4:
            asked, other = self._rng.sample(self._places, 2)
            return asked, other
        month = self._rng.randrange(24)
        shift = self._rng.choice((-3, -2, -1, 1, 2, 3))
        return _month(month), _month(month + shift)


def _month(number: int) -> str:
    return f"{MONTHS[number % 12]} {2026 + number // 12}"


def _condition_fact(key: str, row: tuple[Any, ...], domain: Domain, contexts: _Contexts) -> Fact:
    role, label, kind = domain.roles[row[0]], row[1], row[2]
    # A day is a date already: a month beside it would be confusing.
    asked, other = contexts.draw(place=kind == "date")
    measure = kind == "measure"
    return Fact(
        key=key,
        label=label,
        role=role,
        kind=kind,
        unit=row[3] if measure else None,
        unit_one=None,
        low=row[4] if measure else 0,
        high=row[5] if measure else 0,
        step=1,
        words=(row[3], row[4]) if kind == "status" else (),
        context=asked,
        other_context=other,
    )


def _condition(key: str, fact: Fact, row: tuple[Any, ...], rng: Random) -> Condition:
    value: Value
    if fact.kind == "status":
        return Condition(key, fact.key, "equals", fact.words[0])
    if fact.kind == "date":
        value = (date(2026, 3, 1) + timedelta(days=rng.randrange(500))).isoformat()
        return Condition(key, fact.key, "by", value)
    span = fact.high - fact.low
    value = fact.low + round(span * rng.uniform(0.35, 0.65))
    return Condition(key, fact.key, row[6], value)


def _operands(
    rng: Random, domain: Domain, operation: Operation, contexts: _Contexts
) -> tuple[list[Fact], str]:
    money = domain.currency
    count_row, rate_row = domain.count, domain.rate
    asked = contexts.draw(place=False)

    def amount(key: str, row: tuple[Any, ...]) -> Fact:
        return _number(key, domain, row[0], row[1], "amount", money, None, row[2:5], asked)

    count = _number(
        "n1", domain, count_row[0], count_row[1], "count", count_row[2], count_row[3],
        (count_row[4], count_row[5], 1), asked,
    )  # fmt: skip
    per_one = f"{money} per {count.unit_one}"
    if operation == "product":
        rate = _number(
            "n2", domain, rate_row[0], rate_row[1], "rate", per_one, None, rate_row[2:5], asked
        )
        return [count, rate], money
    if operation == "quotient":
        others = [row for row in domain.amounts if row[0] != count_row[0]]
        first = amount("n2", rng.choice(others))
        return [first, count], per_one
    fewest, most = OPERAND_COUNTS[operation]
    rows = rng.sample(domain.amounts, rng.randint(fewest, most))
    if operation in ("difference", "percentage"):
        rows.sort(key=lambda row: -int(row[3]))
    found = [amount(f"n{i}", row) for i, row in enumerate(rows, 1)]
    return found, "per cent" if operation == "percentage" else money


def _number(
    key: str,
    domain: Domain,
    role: int,
    label: str,
    kind: Any,
    unit: str,
    unit_one: str | None,
    grid: tuple[int, ...],
    contexts: tuple[str, str],
) -> Fact:
    low, high, step = grid
    return Fact(
        key, label, domain.roles[role], kind, unit, unit_one, low, high, step, (), *contexts
    )
