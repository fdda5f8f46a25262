"""True/False statements about the evidence, labelled by the program.

Three types. `settles`: does a reply settle a condition or an operand for a candidate? `answers`: is
what a reply says on a candidate about the period or place asked for? `missing`: does the exchange
leave open a fact that the decision needs? The first two come in twins from one reply, on one fact,
with two candidates; the third in twins that say the opposite of the same exchange.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Any, Final, Literal

from interp.sources.unco.defects import Defect, DefectKind
from interp.sources.unco.environment import Ask, Round, start, step
from interp.sources.unco.replies import Evidence, Reply, corrective_message
from interp.sources.unco.solve import possible_answers, representatives
from interp.sources.unco.spec import Specification, Value
from interp.sources.unco.tasks import Task

__all__ = [
    "TYPES",
    "Statement",
    "StatementType",
    "about_reply",
    "evidence_of",
    "first_reply_prefix",
    "is_missing",
    "is_settled",
    "missing_pair",
]

StatementType = Literal["settles", "answers", "missing"]
TYPES: Final[tuple[StatementType, ...]] = ("settles", "answers", "missing")
TURNS: Final = 3

FIRST_QUESTIONS: Final = (
    "Please report what you hold on every candidate.",
    "What do your records say about the three?",
    "Kindly send me your findings on all candidates.",
    "I need your data on each candidate, please.",
)
GENERIC: Final = (
    "Could you please check your reply once more?",
    "Is there anything to add to what you sent?",
    "Please confirm what you told me.",
    "Thank you. May I have your reply again?",
)


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement after a transcript prefix.

    Attributes:
        text: what is claimed.
        template: name of its wording.
        label: whether it holds.
        claim: the same for programs: `type` and what it is about.
        rounds: the exchange up to the reply.
        replies: number of replies of the last round that have come; None: the round is over.
    """

    text: str
    template: str
    label: bool
    claim: Mapping[str, Any]
    rounds: tuple[Round, ...]
    replies: int | None


def is_settled(spec: Specification, said: Evidence) -> bool:
    """Whether a piece of evidence decides its condition, or fixes its operand.

    It must be about the context asked for. A range decides a condition whose value lies outside it.
    """
    fact = spec.fact(said.fact)
    if said.context != fact.context:
        return False
    if said.value is not None:
        return True
    condition = next((c for c in spec.conditions if c.fact == fact.key), None)
    if condition is None or said.low is None or said.high is None:
        return False
    return condition.met(said.low) == condition.met(said.high)


def is_missing(spec: Specification, evidence: tuple[Evidence, ...]) -> bool:
    """Whether the evidence leaves more than one answer possible.

    Exact values in the context asked about are known; a range in that context holds its fact
    between its ends; all else is open.
    """
    options: dict[str, dict[str, tuple[Value | Fraction, ...]]] = {
        name: {fact.key: representatives(spec, fact) for fact in spec.facts}
        for name in spec.candidates
    }
    for said in evidence:
        if said.context == spec.fact(said.fact).context:
            values: tuple[Value | Fraction, ...] = (
                (said.value,)
                if said.value is not None
                else tuple(v for v in (said.low, said.high) if v is not None)
            )
            options[said.candidate][said.fact] = values
    return len(possible_answers(spec, options)) > 1


_SETTLES: Final = {
    "settles": "What the {role} reported settles {name}'s {label}.",
    "decides": "On {name}'s {label}, the {role}'s reply is enough to decide.",
    "no_more": "Nothing more is needed from the {role} about the {label} of {name}.",
    "established": "The reply of the {role} establishes the {label} of {name} as far as needed.",
}  # fmt: skip
_ANSWERS: Final = {
    "asked": "About the {label} of {name}, the {role} answers what the decision asks about.",
    "scope": "The {role}'s reply on {name}'s {label} is about the right period or place.",
    "fits": "As to {name}'s {label}, the reply of the {role} fits the scope of the question.",
    "same": "The {label} that the {role} reports for {name} is the one that was asked for.",
}
_MISSING: Final = {
    "open": ("A fact that the decision needs is still missing.", True),
    "complete": ("Nothing that the decision needs is missing any more.", False),
    "not_yet": ("The evidence so far does not yet determine the answer.", True),
    "determined": ("The evidence so far determines the answer.", False),
    "must_ask": ("Somebody must still be asked before the answer is certain.", True),
    "can_stop": ("The answer is certain without asking anybody else.", False),
}


def about_reply(
    task: Task,
    kind: Literal["settles", "answers"],
    rounds: tuple[Round, ...],
    replies: int,
    rng: Random,
) -> tuple[Statement, Statement] | None:
    """A true and a false statement about the last reply that has come, on one fact.

    None where no fact of the reply gives both, as in a reply without a defect.
    """
    spec = task.instance.spec
    said = rounds[-1].replies[replies - 1]
    for key in rng.sample(
        sorted({e.fact for e in said.evidence}), len({e.fact for e in said.evidence})
    ):
        mine = [e for e in said.evidence if e.fact == key]
        judged = [(e, _holds(spec, kind, e)) for e in mine]
        good = [e for e, label in judged if label]
        bad = [e for e, label in judged if not label]
        if good and bad:
            template = rng.choice(sorted(_SETTLES if kind == "settles" else _ANSWERS))
            chosen = ((rng.choice(good), True), (rng.choice(bad), False))
            first, second = (
                _about(spec, kind, template, said, e, label, rounds, replies) for e, label in chosen
            )
            return first, second
    return None


def _holds(spec: Specification, kind: str, said: Evidence) -> bool:
    if kind == "settles":
        return is_settled(spec, said)
    return said.context == spec.fact(said.fact).context


