"""Generated Avalon items: labels, balance, shortcuts, views, options and the rules exam."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_avalon import CAST, EVIL, SIZES, Naive, label, shown
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.pipeline import make_pipeline

from interp import load_items, open_source
from interp.items import item_to_record, items_sha256
from interp.sources.avalon.claims import holds, open_view
from interp.sources.avalon.rules import ROLES
from interp.sources.avalon.ruleset import RULESET
from interp.sources.avalon.scenario import scenario_from_json
from interp.sources.avalon.source import PROPORTIONS, shares
from interp.sources.avalon.worlds import assignment_table, private_keys

ABILITIES = tuple(PROPORTIONS)


def draw(spec: str = "avalon", n: int | None = None, seed: int = 0, view: str | None = None):
    return load_items(open_source(spec), n=n, seed=seed, view=view)


@pytest.fixture(scope="module")
def paper_sized():
    return draw(n=408, seed=1)


@pytest.fixture(scope="module", params=ABILITIES)
def many(request):
    return draw(f"avalon:abilities={request.param}", n=2000, seed=3)


def prompt(item) -> str:
    return item.messages[-1].content


# ---- labels -----------------------------------------------------------------------------------


def test_a_checker_that_reads_the_metadata_alone_agrees(paper_sized) -> None:
    records = [json.loads(json.dumps(item_to_record(item))) for item in paper_sized]
    # Worlds of ten players are slow to go through one by one: a sample of those.
    large = [r for r in records if r["metadata"]["scenario"]["lineup"] == "C"]
    chosen = [r for r in records if r not in large] + large[:24]
    assert {r["category"] for r in large[:24]} <= set(ABILITIES)
    for record in chosen:
        assert label(record["metadata"]) is record["label"], record["item_id"]


@pytest.mark.parametrize("ability", ["strategic_signaling", "tacit_coordination"])
def test_action_items_of_the_largest_game_agree_too(ability: str) -> None:
    items = draw(f"avalon:abilities={ability}", n=120, seed=8)
    large = [i for i in items if i.metadata["scenario"]["lineup"] == "C"][:8]
    assert len(large) == 8
    for item in large:
        assert label(item.metadata) is item.label


def test_the_checker_notices_a_changed_state(paper_sized) -> None:
    changed = 0
    for item in paper_sized[:60]:
        metadata = json.loads(json.dumps(item.metadata))
        scenario = metadata["scenario"]
        if scenario["lineup"] == "C":
            continue
        names = scenario["players"]
        shifted = [scenario["roles"][name] for name in (*names[1:], names[0])]
        scenario["roles"] = dict(zip(names, shifted, strict=True))
        try:
            changed += label(metadata) is not item.label
        except KeyError:
            changed += 1  # the actual world is not even possible any more
    assert changed > 10


def test_the_engine_reproduces_the_labels_from_json(many) -> None:
    for item in many[:200]:
        assert holds(item.metadata["claim"], scenario_from_json(item.metadata["scenario"])) is (
            item.label
        )


def test_the_designated_seat_alone_decides_what_it_knows(paper_sized) -> None:
    """A seat's label is the same in every world that the seat cannot tell from the actual one."""
    checked = 0
    for item in paper_sized:
        scenario, claim = item.metadata["scenario"], item.metadata["claim"]
        if scenario["lineup"] != "A" or claim["op"] != "knows":
            continue
        naive = Naive(scenario)
        assert claim["seat"] == scenario["pov"]
        for world in naive.cell(scenario["pov"], naive.actual)[:5]:
            assert naive.true(claim, world) is item.label
        checked += 1
    assert checked > 30


def test_the_point_of_view_decides_every_label(many) -> None:
    """Motives and cards too: roles that the seat cannot tell from the actual ones change none."""
    changed, labels = 0, Counter()
    for number, item in enumerate(many[:160]):
        state = scenario_from_json(item.metadata["scenario"])
        if state.pov is None:
            continue
        view, seat = open_view(state), state.players.index(state.pov)
        keys = private_keys(state, seat, view.history, view.rows)
        like = view.rows[keys == keys[view.rows == view.actual]]
        for row in np.random.default_rng(number).choice(like, min(4, len(like)), replace=False):
            roles = tuple(ROLES[code] for code in assignment_table(state.lineup).roles[row])
            # What is declared to others is not known to this seat either.
            told = {name: what for name, what in state.beliefs.items() if name == state.pov}
            other = replace(state, roles=roles, beliefs=told)
            assert holds(item.metadata["claim"], other) is item.label, item.item_id
            changed += roles != state.roles
            labels[holds({"op": "role", "seat": state.pov, "role": roles[seat]}, state)] += 1
    assert changed > 100
    assert labels[False] == 0  # its own role is the same in all of them


