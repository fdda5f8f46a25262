"""The unreliable-colleague environment: what is read out of replies, and what is said back."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unco_games import TASKS, tasks_of

from interp.sources.unco.agents import gullible, play
from interp.sources.unco.environment import (
    Action,
    Ask,
    Malformed,
    Submit,
    Wait,
    read_number,
    start,
    step,
)
from interp.sources.unco.episodes import episode_record
from interp.sources.unco.llm import llm_responder
from interp.sources.unco.protocol import agent_messages, parse_action, transcript_text
from interp.sources.unco.replies import corrective_message, is_corrective, reply


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"wait": true}', Wait()),
        ('I ask: {"ask": {"bursar": "Costs?"}} thanks', Ask((("bursar", "Costs?"),))),
        ('{"answer": {"candidate": null, "number": null}}', Submit(None, None)),
        ('```json\n{"answer": {"candidate": "A", "number": "1,200"}}\n```', Submit("A", "1,200")),
        (
            '{"answer": {"candidate": "A", "number": 1}} '
            '{"answer": {"candidate": "B", "number": 2}}',
            Submit("A", 1, answers=2),
        ),
        ('{"ask": {}} {"wait": true}', Wait()),
    ],
)
def test_replies_are_read_as_actions(text: str, expected: Action) -> None:
    assert parse_action(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "I am done.",
        '{"ask": "bursar"}',
        '{"answer": 3}',
        '{"ask": {"a": 1}}',
        '{"wait": 1',
        "{}",
    ],
)
def test_other_replies_are_malformed(text: str) -> None:
    assert isinstance(parse_action(text), Malformed)


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_reading_a_reply_never_raises(text: str) -> None:
    parse_action(text)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists, max_leaves=5))
@settings(max_examples=200, deadline=None)
def test_an_answer_of_any_kind_is_understood_or_counted(number: Any) -> None:
    task = TASKS[0]
    text = json.dumps({"answer": {"candidate": task.instance.spec.candidates[0], "number": number}})
    state = step(start(task), parse_action(text))
    assert state.ended == "submitted" or state.counts["malformed"] == 1


def test_numbers_are_read_exactly() -> None:
    assert read_number("1,234.50") == Fraction("1234.5")
    assert read_number(0.1) == Fraction(1, 10)
    assert read_number("1e3") == 1000
    for odd in (True, None, "nan", "1e999999", "twelve", [1], 10**5000):
        assert read_number(odd) is None


def test_a_model_reads_all_that_happened_and_how_to_act() -> None:
    task = tasks_of("mixed")[0]
    state = step(start(task, "action"), gullible(start(task).observation()))
    text = agent_messages(state.observation())[-1].content
    assert text.startswith(task.prompt)
    assert transcript_text(state.rounds) in text
    for defect in task.defects:
        assert corrective_message(task.instance, defect) in text
    for answer in state.rounds[0].replies:
        for said in answer.evidence:
            assert said.candidate in answer.text


def test_roles_are_known_by_their_article_too() -> None:
    task = TASKS[0]
    role = task.instance.spec.roles[0]
    state = step(start(task), Ask(((f" The {role.upper()} ", "Your data?"),)))
    assert state.counts["unknown_roles"] == 0 and state.counts["messages"] == 1


def test_a_title_is_no_request_for_exactness() -> None:
    task = tasks_of("incomplete")[0]
    (defect,) = task.defects
    assert not is_corrective(task.instance, defect, "Dear range safety officer, once more please.")


def test_replies_with_huge_numbers_or_odd_characters_are_survived() -> None:
    huge = '{"answer": {"candidate": null, "number": ' + "9" * 5000 + "}}"
    assert isinstance(parse_action(huge), Malformed)
    odd = parse_action('{"ask": {"\\ud800\\u2028": "x\\u2028y"}}')
    state = play(TASKS[0], lambda seen: Wait() if seen.rounds else odd)
    line = json.dumps(episode_record(state, "odd", 0))
    assert "\n" not in line and line.encode()  # one line, and it can be written


def test_words_of_an_llm_are_kept_only_if_they_say_the_same() -> None:
    task = tasks_of("incomplete")[0]
    role = task.defects[0].role

    def polite(prompt: str) -> str:
        return "Gladly! " + prompt.rsplit("\n", 1)[1]

    said = llm_responder(polite)(task, role, "Your data?", [])
    program = reply(task, role, "Your data?", [])
    assert said is not None and program is not None
    assert said.text == "Gladly! " + program.text and said.evidence == program.evidence
    assert llm_responder(lambda _: "All is fine.")(task, role, "Your data?", []) == program
    silent = tasks_of("missed")[0]
    assert llm_responder(polite)(silent, silent.defects[0].role, "Your data?", []) is None
    state = step(start(task), Ask(((role, "Your data?"),)), llm_responder(polite))
    assert state.rounds[0].replies[0].text.startswith("Gladly!")
