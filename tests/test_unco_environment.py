"""The unreliable-colleague environment: agents, budget, interventions, odd actions, report."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from unco_games import GROUPS, TASKS, tasks_of

from interp.errors import ResultError
from interp.sources.unco.agents import SCRIPTED, gullible, hint_following, oracle, play
from interp.sources.unco.environment import (
    MAX_ROUNDS,
    Action,
    Ask,
    Malformed,
    Observation,
    Submit,
    Wait,
    correct,
    start,
    step,
)
from interp.sources.unco.episodes import episode_record, recoveries
from interp.sources.unco.interventions import ARMS, hint_for
from interp.sources.unco.replies import corrective_message, is_corrective, reply
from interp.sources.unco.report import recovery_rows, setting_rows
from interp.sources.unco.spec import number_to_json
from interp.sources.unco.tasks import Task


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
        (arm, setting): {correct(t, play(t, hint_following, arm).answer) for t in tasks_of(setting)}
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
        hints = [hint_for(task, arm, task.defects) for arm in ARMS]
        texts = [hint.text for hint in hints if hint is not None]
        assert len(texts) == (0 if task.setting == "reliable" else 4)
        for shorter, longer in pairwise(texts):
            assert len(shorter) < len(longer)
        for text in texts:
            assert not [name for name in task.instance.spec.candidates if name in text]
            number = task.instance.gold.number
            if number is not None:
                assert f"{number_to_json(number):,}" not in text


def test_arms_leave_everything_but_the_hint_alone() -> None:
    task = tasks_of("mixed")[0]
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
    task = tasks_of("reliable")[0]
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
    task = tasks_of("missed")[0]
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
    task = next(t for t in tasks_of(setting) if t.instance.gold.decision == "select")
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
    nothing = script(Submit(None, 123))
    assert nothing["ended"] == "submitted" and not nothing["correct"]
    off = script(Submit(gold.candidate, float(_number(task)) + 0.02))
    assert not off["correct"]
    state = play(task, lambda _: Submit(gold.candidate, _number(task)))
    assert step(state, Submit(None, None)) is state  # an ended episode stays as it is


def test_a_late_question_ends_the_episode() -> None:
    task = tasks_of("reliable")[0]
    state = start(task, max_rounds=1)
    state = step(state, Wait())
    assert state.observation().rounds_left == 0 and not state.ended
    assert step(state, Wait()).ended == "no_answer"
    assert step(state, Submit(None, None)).ended == "submitted"


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
        kept = rows[setting].kept
        assert kept is not None and (kept.value, rows[setting].n_pairs) == (0.0, 4)
        assert rows[setting].mean_rounds == 1.0
    (missed,) = [row for row in recovery_rows(episodes) if row.setting == "missed"]
    assert (missed.n, missed.met, missed.none, missed.recovered) == (4, 4, 4, 0)

    helped = [episode_record(play(task, hint_following, "location"), "hint", 0) for task in picked]
    by_kind = {row.kind: row for row in recovery_rows(helped) if row.setting != "mixed"}
    assert (by_kind["misaligned"].unclassified, by_kind["misaligned"].recovered) == (4, 0)
    assert (by_kind["missed"].targeted, by_kind["missed"].correct_after_recovery) == (4, 4)


def test_an_answer_of_none_with_a_number_is_wrong() -> None:
    task = next(t for t in TASKS if t.instance.gold.decision == "none")
    for number, right in ((None, True), (123, False)):
        state = step(start(task), Submit(None, number))
        assert state.ended == "submitted" and correct(task, state.answer) == right
    assert correct(task, step(start(task), Submit(" None ", None)).answer)


def test_hints_speak_of_what_has_shown_and_is_not_put_right() -> None:
    task = tasks_of("mixed")[0]
    first, second, missed = task.defects
    state = step(start(task, "action"), Ask(((first.role, "Your data?"),)))
    hint = state.observation().hint
    assert hint is not None and hint.roles == (first.role,)
    assert f"the {missed.role}" not in hint.text
    state = step(state, Ask(hint.messages))
    assert state.observation().hint is None  # put right
    state = step(state, Ask(((missed.role, "Your data?"), (second.role, "Your data?"))))
    hint = state.observation().hint
    assert hint is not None and set(hint.roles) == {missed.role, second.role}


def test_a_reply_that_does_not_touch_the_defect_shows_nothing_of_it() -> None:
    for task in tasks_of("misaligned"):
        (defect,) = task.defects
        spec = task.instance.spec
        other = next(name for name in spec.candidates if name != defect.candidate)
        fact = spec.fact(defect.fact or "")
        state = step(start(task, "action"), Ask(((defect.role, f"{fact.label} of {other}?"),)))
        assert state.observation().hint is None
        assert not recoveries(state)[0].met
        # A first question in the right words comes before the defect: it still bites once.
        message = f"{fact.label} of everyone, {fact.context}?"
        state = step(state, Ask(((defect.role, message),)))
        entry = recoveries(state)[0]
        assert (entry.met, entry.follow_up, entry.recovered) == (True, "none", False)
        # A follow-up about somebody else does not help; the same one about the right one does.
        aside = step(state, Ask(((defect.role, f"{other}, {fact.context}?"),)))
        assert recoveries(aside)[0].follow_up == "unclassified"
        aimed = step(aside, Ask(((defect.role, f"{defect.candidate}, {fact.context}?"),)))
        assert recoveries(aimed)[0].recovered


def test_a_random_agent_does_not_remember() -> None:
    agent, fresh = SCRIPTED["random"](3), SCRIPTED["random"](3)
    for task in TASKS[:10]:
        agent(start(task).observation())
    assert agent(start(TASKS[11]).observation()) == fresh(start(TASKS[11]).observation())


def test_runs_that_differ_are_not_paired() -> None:
    tasks = GROUPS[0]
    one = episode_record(play(tasks[0], oracle), "oracle", 0)
    for other in (
        episode_record(play(tasks[4], oracle, max_rounds=1), "oracle", 0),
        episode_record(play(tasks[4], oracle), "oracle", 0, opening=True),
        episode_record(play(tasks[4], oracle), "oracle", 0) | {"group_sha256": "other"},
    ):
        with pytest.raises(ResultError, match="differ"):
            setting_rows([one, other], seed=0)
