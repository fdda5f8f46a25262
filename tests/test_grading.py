import pytest
from hypothesis import given
from hypothesis import strategies as st

from interp.errors import ResultError
from interp.grading import Answer, bare_verdict, parse_verdict, read_answers, write_answers


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("ANSWER: True", True),
        ("Because of that.\nANSWER: False", False),
        ("answer: true", True),
        ("**ANSWER:** False.", False),
        ("**ANSWER: True**", True),
        ("- ANSWER: `False`!", False),
        ("### Answer: 'True'", True),
        ("ANSWER:True\r\n", True),
        ("ANSWER: True\nOn reflection:\nANSWER: False", False),
        ("<think>ANSWER: False</think>\nANSWER: True", True),
        ("I am done thinking. ANSWER is near.\nANSWER: True</think>", True),
        ("ANSWER: True. Rome is in Italy.", True),
        ("ANSWER: **False** (it is Rome)", False),
        # From here on: no verdict.
        ("", None),
        ("True", None),
        ("The answer is True", None),
        ("ANSWER: maybe", None),
        ("ANSWER: Untrue", None),
        ("ANSWER: True or False", None),
        ("ANSWER: True, not False", None),
        ("ANSWER: not true", None),
        ("'ANSWER: True' or 'ANSWER: False'", None),
        ("ANSWER: True\nANSWER: I cannot say", None),
        ("<think>it must be so. ANSWER: True", None),
        ("<think>\nANSWER: True\n</think>\nI do not know", None),
    ],
)
def test_verdict_of_the_last_answer_line(text: str, verdict: bool | None) -> None:
    assert parse_verdict(text) is verdict


@given(st.text(), st.booleans())
def test_a_final_answer_line_decides_whatever_stands_before(text: str, verdict: bool) -> None:
    assert parse_verdict(f"{text}</think>\nANSWER: {verdict}") is verdict


@given(st.text())
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    assert parse_verdict(text) in (True, False, None)


def test_a_long_line_of_markup_is_parsed_in_linear_time() -> None:
    # A pattern that backtracks would need hours for this.
    assert parse_verdict("ANSWER: True" + " *" * 200_000 + "false") is None
    assert bare_verdict("True" + " *" * 200_000 + "x") is None
    assert parse_verdict("*" * 400_000) is None


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("False", False),
        (" True.\n", True),
        ("**true**", True),
        ("True, since", None),
        ("", None),
        ("<think>hm</think>\n\nTrue", True),
        ("<think>True", None),
    ],
)
def test_a_bare_verdict_is_told_apart(text: str, verdict: bool | None) -> None:
    assert bare_verdict(text) is verdict


def test_answer_files_round_trip_and_name_a_broken_line(tmp_path) -> None:
    answer = Answer("a", "greedy", None, False, False, "Ich weiß nicht\n", 3, 0.5, -0.25)
    path = tmp_path / "answers.jsonl"
    write_answers(path, [answer, answer])
    assert read_answers(path) == (answer, answer)
    path.write_text(path.read_text() + '{"item_id": "b"}\n')
    with pytest.raises(ResultError, match="line 3"):
        read_answers(path)
