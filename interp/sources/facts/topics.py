"""Topics of the `facts` source: endless or finite streams of balanced statement groups.

Every group holds four statements, true and false by turns, built as a two-cycle: fact A with
A's value, A with B's value, B with B's value, B with A's value, all in one template. So each
word of a group stands as often in a true statement as in a false one, and a probe that sees
only which words occur is at chance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from random import Random
from typing import Any, Final

from interp.sources.facts.tables import CAPITALS, ELEMENTS

__all__ = ["TOPICS", "Statement", "Topic", "in_words"]

GROUP_SIZE: Final = 4


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement with its label and the formal claim that the label follows from.

    Attributes:
        text: the statement, a full sentence.
        label: whether the claim holds.
        template: the sentence's template; the same for all statements of a group.
        claim: JSON-serialisable; `relation` names the topic's relation.
    """

    text: str
    label: bool
    template: str
    claim: Mapping[str, Any]


Group = tuple[Statement, Statement, Statement, Statement]


@dataclass(frozen=True, slots=True)
class Topic:
    """A stream of statement groups.

    Attributes:
        name: as written after `facts:`.
        capacity: how many statements it can give without repeating a fact.
        groups: from a random generator to the groups, each fact in one group only.
    """

    name: str
    capacity: int
    groups: Callable[[Random], Iterator[Group]]


def _two_cycle(
    template: str, relation: str, first: tuple[str, str], second: tuple[str, str]
) -> Group:
    def statement(subject: str, value: str, label: bool) -> Statement:
        text = template.format(subject=subject, value=value)
        claim = {"relation": relation, "subject": subject, "value": value}
        return Statement(text[0].upper() + text[1:], label, template, claim)

    (subject_a, value_a), (subject_b, value_b) = first, second
    return (
        statement(subject_a, value_a, True),
        statement(subject_a, value_b, False),
        statement(subject_b, value_b, True),
        statement(subject_b, value_a, False),
    )


def _paired_within(
    rows: Sequence[tuple[str, str, str]], rng: Random
) -> list[tuple[tuple[str, str], tuple[str, str]]]:
    """Random disjoint pairs of rows, of the same kind where possible (a plausible wrong value)."""
    pairs: list[tuple[tuple[str, str], tuple[str, str]]] = []
    left_over: list[tuple[str, str]] = []
    for _, block in groupby(sorted(rows, key=lambda row: row[2]), key=lambda row: row[2]):
        members = [(subject, value) for subject, value, _ in block]
        rng.shuffle(members)
        if len(members) % 2:
            left_over.append(members.pop())
        pairs.extend(zip(members[::2], members[1::2], strict=True))
    rng.shuffle(left_over)
    pairs.extend(zip(left_over[::2], left_over[1::2], strict=False))
    rng.shuffle(pairs)
    return pairs


def _table_topic(
    name: str, relation: str, rows: Sequence[tuple[str, str, str]], templates: Sequence[str]
) -> Topic:
    def groups(rng: Random) -> Iterator[Group]:
        for first, second in _paired_within(rows, rng):
            yield _two_cycle(rng.choice(templates), relation, first, second)

    return Topic(name, len(rows) // 2 * GROUP_SIZE, groups)


_ONES: Final = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS: Final = [
    "-",
    "-",
    "twenty",
    "thirty",
    "forty",
    "fifty",
    "sixty",
    "seventy",
    "eighty",
    "ninety",
]


def in_words(number: int) -> str:
    """English words for 0 to 999: `in_words(342) == 'three hundred forty-two'`."""
    if not 0 <= number <= 999:
        raise ValueError(f"in_words takes 0 to 999; got {number}.")
    hundreds, rest = divmod(number, 100)
    if rest < 20:
        words = _ONES[rest]
    else:
        words = _TENS[rest // 10] + (f"-{_ONES[rest % 10]}" if rest % 10 else "")
    if not hundreds:
        return words
    return f"{_ONES[hundreds]} hundred" + (f" {words}" if rest else "")


_COMPARED: Final = range(10, 1000)


def _comparisons(rng: Random) -> Iterator[Group]:
    seen: set[tuple[int, int]] = set()
    while len(seen) < _COMPARISONS_CAPACITY // GROUP_SIZE:
        low, high = sorted(rng.sample(_COMPARED, 2))
        if (low, high) in seen:
            continue
        seen.add((low, high))
        words = rng.random() < 0.5
        form = "words" if words else "digits"

        def statement(left: int, relation: str, right: int, words: bool, form: str) -> Statement:
            shown = [in_words(value) if words else str(value) for value in (left, right)]
            text = f"{shown[0]} is {relation} than {shown[1]}."
            return Statement(
                text[0].upper() + text[1:],
                (left > right) == (relation == "larger"),
                f"{form}: {{left}} is {{larger|smaller}} than {{right}}.",
                {"relation": relation, "left": left, "right": right},
            )

        yield (
            statement(high, "larger", low, words, form),
            statement(low, "larger", high, words, form),
            statement(low, "smaller", high, words, form),
            statement(high, "smaller", low, words, form),
        )


# Drawing pairs by rejection is fast only while most are unseen, so the stream ends at a tenth.
_COMPARISONS_CAPACITY: Final = len(_COMPARED) * (len(_COMPARED) - 1) // 2 // 10 * GROUP_SIZE

_OPERANDS: Final = range(2, 100)


def _problems(operation: str) -> list[tuple[str, str, int]]:
    """(problem, result, result as a number) over all operand pairs, each unordered sum once."""
    if operation == "plus":
        return [
            (f"{a} plus {b}", str(a + b), a + b) for a in _OPERANDS for b in _OPERANDS if a <= b
        ]
    return [(f"{a} minus {b}", str(a - b), a - b) for a in _OPERANDS for b in _OPERANDS if a > b]


def _arithmetic(rng: Random) -> Iterator[Group]:
    pairs: list[tuple[tuple[str, str], tuple[str, str]]] = []
    for operation in ("plus", "minus"):
        problems = _problems(operation)
        rng.shuffle(problems)
        problems.sort(key=lambda problem: problem[2])
        # Partners stand `step` apart in the order of results, and no result occurs more than
        # `step` times: so partners are close but never equal, and no wrong sum is right.
        step = max(len(list(run)) for _, run in groupby(problems, key=lambda problem: problem[2]))
        for start in range(0, len(problems) - 2 * step + 1, 2 * step):
            block = problems[start : start + 2 * step]
            pairs.extend((a[:2], b[:2]) for a, b in zip(block[:step], block[step:], strict=True))
    rng.shuffle(pairs)
    for first, second in pairs:
        template = rng.choice(("{subject} equals {value}.", "{subject} is {value}."))
        yield _two_cycle(template, "equals", first, second)


TOPICS: Final[Mapping[str, Topic]] = {
    topic.name: topic
    for topic in (
        _table_topic(
            "capitals",
            "capital",
            CAPITALS,
            ("The capital of {subject} is {value}.", "{value} is the capital of {subject}."),
        ),
        _table_topic(
            "elements",
            "symbol",
            [(element, symbol, symbol[0]) for element, symbol, _ in ELEMENTS],
            (
                "The chemical symbol of {subject} is {value}.",
                "{value} is the chemical symbol of {subject}.",
            ),
        ),
        Topic("comparisons", _COMPARISONS_CAPACITY, _comparisons),
        Topic("arithmetic", sum(1 for _ in _arithmetic(Random(0))) * GROUP_SIZE, _arithmetic),
    )
}
"""The topics by name, in the order in which mixed requests draw from them."""
