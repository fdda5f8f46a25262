"""The `[ANSWER]` span and ROUGE-L, against rules worked by hand and a reference LCS."""

import builtins
import re
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.errors import InterpError
from interp.open_grading import (
    HELD_OUT_THRESHOLD,
    TRAIN_THRESHOLD,
    _scorer,
    extract_span,
    grade_answer,
    rouge_l_f1,
    zero_variance_share,
)


@pytest.mark.parametrize(
    ("reply", "text", "status"),
    [
        ("[ANSWER] The tester. [/ANSWER]", "The tester.", "ok"),
        ("So:\n[answer]a\nb[/Answer] done", "a\nb", "ok"),
        ("[ANSWER] The tester", "The tester", "unclosed"),
        ("[ANSWER] a [ANSWER] b [/ANSWER]", "b", "nested"),
        ("[ANSWER] a [ANSWER] b [/ANSWER] c [/ANSWER]", "b", "nested"),
        ("[ANSWER] a [ANSWER] b", "b", "nested"),
        ("[ANSWER] a [/ANSWER] [ANSWER] b [/ANSWER]", "a", "repeated"),
        ("[ANSWER] a [/ANSWER] [ANSWER] b", "a", "repeated"),
        ("[ANSWER] a [/ANSWER] [/ANSWER]", "a", "ok"),
        ("[ANSWER] \n [/ANSWER] [ANSWER] b [/ANSWER]", "", "empty"),
        ("[ANSWER]", "", "empty"),
        ("The tester.", "", "missing"),
        ("", "", "missing"),
        ("a [/ANSWER] [ANSWER] b [/ANSWER]", "", "missing"),
        ("ANSWER: a", "", "missing"),
        ("[ ANSWER ] a [/ANSWER]", "", "missing"),
        ("<think>[ANSWER] a [/ANSWER]</think>[ANSWER] b [/ANSWER]", "b", "ok"),
        ("<think>[ANSWER] a [/ANSWER]", "", "missing"),
    ],
)
def test_spans_by_hand(reply: str, text: str, status: str) -> None:
    span = extract_span(reply)
    assert (span.text, span.status) == (text, status)


PIECES = st.lists(
    st.sampled_from(["[ANSWER]", "[/ANSWER]", " a", " b", "\n", "[", "]"]), max_size=9
)


@given(PIECES)
def test_an_engine_that_stops_at_the_closing_tag_gives_the_same_answer(pieces: list[str]) -> None:
    reply = "".join(pieces)
    whole = extract_span(reply).text
    head, tag, _ = reply.partition("[/ANSWER]")
    assert extract_span(head).text == whole
    assert extract_span(head + tag).text == whole
    assert "[/ANSWER]" not in whole
    assert "[ANSWER]" not in whole


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def longest_common(a: list[str], b: list[str]) -> int:
    """The definition, by recursion over suffixes."""
    if not a or not b:
        return 0
    if a[0] == b[0]:
        return 1 + longest_common(a[1:], b[1:])
    return max(longest_common(a[1:], b), longest_common(a, b[1:]))


@given(
    st.text(alphabet="ab C.é", max_size=12),
    st.text(alphabet="ab C.é", max_size=12),
)
def test_f1_is_that_of_the_longest_common_subsequence(answer: str, gold: str) -> None:
    said, meant = words(answer), words(gold)
    common = longest_common(said, meant)
    expected = 2 * common / (len(said) + len(meant)) if common else 0.0
    assert rouge_l_f1(answer, gold) == pytest.approx(expected)


def test_the_thresholds_are_strict() -> None:
    # F1 of 1 common word among 5 + 5 is 0.2, of 2 is 0.4; unrounded, 0.2 would come out above.
    one, two = "a v w x y", "a b v w x"
    gold = "a b c d e"
    assert rouge_l_f1(one, gold) == TRAIN_THRESHOLD == 0.2
    assert rouge_l_f1(two, gold) == HELD_OUT_THRESHOLD == 0.4
    reply = "[ANSWER] {} [/ANSWER]".format
    assert grade_answer(reply(one), gold, threshold=0.2).reward == 0.0
    assert grade_answer(reply(two), gold, threshold=0.2).reward == 1.0
    assert grade_answer(reply(two), gold, threshold=0.4).reward == 0.0
    assert grade_answer(reply("a b c v w"), gold, threshold=0.4).reward == 1.0
    assert grade_answer(reply("v w"), gold, threshold=0.0).reward == 0.0


def test_only_the_span_is_scored() -> None:
    gold = "the tester should check the hour field"
    assert grade_answer(gold, gold, threshold=0.2).f1 == 0.0
    noise = "unrelated words " * 20
    graded = grade_answer(f"{noise}[ANSWER] {gold} [/ANSWER]{noise}", gold, threshold=0.2)
    assert graded.f1 == pytest.approx(1.0)
    assert graded.reward == 1.0


@pytest.mark.parametrize("threshold", [-0.1, 1.0, float("nan")])
def test_thresholds_that_nothing_can_pass_are_refused(threshold: float) -> None:
    with pytest.raises(InterpError, match="below 1"):
        grade_answer("[ANSWER] a [/ANSWER]", "a", threshold=threshold)


def test_a_gold_without_words_is_refused() -> None:
    with pytest.raises(InterpError, match="no word in it"):
        grade_answer("[ANSWER] é [/ANSWER]", "é !", threshold=0.2)


def test_without_rouge_score_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.startswith("rouge_score"):
            raise ModuleNotFoundError("No module named 'rouge_score'")
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, "rouge_score.rouge_scorer", raising=False)
    _scorer.cache_clear()
    with pytest.raises(InterpError, match=r"interp\[tomas\]"):
        rouge_l_f1("a", "a")
    _scorer.cache_clear()


def test_groups_without_a_signal_are_counted() -> None:
    assert zero_variance_share([[0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 0, 0], [1, 0, 1, 1]]) == 0.5
    assert zero_variance_share([[0, 1]]) == 0.0
    for groups in ([], [[0, 1], []]):
        with pytest.raises(InterpError, match="no rewards"):
            zero_variance_share(groups)
