"""What unreliable colleagues do, and the proof that it matters.

That it can be put right is proved by asking the role again: `interp.sources.unco.replies`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from fractions import Fraction
from random import Random
from typing import Any, Final, Literal

from interp.sources.unco.instantiate import Instance
from interp.sources.unco.operations import apply_rule
from interp.sources.unco.solve import possible_answers, representatives
from interp.sources.unco.spec import Answer, Fact, Specification, Value

__all__ = [
    "SETTINGS",
    "Defect",
    "DefectKind",
    "Setting",
    "conclude",
    "defect_violation",
    "draw_defects",
    "face_value",
    "settings",
]

DefectKind = Literal["misaligned", "incomplete", "missed"]
Setting = Literal["reliable", "misaligned", "incomplete", "missed", "mixed"]
SETTINGS: Final[tuple[Setting, ...]] = (
    "reliable",
    "misaligned",
    "incomplete",
    "missed",
    "mixed",
)


@dataclass(frozen=True, slots=True)
class Defect:
    """One unreliable first reply.

    Attributes:
        kind: `misaligned` reports the value of the other context; `incomplete` a range that holds
            the true value; `missed` does not reply at all the first time.
        role: whose reply it is.
        fact: key of the fact concerned; None for `missed`, which concerns all of the role's facts.
        candidate: the candidate concerned; None for `missed`.
        reported_low: lowest number of the range; None unless `incomplete`.
        reported_high: highest number of the range; None unless `incomplete`.
        reported: value of the other context; None unless `misaligned`.
    """

    kind: DefectKind
    role: str
    fact: str | None = None
    candidate: str | None = None
    reported_low: int | None = None
    reported_high: int | None = None
    reported: Value | None = None

    def to_json(self) -> dict[str, Any]:
        """The defect as a JSON object."""
        return asdict(self)


def settings(defects: tuple[Defect, Defect, Defect]) -> dict[Setting, tuple[Defect, ...]]:
    """The defects of each setting; one problem and one gold answer under all of them."""
    misaligned, incomplete, missed = defects
    return {
        "reliable": (),
        "misaligned": (misaligned,),
        "incomplete": (incomplete,),
        "missed": (missed,),
        "mixed": (misaligned, incomplete, missed),
    }


_Known = dict[str, dict[str, Value | Fraction | None]]


def face_value(instance: Instance, defects: tuple[Defect, ...]) -> Answer:
    """What someone concludes who takes every first reply as it stands and asks no more.

    A value of another context counts as the one asked for, a range as its middle, and a role that
    does not reply as having no objection: its conditions count as met, its operands as unknown.
    With several candidates left, the first one is taken.
    """
    spec = instance.spec
    known: _Known = {name: dict(facts) for name, facts in instance.values.items()}
    for defect in defects:
        if defect.kind == "missed":
            for facts in known.values():
                facts.update({fact.key: None for fact in spec.facts_of(defect.role)})
        else:
            assert defect.candidate is not None and defect.fact is not None
            known[defect.candidate][defect.fact] = _as_read(defect)
    return conclude(spec, known)


def conclude(spec: Specification, known: _Known) -> Answer:
    """The answer of a trusting reader: None is a condition met, or an operand unknown."""
    for name in spec.candidates:
        values = [(condition, known[name][condition.fact]) for condition in spec.conditions]
        if all(value is None or condition.met(value) for condition, value in values):
            operands = [known[name][key] for key in spec.rule.operands]
            numbers = [Fraction(value) for value in operands if value is not None]
            if len(numbers) < len(operands):
                return Answer("select", name, None)
            return Answer("select", name, apply_rule(spec.rule, numbers))
    return Answer("none", None, None)


def _as_read(defect: Defect) -> Value | Fraction:
    if defect.kind == "misaligned":
        assert defect.reported is not None
        return defect.reported
    assert defect.reported_low is not None and defect.reported_high is not None
    return Fraction(defect.reported_low + defect.reported_high, 2)


def defect_violation(instance: Instance, defects: tuple[Defect, ...]) -> str | None:
    """Why the defects do not make a setting; None where they do.

    Each must be decision-relevant on its own and all must be together: taken at face value the
    answer is another one, and what is not known then (all of the fact where its value is of another
    context) leaves more than one answer possible. A range holds the true value; a value of the
    other context is the one that the records hold.
    """
    spec = instance.spec
    if len({defect.role for defect in defects}) < len(defects):
        return "two defects concern one role"
    for chosen in [*((defect,) for defect in defects), defects]:
        if chosen and face_value(instance, chosen) == instance.gold:
            return f"{' + '.join(d.kind for d in chosen)}: at face value the answer is right"
    for defect in defects:
        if defect.kind == "misaligned":
            assert defect.candidate is not None and defect.fact is not None
            if defect.reported != instance.others[defect.candidate][defect.fact]:
                return "misaligned: the value reported is not in the records"
        if len(possible_answers(spec, _left_open(instance, defect))) < 2:
            return f"{defect.kind}: what is left open does not matter"
        if defect.kind == "incomplete":
            assert defect.candidate is not None and defect.fact is not None
            assert defect.reported_low is not None and defect.reported_high is not None
            true = int(instance.values[defect.candidate][defect.fact])
            if not defect.reported_low <= true <= defect.reported_high:
                return "incomplete: the range does not hold the true value"
    return None


def _left_open(
    instance: Instance, defect: Defect
) -> dict[str, dict[str, tuple[Value | Fraction, ...]]]:
    spec = instance.spec
    options: dict[str, dict[str, tuple[Value | Fraction, ...]]] = {
        name: {key: (value,) for key, value in facts.items()}
        for name, facts in instance.values.items()
    }
    if defect.kind == "missed":
        for facts in options.values():
            facts.update({f.key: representatives(spec, f) for f in spec.facts_of(defect.role)})
    elif defect.kind == "misaligned":
        assert defect.candidate is not None and defect.fact is not None
        options[defect.candidate][defect.fact] = representatives(spec, spec.fact(defect.fact))
    else:
        assert defect.candidate is not None and defect.fact is not None
        assert defect.reported_low is not None and defect.reported_high is not None
        options[defect.candidate][defect.fact] = (defect.reported_low, defect.reported_high)
    return options


def draw_defects(instance: Instance, rng: Random) -> tuple[Defect, Defect, Defect] | None:
    """One defect of each kind, of three different roles, sound alone and together; None if none."""
    pools = [_misaligned(instance), _incomplete(instance, rng), _missed(instance)]
    sound = [
        [d for d in rng.sample(pool, len(pool)) if defect_violation(instance, (d,)) is None]
        for pool in pools
    ]
    for first in sound[0]:
        for second in sound[1]:
            for third in sound[2]:
                trio = (first, second, third)
                if defect_violation(instance, trio) is None:
                    return trio
    return None


def _misaligned(instance: Instance) -> list[Defect]:
    return [
        Defect("misaligned", fact.role, fact.key, name, reported=instance.others[name][fact.key])
        for name in instance.spec.candidates
        for fact in instance.spec.facts
    ]


def _incomplete(instance: Instance, rng: Random) -> list[Defect]:
    found = []
    for name in instance.spec.candidates:
        for fact in instance.spec.facts:
            if fact.kind in ("status", "date"):
                continue
            bounds = _range(instance.spec, fact, int(instance.values[name][fact.key]), rng)
            if bounds is not None:
                found.append(Defect("incomplete", fact.role, fact.key, name, bounds[0], bounds[1]))
    return found


def _missed(instance: Instance) -> list[Defect]:
    return [Defect("missed", role) for role in instance.spec.roles]


def _range(spec: Specification, fact: Fact, true: int, rng: Random) -> tuple[int, int] | None:
    """A range that holds the true value and whose middle says something else."""
    condition = next((c for c in spec.conditions if c.fact == fact.key), None)
    met = condition is None or condition.met(true)
    for _ in range(8):
        low = rng.randrange(fact.low, true + 1, fact.step)
        high = rng.randrange(true, fact.high + 1, fact.step)
        middle = Fraction(low + high, 2)
        if low == high or middle == true:
            continue
        if condition is None or condition.met(middle) != met:
            return low, high
    return None