def test_no_seat_is_asked_about_whose_own_card_would_say_more(many) -> None:
    for item in many:
        scenario = item.metadata["scenario"]
        if item.metadata["template"].split("/")[0] in ("plays-fail", "plays-success", "left-open"):
            continue
        if item.metadata["claim"]["op"] not in ("knows", "possible"):
            continue
        pov = scenario["pov"]
        if scenario["roles"][pov] in EVIL:
            for event in scenario["history"]:
                assert not (
                    event["event"] == "quest" and event["fails"] and pov in event["team"]
                ), item.item_id


# ---- balance and shortcuts --------------------------------------------------------------------


def test_the_papers_proportions_and_half_true_in_each(paper_sized) -> None:
    assert Counter(item.category for item in paper_sized) == PROPORTIONS
    true = Counter(item.category for item in paper_sized if item.label)
    assert true == {name: count // 2 for name, count in PROPORTIONS.items()}


def test_every_scenario_has_true_and_false_statements_of_one_form(many) -> None:
    for _, group in groupby(many, key=lambda item: item.group_id):
        items = list(group)
        assert len(items) >= 2
        by_template = Counter((i.metadata["template"], i.label) for i in items)
        for template in {i.metadata["template"] for i in items}:
            assert by_template[template, True] == by_template[template, False]


def test_many_kinds_and_templates(many) -> None:
    kinds = Counter(item.metadata["template"].split("/")[0] for item in many)
    templates = {item.metadata["template"] for item in many}
    assert len(kinds) >= 9
    assert len(templates) >= 2 * len(kinds)
    assert {item.metadata["scenario"]["lineup"] for item in many} == set(CAST)


def test_neither_length_nor_template_gives_the_label_away(many) -> None:
    labels = np.array([item.label for item in many])
    for lengths in (
        [len(item.statement) for item in many],
        [len(item.statement.split()) for item in many],
        [len(prompt(item)) for item in many],
    ):
        assert abs(np.corrcoef(lengths, labels)[0, 1]) < 0.03
    by_template = Counter((item.metadata["template"], item.label) for item in many)
    for template, _ in by_template:
        assert by_template[template, True] == by_template[template, False]


def test_no_wording_is_true_more_often_than_false(many) -> None:
    balance: Counter[str] = Counter()
    for item in many:
        wording = item.statement
        for name in item.metadata["scenario"]["players"]:
            wording = re.sub(rf"\b{name}\b", "_", wording)
        balance[wording] += 1 if item.label else -1
    assert len(balance) > 20
    # A team is listed as one slot, so single imbalances of one are all that can be left.
    assert max(map(abs, balance.values())) <= 2


def wording_accuracy(items, statements) -> float:
    probe = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(C=10))
    labels = np.array([item.label for item in items])
    groups = [item.group_id for item in items]
    said = cross_val_predict(probe, statements, labels, groups=groups, cv=GroupKFold(5))
    return float((said == labels).mean())


def test_wording_alone_stays_near_chance_but_a_cue_would_be_found(many) -> None:
    statements = [item.statement for item in many]
    assert wording_accuracy(many, statements) <= 0.6
    leaky = [
        text + (" indeed" if i.label else "") for i, text in zip(many, statements, strict=True)
    ]
    assert wording_accuracy(many, leaky) > 0.95


def test_no_two_items_have_the_same_prompt_in_any_view() -> None:
    for view in ("full", "pov", "no-facts"):
        items = draw(n=700, seed=5, view=view)
        assert len({prompt(item) for item in items}) == 700


@given(n=st.integers(1, 120), seed=st.integers(0, 2**40))
@settings(max_examples=15)
def test_any_n_and_seed(n: int, seed: int) -> None:
    items = draw(n=n, seed=seed)
    assert len(items) == n
    for ability in ABILITIES:
        labels = [item.label for item in items if item.category == ability]
        assert abs(2 * sum(labels) - len(labels)) <= 1
    assert Counter(item.category for item in items) == Counter(
        {k: v for k, v in shares(n, ABILITIES).items() if v}
    )


def test_shares_follow_the_proportions() -> None:
    assert shares(408, ABILITIES) == PROPORTIONS
    assert shares(10_000, ABILITIES) == {
        "perspective_taking": 1667,
        "strategic_signaling": 3431,
        "intention_attribution": 1471,
        "tacit_coordination": 3431,
    }
    assert shares(3, ABILITIES[:1]) == {"perspective_taking": 3}


