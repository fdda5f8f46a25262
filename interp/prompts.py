"""The True/False prompt, and the stub after which a forced choice is read.

Order of the blocks as in Avalon-ToM-Bench (appendix on prompts): setup, history, the question,
the statement, and the answer line last. A block that an item does not have is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Final

from interp.errors import ItemError
from interp.items import Item, Message
from interp.vocabulary import Reasoning

__all__ = [
    "ANSWER_STUB",
    "THINKING_ARGUMENT",
    "are_injected",
    "ask",
    "asked_record",
    "true_false_messages",
]

ANSWER_STUB: Final = "ANSWER:"
"""What the model is made to say first, so that its next token is its verdict."""

QUESTION: Final = "Is the following statement true or false?"
ANSWER_LINE: Final = "Answer True or False. End with a line: 'ANSWER: True' or 'ANSWER: False'."

THINKING_ARGUMENT: Final = "enable_thinking"
"""What chat templates call the switch of a trained reasoning mode."""

_ANSWER_LINES: Final[dict[Reasoning, str]] = {
    "base": ANSWER_LINE,
    "cot": "Think it through step by step first and write your reasoning down. After that, end "
    "with a line: 'ANSWER: True' or 'ANSWER: False'.",
    "no_cot": "Answer at once, without any reasoning or explanation. Your whole reply is one line: "
    "'ANSWER: True' or 'ANSWER: False'.",
}
_TRUTH: Final = "GROUND TRUTH: The correct answer to the statement below is {}.\n\n"


def ask(item: Item, reasoning: Reasoning) -> Item:
    """The item with another answer line: reason first, or answer at once.

    A prompt that does not end in our answer line (a file's own messages) gets the new one as its
    last block, so that replies can be parsed all the same.
    """
    if reasoning == "base":
        return item
    last = item.messages[-1]
    text = last.content.removesuffix(ANSWER_LINE).rstrip()
    asked = Message(last.role, f"{text}\n\n{_ANSWER_LINES[reasoning]}")
    return replace(item, messages=(*item.messages[:-1], asked))


def are_injected(items: Iterable[Item]) -> bool:
    """Whether the prompts hold their own gold verdict.

    Raises:
        ItemError: some do and some do not: scores over them would mean nothing.
    """
    found = {item.item_id: _is_injected(item.messages) for item in items}
    if len(set(found.values())) == 2:
        without = next(item_id for item_id, injected in found.items() if not injected)
        raise ItemError(
            f"Some prompts hold the correct answer and others do not (first without: "
            f"{without!r}). Ask them in separate runs."
        )
    return any(found.values())


def asked_record(reasoning: Reasoning, *, thinking: bool | None, injected: bool) -> dict[str, Any]:
    """How prompts were asked, as the manifest of an answer file says it.

    Args:
        reasoning: the answer line.
        thinking: whether the model's trained reasoning mode was turned on or off; None where
            nothing was said and its template decides.
        injected: whether the correct answer stands in the prompts.

    Returns:
        these three and `condition`, the one word that a report files the answers under: the
        injection says more about them than the reasoning mode, and that more than the wording.
    """
    condition = "injected" if injected else "thinking" if thinking else reasoning
    return {
        "condition": condition,
        "reasoning": reasoning,
        "thinking": thinking,
        "injected": injected,
    }


def _is_injected(messages: Sequence[Message]) -> bool:
    start = _TRUTH.split("{}")[0]
    return any(start in message.content for message in messages if message.role == "user")


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
    truth = "" if ground_truth is None else _TRUTH.format(ground_truth)
    blocks = [
        f"SETUP: {setup}" if setup else None,
        f"WHAT HAS HAPPENED: {history}" if history else None,
        f"{question}\n\n{truth}STATEMENT: {statement}",
        ANSWER_LINE,
    ]
    user = Message("user", "\n\n".join(block for block in blocks if block))
    return (Message("system", system), user) if system else (user,)
