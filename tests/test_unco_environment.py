"""The unreliable-colleague environment: agents, budget, interventions, odd replies."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interp.sources.unco.agents import SCRIPTED, gullible, hint_following, oracle, play
from interp.sources.unco.build import build_groups
from interp.sources.unco.environment import (
    MAX_ROUNDS,
    Action,
    Ask,
    Malformed,
    Observation,
    Submit,
    Wait,
    correct,
    read_number,
    start,
    step,
)
from interp.sources.unco.episodes import episode_record, recoveries
from interp.sources.unco.interventions import ARMS, hint_for
from interp.sources.unco.protocol import agent_messages, parse_action, transcript_text
from interp.sources.unco.replies import corrective_message, is_corrective, reply
from interp.sources.unco.report import recovery_rows, setting_rows
from interp.sources.unco.spec import number_to_json
from interp.sources.unco.tasks import Task

GROUPS = list(build_groups(112, 9))
TASKS = [task for group in GROUPS for task in group]


def _of(setting: str) -> list[Task]:
    return [task for task in TASKS if task.setting == setting]


def test_the_oracle_is_always_right_within_the_budget() -> None:
    for task in TASKS:
        state = play(task, oracle)
        assert correct(task, state.answer), task.task_id
        assert len(state.rounds) <= 2 < MAX_ROUNDS
        assert all(entry.recovered for entry in recoveries(state))


def test_the_gullible_agent_is_right_only_where_colleagues_are_reliable() -> None:
    for task in TASKS:
        state = play(task, gullible)
        assert correct(task, state.answer) == (task.setting == "reliable"), task.task_id


def test_hints_help_only_as_far_as_they_go() -> None:
    right = {
        (arm, setting): {correct(t, play(t, hint_following, arm).answer) for t in _of(setting)}
        for arm in ARMS
        for setting in ("misaligned", "incomplete", "missed", "mixed")
    }
    for (arm, setting), found in right.items():
        # A second contact, whatever it says, is the corrective action for a missed reply.
        expected = arm == "action" or (setting == "missed" and arm != "none")
        assert found == {expected}, (arm, setting)


def test_the_random_agent_repeats_itself_and_is_rarely_right() -> None:
    def run(seed: int) -> list[dict[str, Any]]:
        agent = SCRIPTED["random"](seed)
        return [episode_record(play(task, agent), "random", seed) for task in TASKS]

    first = run(1)
    assert first == run(1) != run(2)
    assert sum(record["correct"] for record in first) < len(first) / 4


def test_no_arm_names_a_candidate_or_a_value_or_the_answer() -> None:
    for task in TASKS:
        texts = [hint.text for arm in ARMS if (hint := hint_for(task, arm)) is not None]
        assert len(texts) == (0 if task.setting == "reliable" else 4)
        for shorter, longer in pairwise(texts):
            assert len(shorter) < len(longer)
        for text in texts:
            assert not [name for name in task.instance.spec.candidates if name in text]
            number = task.instance.gold.number
            if number is not None:
                assert f"{number_to_json(number):,}" not in text


def test_arms_leave_everything_but_the_hint_alone() -> None:
    task = _of("mixed")[0]
    seen: dict[str, Observation] = {}
    for arm in ARMS:
        state = step(start(task, arm), gullible(start(task, arm).observation()))
        seen[arm] = state.observation()
        assert start(task, arm).observation().hint is None  # nothing is told in advance
    plain = seen["none"]
    for arm in ARMS[1:]:
        other = seen[arm]
        assert other.hint is not None
        assert (other.prompt, other.rounds, other.rounds_left) == (
            plain.prompt,
            plain.rounds,
            plain.rounds_left,
        )


def test_a_follow_up_must_be_aimed() -> None:
    for task in TASKS:
        for defect in task.defects:
            assert is_corrective(task.instance, defect, corrective_message(task.instance, defect))
            aimed = is_corrective(task.instance, defect, "Could you check your reply once more?")
            assert aimed == (defect.kind == "missed")
        other = [d for d in task.defects if d.kind == "misaligned"]
        for defect in other:
            fact = task.instance.spec.fact(defect.fact or "")
            # Naming the wrong context, or another fact of the role, does not help.
            assert not is_corrective(task.instance, defect, f"And {fact.other_context}?")
            for held in task.instance.spec.facts_of(defect.role):
                if held.key != fact.key:
                    message = f"Please send the {held.label} for {fact.context}."
                    assert not is_corrective(task.instance, defect, message)


def test_a_role_answers_from_its_records_for_whom_and_what_it_is_asked() -> None:
    task = _of("reliable")[0]
    spec, instance = task.instance.spec, task.instance
    role = spec.roles[0]
    fact = spec.facts_of(role)[0]
    name = spec.candidates[1]
    narrow = reply(task, role, f"{fact.label} of {name}?", [])
    assert narrow is not None
    assert [(e.candidate, e.fact, e.value) for e in narrow.evidence] == [
        (name, fact.key, instance.values[name][fact.key])
    ]
    elsewhere = reply(task, role, f"{fact.label} of {name}: {fact.other_context}?", [])
    assert elsewhere is not None
    assert elsewhere.evidence[0].value == instance.others[name][fact.key]
    assert elsewhere.evidence[0].context == fact.other_context
    everything = reply(task, role, "What do you hold?", [])
    assert everything is not None
    assert len(everything.evidence) == 3 * len(spec.facts_of(role))


def test_a_missed_reply_comes_at_the_second_contact_and_waiting_brings_nothing() -> None:
    task = _of("missed")[0]
    (defect,) = task.defects
    state = step(start(task), Ask(((defect.role, "Your data, please."),)))
    assert state.rounds[-1].silent == (defect.role,)
    waited = step(state, Wait())
    assert waited.rounds[-1].replies == () and waited.counts["waits"] == 1
    asked = step(waited, Ask(((defect.role, "Again, please."),)))
    assert [answer.role for answer in asked.rounds[-1].replies] == [defect.role]


def _number(task: Task) -> Any:
    number = task.instance.gold.number
    return None if number is None else number_to_json(number)


@pytest.mark.parametrize("setting", ["reliable", "mixed"])
def test_odd_agents_are_counted_and_never_crash(setting: str) -> None:
    task = next(t for t in _of(setting) if t.instance.gold.decision == "select")
    gold = task.instance.gold

    def script(*actions: Action) -> dict[str, Any]:
        left = list(actions)
        state = play(task, lambda _: left.pop(0) if left else Wait())
        return episode_record(state, "odd", 0)

    never = script()
    assert (never["ended"], never["correct"], never["rounds"]) == ("no_answer", False, MAX_ROUNDS)
    assert never["counts"]["waits"] == MAX_ROUNDS
    junk = script(*[Malformed("blah", "no JSON object was found")] * 20)
    assert junk["counts"]["malformed"] == MAX_ROUNDS + 1 and junk["ended"] == "no_answer"
    stranger = script(Ask((("janitor", "hello"), (task.instance.spec.roles[0], "hello"))))
    assert stranger["counts"]["unknown_roles"] == 1
    assert stranger["trace"][0]["unknown"] == ["janitor"]
    assert len(stranger["trace"][0]["replies"]) + len(stranger["trace"][0]["silent"]) == 1
    twice = script(Submit(gold.candidate, _number(task), answers=2))
    assert twice["counts"]["double_answers"] == 1 and twice["correct"]
    nobody = script(Submit("Nobody Inc", 3), Submit(gold.candidate, "many"))
    assert nobody["counts"]["malformed"] == 2
    shouted = script(Submit(f" {str(gold.candidate).upper()} ", f" {_number(task):,} "))
    assert shouted["correct"]
    off = script(Submit(gold.candidate, float(_number(task)) + 0.02))
    assert not off["correct"]
    state = play(task, lambda _: Submit(gold.candidate, _number(task)))
    assert step(state, Submit(None, None)) is state  # an ended episode stays as it is


def test_a_late_question_ends_the_episode() -> None:
    task = _of("reliable")[0]
    state = start(task, max_rounds=1)
    state = step(state, Wait())
    assert state.observation().rounds_left == 0 and not state.ended
    assert step(state, Wait()).ended == "no_answer"
    assert step(state, Submit(None, None)).ended == "submitted"


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
    for odd in (True, None, "nan", "1e999999", "twelve", [1]):
        assert read_number(odd) is None


def test_a_model_reads_all_that_happened_and_how_to_act() -> None:
    task = _of("mixed")[0]
    state = step(start(task, "action"), gullible(start(task).observation()))
    text = agent_messages(state.observation())[-1].content
    assert text.startswith(task.prompt)
    assert transcript_text(state.rounds) in text
    for defect in task.defects:
        assert corrective_message(task.instance, defect) in text
    for answer in state.rounds[0].replies:
        for said in answer.evidence:
            assert said.candidate in answer.text


def test_the_report_by_hand() -> None:
    picked = [task for group in GROUPS[:4] for task in group]
    episodes = [episode_record(play(task, gullible), "gullible", 0) for task in picked]
    spoilt = next(e for e in episodes if e["setting"] == "reliable")
    spoilt["correct"] = False  # one reliable task wrong: 3 of 4 are left to be kept
    rows = {row.setting: row for row in setting_rows(episodes, seed=0)}
    assert rows["reliable"].accuracy.value == 0.75 and rows["reliable"].drop is None
    for setting in ("misaligned", "incomplete", "missed", "mixed"):
        drop = rows[setting].drop
        assert drop is not None and drop.value == 0.75
        assert (rows[setting].kept, rows[setting].n_pairs) == (0.0, 4)
        assert rows[setting].mean_rounds == 1.0
    (missed,) = [row for row in recovery_rows(episodes) if row.setting == "missed"]
    assert (missed.n, missed.met, missed.none, missed.recovered) == (4, 4, 4, 0)

    helped = [episode_record(play(task, hint_following, "location"), "hint", 0) for task in picked]
    by_kind = {row.kind: row for row in recovery_rows(helped) if row.setting != "mixed"}
    assert (by_kind["misaligned"].unclassified, by_kind["misaligned"].recovered) == (4, 0)
    assert (by_kind["missed"].targeted, by_kind["missed"].correct_after_recovery) == (4, 4)
