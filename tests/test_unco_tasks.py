"""Unreliable-colleague tasks: every answer, every defect and every rule, checked from outside."""

from __future__ import annotations

import itertools
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any, get_args

import naive_unco as naive
import pytest

from interp.errors import SourceError
from interp.sources.unco.author import author_with_llm, llm_author, write_specification
from interp.sources.unco.build import Ledger, build_groups
from interp.sources.unco.defects import SETTINGS, defect_violation
from interp.sources.unco.instantiate import logical_violation
from interp.sources.unco.llm import llm_renderer, lost_facts
from interp.sources.unco.operations import apply_rule, round_half_up
from interp.sources.unco.render import render_prompt
from interp.sources.unco.replies import recovery_violation
from interp.sources.unco.spec import (
    Condition,
    Operation,
    Rule,
    Specification,
    number_to_json,
    specification_to_json,
)
from interp.sources.unco.tasks import Task, read_tasks, task_from_json, task_to_json
from interp.sources.unco.validate import RULES, violations
from interp.sources.unco.vocabulary import domains

Group = tuple[Task, ...]


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    return list(build_groups(112 * 3, 5))


def line(task: Task) -> dict[str, Any]:
    return json.loads(json.dumps(task_to_json(task)))  # type: ignore[no-any-return]


def test_all_domains_meet_all_operations(groups: list[Group]) -> None:
    pairs = Counter((g[0].instance.spec.domain, g[0].instance.spec.rule.operation) for g in groups)
    assert len(domains()) >= 14
    assert set(pairs) == {(d.key, op) for d in domains() for op in get_args(Operation)}
    assert set(pairs.values()) == {3}


def test_an_independent_solver_finds_every_gold_and_no_second_solution(
    groups: list[Group],
) -> None:
    for group in groups:
        task = line(group[0])
        assert naive.solutions(task, naive.records(task)) == [task["gold"]]
    assert 0.1 < statistics.mean(g[0].instance.gold.decision == "none" for g in groups) < 0.35


def test_the_settings_of_a_group_share_problem_and_gold(groups: list[Group]) -> None:
    for group in groups:
        assert tuple(task.setting for task in group) == SETTINGS
        lines = [line(task) for task in group]
        for entry in lines:
            entry.pop("setting"), entry.pop("defects")
        assert all(entry == lines[0] for entry in lines)
        kinds = [tuple(d.kind for d in task.defects) for task in group]
        single = [("misaligned",), ("incomplete",), ("missed",)]
        assert kinds == [(), *single, ("misaligned", "incomplete", "missed")]


def test_necessary_roles_are_those_that_brute_force_finds(groups: list[Group]) -> None:
    for group in groups[::6]:
        task = line(group[0])
        titles = [role["role"] for role in task["roles"]]
        open_without = [role for role in titles if not naive.determined(task, role)]
        assert open_without == task["necessary_roles"]
        if task["gold"]["decision"] == "select":
            assert open_without == titles


def test_every_defect_changes_the_answer_at_face_value(groups: list[Group]) -> None:
    for group in groups:
        for task in group:
            said = naive.at_face_value(line(task))
            gold = line(task)["gold"]
            assert (said[0] == gold) == (task.setting == "reliable")


def test_a_range_holds_the_truth_and_leaves_the_answer_open(groups: list[Group]) -> None:
    for group in groups:
        task = line(group[2])
        (defect,) = task["defects"]
        true = naive.records(task)[defect["candidate"]][defect["fact"]]
        assert defect["reported_low"] <= true <= defect["reported_high"]
        answers = []
        for end in ("reported_low", "reported_high"):
            values = naive.records(task)
            values[defect["candidate"]][defect["fact"]] = defect[end]
            answers.append(naive.solutions(task, values))
        assert answers[0] != answers[1]


def test_every_defect_is_put_right_by_its_own_action_only(groups: list[Group]) -> None:
    assert all(recovery_violation(task) is None for group in groups for task in group)


