"""Five nested interventions: each says what the one before says, and one thing more.

Task, records, replies, tools and budget are the same in all arms (appendix E of the paper). No arm
names a candidate or a value, so none can hold the answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from interp.sources.unco.defects import Defect
from interp.sources.unco.replies import corrective_message
from interp.sources.unco.tasks import Task

__all__ = ["ARMS", "Arm", "Hint", "hint_for"]

Arm = Literal["none", "existence", "location", "diagnosis", "action"]
ARMS: Final[tuple[Arm, ...]] = ("none", "existence", "location", "diagnosis", "action")


@dataclass(frozen=True, slots=True)
class Hint:
    """What an arm says.

    Attributes:
        arm: its name.
        text: in prose.
        roles: whose interactions need recovery; empty below `location`.
        messages: role and corrective message; empty below `action`.
    """

    arm: Arm
    text: str
    roles: tuple[str, ...] = ()
    messages: tuple[tuple[str, str], ...] = ()


def hint_for(task: Task, arm: Arm, defects: tuple[Defect, ...]) -> Hint | None:
    """The hint on some of a task's defects; None for the arm `none` and where there are none.

    Args:
        task: with the defects.
        arm: how much is said.
        defects: those that have shown and are not yet put right: of others nothing true can be
            said to the agent.
    """
    level = ARMS.index(arm)
    if level == 0 or not defects:
        return None
    sentences = ["Something in the exchange so far needs to be put right before you decide."]
    for defect in defects if level >= 2 else ():
        sentences.append(f"It concerns the {defect.role}.")
        if level >= 3:
            sentences.append(_diagnosis(task, defect))
        if level >= 4:
            message = corrective_message(task.instance, defect)
            sentences.append(f"Ask the {defect.role}: {message}")
    return Hint(
        arm,
        " ".join(sentences),
        tuple(defect.role for defect in defects) if level >= 2 else (),
        tuple((d.role, corrective_message(task.instance, d)) for d in defects)
        if level >= 4
        else (),
    )


def _diagnosis(task: Task, defect: Defect) -> str:
    if defect.kind == "missed":
        return "No reply has come from there."
    assert defect.fact is not None
    label = task.instance.spec.fact(defect.fact).label
    if defect.kind == "incomplete":
        return f"On the {label}, the reply is too vague to decide."
    return f"On the {label}, the reply is about another period or place than the one asked about."
