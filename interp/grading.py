"""From a model's text to a verdict, and from verdicts to an answer file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Final

from interp.errors import ResultError, did_you_mean
from interp.files import atomic_path, numbered_lines, parse_json
from interp.vocabulary import AnswerCondition

__all__ = ["Answer", "bare_verdict", "parse_verdict", "read_answers", "write_answers"]

# One character class and no repetition of it in a row, so that matching stays linear.
_MARKUP: Final = r" \t\r>*_`#~\"'“”‘’()\[\]\-"
_ANSWER_LINE: Final = re.compile(rf"^[{_MARKUP}]*answer[{_MARKUP}]*[::](?P<rest>.*)$", re.I | re.M)
_VERDICT: Final = re.compile(rf"^[{_MARKUP}]*(?P<verdict>true|false)\b(?P<rest>.*)$", re.I)
_ANY_VERDICT: Final = re.compile(r"\b(?:true|false)\b", re.I)
_BARE: Final = re.compile(rf"^[{_MARKUP}]*(?P<verdict>true|false)[{_MARKUP}.,;!。]*$", re.I)
_THINK_END: Final = re.compile(r"</think(?:ing)?>", re.I)
_THINK_START: Final = re.compile(r"<think(?:ing)?>", re.I)


def parse_verdict(text: str) -> bool | None:
    """The verdict of the last `ANSWER:` line, or None if there is none to be had.

    Tolerated: upper and lower case, markdown emphasis, quotes, punctuation or a reason after the
    verdict, a reasoning block before the answer, and its closing tag at the very end. An answer
    inside a reasoning block that never closes is not an answer: the model has not said it. If the
    last `ANSWER:` line does not start with a verdict, or names both, earlier lines do not count.

    Source: Avalon-ToM-Bench, appendix on prompts, "Answer parsing".
    """
    lines = list(_ANSWER_LINE.finditer(_said(text)))
    if not lines:
        return None
    match = _VERDICT.match(lines[-1]["rest"])
    if match is None or _ANY_VERDICT.search(match["rest"]):
        return None
    return match["verdict"].casefold() == "true"


def _said(text: str) -> str:
    """What stands outside reasoning blocks."""
    text = re.sub(r"</think(?:ing)?>\s*$", "", text, flags=re.I)
    return _THINK_START.split(_THINK_END.split(text)[-1])[0]


def bare_verdict(text: str) -> bool | None:
    """The verdict of a reply that is nothing but "True" or "False", or None.

    Such a reply breaks the answer format and counts as a non-answer; it is told apart so that a
    mere formatting failure is not mistaken for a model that does not say what it represents.
    """
    match = _BARE.match(" ".join(_said(text).split()))
    return None if match is None else match["verdict"].casefold() == "true"


@dataclass(frozen=True, slots=True)
class Answer:
    """One verdict of a model on one item; one line of an answer file.

    Attributes:
        item_id: of the item.
        condition: how the verdict was read: `forced` or `greedy`.
        verdict: the model's; None where it gave none.
        correct: whether the verdict is the gold label; no verdict is not correct.
        answered: whether there is a verdict.
        raw: the generated text (`greedy`), or the stub with the chosen verdict (`forced`).
        n_tokens: generated tokens (`greedy`), 0 for `forced`.
        logit_true: logit of the first token of the verdict True after the stub that follows the
            prompt, before any reply; None where it cannot be had (from a provider).
        logit_false: the same for False.
    """

    item_id: str
    condition: AnswerCondition
    verdict: bool | None
    correct: bool
    answered: bool
    raw: str
    n_tokens: int
    logit_true: float | None
    logit_false: float | None

    @property
    def logit_difference(self) -> float | None:
        """True − False; None where the logits are not known."""
        if self.logit_true is None or self.logit_false is None:
            return None
        return self.logit_true - self.logit_false


_FIELDS: Final = tuple(field.name for field in fields(Answer))


def write_answers(path: str | Path, answers: Iterable[Answer]) -> None:
    """Write one answer a line, atomically."""
    path = Path(path)
    with atomic_path(path) as aside, aside.open("w", encoding="utf-8") as handle:
        for answer in answers:
            handle.write(json.dumps(asdict(answer), ensure_ascii=False, allow_nan=False) + "\n")


def read_answers(path: str | Path) -> tuple[Answer, ...]:
    """Read an answer file.

    Raises:
        ResultError: names the file and the line that does not hold an answer.
    """
    path = Path(path)
    answers: list[Answer] = []
    what = "an answer file (one JSON object a line)"
    for number, line in numbered_lines(path, what, ResultError):
        where = f"{path}, line {number}"
        try:
            row = parse_json(line)
        except json.JSONDecodeError as error:
            raise ResultError(f"{where}: not an answer ({error}).") from error
        if not isinstance(row, dict):
            raise ResultError(f"{where}: not an answer, but {line.strip()!r:.40}.")
        for name in _FIELDS:
            if name not in row:
                raise ResultError(f"{where}, field '{name}': missing; is this an answer file?")
        for name in row:
            if name not in _FIELDS:
                raise ResultError(
                    f"{where}, field '{name}': no field of an answer. {did_you_mean(name, _FIELDS)}"
                )
        answers.append(Answer(**row))
    return tuple(answers)