def test_checks_of_defects_catch_what_is_not_one(groups: list[Group]) -> None:
    instance = groups[0][0].instance
    misaligned, incomplete, missed = groups[0][4].defects
    true = instance.values[misaligned.candidate or ""][misaligned.fact or ""]
    cases = {
        "at face value the answer is right": replace(misaligned, reported=true),
        "not hold the true value": replace(
            incomplete,
            reported_low=(high := int(incomplete.reported_high or 0)) + 1,
            reported_high=high + 2,
        ),
    }
    for expected, defect in cases.items():
        found = defect_violation(instance, (defect,))
        assert found is not None
        if "true value" not in expected:
            assert expected in found
    assert "one role" in str(defect_violation(instance, (missed, replace(missed))))


def test_a_seed_gives_the_same_bytes_and_a_longer_build_begins_with_a_shorter() -> None:
    def text(n: int, seed: int) -> list[str]:
        return [json.dumps(task_to_json(t)) for g in build_groups(n, seed) for t in g]

    assert text(20, 3) == text(20, 3)
    assert text(20, 3)[:50] == text(10, 3)
    assert text(10, 3) != text(10, 4)


def test_the_ledger_adds_up() -> None:
    book = Ledger()
    n = len(list(build_groups(60, 1, ledger=book)))
    assert (n, book.retained) == (60, 60)
    assert book.candidates == 60 + sum(book.rejected.values())
    assert sum(book.rejected.values()) > 0


def test_prompts_of_a_cell_differ_and_state_everything() -> None:
    found = defaultdict(list)
    for group in build_groups(112 * 4, 2):
        spec = group[0].instance.spec
        assert lost_facts(group[0].instance, group[0].prompt) == ()
        words = group[0].prompt.lower().split()
        found[spec.domain, spec.rule.operation].append(
            {tuple(words[i : i + 5]) for i in range(len(words) - 4)}
        )
    medians = [
        statistics.median(len(a & b) / len(a | b) for a, b in itertools.combinations(cell, 2))
        for cell in found.values()
    ]
    assert len(medians) == 112
    assert max(medians) <= 0.2


@pytest.mark.parametrize(
    ("operation", "weights", "values", "expected"),
    [
        ("sum", (), (1, 2, 4), "7"),
        ("difference", (), (3, 10), "-7"),
        ("product", (), (12, 35), "420"),
        ("quotient", (), (100, 3), "33.33"),
        ("quotient", (), (1, 8), "0.13"),  # 0.125: a tie goes up
        ("weighted_sum", (35, 65), (101, 203), "167.3"),
        ("percentage", (), (1, 3), "33.33"),
        ("mean", (), (1, 2, 5), "2.67"),
        ("maximum", (), (4, 9, 2), "9"),
    ],
)
def test_operations_by_hand(
    operation: Operation, weights: tuple[int, ...], values: tuple[int, ...], expected: str
) -> None:
    keys = tuple(f"n{i}" for i in range(len(values)))
    assert apply_rule(Rule(operation, keys, weights, "EUR"), values) == Fraction(expected)


def test_a_negative_tie_goes_up_too() -> None:
    assert round_half_up(Fraction(-1, 8)) == Fraction("-0.12")


def sound() -> Specification:
    spec = write_specification(Random(11), domains()[0], "weighted_sum")
    assert violations(spec) == ()
    return spec


def _fact(spec: Specification, index: int, **changes: Any) -> Specification:
    facts = list(spec.facts)
    facts[index] = replace(facts[index], **changes)
    return replace(spec, facts=tuple(facts))


def _rule(spec: Specification, **changes: Any) -> Specification:
    return replace(spec, rule=replace(spec.rule, **changes))


def _percentage_of_nothing(spec: Specification) -> Specification:
    index = next(i for i, f in enumerate(spec.facts) if f.key == spec.rule.operands[1])
    ruled = _rule(spec, operation="percentage", weights=(), unit="per cent")
    return _fact(ruled, index, low=0)


