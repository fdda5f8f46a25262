"""Statements about the evidence: labels from outside, balance, and no shortcut."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import naive_unco as naive
import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, cross_val_score
from sklearn.pipeline import make_pipeline

from interp.errors import SourceError
from interp.items import Item
from interp.registry import load_items, open_source
from interp.sources.unco.statements import TYPES

N = 6000


@pytest.fixture(scope="module")
def items() -> tuple[Item, ...]:
    return load_items(open_source("unco"), view=None, n=N, seed=4)


def _label(item: Item) -> bool:
    """The label, from the claim and the evidence alone."""
    claim, scenario = item.metadata["claim"], item.metadata["scenario"]
    facts = {fact["key"]: fact for fact in scenario["facts"]}
    conditions = {c["fact"]: c for c in scenario["conditions"]}
    if claim["type"] == "missing":
        return _missing(scenario, facts) == claim["states_missing"]
    said = [
        e
        for e in scenario["evidence"]
        if (e["candidate"], e["fact"]) == (claim["candidate"], claim["fact"])
    ][-1]
    if said["context"] != facts[said["fact"]]["context"]:
        return False
    if claim["type"] == "answers" or said["value"] is not None:
        return True
    condition = conditions.get(said["fact"])
    if condition is None:
        return False
    return naive.met(condition, said["low"]) == naive.met(condition, said["high"])


def _missing(scenario: dict[str, Any], facts: dict[str, Any]) -> bool:
    """Whether two completions of what is not known give different answers, counted naively."""
    known: dict[tuple[str, str], list[Any]] = {}
    for e in scenario["evidence"]:
        if e["context"] == facts[e["fact"]]["context"]:
            values = [e["value"]] if e["value"] is not None else [e["low"], e["high"]]
            known[e["candidate"], e["fact"]] = values
    task = scenario
    state = {}
    for name in scenario["candidates"]:
        tests = []
        for condition in scenario["conditions"]:
            key = condition["fact"]
            values = known.get((name, key), naive.extremes(task, facts[key]))
            tests.append({naive.met(condition, value) for value in values})
        state[name] = (all(True in t for t in tests), any(False in t for t in tests))
    outcomes = 0
    if all(can_fail for _, can_fail in state.values()):
        outcomes += 1
    for name, (can_pass, _) in state.items():
        others = [can_fail for other, (_, can_fail) in state.items() if other != name]
        if can_pass and all(others):
            operands = [(name, key) for key in scenario["rule"]["operands"]]
            exact = all(len(known.get(slot, [0, 1])) == 1 for slot in operands)
            outcomes += 1 if exact else 2
    return outcomes > 1


def test_every_label_follows_from_claim_and_evidence(items: tuple[Item, ...]) -> None:
    wrong = [item.item_id for item in items if _label(item) != item.label]
    assert wrong == []


def test_labels_are_balanced_within_an_exchange_and_by_turn(items: tuple[Item, ...]) -> None:
    assert Counter((i.category, i.label) for i in items) == {
        (kind, label): N // 6 for kind in TYPES for label in (True, False)
    }
    pairs = defaultdict(list)
    for item in items:
        pairs[item.group_id, item.category].append(item)
    for (_, kind), (first, second) in pairs.items():
        assert {first.label, second.label} == {True, False}
        before = [i.messages[-1].content.split("STATEMENT:")[0] for i in (first, second)]
        assert before[0] == before[1]
        if kind != "missing":
            claims = [i.metadata["claim"] for i in (first, second)]
            assert claims[0]["fact"] == claims[1]["fact"]
            assert claims[0]["candidate"] != claims[1]["candidate"]
    turns = Counter(
        (i.metadata["claim"]["turn"], i.metadata["claim"]["states_missing"], i.label)
        for i in items
        if i.category == "missing"
    )
    assert len(turns) == 12
    for turn, states, label in turns:
        assert abs(turns[turn, states, label] - turns[turn, states, not label]) <= 1


def test_the_prompt_shows_the_evidence_up_to_the_reply_and_no_more(
    items: tuple[Item, ...],
) -> None:
    for item in items[::50]:
        text = item.messages[-1].content
        facts = {f["key"]: f for f in item.metadata["scenario"]["facts"]}
        lower = text.lower()
        for said in item.metadata["scenario"]["evidence"]:
            assert facts[said["fact"]]["label"].lower() in lower
            assert said["context"].lower() in lower
        if item.category != "missing":
            history = text.split("WHAT HAS HAPPENED:")[1].split("\n\n")[0].strip()
            role = item.metadata["claim"]["role"]
            assert history.splitlines()[-1].startswith(f"The {role} answered:")


@pytest.mark.parametrize("kind", TYPES)
def test_the_statement_alone_does_not_give_the_label_away(
    items: tuple[Item, ...], kind: str
) -> None:
    chosen = [item for item in items if item.category == kind]
    assert len(chosen) == 2000
    labels = np.array([item.label for item in chosen])
    groups = [item.group_id for item in chosen]
    folds = StratifiedGroupKFold(5, shuffle=True, random_state=0)
    texts = [str(item.statement) for item in chosen]
    words = make_pipeline(TfidfVectorizer(ngram_range=(1, 2)), LogisticRegression(max_iter=1000))
    lengths = np.array([[len(text)] for text in texts])
    for model, data in ((words, texts), (LogisticRegression(), lengths)):
        scores = cross_val_score(model, data, labels, groups=groups, cv=folds)
        assert scores.mean() < 0.6
    # The control: words that do give it away are found by the same procedure.
    leaky = [
        f"{text} {'yes' if label else 'no'}" for text, label in zip(texts, labels, strict=True)
    ]
    assert cross_val_score(words, leaky, labels, groups=groups, cv=folds).mean() > 0.95


def test_n_and_seed_decide_the_items() -> None:
    def ids(n: int, seed: int) -> list[Item]:
        return list(load_items(open_source("unco"), view=None, n=n, seed=seed))

    assert ids(31, 1) == ids(31, 1) != ids(31, 2)
    assert Counter(i.category for i in ids(31, 1)) == {"settles": 11, "answers": 10, "missing": 10}
    only = load_items(open_source("unco:types=missing"), view=None, n=9, seed=0)
    assert {item.category for item in only} == {"missing"}


@pytest.mark.parametrize("name", ["unco:types=settle", "unco:types=", "unco:everything"])
def test_unknown_options_are_refused(name: str) -> None:
    with pytest.raises(SourceError):
        open_source(name)
