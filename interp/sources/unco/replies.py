"""Role agents: a program that answers from private records under the setting's policy.

The first reply of a role with a defect is defective, whatever is asked; a later one is right only
after a message that takes the defect's own corrective action. What counts as that is decided by
`is_corrective` and documented in docs/unco.md.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from random import Random
from typing import Any, Final

from interp.sources.unco.defects import Defect
from interp.sources.unco.instantiate import Instance
from interp.sources.unco.render import context_phrase, value_text
from interp.sources.unco.spec import Fact, Value
from interp.sources.unco.tasks import Task

__all__ = [
    "Evidence",
    "Reply",
    "after_defect",
    "corrective_message",
    "is_corrective",
    "recovery_violation",
    "reply",
]

EXACT: Final = re.compile(
    r"\b(exact(ly)?|precise(ly)?|single (figure|number|value))\b",
    re.IGNORECASE,
)
"""Words that ask for a number instead of a range."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that a reply says.

    Attributes:
        candidate: whom it is about.
        fact: key of the fact.
        context: period or place that it is about.
        value: exact value; None where a range is given.
        low: lowest number of a range; None where the value is exact.
        high: highest number of a range; None where the value is exact.
    """

    candidate: str
    fact: str
    context: str
    value: Value | None
    low: int | None = None
    high: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The evidence as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Reply:
    """What a role answered.

    Attributes:
        role: who.
        text: in prose.
        evidence: the same, for programs.
    """

    role: str
    text: str
    evidence: tuple[Evidence, ...]


def reply(task: Task, role: str, message: str, earlier: Sequence[str]) -> Reply | None:
    """What a role answers to a message; None where it does not answer.

    Args:
        task: its records and the setting's policy.
        role: one of the task's roles.
        message: what it is asked now. Candidates and facts that it names narrow the reply; naming
            none asks for everything the role holds.
        earlier: what the role was asked before, in order.
    """
    spec = task.instance.spec
    defect = task.defect_of(role)
    active = defect is not None and not any(
        is_corrective(task.instance, defect, text)
        for text in after_defect(task.instance, defect, [*earlier, message]) or ()
    )
    if defect is not None and defect.kind == "missed" and active:
        return None
    held = spec.facts_of(role)
    named_facts = [fact for fact in held if _mentions(message, fact.label)] or list(held)
    named = [name for name in spec.candidates if _mentions(message, name)] or list(spec.candidates)
    evidence = tuple(
        _evidence(task.instance, fact, name, message, defect if active else None)
        for name in named
        for fact in named_facts
    )
    rng = Random(f"{task.group_id}/{role}/{len(earlier)}")
    return Reply(role, _text(task.instance, evidence, rng), evidence)


def is_corrective(instance: Instance, defect: Defect, message: str) -> bool:
    """Whether a follow-up message to the defect's role is its corrective action.

    `misaligned`: it names the period or place that the decision asks about. `incomplete`: it asks
    for an exact value. Where either names facts of the role, or candidates, the one concerned is
    among them. `missed`: any further message.
    """
    if defect.kind == "missed":
        return True
    assert defect.fact is not None
    fact = instance.spec.fact(defect.fact)
    if not _concerns(instance, defect, message):
        return False
    if defect.kind == "incomplete":
        return EXACT.search(message) is not None
    return _mentions(message, fact.context)


def after_defect(
    instance: Instance, defect: Defect, messages: Sequence[str]
) -> tuple[str, ...] | None:
    """The messages to the defect's role after the one that it answered defectively; None if none.

    A reply on other facts or candidates than the one concerned shows nothing of the defect.
    """
    for place, text in enumerate(messages):
        if defect.kind == "missed" or _concerns(instance, defect, text):
            return tuple(messages[place + 1 :])
    return None


def _concerns(instance: Instance, defect: Defect, message: str) -> bool:
    """Whether a reply to the message says something on the defect's fact and candidate."""
    spec = instance.spec
    facts = [f.key for f in spec.facts_of(defect.role) if _mentions(message, f.label)]
    names = [name for name in spec.candidates if _mentions(message, name)]
    return (not facts or defect.fact in facts) and (not names or defect.candidate in names)


