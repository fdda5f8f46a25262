"""Grading of open answers: the `[ANSWER]` span of a reply, and its ROUGE-L F1 against the gold.

The reward is binary: 1 where the F1 is strictly above a threshold, else 0 (ToMAS, section III-C).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Final, Literal

from interp.errors import InterpError

if TYPE_CHECKING:
    from rouge_score.rouge_scorer import RougeScorer

__all__ = [
    "ANSWER_CLOSE",
    "ANSWER_OPEN",
    "HELD_OUT_THRESHOLD",
    "TRAIN_THRESHOLD",
    "AnswerSpan",
    "GradedAnswer",
    "SpanStatus",
    "extract_span",
    "grade_answer",
    "has_scored_words",
    "rouge_l_f1",
    "zero_variance_share",
]

ANSWER_OPEN: Final = "[ANSWER]"
ANSWER_CLOSE: Final = "[/ANSWER]"
"""Also the string that generation stops at."""

TRAIN_THRESHOLD: Final = 0.2
HELD_OUT_THRESHOLD: Final = 0.4
"""The paper's thresholds; an F1 must be strictly above (section III-C)."""

SpanStatus = Literal["ok", "unclosed", "nested", "repeated", "empty", "missing"]

_DECIMALS: Final = 12
_TAG: Final = re.compile(r"\[(?P<slash>/?)answer\]", re.I)
_THINK_END: Final = re.compile(r"</think(?:ing)?>", re.I)
_THINK_START: Final = re.compile(r"<think(?:ing)?>", re.I)
_SCORED: Final = re.compile(r"[a-z0-9]", re.I)


@dataclass(frozen=True, slots=True)
class AnswerSpan:
    """What a reply says between its answer tags.

    Attributes:
        text: the answer without surrounding white space; empty where there is none.
        status: `ok` for one closed pair; `unclosed`, `nested` and `repeated` have a text too;
            `empty` and `missing` have none.
    """

    text: str
    status: SpanStatus


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """A reply, graded.

    Attributes:
        span: the answer that was graded.
        f1: ROUGE-L F1 of the span against the gold, 0 to 1; 0 without an answer.
        reward: 1.0 if `f1` is strictly above the threshold, else 0.0.
    """

    span: AnswerSpan
    f1: float
    reward: float


def extract_span(reply: str) -> AnswerSpan:
    """The answer of a reply.

    Generation is meant to stop at the first closing tag, but not every engine does, and some drop
    the tag that they stopped at. So that a reply is graded the same either way, what follows the
    first closing tag does not count, and a missing closing tag is no fault. The rules in order:

    - A reasoning block (`<think>`) is not part of the reply; one that never ends is all of it.
    - The reply ends at the first `[/ANSWER]`. Further pairs after it: `repeated`.
    - The answer starts after the last `[ANSWER]` before that. Several of them: `nested`.
    - No `[/ANSWER]`: the answer goes to the end of the reply, `unclosed`.
    - No `[ANSWER]` before the end: `missing`. Nothing but white space between: `empty`.

    Tags may be written in any case. Of several faults the first of `empty`, `nested`, `repeated`,
    `unclosed` is named.
    """
    said = _THINK_START.split(_THINK_END.split(reply)[-1])[0]
    tags = list(_TAG.finditer(said))
    closing = next((i for i, tag in enumerate(tags) if tag["slash"]), None)
    openings = [tag for tag in tags[:closing] if not tag["slash"]]
    if not openings:
        return AnswerSpan("", "missing")
    end = len(said) if closing is None else tags[closing].start()
    text = said[openings[-1].end() : end].strip()
    if not text:
        return AnswerSpan("", "empty")
    status: SpanStatus = "ok"
    if len(openings) > 1:
        status = "nested"
    elif closing is None:
        status = "unclosed"
    elif any(not tag["slash"] for tag in tags[closing + 1 :]):
        status = "repeated"
    return AnswerSpan(text, status)


@cache
def _scorer() -> RougeScorer:
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise InterpError(
            f"Grading open answers needs rouge-score ({error}). Install it with: "
            f"pip install 'interp[tomas]'"
        ) from error
    return RougeScorer(["rougeL"])


def rouge_l_f1(answer: str, gold: str) -> float:
    """ROUGE-L F1 of an answer against the gold, by rouge-score with its default tokenizer.

    That tokenizer takes lower-case runs of a-z and 0-9 as words and drops everything else.

    Raises:
        InterpError: the extra `tomas` is not installed.
    """
    # F1 is 2L/(m + n) for whole L, m and n. rouge-score gets it from precision and recall, which
    # may leave 0.2 at 0.20000000000000004: above the threshold by rounding alone.
    return round(float(_scorer().score(gold, answer)["rougeL"].fmeasure), _DECIMALS)


def has_scored_words(text: str) -> bool:
    """Whether rouge-score's tokenizer finds a word; without one the F1 is 0 whatever is said."""
    return _SCORED.search(text) is not None


def grade_answer(reply: str, gold: str, *, threshold: float) -> GradedAnswer:
    """Grade one reply.

    Args:
        reply: generated text, tags included.
        gold: gold answer.
        threshold: the reward is 1 if the F1 is strictly above it; in [0, 1).

    Raises:
        InterpError: a threshold outside [0, 1) or a gold without a word (the reward could not
            vary), or the extra `tomas` is not installed.
    """
    if not 0 <= threshold < 1:
        raise InterpError(
            f"The ROUGE-L threshold is {threshold}; expected at least 0 and below 1, so that an "
            f"answer can pass it. The paper trains at {TRAIN_THRESHOLD} and evaluates at "
            f"{HELD_OUT_THRESHOLD}."
        )
    if not has_scored_words(gold):
        raise InterpError(
            f"The gold answer {gold!r} has no letter a-z and no digit, so rouge-score finds no "
            f"word in it and every answer scores 0. Give a gold with words."
        )
    span = extract_span(reply)
    f1 = rouge_l_f1(span.text, gold) if span.text else 0.0
    return GradedAnswer(span, f1, float(f1 > threshold))


def zero_variance_share(groups: Sequence[Sequence[float]]) -> float:
    """Share of groups in which all rewards are equal.

    GRPO's advantage is the reward minus its group's mean: such a group gives no gradient.

    Args:
        groups: rewards of the completions of one prompt, one sequence a group.

    Raises:
        InterpError: no groups, or one without rewards.
    """
    if not groups or not all(groups):
        raise InterpError("There are no rewards, or a group has none; expected at least one each.")
    return sum(len(set(group)) == 1 for group in groups) / len(groups)
