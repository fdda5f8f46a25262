"""What a task is made of: facts, conditions, a numerical rule; and their JSON form.

The JSON form is documented in docs/unco.md, so that a stranger can recompute every answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any, Literal, get_args

from interp.errors import SourceError

__all__ = [
    "Answer",
    "Condition",
    "Fact",
    "Kind",
    "Operation",
    "Rule",
    "Specification",
    "Test",
    "Value",
    "Values",
    "number_to_json",
    "specification_from_json",
    "specification_to_json",
]

Kind = Literal["measure", "status", "date", "amount", "count", "rate"]
Test = Literal["at_least", "at_most", "equals", "by"]
Operation = Literal[
    "sum",
    "difference",
    "product",
    "quotient",
    "weighted_sum",
    "percentage",
    "mean",
    "maximum",
]
Value = int | str
"""A number; a word of a status; a day as YYYY-MM-DD (compared as text)."""
Values = Mapping[str, Mapping[str, Value]]
"""Candidate to fact key to value."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that one role knows about every candidate.

    Attributes:
        key: unique within the specification.
        label: its name in prose.
        role: title of the role whose private records hold it.
        kind: what its values are.
        unit: of a number; None for a status or a day.
        unit_one: singular of a count's unit; None otherwise.
        low: lowest value of a number; 0 otherwise.
        high: highest value of a number; 0 otherwise.
        step: numbers are `low` plus a multiple of it.
        words: the two words of a status, the wanted one first; empty otherwise.
        context: period or place that the decision asks about.
        other_context: another one that the records also cover.
    """

    key: str
    label: str
    role: str
    kind: Kind
    unit: str | None
    unit_one: str | None
    low: int
    high: int
    step: int
    words: tuple[str, ...]
    context: str
    other_context: str


@dataclass(frozen=True, slots=True)
class Condition:
    """What a candidate's value of a fact must satisfy, in the fact's `context`.

    Attributes:
        key: unique within the specification.
        fact: key of the fact.
        test: `at_least` and `at_most` a number, `equals` a word, `by` a day (that day included).
        value: what the fact's value is held against.
    """

    key: str
    fact: str
    test: Test
    value: Value

    def met(self, value: Value | Fraction) -> bool:
        """Whether a value satisfies the condition."""
        if isinstance(value, str) or isinstance(self.value, str):
            text, wanted = str(value), str(self.value)
            return text == wanted if self.test == "equals" else text <= wanted
        return value >= self.value if self.test == "at_least" else value <= self.value


@dataclass(frozen=True, slots=True)
class Rule:
    """How the number of an answer follows from the eligible candidate's facts.

    Attributes:
        operation: applied to the operands in their order.
        operands: keys of facts.
        weights: per cent, one an operand, for `weighted_sum`; empty otherwise.
        unit: of the result, which is rounded half up to two decimals.
    """

    operation: Operation
    operands: tuple[str, ...]
    weights: tuple[int, ...]
    unit: str


@dataclass(frozen=True, slots=True)
class Specification:
    """A decision problem without its values.

    Attributes:
        domain: key of the application domain.
        title: the domain in prose.
        noun: what a candidate is.
        adopt: verb of the positive decision.
        purpose: why a choice is due.
        candidates: their names.
        roles: titles of the roles.
        facts: everything that is known about each candidate.
        conditions: all must be met for a candidate to be eligible.
        rule: the number that is asked for.
    """

    domain: str
    title: str
    noun: str
    adopt: str
    purpose: str
    candidates: tuple[str, ...]
    roles: tuple[str, ...]
    facts: tuple[Fact, ...]
    conditions: tuple[Condition, ...]
    rule: Rule

    def fact(self, key: str) -> Fact:
        """The fact with that key."""
        return next(fact for fact in self.facts if fact.key == key)

    def facts_of(self, role: str) -> tuple[Fact, ...]:
        """The facts that a role holds."""
        return tuple(fact for fact in self.facts if fact.role == role)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is decided.

    Attributes:
        decision: `select` or `none`.
        candidate: the eligible candidate; None where none is.
        number: result of the rule; None where no candidate is eligible or an operand is unknown.
    """

    decision: Literal["select", "none"]
    candidate: str | None
    number: Fraction | None

    def to_json(self) -> dict[str, Any]:
        """The answer as a JSON object."""
        return {
            "decision": self.decision,
            "candidate": self.candidate,
            "number": None if self.number is None else number_to_json(self.number),
        }


