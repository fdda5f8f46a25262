"""The environment: ask roles in rounds, wait, decide. A state and a pure step, no model.

Nothing that an agent does raises: a malformed call, an unknown role or a second answer is counted
and reported in the episode.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any, Final, Literal

from interp.sources.unco.defects import Defect
from interp.sources.unco.interventions import Arm, Hint, hint_for
from interp.sources.unco.replies import Reply, after_defect, is_corrective, reply
from interp.sources.unco.spec import Answer, Specification
from interp.sources.unco.tasks import Task

__all__ = [
    "MAX_ROUNDS",
    "Action",
    "Agent",
    "Ask",
    "Malformed",
    "Observation",
    "Responder",
    "Round",
    "State",
    "Submit",
    "Wait",
    "correct",
    "start",
    "step",
]

MAX_ROUNDS: Final = 8
"""Rounds of asking or waiting that an agent has; then it must decide."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask one or several roles in one round.

    Attributes:
        messages: pairs of role and message.
    """

    messages: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Wait:
    """Let a round pass without asking."""


@dataclass(frozen=True, slots=True)
class Submit:
    """Decide.

    Attributes:
        candidate: who is chosen; None for nobody.
        number: as it was given; None for no number.
        answers: how many answers the turn held; above 1 it is counted as a double answer.
    """

    candidate: str | None
    number: object
    answers: int = 1


@dataclass(frozen=True, slots=True)
class Malformed:
    """What could not be read as an action.

    Attributes:
        text: what the agent wrote.
        reason: what was wrong with it.
    """

    text: str
    reason: str


Action = Ask | Wait | Submit | Malformed


@dataclass(frozen=True, slots=True)
class Round:
    """What happened in one round.

    Attributes:
        action: what the agent did.
        replies: who answered.
        silent: roles that were asked and did not answer.
        unknown: names that are no role of the task.
        note: what the environment said; empty where it said nothing.
    """

    action: Action
    replies: tuple[Reply, ...] = ()
    silent: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True)
class Observation:
    """What an agent knows when it acts.

    Attributes:
        spec: the decision problem, without values.
        prompt: the same in prose.
        rounds: what has happened.
        hint: the intervention, on the defects that have shown and are not yet put right; None in
            the arm `none`, and where there are none.
        rounds_left: rounds of asking or waiting that are left; at 0 only an answer counts.
    """

    spec: Specification
    prompt: str
    rounds: tuple[Round, ...]
    hint: Hint | None
    rounds_left: int


Agent = Callable[[Observation], Action]
Responder = Callable[[Task, str, str, Sequence[str]], Reply | None]
"""Answers for a role: task, role, message, earlier messages; None is silence."""


@dataclass(frozen=True, slots=True)
class State:
    """An episode so far.

    Attributes:
        task: what is played.
        arm: the intervention.
        max_rounds: the budget.
        rounds: what has happened, answers excluded.
        answer: the answer as understood; None before one, and where it was not understood.
        ended: `submitted` with an answer; `no_answer` when the budget was spent without one; None
            while it goes on.
        counts: malformed actions, unknown roles, double answers, waits, messages.
    """

    task: Task
    arm: Arm
    max_rounds: int
    rounds: tuple[Round, ...] = ()
    answer: Answer | None = None
    ended: Literal["submitted", "no_answer"] | None = None
    counts: Mapping[str, int] = field(default_factory=dict)

    def observation(self) -> Observation:
        """What the agent sees now."""
        open_defects = tuple(
            defect
            for defect in self.task.defects
            if after_defect(self.task.instance, defect, self.asked(defect.role)) is not None
            and not recovered(self, defect)
        )
        return Observation(
            self.task.instance.spec,
            self.task.prompt,
            self.rounds,
            hint_for(self.task, self.arm, open_defects),
            self.max_rounds - len(self.rounds),
        )

    def asked(self, role: str) -> tuple[str, ...]:
        """What a role was asked so far, in order."""
        return tuple(
            text
            for r in self.rounds
            if isinstance(r.action, Ask)
            for name, text in r.action.messages
            if name == role
        )


def start(task: Task, arm: Arm = "none", max_rounds: int = MAX_ROUNDS) -> State:
    """The state before the first action."""
    return State(task, arm, max_rounds)


def step(state: State, action: Action, responder: Responder = reply) -> State:
    """The state after an action; an ended episode stays as it is.

    Args:
        state: before.
        action: of the main agent.
        responder: the role agents; by default the program, which answers from the records.
    """
    if state.ended:
        return state
    counts = Counter(state.counts)
    if isinstance(action, Submit):
        counts["double_answers"] += action.answers > 1
        answer, reason = _understood(state.task, action)
        if answer is not None:
            return replace(state, answer=answer, ended="submitted", counts=counts)
        action = Malformed(f"{action.candidate!r}, {action.number!r}", reason)
    if len(state.rounds) >= state.max_rounds:
        # Out of rounds, and what came was no answer.
        counts["malformed"] += isinstance(action, Malformed)
        return replace(state, ended="no_answer", counts=counts)
    made = _round(state, action, responder)
    counts["malformed"] += isinstance(action, Malformed)
    counts["waits"] += isinstance(action, Wait)
    counts["unknown_roles"] += len(made.unknown)
    counts["messages"] += len(_asked(made))
    return replace(state, rounds=(*state.rounds, made), counts=counts)


def _round(state: State, action: Action, responder: Responder) -> Round:
    if isinstance(action, Malformed):
        return Round(action, note=f"That was not understood: {action.reason}.")
    if not isinstance(action, Ask):
        return Round(action, note="No new replies came.")
    roles = {role.lower(): role for role in state.task.instance.spec.roles}
    known: dict[str, list[str]] = {}
    unknown = []
    for name, text in action.messages:
        role = roles.get(name.strip().lower().removeprefix("the "))
        if role is None:
            unknown.append(name)
        else:
            known.setdefault(role, []).append(text)
    # Several messages to one role in one round are one contact.
    messages = tuple((role, " ".join(texts)) for role, texts in known.items())
    answered = [(r, responder(state.task, r, text, state.asked(r))) for r, text in messages]
    return Round(
        Ask(messages),
        tuple(found for _, found in answered if found is not None),
        tuple(role for role, found in answered if found is None),
        tuple(unknown),
        f"There is no {', no '.join(unknown)}." if unknown else "",
    )


def _asked(made: Round) -> list[str]:
    return [name for name, _ in made.action.messages] if isinstance(made.action, Ask) else []


def _understood(task: Task, action: Submit) -> tuple[Answer | None, str]:
    names = {name.lower(): name for name in task.instance.spec.candidates}
    number = read_number(action.number)
    if number is None and action.number is not None:
        return None, f"{str(action.number)[:60]!r} is no number"
    if action.candidate is None or action.candidate.strip().lower() in ("none", "null"):
        return Answer("none", None, number), ""
    name = names.get(str(action.candidate).strip().lower())
    if name is None:
        return None, f"{action.candidate!r} is none of {', '.join(names.values())}"
    return Answer("select", name, number), ""


def read_number(value: object) -> Fraction | None:
    """A number that an agent wrote (digits, thousands separators, an exponent); None if none."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = Decimal(str(value).replace(",", "").strip())
    except (InvalidOperation, ValueError):  # ValueError: more digits than Python writes
        return None
    # A huge exponent would be expanded into as many digits.
    return Fraction(number) if number.is_finite() and abs(number.adjusted()) < 40 else None