def _one_role(spec: Specification) -> Specification:
    keys = {c.fact for c in spec.conditions}
    facts = tuple(replace(f, role=spec.roles[0]) if f.key in keys else f for f in spec.facts)
    return replace(spec, facts=facts)


def _one_operand_role(spec: Specification) -> Specification:
    facts = tuple(
        replace(f, role=spec.roles[0]) if f.key in spec.rule.operands else f for f in spec.facts
    )
    return replace(spec, facts=facts)


BREAKS: dict[str, Callable[[Specification], Specification]] = {
    "candidates": lambda s: replace(s, candidates=s.candidates[:2]),
    "roles": lambda s: replace(s, roles=s.roles[:4]),
    "idle_role": lambda s: replace(s, roles=(*s.roles[:6], "night porter")),
    "conditions": lambda s: replace(s, conditions=s.conditions[:4]),
    "condition_roles": _one_role,
    "condition_fact": lambda s: replace(
        s, conditions=(*s.conditions[:-1], replace(s.conditions[-1], fact="f99"))
    ),
    "condition_value": lambda s: replace(
        s, conditions=(replace(s.conditions[0], test="equals", value="perhaps"), *s.conditions[1:])
    ),
    "facts": lambda s: _fact(s, 1, label=s.facts[0].label),
    "fact_role": lambda s: _fact(s, 0, role="night porter"),
    "fact_values": lambda s: _fact(s, -1, high=s.facts[-1].low),
    "contexts": lambda s: _fact(s, 0, other_context=s.facts[0].context),
    "operands": lambda s: _rule(s, operands=(s.rule.operands[0],) * 2),
    "operand_roles": _one_operand_role,
    "weights": lambda s: _rule(s, weights=(40, 50)),
    "units": lambda s: _rule(s, unit="bananas"),
    "divisor": _percentage_of_nothing,
}


def test_every_rule_has_a_specification_that_breaks_it() -> None:
    assert set(BREAKS) == set(RULES)


@pytest.mark.parametrize("code", sorted(RULES))
def test_a_broken_rule_is_named(code: str) -> None:
    found = violations(BREAKS[code](sound()))
    assert code in [violation.code for violation in found]
    named = next(violation for violation in found if violation.code == code)
    assert RULES[code] in str(named) and named.detail in str(named)


def test_an_llm_author_gets_one_repair(groups: list[Group]) -> None:
    spec = sound()
    good = json.dumps(specification_to_json(spec))
    bad = json.dumps(specification_to_json(BREAKS["units"](spec)))
    asked: list[str] = []

    def author(*replies: str) -> Callable[[str], str]:
        left = iter(replies)

        def write(prompt: str) -> str:
            asked.append(prompt)
            return next(left)

        return write

    assert author_with_llm(author(f"Here it is:\n{good}"), "Write one.")[0] == spec
    assert author_with_llm(author(bad, good), "Write one.")[0] == spec
    assert "bananas" in asked[-1] and "units" in asked[-1]
    refused, problems = author_with_llm(author(bad, "no idea", good), "Write one.")
    assert refused is None and "not a JSON object" in str(problems[0])
    lacking = json.dumps({k: v for k, v in json.loads(good).items() if k != "rule"})
    assert "rule" in str(author_with_llm(author(lacking, lacking), "Write one.")[1][0])
    del groups


def test_an_llm_renderer_is_kept_only_if_nothing_is_lost(groups: list[Group]) -> None:
    instance = groups[1][0].instance
    gold = json.dumps({"answer": {k: instance.gold.to_json()[k] for k in ("candidate", "number")}})
    wrong = '{"answer": {"candidate": null, "number": null}}'
    if instance.gold.candidate is None:
        wrong = json.dumps({"answer": {"candidate": instance.spec.candidates[0], "number": 1}})

    def shortened(prompt: str) -> str:
        return prompt.partition("\n\n")[2].replace(instance.spec.candidates[0], "the first one")

    def faithful(prompt: str) -> str:
        return "Dear colleague, " + prompt.partition("\n\n")[2]

    seen: list[str] = []

    def validator(*replies: str) -> Callable[[str], str]:
        left = iter(replies)

        def check(prompt: str) -> str:
            seen.append(prompt)
            return next(left)

        return check

    kept = llm_renderer(faithful, validator(gold, gold, gold))(instance, Random(0))
    assert kept is not None and kept.startswith("Dear colleague, ")
    assert len(set(seen)) == 3  # the evidence is shuffled anew each time
    assert llm_renderer(shortened, validator(gold, gold, gold))(instance, Random(0)) is None
    assert llm_renderer(faithful, validator(gold, wrong, gold))(instance, Random(0)) is None
    assert llm_renderer(faithful, validator("?", gold, gold))(instance, Random(0)) is None