def corrective_message(instance: Instance, defect: Defect) -> str:
    """A message that takes the defect's corrective action; it names no candidate."""
    if defect.kind == "missed":
        return "I have not had your reply yet. Please send me what you hold."
    assert defect.fact is not None
    fact = instance.spec.fact(defect.fact)
    if defect.kind == "incomplete":
        return f"Please give the exact value of the {fact.label} for everyone, not a range."
    return f"Please give the {fact.label} {context_phrase(fact.context)}, not of another context."


def recovery_violation(task: Task) -> str | None:
    """Why a defect cannot be put right by its own corrective action; None where all can.

    Each defective role is asked once, then asked again with the corrective message of its defect;
    the second reply must give the exact value of every fact concerned in the context asked about,
    and a follow-up that merely repeats the first message must not (a missed reply excepted).
    """
    instance = task.instance
    first = "Please report what you hold."
    for defect in task.defects:
        action = corrective_message(instance, defect)
        after = reply(task, defect.role, action, [first])
        if after is None or not _settled(instance, defect, after):
            return f"{defect.kind}: {action!r} does not bring the facts"
        repeated = reply(task, defect.role, first, [first])
        if defect.kind != "missed" and repeated and _settled(instance, defect, repeated):
            return f"{defect.kind}: asking again is enough"
    return None


def _settled(instance: Instance, defect: Defect, said: Reply) -> bool:
    concerned = {
        (name, fact.key)
        for name in instance.spec.candidates
        for fact in instance.spec.facts_of(defect.role)
        if defect.fact in (None, fact.key) and defect.candidate in (None, name)
    }
    right = {
        (e.candidate, e.fact)
        for e in said.evidence
        if e.context == instance.spec.fact(e.fact).context
        and e.value == instance.values[e.candidate][e.fact]
    }
    return concerned <= right


def _mentions(message: str, name: str) -> bool:
    """Whether a message names something; a leading article does not count, nor does case."""
    bare = name.removeprefix("the ").lower()
    return re.search(rf"(?<!\w){re.escape(bare)}(?!\w)", message.lower()) is not None


def _evidence(
    instance: Instance, fact: Fact, name: str, message: str, defect: Defect | None
) -> Evidence:
    if defect is not None and (defect.fact, defect.candidate) == (fact.key, name):
        if defect.kind == "misaligned":
            return Evidence(name, fact.key, fact.other_context, defect.reported)
        return Evidence(
            name, fact.key, fact.context, None, defect.reported_low, defect.reported_high
        )
    elsewhere = _mentions(message, fact.other_context) and not _mentions(message, fact.context)
    if elsewhere:
        return Evidence(name, fact.key, fact.other_context, instance.others[name][fact.key])
    return Evidence(name, fact.key, fact.context, instance.values[name][fact.key])


_EXACTLY: Final = (
    "{name}: {label} {context} {value}.",
    "{name} has {value} as {label} {context}.",
    "For {name} the {label} {context} is {value}.",
    "{label} of {name} {context}: {value}.",
)
_BETWEEN: Final = (
    "{name}: {label} {context} between {value}.",
    "{name} has between {value} as {label} {context}.",
    "For {name} the {label} {context} lies between {value}.",
    "{label} of {name} {context}: between {value}.",
)


def _text(instance: Instance, evidence: Sequence[Evidence], rng: Random) -> str:
    form = rng.randrange(len(_EXACTLY))
    sentences = []
    for said in rng.sample(evidence, len(evidence)):
        fact = instance.spec.fact(said.fact)
        if said.value is None:
            assert said.low is not None and said.high is not None
            value = f"{said.low:,} and {value_text(fact, said.high)}"
        else:
            value = value_text(fact, said.value)
        text = (_EXACTLY if said.value is not None else _BETWEEN)[form].format(
            name=said.candidate,
            label=fact.label,
            context=context_phrase(said.context),
            value=value,
        )
        sentences.append(text[0].upper() + text[1:])
    return " ".join(sentences)
