"""An LLM as renderer of tasks, under checks that a program and a validator decide.

The LLMs are passed in as callables from prompt to text; nothing here runs a model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Final

from interp.sources.unco.build import Renderer
from interp.sources.unco.environment import Responder, Submit, correct, read_number
from interp.sources.unco.instantiate import Instance
from interp.sources.unco.protocol import parse_action
from interp.sources.unco.render import context_phrase, render_prompt, value_text
from interp.sources.unco.replies import Reply, reply
from interp.sources.unco.spec import Answer, number_to_json
from interp.sources.unco.tasks import Task

__all__ = ["VALIDATION_RUNS", "llm_renderer", "llm_responder", "lost_facts"]

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


def llm_responder(llm: Llm) -> Responder:
    """Role agents whose words an LLM chooses; what they say stays the program's.

    The program decides by the setting's policy whether a role answers and with which evidence. The
    LLM's words are kept if every candidate, fact, context and value of it is still in them; else
    the program's words stand.
    """

    def respond(task: Task, role: str, message: str, earlier: Sequence[str]) -> Reply | None:
        said = reply(task, role, message, earlier)
        if said is None:
            return None
        text = llm(
            f"You are the {role}. A colleague asks: {message}\nSay exactly this in your own words, "
            f"with every name, number, unit, period and place as written:\n{said.text}"
        ).strip()
        spec = task.instance.spec
        pieces = [piece for e in said.evidence for piece in (e.candidate, e.context)]
        pieces += [spec.fact(e.fact).label for e in said.evidence]
        pieces += [
            value_text(spec.fact(e.fact), e.value if e.value is not None else e.high or 0)
            for e in said.evidence
        ]
        pieces += [f"{e.low:,}" for e in said.evidence if e.low is not None]
        kept = all(_holds(text.lower(), piece.lower()) for piece in pieces)
        return replace(said, text=text) if kept else said

    return respond


def lost_facts(instance: Instance, text: str) -> tuple[str, ...]:
    """What a text of the task must hold and does not; the gold number must not be in it either.

    Whether a threshold is a lower or an upper one, and which operand comes first, no program can
    tell from free prose: that is what the validator's runs are for.
    """
    spec, low = instance.spec, text.lower()
    required = [*spec.candidates, *spec.roles]
    for condition in spec.conditions:
        fact = spec.fact(condition.fact)
        required += [fact.label, fact.context, value_text(fact, condition.value)]
    for key in spec.rule.operands:
        required += [spec.fact(key).label, spec.fact(key).context]
    required += [spec.rule.unit, *map(str, spec.rule.weights)]
    lost = [piece for piece in dict.fromkeys(required) if not _holds(low, piece.lower())]
    gold = instance.gold.number
    if gold is not None and any(
        _holds(low, form) for form in {f"{number_to_json(gold)}", f"{number_to_json(gold):,}"}
    ):
        # A coincidence with a number of the task is refused too: the renderer can try again.
        lost.append("nothing of the answer")
    return tuple(lost)


def _holds(text: str, piece: str) -> bool:
    """Whether a text holds a piece that is not the tail or the head of a longer word or number."""
    return re.search(rf"(?<![\w.,]){re.escape(piece)}(?![\w])(?![.,]\d)", text) is not None


def _full_information(instance: Instance, text: str, rng: Random) -> str:
    spec = instance.spec
    lines = [
        f"The {fact.role}: {fact.label} of {name} {context_phrase(context)} is "
        f"{value_text(fact, values[name][fact.key])}."
        for name in spec.candidates
        for fact in spec.facts
        for context, values in (
            (fact.context, instance.values),
            (fact.other_context, instance.others),
        )
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