def test_facts_are_looked_for_as_whole_words_and_the_answer_must_stay_out(
    groups: list[Group],
) -> None:
    group = next(g for g in groups if g[0].instance.gold.number is not None)
    instance, prompt = group[0].instance, group[0].prompt
    assert lost_facts(instance, prompt) == ()
    told = f"{prompt} (It is {number_to_json(instance.gold.number or Fraction(0)):,}.)"
    assert lost_facts(instance, told) == ("nothing of the answer",)
    condition = next(c for c in instance.spec.conditions if isinstance(c.value, int))
    value = f"{condition.value:,} "
    assert lost_facts(instance, prompt.replace(value, f"9{value}")) != ()


def test_an_llm_author_can_fill_a_build() -> None:
    asked: list[str] = []

    def llm(prompt: str) -> str:
        asked.append(prompt)
        # The example of the prompt, first with an unknown unit, then as it stands.
        example = next(line for line in prompt.splitlines() if line.startswith("{"))
        return example if "It was refused" in prompt else example.replace('"weights"', '"weight"')

    book = Ledger()
    built = list(build_groups(3, 8, author=llm_author(llm), ledger=book))
    assert len(built) == 3 and len(asked) == 2 * book.candidates
    for group in built:
        task = line(group[0])
        assert naive.solutions(task, naive.records(task)) == [task["gold"]]


def test_tasks_survive_their_json_line(groups: list[Group], tmp_path: Path) -> None:
    for group in groups[:20]:
        for task in group:
            assert task_from_json(line(task)) == task
    path = tmp_path / "tasks.jsonl"
    entry = line(groups[0][1])
    for broken, said in (
        ({k: v for k, v in entry.items() if k != "gold"}, "'gold'"),
        (entry | {"setting": "hostile"}, "hostile"),
        (entry | {"roles": entry["roles"][:-1]}, "No record gives"),
        (entry | {"rule": entry["rule"] | {"operation": "median"}}, "median"),
        (entry | {"rule": entry["rule"] | {"operands": []}}, "breaks a rule"),
        (entry | {"gold": {"decision": "none", "candidate": None, "number": 7}}, "wrong"),
        (entry | {"defects": [entry["defects"][0] | {"role": "night porter"}]}, "night porter"),
        (entry | {"defects": [entry["defects"][0] | {"reported": None}]}, "does not say"),
        (entry, "twice"),
    ):
        path.write_text(json.dumps(entry) + "\n" + json.dumps(broken) + "\n")
        with pytest.raises(SourceError, match="line 2") as caught:
            read_tasks(path)
        assert said in str(caught.value)


def test_a_wrong_gold_is_noticed(groups: list[Group]) -> None:
    instance = groups[0][0].instance
    assert logical_violation(instance) is None
    other = replace(instance.gold, number=Fraction(1), candidate=instance.spec.candidates[0])
    assert logical_violation(replace(instance, gold=replace(other, decision="select"))) is not None


def test_dates_are_met_on_the_day_itself() -> None:
    by = Condition("c", "f", "by", "2026-08-01")
    assert by.met("2026-08-01") and by.met("2025-12-31") and not by.met("2026-08-02")


def test_wordings_vary_with_the_seed() -> None:
    spec = sound()
    assert len({render_prompt(spec, Random(i)) for i in range(20)}) == 20