def _about(
    spec: Specification,
    kind: Literal["settles", "answers"],
    template: str,
    said: Reply,
    evidence: Evidence,
    label: bool,
    rounds: tuple[Round, ...],
    replies: int,
) -> Statement:
    fact = spec.fact(evidence.fact)
    wording = (_SETTLES if kind == "settles" else _ANSWERS)[template]
    return Statement(
        wording.format(role=said.role, name=evidence.candidate, label=fact.label),
        template,
        label,
        {
            "type": kind,
            "role": said.role,
            "candidate": evidence.candidate,
            "fact": fact.key,
            "turn": len(rounds),
        },
        rounds,
        replies,
    )


def first_reply_prefix(task: Task, rng: Random) -> tuple[tuple[Round, ...], int]:
    """All roles are asked; the prefix ends with the first reply of a role with a defect."""
    made = _ask(task, (), task.instance.spec.roles, rng.choice(FIRST_QUESTIONS), rng)
    at = next(i for i, answer in enumerate(made[-1].replies, 1) if task.defect_of(answer.role))
    return made, at


def missing_pair(
    tasks: Mapping[str, Task], turn: int, label: bool, rng: Random
) -> tuple[Statement, Statement]:
    """Two opposite statements after round `turn`, at which a needed fact is missing or is not.

    Args:
        tasks: setting to task, of one group.
        turn: 1 to 3 rounds so far.
        label: whether a needed fact is still missing then.
        rng: every choice comes from it.
    """
    for _ in range(100):
        rounds = _exchange(tasks, turn, label, rng)
        spec = tasks["reliable"].instance.spec
        said = tuple(e for made in rounds for answer in made.replies for e in answer.evidence)
        if is_missing(spec, said) == label:
            names = rng.sample(sorted(_MISSING), len(_MISSING))
            chosen = [next(n for n in names if _MISSING[n][1] == sign) for sign in (True, False)]
            first, second = (
                Statement(
                    _MISSING[name][0],
                    name,
                    _MISSING[name][1] == label,
                    {"type": "missing", "states_missing": _MISSING[name][1], "turn": turn},
                    rounds,
                    None,
                )
                for name in chosen
            )
            return first, second
    raise AssertionError("each group has exchanges of both kinds at every turn")


def _exchange(
    tasks: Mapping[str, Task], turn: int, missing: bool, rng: Random
) -> tuple[Round, ...]:
    """An exchange of `turn` rounds that is likely to leave a needed fact missing, or not."""
    faulty = tasks[rng.choice(("misaligned", "incomplete", "missed", "mixed"))]
    roles = rng.sample(faulty.instance.spec.roles, len(faulty.instance.spec.roles))
    question = rng.choice(FIRST_QUESTIONS)
    split = rng.randrange(2, len(roles) - 1)
    defective = [defect.role for defect in faulty.defects]
    opening: list[list[str]] = [roles] if rng.random() < 0.5 or turn == 1 else [
        roles[:split], roles[split:]
    ]  # fmt: skip
    task = faulty
    if not missing and (turn == len(opening) or rng.random() < 0.5):
        task = tasks["reliable"]
    elif missing and turn == 1 and rng.random() < 0.3:
        opening, task = [roles[:split]], tasks["reliable"]
    rounds: tuple[Round, ...] = ()
    for asked in opening[:turn]:
        rounds = _ask(task, rounds, tuple(asked), question, rng)
    for left in range(turn - len(rounds), 0, -1):
        # What is put right is put right in the last round, so that all turns look alike.
        if not missing and left == 1 and task.defects:
            messages = tuple((d.role, corrective_message(task.instance, d)) for d in task.defects)
            rounds = _put(task, rounds, messages)
        elif rng.random() < 0.5:
            # The same words where they do not help, so that they do not tell by themselves.
            rounds = _put(task, rounds, _misdirected(task, roles, rng))
        else:
            chosen = rng.sample(defective, 1) if rng.random() < 0.7 else rng.sample(roles, 1)
            rounds = _ask(task, rounds, tuple(chosen), rng.choice(GENERIC), rng)
    return rounds


def _misdirected(task: Task, roles: Sequence[str], rng: Random) -> tuple[tuple[str, str], ...]:
    """Corrective words to roles that have nothing to correct, or to some of those that have."""
    if len(task.defects) > 1 and rng.random() < 0.5:
        some = rng.sample(task.defects, rng.randrange(1, len(task.defects)))
        return tuple((d.role, corrective_message(task.instance, d)) for d in some)
    spec = task.instance.spec
    sound = [role for role in roles if task.defect_of(role) is None]
    messages = []
    for role in rng.sample(sound, rng.randint(1, min(2, len(sound)))):
        fact = rng.choice(spec.facts_of(role))
        kind: DefectKind = rng.choice(("misaligned", "incomplete"))
        messages.append((role, corrective_message(task.instance, Defect(kind, role, fact.key))))
    return tuple(messages)


def _ask(
    task: Task, rounds: tuple[Round, ...], roles: tuple[str, ...], text: str, rng: Random
) -> tuple[Round, ...]:
    order = rng.sample(roles, len(roles))
    return _put(task, rounds, tuple((role, text) for role in order))


def _put(
    task: Task, rounds: tuple[Round, ...], messages: tuple[tuple[str, str], ...]
) -> tuple[Round, ...]:
    state = start(task)
    for made in rounds:
        state = step(state, made.action)
    return step(state, Ask(messages)).rounds


def evidence_of(statement: Statement) -> Iterator[Evidence]:
    """Everything that the colleagues have said in the statement's prefix, in order."""
    for number, made in enumerate(statement.rounds, 1):
        shown = (
            made.replies[: statement.replies] if number == len(statement.rounds) else made.replies
        )
        for answer in shown:
            yield from answer.evidence
