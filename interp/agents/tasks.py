"""Tasks for `inspect eval`: our prompts, any provider, our parser.

inspect eval interp/avalon --model PROVIDER/MODEL -T n=408 -T seed=1
inspect eval interp/items --model PROVIDER/MODEL -T source=facts:capitals

The entry point names this module, so the other tasks are imported here too.
"""

from __future__ import annotations

from typing import Final

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessage, ChatMessageAssistant, ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import (
    CORRECT,
    INCORRECT,
    NOANSWER,
    Metric,
    SampleScore,
    Score,
    Scorer,
    Target,
    accuracy,
    grouped,
    metric,
    scorer,
    stderr,
)
from inspect_ai.solver import TaskState, generate

from interp.agents.unco import unco
from interp.errors import ItemError
from interp.grading import parse_verdict
from interp.items import Item, Message
from interp.prompts import are_injected, ask, asked_record
from interp.registry import describe_source, load_items, open_source, with_options
from interp.vocabulary import Reasoning

__all__ = ["METADATA", "avalon", "items", "true_false", "unco"]

METADATA: Final = "interp"
"""Key of a task's metadata under which a log says which items were asked, and how."""

_TURNS: Final = {
    "system": ChatMessageSystem,
    "user": ChatMessageUser,
    "assistant": ChatMessageAssistant,
}


@task
def avalon(
    n: int | None = None,
    seed: int = 0,
    view: str | None = None,
    inject_truth: bool = False,
    cot: bool | None = None,
    rules_exam: bool = False,
    abilities: str | list[str] | None = None,
) -> Task:
    """Generated Avalon Theory-of-Mind statements.

    Args:
        n: how many; by default as many as the paper has, 408, or the 34 of the rules exam.
        seed: of the draw; the items are those of `interp items avalon` with the same options.
        view: `full`, `pov` or `no-facts`.
        inject_truth: put the correct answer into each prompt.
        cot: ask to reason step by step first (true) or to answer at once (false).
        rules_exam: rule-recall statements instead.
        abilities: only these, separated by commas.
    """
    options: dict[str, str | None] = {}
    if abilities:
        named = abilities.split(",") if isinstance(abilities, str) else abilities
        options["abilities"] = "+".join(name.strip() for name in named)
    options |= {"inject-truth": None} if inject_truth else {}
    options |= {"rules-exam": None} if rules_exam else {}
    return _task(with_options("avalon", options), n, seed, view, cot)


@task
def items(
    source: str,
    n: int | None = None,
    seed: int = 0,
    view: str | None = None,
    cot: bool | None = None,
) -> Task:
    """True/False items of any source.

    Args:
        source: `NAME` or `NAME:ARGUMENT`, as everywhere; for instance `jsonl:items.jsonl`.
        n: how many; by default the whole file, or the source's own number.
        seed: of the source's random choices.
        view: of the prompts; by default the source's first.
        cot: ask to reason step by step first (true) or to answer at once (false).
    """
    return _task(source, n, seed, view, cot)


def _task(spec: str, n: int | None, seed: int, view: str | None, cot: bool | None) -> Task:
    source = open_source(spec)
    found = load_items(source, view=view, n=n, seed=seed)
    reasoning: Reasoning = "base" if cot is None else "cot" if cot else "no_cot"
    asked = asked_record(reasoning, thinking=None, injected=are_injected(found))
    samples = [_sample(item, reasoning) for item in found]
    return Task(
        dataset=MemoryDataset(samples, name=source.name),
        solver=generate(),
        scorer=true_false(),
        version=source.version,
        metadata={
            METADATA: {
                "source": describe_source(source, found, view=view, seed=seed),
                "asked": asked,
            }
        },
    )


def _sample(item: Item, reasoning: Reasoning) -> Sample:
    if item.label is None:
        raise ItemError(
            f"Item {item.item_id!r} has no True/False label; verdicts can be graded for True/False "
            f"items only."
        )
    metadata = {"group_id": item.group_id, "category": item.category, "statement": item.statement}
    turns: list[ChatMessage] = [_turn(message) for message in ask(item, reasoning).messages]
    return Sample(input=turns, target=str(item.label), id=item.item_id, metadata=metadata)


def _turn(message: Message) -> ChatMessage:
    turn: ChatMessage = _TURNS[message.role](content=message.content)
    return turn


@metric
def non_answers() -> Metric:
    """Replies without a verdict; they count as wrong in every accuracy beside it."""

    def count(scores: list[SampleScore]) -> float:
        return float(sum(score.score.answer is None for score in scores))

    return count


@scorer(
    metrics=[
        accuracy(),
        stderr(cluster="group_id"),
        grouped(accuracy(), "category", all=False),
        non_answers(),
    ]
)
def true_false() -> Scorer:
    """The verdict of the last `ANSWER:` line against the label; none is no answer, and wrong."""

    async def score(state: TaskState, target: Target) -> Score:
        verdict = parse_verdict(state.output.completion)
        if verdict is None:
            return Score(value=NOANSWER, explanation="no verdict in an ANSWER: line")
        right = str(verdict) == target.text
        return Score(value=CORRECT if right else INCORRECT, answer=str(verdict))

    return score
