"""The rules exam, the table of objectives, and options of the source."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from naive_avalon import CAST, EVIL, GOOD_ROLES, SIZES, cards, counts, shown
from naive_avalon import OBJECTIVES as TABLE

from interp import load_items, open_source
from interp.errors import SourceError
from interp.registry import split_options, with_options
from interp.sources.avalon.motives import OBJECTIVES
from interp.sources.avalon.ruleset import RULESET


def draw(spec: str, n: int | None = None, seed: int = 0):
    return load_items(open_source(spec), n=n, seed=seed)


# ---- rules exam -------------------------------------------------------------------------------


def rule_holds(claim) -> bool:
    """Rule claims once more, from the checker's tables."""
    match claim["rule"]:
        case "quest_size":
            return SIZES[claim["lineup"]][claim["quest"] - 1] == claim["value"]
        case "fails_needed":
            return (2 if claim["quest"] == 4 else 1) == claim["value"]
        case "in_lineup":
            return claim["role"] in CAST[claim["lineup"]]
        case "n_evil":
            return sum(role in EVIL for role in CAST[claim["lineup"]]) == claim["value"]
        case "faction":
            return (claim["role"] in EVIL) == (claim["value"] == "EVIL")
        case "sees":
            return shown(claim["role"], claim["other"])
        case "card":
            return cards("A", claim["team"], claim["belief"])[claim["role"]] == claim["value"]
        case "fail_count":
            return counts("A", claim["team"], claim["belief"]) == {claim["value"]}
    raise AssertionError(claim)


def test_the_rules_exam() -> None:
    items = draw("avalon:rules-exam")
    assert len(items) == 34
    assert sum(item.label for item in items) == 17
    everything = draw("avalon:rules-exam", n=120, seed=1)
    for item in (*items, *everything):
        assert item.category == "rules"
        assert rule_holds(item.metadata["claim"]) is item.label, item.statement
        assert item.messages[0].content == RULESET
    assert len({item.statement for item in everything}) == 120
    assert len({item.metadata["claim"]["rule"] for item in items}) == 8


def test_the_exam_ends() -> None:
    with pytest.raises(SourceError, match=r"The rules exam has \d+ questions; got n = 9999"):
        draw("avalon:rules-exam", n=9999)


# ---- motives ---------------------------------------------------------------------------------


def test_the_role_objective_table_is_the_documented_one() -> None:
    page = (Path(__file__).parents[1] / "docs" / "avalon.md").read_text(encoding="utf-8")
    said = {"all GOOD": GOOD_ROLES, "all EVIL": EVIL, "all EVIL, goal `conceal`": EVIL}
    rows = re.findall(r"^\| `(\w+)` \| (switch|approve|reject) \| ([^|]+) \| [^|]+ \|$", page, re.M)
    documented = {
        name: (action, set(said.get(roles, roles.split(", ")))) for name, action, roles in rows
    }
    assert documented == {name: (action, set(roles)) for name, (action, roles) in TABLE.items()}
    ours = {name: (o.action, set(o.roles)) for name, o in OBJECTIVES.items()}
    assert ours == documented
    assert [name for name, o in OBJECTIVES.items() if o.needs_goal] == ["vote_with_crowd"]


# ---- options ----------------------------------------------------------------------------------


def test_abilities_can_be_chosen() -> None:
    items = draw("avalon:abilities=tacit_coordination+perspective_taking", n=208)
    assert Counter(item.category for item in items) == {
        "perspective_taking": 68,
        "tacit_coordination": 140,
    }


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("avalon:abilities=perspective", "Did you mean perspective_taking"),
        ("avalon:abilities=", "No ability is named"),
        ("avalon:inject", "Did you mean inject-truth"),
        ("avalon:rules-exam,inject-truth", "give it alone"),
        ("avalon:inject-truth,inject-truth", "given twice"),
    ],
)
def test_bad_options_are_refused(spec: str, words: str) -> None:
    with pytest.raises(SourceError, match=words):
        open_source(spec)


def test_flags_become_part_of_the_source() -> None:
    assert with_options("avalon", {}) == "avalon"
    spec = with_options("avalon:inject-truth", {"abilities": "tacit_coordination"})
    assert spec == "avalon:inject-truth,abilities=tacit_coordination"
    assert open_source(spec).fingerprint() != open_source("avalon").fingerprint()
    with pytest.raises(SourceError, match="'facts' has no option 'inject-truth'"):
        with_options("facts", {"inject-truth": None})


def test_options_are_taken_from_the_end_of_an_argument() -> None:
    known = ("inject-truth", "abilities")
    assert split_options("a,b.json,inject-truth", known) == ("a,b.json", {"inject-truth": None})
    assert split_options(None, known) == (None, {})
    assert split_options("abilities=x+y", known) == (None, {"abilities": "x+y"})
