"""What a language model reads and writes when it is the main agent: prose and one JSON object."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from interp.items import Message
from interp.sources.unco.environment import (
    Action,
    Ask,
    Malformed,
    Observation,
    Round,
    Submit,
    Wait,
)

__all__ = ["SYSTEM", "agent_messages", "parse_action", "transcript_text"]

SYSTEM: Final = (
    "You coordinate a decision. The evidence lies with colleagues who answer from records of their "
    "own; you see only what they write to you. Decide from that, and from the task."
)

TOOLS: Final = (
    "Answer with one JSON object and nothing else. To ask colleagues, all in one round: "
    '{"ask": {"role": "message", "another role": "message"}}. To let a round pass: {"wait": true}. '
    'To decide: {"answer": {"candidate": "name", "number": 12.5}}, with null for both where no '
    "candidate qualifies."
)


def transcript_text(rounds: Sequence[Round], *, replies: int | None = None, first: int = 1) -> str:
    """The exchange so far, a line a message.

    Args:
        rounds: what happened.
        replies: number of replies of the last round to show; None shows all, silences included.
        first: number of the first of these rounds.
    """
    lines = []
    for number, made in enumerate(rounds, first):
        last = made is rounds[-1]
        lines.append(f"Round {number}.")
        if isinstance(made.action, Ask):
            lines += [f"You asked the {role}: {text}" for role, text in made.action.messages]
        else:
            lines.append("You waited." if isinstance(made.action, Wait) else "You wrote no action.")
        shown = made.replies if replies is None or not last else made.replies[:replies]
        lines += [f"The {answer.role} answered: {answer.text}" for answer in shown]
        if replies is None or not last:
            lines += [f"The {role} did not answer." for role in made.silent]
            lines += [made.note] if made.note else []
    return "\n".join(lines)


def agent_messages(seen: Observation) -> tuple[Message, ...]:
    """The chat turns that ask a model for its next action."""
    left = (
        f"You have {seen.rounds_left} rounds left."
        if seen.rounds_left
        else "You have no rounds left: decide now."
    )
    blocks = [
        seen.prompt,
        transcript_text(seen.rounds),
        seen.hint.text if seen.hint else "",
        left,
        TOOLS,
    ]
    return (
        Message("system", SYSTEM),
        Message("user", "\n\n".join(block for block in blocks if block)),
    )


def parse_action(text: str) -> Action:
    """The action of a model's reply: its first JSON object that is one.

    A reply that holds several answers counts as a double answer and its first one is taken.
    Anything else is `Malformed`, with the reason; nothing raises.
    """
    objects = [value for value in _json_objects(text) if isinstance(value, dict)]
    answers = [value for value in objects if "answer" in value]
    for value in objects:
        action = _action(value, len(answers))
        if action is not None:
            return action
    if not objects:
        return Malformed(text, "no JSON object was found")
    return Malformed(text, 'the object has none of "ask", "wait", "answer" in the form asked for')


def _action(value: Mapping[str, Any], answers: int) -> Action | None:
    match value:
        case {"answer": {"candidate": (str() | None) as name, "number": number}}:
            return Submit(name, number, max(answers, 1))
        case {"ask": dict() as asked} if asked:
            if all(isinstance(text, str) and text.strip() for text in asked.values()):
                return Ask(tuple((str(role), text) for role, text in asked.items()))
            return None
        case {"wait": True}:
            return Wait()
        case _:
            return None


def _json_objects(text: str) -> list[Any]:
    decoder = json.JSONDecoder()
    found, place = [], text.find("{")
    while place != -1:
        try:
            value, end = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):  # ValueError also: a number of thousands of digits
            end = place + 1
        else:
            found.append(value)
        place = text.find("{", end)
    return found
