"""An LLM as renderer of tasks, under checks that a program and a validator decide.

The LLMs are passed in as callables from prompt to text; nothing here runs a model.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from interp.sources.unco.build import Renderer
from interp.sources.unco.environment import Submit, correct, read_number
from interp.sources.unco.instantiate import Instance
from interp.sources.unco.protocol import parse_action
from interp.sources.unco.render import context_phrase, render_prompt, value_text
from interp.sources.unco.spec import Answer
from interp.sources.unco.tasks import Task

__all__ = ["VALIDATION_RUNS", "llm_renderer", "lost_facts"]

VALIDATION_RUNS: Final = 3
"""Shuffled full-information runs that must all give the gold answer (section 3.3 of the paper)."""

Llm = Callable[[str], str]


def llm_renderer(writer: Llm, validator: Llm) -> Renderer:
    """A renderer that asks `writer` and keeps its text only if nothing was lost.

    A text is refused where a program misses a fact in it, and where `validator`, given the text and
    all records in three shuffled orders, does not find the gold answer each time.
    """

    def render(instance: Instance, rng: Random) -> str | None:
        text = writer(
            "Rewrite this task in other words. Keep every name, number, unit, period, place and "
            "role exactly as written, and add nothing.\n\n" + render_prompt(instance.spec, rng)
        ).strip()
        if lost_facts(instance, text):
            return None
        for _ in range(VALIDATION_RUNS):
            action = parse_action(validator(_full_information(instance, text, rng)))
            if not isinstance(action, Submit) or not _right(instance, action):
                return None
        return text

    return render


def lost_facts(instance: Instance, text: str) -> tuple[str, ...]:
    """What a text of the task must hold and does not; the gold number must not be in it either."""
    spec, low = instance.spec, text.lower()
    required = [*spec.candidates, *spec.roles]
    for condition in spec.conditions:
        fact = spec.fact(condition.fact)
        required += [fact.label, fact.context, value_text(fact, condition.value)]
    for key in spec.rule.operands:
        required += [spec.fact(key).label, spec.fact(key).context]
    required += [spec.rule.unit, *map(str, spec.rule.weights)]
    return tuple(piece for piece in dict.fromkeys(required) if piece.lower() not in low)


def _full_information(instance: Instance, text: str, rng: Random) -> str:
    spec = instance.spec
    lines = [
        f"The {fact.role}: {fact.label} of {name} {context_phrase(fact.context)} is "
        f"{value_text(fact, instance.values[name][fact.key])}."
        for name in spec.candidates
        for fact in spec.facts
    ]
    shuffled = "\n".join(rng.sample(lines, len(lines)))
    return (
        f"{text}\n\nAll evidence:\n{shuffled}\n\nAnswer with one JSON object: "
        '{"answer": {"candidate": "name", "number": 12.5}}, with null for both where none fits.'
    )


def _right(instance: Instance, action: Submit) -> bool:
    if action.candidate is None:
        answer = Answer("none", None, None)
    else:
        answer = Answer("select", action.candidate, read_number(action.number))
    return correct(Task("", "reliable", instance, (), ""), answer)
