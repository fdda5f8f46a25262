"""The True/False prompt, and the stub after which a forced choice is read.

Order of the blocks as in Avalon-ToM-Bench (appendix on prompts): setup, history, the question,
the statement, and the answer line last. A block that an item does not have is left out.
"""

from __future__ import annotations

from typing import Final

from interp.items import Message

__all__ = ["ANSWER_STUB", "true_false_messages"]

ANSWER_STUB: Final = "ANSWER:"
"""What the model is made to say first, so that its next token is its verdict."""

QUESTION: Final = "Is the following statement true or false?"
ANSWER_LINE: Final = "Answer True or False. End with a line: 'ANSWER: True' or 'ANSWER: False'."


def true_false_messages(
    statement: str,
    *,
    system: str | None = None,
    setup: str | None = None,
    history: str | None = None,
    question: str = QUESTION,
    ground_truth: bool | None = None,
) -> tuple[Message, ...]:
    """Chat turns that ask for a verdict on `statement`.

    Args:
        statement: the bare statement.
        system: system message; None leaves it to the model's chat template.
        setup: what the reader is told about the state of affairs.
        history: what has happened since.
        question: what is asked about the statement.
        ground_truth: gold verdict to put into the prompt, right before the statement; None, as
            in every condition but the injection ablation, says nothing.
    """
    truth = (
        ""
        if ground_truth is None
        else f"GROUND TRUTH: The correct answer to the statement below is {ground_truth}.\n\n"
    )
    blocks = [
        f"SETUP: {setup}" if setup else None,
        f"WHAT HAS HAPPENED: {history}" if history else None,
        f"{question}\n\n{truth}STATEMENT: {statement}",
        ANSWER_LINE,
    ]
    user = Message("user", "\n\n".join(block for block in blocks if block))
    return (Message("system", system), user) if system else (user,)
