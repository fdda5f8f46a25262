"""A task in words. Every phrase states the facts of the specification and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from fractions import Fraction
from random import Random
from typing import Final

from interp.sources.unco.spec import Condition, Fact, Specification, Test, Value
from interp.sources.unco.vocabulary import MONTHS

__all__ = ["context_phrase", "render_prompt", "value_text"]


def value_text(fact: Fact, value: Value | Fraction) -> str:
    """A value with its unit: `45,000 EUR`, `passed`, `3 August 2026`."""
    if fact.kind == "date":
        day = date.fromisoformat(str(value))
        return f"{day.day} {MONTHS[day.month - 1]} {day.year}"
    if isinstance(value, str):
        return value
    unit = fact.unit_one if value == 1 and fact.unit_one else fact.unit
    return f"{value:,} {unit}"


def context_phrase(context: str) -> str:
    """`in March 2026`, or `for the north wing`."""
    return f"in {context}" if context.split()[0] in MONTHS else f"for {context}"


def render_prompt(spec: Specification, rng: Random) -> str:
    """What the main agent reads: the choice, the conditions, the number, whom it can ask."""
    parts = [_opening(spec, rng), _conditions(spec, rng), _rule(spec, rng), _roles(spec, rng)]
    if rng.random() < 0.5:
        parts[1], parts[2] = parts[2], parts[1]
    return "\n\n".join(parts)


_OPENINGS: Final[tuple[str, ...]] = (
    "We have to {purpose}. Three {noun}s are on the table: {names}. {most} {adopt} it, or none.",
    "{names}: one of these three {noun}s may be what we need to {purpose}. {most}",
    "To {purpose}, our {title} group has narrowed the field to {names}. {most}",
    "A decision on {title} is due: we want to {purpose}. The {noun}s left are {names}. {most}",
    "Your job today concerns {title}. The aim: {purpose}. You choose among {names}. {most}",
    "The board asks which {noun} to take so that we can {purpose}. Candidates: {names}. {most}",
    "By Friday we need a yes or no to {names}, each a {noun}; the point is to {purpose}. {most}",
    "{purpose_cap}: that is the goal. {names} are the {noun}s still in the running. {most}",
    "This is about {title}. We have heard of {names}. With one of them we would {purpose}. {most}",
    "Settle which {noun} we {adopt_low}, if any: {names}? We hope to {purpose}. {most}",
)  # fmt: skip
_MOST: Final[tuple[str, ...]] = (
    "At most one of them qualifies.",
    "It may turn out that none qualifies; two never do.",
    "No more than one can satisfy everything below.",
    "Either a single one fits or nothing does.",
    "Expect one suitable {noun} or no suitable one.",
    "You will not find two that pass.",
)


def _opening(spec: Specification, rng: Random) -> str:
    first, second, third = rng.sample(spec.candidates, len(spec.candidates))
    joined = rng.choice((" and ", " or ", " as well as ", ", then "))
    return rng.choice(_OPENINGS).format(
        purpose=spec.purpose,
        purpose_cap=spec.purpose[0].upper() + spec.purpose[1:],
        noun=spec.noun,
        names=f"{first}, {second}{joined}{third}",
        title=spec.title,
        adopt=spec.adopt,
        adopt_low=spec.adopt.lower(),
        most=rng.choice(_MOST).format(noun=spec.noun),
    )


_INTRODUCTIONS: Final[tuple[str, ...]] = (
    "All of this must hold:",
    "Requirements, every one of them binding:",
    "A {noun} is acceptable only under these terms:",
    "What we insist on:",
    "Tick off each point before you say yes:",
    "Nothing passes that misses one of these:",
    "The bar is set as follows.",
    "Checklist:",
)
_AT_LEAST: Final[tuple[str, ...]] = (
    "{label} {context} of {value} or more",
    "{context}, {label} reaches {value}",
    "no less than {value} as {label} {context}",
    "{label}: minimum {value}, counted {context}",
    "{value} is the lower limit of {label} {context}",
    "{label} does not fall under {value} {context}",
    "the figure {context} for {label} is {value} at the lowest",
)
_AT_MOST: Final[tuple[str, ...]] = (
    "{label} {context} of {value} or less",
    "{context}, {label} stays within {value}",
    "no more than {value} as {label} {context}",
    "{label}: maximum {value}, counted {context}",
    "{value} is the upper limit of {label} {context}",
    "{label} does not go over {value} {context}",
    "the figure {context} for {label} is {value} at the highest",
)
_EQUALS: Final[tuple[str, ...]] = (
    "{label} {context} is {value}",
    "{context} the {label} reads {value}",
    "we need {value} under {label} {context}",
    "{label} ({context}): {value}, nothing else",
    "{value} must be the state of the {label} {context}",
    "a {label} that is not {value} {context} rules it out",
)
_BY: Final[tuple[str, ...]] = (
    "{label} {context} on or before {value}",
    "{context}, {label} comes no later than {value}",
    "{value} is the last acceptable {label} {context}",
    "{label} {context}: {value} at the latest",
    "after {value} the {label} {context} is too late",
)
_TESTS: Final[dict[Test, tuple[str, ...]]] = {
    "at_least": _AT_LEAST,
    "at_most": _AT_MOST,
    "equals": _EQUALS,
    "by": _BY,
}
_Number = Callable[[int], str]
_NUMBERINGS: Final[tuple[_Number, ...]] = (
    lambda i: f"{i + 1}. ",
    lambda i: f"({'abcdefg'[i]}) ",
    lambda i: f"C{i + 1}: ",
    lambda _: "- ",
    lambda _: "* ",
)


def _conditions(spec: Specification, rng: Random) -> str:
    number = rng.choice(_NUMBERINGS)
    order = rng.sample(spec.conditions, len(spec.conditions))
    lines = [number(i) + _condition(spec, condition, rng) for i, condition in enumerate(order)]
    return "\n".join([rng.choice(_INTRODUCTIONS).format(noun=spec.noun), *lines])


def _condition(spec: Specification, condition: Condition, rng: Random) -> str:
    fact = spec.fact(condition.fact)
    return rng.choice(_TESTS[condition.test]).format(
        label=fact.label,
        context=context_phrase(fact.context),
        value=value_text(fact, condition.value),
    )


_RULES: Final[dict[str, tuple[str, ...]]] = {
    "sum": (
        "Add up {all}.",
        "The number to report is the total of {all}.",
        "Report what {all} come to together.",
        "We budget for {all}: state the sum.",
        "How much are {all} in all?",
    ),
    "difference": (
        "Take {first} and subtract {second}.",
        "The number to report is {first} less {second}.",
        "State {first} minus {second}; it may be negative.",
        "How far does {first} exceed {second}? A negative result is possible.",
        "Report what remains of {first} after taking off {second}.",
    ),
    "product": (
        "Multiply {first} by {second}.",
        "The number to report is {first} times {second}.",
        "State the product of {first} and {second}.",
        "How much does {second} come to over {first}? Multiply the two.",
        "Report {second}, paid once for each unit of {first}, as a total.",
    ),
    "quotient": (
        "Divide {first} by {second}.",
        "The number to report is {first} over {second}.",
        "Spread {first} evenly over {second} and state the share of one.",
        "How much is {first} for each unit of {second}?",
        "Report the ratio of {first} to {second}.",
    ),
    "weighted_sum": (
        "Weigh {first} with {w1} per cent and {second} with {w2} per cent, and add.",
        "The number to report is {w1}% of {first} plus {w2}% of {second}.",
        "Combine {w1} per cent of {first} with {w2} per cent of {second}.",
        "State a blend: {first} counts {w1}%, {second} counts {w2}%.",
        "Report the weighted total: {w1} per cent for {first}, {w2} per cent for {second}.",
    ),
    "percentage": (
        "Express {first} as a percentage of {second}.",
        "The number to report is {first} in per cent of {second}.",
        "If {second} is a hundred per cent, how many per cent is {first}?",
        "State how large {first} is against {second}, in per cent.",
        "Report a hundred times {first}, divided by {second}.",
    ),
    "mean": (
        "Average {all}.",
        "The number to report is the mean of {all}.",
        "State the arithmetic mean of {all}.",
        "Report {all}, averaged with equal weights.",
        "What do {all} come to on average?",
    ),
    "maximum": (
        "Take the largest of {all}.",
        "The number to report is whichever of {all} is highest.",
        "State the maximum of {all}.",
        "Report the biggest figure among {all}.",
        "Which amount is greatest: {all}? Give that amount.",
    ),
}  # fmt: skip
_OF: Final[tuple[str, ...]] = (
    "For the {noun} that passes:",
    "Should one pass, calculate as follows.",
    "The chosen {noun} gets a number.",
    "Next to the name we want a figure.",
    "If there is a suitable {noun}, do this with its values.",
    "A positive answer carries a calculation.",
)
_ROUNDED: Final[tuple[str, ...]] = (
    "Unit: {unit}; two decimals at the end.",
    "Give it in {unit}, rounded to two decimals only when done.",
    "The result is in {unit}. Round once, to two places.",
    "Write {unit}, with two decimals and no rounding before.",
    "It is measured in {unit}; hundredths are enough.",
)
_ELSE: Final[tuple[str, ...]] = (
    "Without a suitable {noun} there is no number.",
    "Where nothing passes, leave the number out.",
    "No {noun}, no figure.",
    "Otherwise answer that none qualifies, and give null.",
    "A negative answer has a null number.",
)


def _rule(spec: Specification, rng: Random) -> str:
    rule = spec.rule
    facts = [spec.fact(key) for key in rule.operands]
    names = [f"the {fact.label} {context_phrase(fact.context)}" for fact in facts]
    weights = rule.weights or (0, 0)
    joined = f"{', '.join(names[:-1])} and {names[-1]}"
    sentences = (
        rng.choice(_OF).format(noun=spec.noun),
        rng.choice(_RULES[rule.operation]).format(
            all=joined, first=names[0], second=names[1], w1=weights[0], w2=weights[1]
        ),
        rng.choice(_ROUNDED).format(unit=rule.unit),
        rng.choice(_ELSE).format(noun=spec.noun),
    )
    return " ".join(sentences)


_COLLEAGUES: Final[tuple[str, ...]] = (
    "You can ask {roles}.",
    "Each of these keeps records of its own: {roles}.",
    "{roles} hold the evidence between them.",
    "Your colleagues are {roles}.",
    "The files lie with {roles}.",
    "Facts come from {roles}; you have none yourself.",
)


def _roles(spec: Specification, rng: Random) -> str:
    roles = rng.sample(spec.roles, len(spec.roles))
    joined = ", ".join(f"the {role}" for role in roles[:-1]) + f" and the {roles[-1]}"
    text = rng.choice(_COLLEAGUES).format(roles=joined)
    return text[0].upper() + text[1:]