def correct(task: Task, answer: Answer | None) -> bool:
    """Whether decision and number are both right; the number to half a hundredth."""
    gold = task.instance.gold
    if answer is None or (answer.decision, answer.candidate) != (gold.decision, gold.candidate):
        return False
    if gold.number is None or answer.number is None:
        return gold.number is None and answer.number is None
    return abs(answer.number - gold.number) <= Fraction(1, 200)


def followed_up(state: State, role: str) -> Literal["none", "unclassified", "targeted"]:
    """What kind of follow-up a role with a defect got after its first, defective reply."""
    defect = state.task.defect_of(role)
    if defect is None:
        return "none"
    later = after_defect(state.task.instance, defect, state.asked(role))
    if not later:
        return "none"
    aimed = any(is_corrective(state.task.instance, defect, text) for text in later)
    return "targeted" if aimed else "unclassified"


def recovered(state: State, defect: Defect) -> bool:
    """Whether the facts that a defect concerns have arrived, exact and in the right context."""
    instance = state.task.instance
    concerned = {
        (name, fact.key)
        for name in instance.spec.candidates
        for fact in instance.spec.facts_of(defect.role)
        if defect.candidate in (None, name) and defect.fact in (None, fact.key)
    }
    arrived = {
        (said.candidate, said.fact)
        for made in state.rounds
        for answer in made.replies
        for said in answer.evidence
        if said.context == instance.spec.fact(said.fact).context
        and said.value == instance.values[said.candidate][said.fact]
    }
    return concerned <= arrived


def _writable(number: object) -> object:
    try:
        return json.loads(json.dumps(number, default=str))
    except ValueError:
        return "a number that is too long to write"


def action_to_json(action: Action) -> dict[str, Any]:
    """An action as a JSON object with its `type`."""
    match action:
        case Ask():
            return {"type": "ask", "messages": [list(pair) for pair in action.messages]}
        case Wait():
            return {"type": "wait"}
        case Submit():
            return {
                "type": "submit",
                "candidate": action.candidate,
                "number": _writable(action.number),
            }
        case Malformed():
            return {"type": "malformed", "text": action.text, "reason": action.reason}