def bare(claim):
    """The claim with every "knows" and "possible" taken off: what a god's eye would judge."""
    if claim["op"] in ("knows", "possible", "at", "announce"):
        return bare(claim["of"])
    if claim["op"] in ("not", "and", "or"):
        inner = claim["of"]
        parts = [bare(part) for part in inner] if isinstance(inner, list) else bare(inner)
        return {"op": claim["op"], "of": parts}
    return claim


@pytest.mark.parametrize("ability", ABILITIES[:2])
def test_reading_the_complete_state_is_not_enough(ability: str) -> None:
    items = draw(f"avalon:abilities={ability}", n=600, seed=2)
    right = [
        holds(bare(i.metadata["claim"]), scenario_from_json(i.metadata["scenario"])) is i.label
        for i in items
    ]
    assert sum(right) / len(items) < 0.68


# ---- same seed, same bytes --------------------------------------------------------------------


def test_the_seed_decides_and_hashing_does_not() -> None:
    code = (
        "from interp import load_items, open_source; from interp.items import items_sha256;"
        "print(items_sha256(load_items(open_source('avalon'), n=60, seed=2)))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert found == {items_sha256(draw(n=60, seed=2))}
    assert found != {items_sha256(draw(n=60, seed=3))}


def test_items_are_what_they_were() -> None:
    # Raise `AvalonSource.version` whenever this changes: results depend on the items.
    assert items_sha256(draw(n=40, seed=0))[:16] == "3347ba78c37604a1"


# ---- prompts ----------------------------------------------------------------------------------


def test_the_ruleset_is_the_shared_prefix_and_holds_the_tables(paper_sized) -> None:
    assert {item.messages[0].content for item in paper_sized} == {RULESET}
    for lineup, sizes in SIZES.items():
        line = next(line for line in RULESET.splitlines() if f"Lineup {lineup}," in line)
        assert f"{len(CAST[lineup])} players" in line
        assert ", ".join(map(str, sizes)) in line
        assert all((role in line) is (role in CAST[lineup]) for role in CAST["C"])


def test_blocks_stand_in_the_published_order(paper_sized) -> None:
    for item in paper_sized[::20]:
        text = prompt(item)
        order = [text.index(mark) for mark in ("SETUP:", "WHAT HAS HAPPENED:", "STATEMENT:")]
        assert order == sorted(order)
        assert text.endswith("'ANSWER: True' or 'ANSWER: False'.")
        assert f"STATEMENT: {item.statement}\n\n" in text
        assert "GROUND TRUTH" not in text


def test_views_show_what_they_should() -> None:
    by_view = {view: draw(n=120, seed=4, view=view) for view in ("full", "pov", "no-facts")}
    for full, pov, bare in zip(*by_view.values(), strict=True):
        assert full.metadata == pov.metadata == bare.metadata
        scenario = full.metadata["scenario"]
        roles = "; ".join(
            f"{name} is {'a ' if role == 'Loyal Servant' else ''}{role}"
            for name, role in scenario["roles"].items()
        )
        assert roles in prompt(full)
        assert (roles in prompt(pov)) is (scenario["pov"] is None)
        assert "SETUP:" not in prompt(bare)
        assert prompt(bare).split("\n\n")[0] == prompt(full).split("\n\n")[1]


def test_the_point_of_view_gives_no_more_than_the_seat_is_entitled_to() -> None:
    for item in draw(n=200, seed=6, view="pov"):
        scenario = item.metadata["scenario"]
        pov, role_of = scenario["pov"], scenario["roles"]
        if pov is None:
            continue
        setup = prompt(item).split("WHAT HAS HAPPENED:")[0]
        mine = [f"{name} is " for name in role_of if name != pov]
        assert not any(f". {start}" in setup or f"\n{start}" in setup for start in mine)
        seen = [name for name in role_of if name != pov and shown(role_of[pov], role_of[name])]
        night = setup.split("At night ")[1].splitlines()[0]
        assert [name for name in scenario["players"] if name in night and name != pov] == seen
        others = [name for name in scenario["beliefs"] if name != pov]
        assert not any(f"{name} thinks" in setup for name in others)


def test_injection_adds_the_gold_line_right_before_the_statement_and_nothing_else() -> None:
    plain, told = draw(n=40, seed=1), draw("avalon:inject-truth", n=40, seed=1)
    for before, after in zip(plain, told, strict=True):
        line = f"GROUND TRUTH: The correct answer to the statement below is {before.label}.\n\n"
        assert f"{line}STATEMENT:" in prompt(after)
        assert prompt(after).replace(line, "") == prompt(before)
