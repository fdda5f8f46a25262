"""A second solver of unreliable-colleague tasks, written from docs/unco.md and the JSON alone."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal, localcontext
from itertools import product
from typing import Any

Line = dict[str, Any]


def records(task: Line, *, asked: bool = True) -> dict[str, dict[str, Any]]:
    """Candidate to fact to value, in the context asked about or in the other one."""
    facts = {fact["key"]: fact for fact in task["facts"]}
    found: dict[str, dict[str, Any]] = {name: {} for name in task["candidates"]}
    for role in task["roles"]:
        for name, rows in role["records"].items():
            for row in rows:
                if (row["context"] == facts[row["fact"]]["context"]) == asked:
                    found[name][row["fact"]] = row["value"]
    return found


def met(condition: Line, value: Any) -> bool:
    wanted = condition["value"]
    return {
        "at_least": lambda: value >= wanted,
        "at_most": lambda: value <= wanted,
        "equals": lambda: value == wanted,
        "by": lambda: value <= wanted,
    }[condition["test"]]()


def number(rule: Line, values: list[Any]) -> Decimal:
    with localcontext() as context:
        context.prec = 60
        v = [Decimal(str(x)) for x in values]
        raw = {
            "sum": lambda: sum(v),
            "difference": lambda: v[0] - v[1],
            "product": lambda: v[0] * v[1],
            "quotient": lambda: v[0] / v[1],
            "percentage": lambda: v[0] * 100 / v[1],
            "mean": lambda: sum(v) / len(v),
            "maximum": lambda: max(v),
            "weighted_sum": lambda: sum(
                Decimal(w) * x / 100 for w, x in zip(rule["weights"], v, strict=True)
            ),
        }[rule["operation"]]()
        # Half up means towards positive infinity; Decimal's mode of that name means away from 0.
        shifted = Decimal(raw) + Decimal(10) ** 15
        return shifted.quantize(Decimal("0.01"), ROUND_HALF_UP) - Decimal(10) ** 15


def solutions(task: Line, values: dict[str, dict[str, Any]]) -> list[Line]:
    """Every candidate that qualifies, with its number; one entry of nulls where none does."""
    found = [
        {"decision": "select", "candidate": name, "number": float(number(
            task["rule"], [values[name][key] for key in task["rule"]["operands"]]
        ))}
        for name in task["candidates"]
        if all(met(c, values[name][c["fact"]]) for c in task["conditions"])
    ]  # fmt: skip
    return found or [{"decision": "none", "candidate": None, "number": None}]


def extremes(task: Line, fact: Line) -> list[Any]:
    """A few values on both sides of a condition, or along an operand's range."""
    condition = next((c for c in task["conditions"] if c["fact"] == fact["key"]), None)
    if fact["kind"] == "status":
        return fact["words"]
    if fact["kind"] == "date":
        assert condition is not None
        return ["1999-01-01", "2999-01-01"]
    if condition is not None:
        return [fact["low"], fact["high"]]
    return [fact["low"], fact["low"] + fact["step"], fact["high"]]


def determined(task: Line, role: str) -> bool:
    """Whether the answer is the same for all completions of a role's facts, by brute force.

    Completions under which two candidates qualify are impossible by the task's promise.
    """
    hidden = [fact for fact in task["facts"] if fact["role"] == role]
    slots = [(name, fact) for name in task["candidates"] for fact in hidden]
    seen = set()
    for drawn in product(*(extremes(task, fact) for _, fact in slots)):
        values = {name: dict(facts) for name, facts in records(task).items()}
        for (name, fact), value in zip(slots, drawn, strict=True):
            values[name][fact["key"]] = value
        found = solutions(task, values)
        if len(found) == 1:
            seen.add(tuple(found[0].values()))
        if len(seen) > 1:
            return False
    return True


def at_face_value(task: Line) -> list[Line]:
    """What the first replies say if another context counts as this one, and a range as its middle.

    A silent role counts as no objection: its conditions are met, its operands unknown (no number).
    """
    values: dict[str, dict[str, Any]] = {n: dict(f) for n, f in records(task).items()}
    silent: set[str] = set()
    for defect in task["defects"]:
        if defect["kind"] == "missed":
            silent |= {f["key"] for f in task["facts"] if f["role"] == defect["role"]}
        elif defect["kind"] == "misaligned":
            values[defect["candidate"]][defect["fact"]] = records(task, asked=False)[
                defect["candidate"]
            ][defect["fact"]]
        else:
            middle = (defect["reported_low"] + defect["reported_high"]) / 2
            values[defect["candidate"]][defect["fact"]] = middle
    found: list[Line] = []
    for name in task["candidates"]:
        if all(c["fact"] in silent or met(c, values[name][c["fact"]]) for c in task["conditions"]):
            operands = task["rule"]["operands"]
            unknown = silent & set(operands)
            result = None if unknown else float(
                number(task["rule"], [values[name][key] for key in operands])
            )  # fmt: skip
            found.append({"decision": "select", "candidate": name, "number": result})
    return found or [{"decision": "none", "candidate": None, "number": None}]