def number_to_json(number: Fraction) -> int | float:
    """A number with at most two decimals as JSON writes it."""
    return int(number) if number.denominator == 1 else float(number)


def specification_to_json(spec: Specification) -> dict[str, Any]:
    """The specification as a JSON object; tuples become lists."""
    return asdict(spec)


def specification_from_json(record: Mapping[str, Any]) -> Specification:
    """The specification of a JSON object.

    Raises:
        SourceError: a field is missing, unknown or of another type; it is named.
    """
    try:
        data = dict(record)
        facts = tuple(_fact(f) for f in data.pop("facts"))
        conditions = tuple(_condition(c) for c in data.pop("conditions"))
        rule = _rule(data.pop("rule"))
        lists = {name: _texts(data.pop(name), name) for name in ("candidates", "roles")}
        texts = {name: _text(data.pop(name), name) for name in _TEXTS}
    except KeyError as error:
        raise SourceError(f"A specification lacks the field {error.args[0]!r}.") from error
    except (TypeError, AttributeError) as error:
        raise SourceError(f"A specification has a field of the wrong type: {error}.") from error
    if data:
        raise SourceError(f"A specification has unknown fields: {', '.join(sorted(data))}.")
    return Specification(
        facts=facts,
        conditions=conditions,
        rule=rule,
        candidates=lists["candidates"],
        roles=lists["roles"],
        domain=texts["domain"],
        title=texts["title"],
        noun=texts["noun"],
        adopt=texts["adopt"],
        purpose=texts["purpose"],
    )


_TEXTS = ("domain", "title", "noun", "adopt", "purpose")


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{name} is {value!r}; expected text")
    return value


def _texts(value: object, name: str) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} is {value!r}; expected a list of texts")
    return tuple(_text(entry, name) for entry in value)


def _whole(value: object, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} is {value!r}; expected a whole number")
    return value


def _value(value: object) -> Value:
    return value if isinstance(value, str) else _whole(value, "value")


def _choice(value: object, options: tuple[str, ...], name: str) -> Any:
    if value not in options:
        raise TypeError(f"{name} is {value!r}; expected one of {', '.join(options)}")
    return value


def _fact(record: Mapping[str, Any]) -> Fact:
    data = dict(record)
    optional = {
        name: None if (value := data.pop(name)) is None else _text(value, name)
        for name in ("unit", "unit_one")
    }
    texts = {
        name: _text(data.pop(name), name)
        for name in ("key", "label", "role", "context", "other_context")
    }
    numbers = {name: _whole(data.pop(name), name) for name in ("low", "high", "step")}
    kind = _choice(data.pop("kind"), get_args(Kind), "kind")
    words = _texts(data.pop("words"), "words")
    if data:
        raise TypeError(f"a fact has unknown fields {', '.join(sorted(data))}")
    return Fact(
        key=texts["key"],
        label=texts["label"],
        role=texts["role"],
        kind=kind,
        unit=optional["unit"],
        unit_one=optional["unit_one"],
        low=numbers["low"],
        high=numbers["high"],
        step=numbers["step"],
        words=words,
        context=texts["context"],
        other_context=texts["other_context"],
    )


def _condition(record: Mapping[str, Any]) -> Condition:
    return Condition(
        key=_text(record["key"], "key"),
        fact=_text(record["fact"], "fact"),
        test=_choice(record["test"], get_args(Test), "test"),
        value=_value(record["value"]),
    )


def _rule(record: Mapping[str, Any]) -> Rule:
    return Rule(
        operation=_choice(record["operation"], get_args(Operation), "operation"),
        operands=_texts(record["operands"], "operands"),
        weights=tuple(_whole(weight, "weights") for weight in record["weights"]),
        unit=_text(record["unit"], "unit"),
    )
