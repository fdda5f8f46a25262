"""The eight operations of a numerical rule, in exact arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import floor
from typing import Final

from interp.sources.unco.spec import Fact, Operation, Rule

__all__ = ["OPERAND_COUNTS", "apply_rule", "round_half_up", "unit_violation"]

OPERAND_COUNTS: Final[dict[Operation, tuple[int, int]]] = {
    "sum": (2, 3),
    "difference": (2, 2),
    "product": (2, 2),
    "quotient": (2, 2),
    "weighted_sum": (2, 2),
    "percentage": (2, 2),
    "mean": (2, 3),
    "maximum": (2, 3),
}
"""Fewest and most operands of each operation."""


def round_half_up(number: Fraction) -> Fraction:
    """The nearest multiple of 1/100; a tie goes up."""
    return Fraction(floor(number * 100 + Fraction(1, 2)), 100)


def apply_rule(rule: Rule, operands: Sequence[int | Fraction]) -> Fraction:
    """The rule's result, rounded half up to two decimals at the end and nowhere before.

    Args:
        rule: its operation and weights.
        operands: values in the order of `rule.operands`; a divisor is not 0.
    """
    values = [Fraction(value) for value in operands]
    first, second = values[0], values[1]
    match rule.operation:
        case "sum":
            result = sum(values, Fraction(0))
        case "difference":
            result = first - second
        case "product":
            result = first * second
        case "quotient":
            result = first / second
        case "percentage":
            result = 100 * first / second
        case "mean":
            result = sum(values, Fraction(0)) / len(values)
        case "maximum":
            result = max(values)
        case "weighted_sum":
            result = sum(
                (Fraction(w, 100) * v for w, v in zip(rule.weights, values, strict=True)),
                Fraction(0),
            )
    return round_half_up(result)


def unit_violation(rule: Rule, operands: Sequence[Fact]) -> str | None:
    """Why the units of operands and result do not go together; None where they do."""
    units = [fact.unit for fact in operands]
    match rule.operation:
        case "product":
            wanted = f"{rule.unit} per {operands[0].unit_one}"
            if units[1] != wanted:
                return f"a product in {rule.unit} needs a rate in {wanted!r}, not {units[1]!r}"
        case "quotient":
            wanted = f"{units[0]} per {operands[1].unit_one}"
            if rule.unit != wanted:
                return f"this quotient is in {wanted!r}, not {rule.unit!r}"
        case "percentage":
            if len(set(units)) > 1 or rule.unit != "per cent":
                return f"a percentage of {units[0]!r} and {units[1]!r} cannot be in {rule.unit!r}"
        case _:
            if {rule.unit, *units} != {rule.unit}:
                return f"operands in {', '.join(map(repr, units))} do not give {rule.unit!r}"
    return None
