"""Leaks, labels, later turns, True/False items and provenance of ToMAS items."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest
from commands import invoke, ok, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from mast_files import mast_records, write_mast

from interp import load_items, open_source
from interp.errors import SourceError
from interp.mast.taxonomy import MODE_NAMES
from interp.sources.tomas import TomasItem, write_tomas
from interp.sources.tomas.checks import find_leaks, label_faults
from interp.sources.tomas.provenance import provenance
from interp.sources.tomas.truth import true_false_items

WORDS = """
planner coder tester review module access token calendar weekly report plan deploy
queue agent budget ledger server client schema index table vector crawl parser schedule cron hour
""".split()  # noqa: SIM905
OTHER = """
museum honey density mayonnaise auction baseball orbit moon runner pace film director
song lyrics census river bridge painter novel chapter recipe island mountain temperature
""".split()  # noqa: SIM905


def item(number: int, **changes: Any) -> TomasItem:
    random = Random(number)
    words = changes.pop("words", WORDS)
    base = {
        "id": f"i{number}",
        "source": f"MetaGPT/ProgramDev/GPT-4o/{number}",
        "prompt": " ".join(random.choices(words, k=40)),
        "question": "What does the peer know?",
        "gold": f"It knows fact number {number}.",
        "supporting_quote": "",
    }
    return TomasItem(**base | changes)


def pools(tmp_path: Path, train: list[TomasItem], held_out: list[TomasItem]) -> tuple[Path, Path]:
    paths = tmp_path / "train.jsonl", tmp_path / "held_out.jsonl"
    for path, items in zip(paths, (train, held_out), strict=True):
        write_tomas(path, items)
    return paths


def faults(*arguments: object) -> list[tuple[str, tuple[str, ...]]]:
    result = invoke("tomas", "check", *arguments, "--json")
    found = json.loads(result.stdout)["faults"]
    assert result.exit_code == (3 if found else 0)
    return [(fault["kind"], tuple(fault["items"])) for fault in found]


def test_separate_pools_pass_and_leaks_fail(tmp_path: Path) -> None:
    train, held_out = [item(i) for i in range(6)], [item(i) for i in range(10, 14)]
    paths = pools(tmp_path, train, held_out)
    assert faults(*paths) == []
    assert "No fault in 6 and 4 items" in ok("tomas", "check", *paths).stdout
    # The same trace, in other case and with other text.
    held_out[1] = item(11, source=" metagpt/ProgramDev/GPT-4o/3")
    # The beginning of a train prompt, under another id and source.
    held_out[2] = item(12, prompt=" ".join(train[0].prompt.split()[:30]).upper())
    assert faults(*pools(tmp_path, train, held_out)) == [
        ("near_duplicate", ("i0", "i12")),
        ("shared_trace", ("i3", "i11")),
    ]
    printed = invoke("tomas", "check", *paths)
    assert printed.exit_code == 3
    assert "shared_trace" in printed.stdout
    for near in (0, 1.1):
        assert "--near is" in refused("tomas", "check", *paths, "--near", near)


def test_a_leak_is_one_of_texts_not_of_words(tmp_path: Path) -> None:
    one = item(1)
    words = one.prompt.split()
    Random(0).shuffle(words)
    assert find_leaks([one], [item(2, prompt=" ".join(words))]) == []
    changed = one.prompt.split()
    changed[20] = "changed"
    near = [item(2, prompt=" ".join(changed))]
    (leak,) = find_leaks([one], near)
    assert leak.kind == "near_duplicate"
    # One word of 45 breaks 5 of 41 grams.
    assert "88%" in leak.detail
    assert find_leaks([one], near, near=0.9) == []


@pytest.mark.parametrize(
    "text",
    [
        *("It is FC2 here.", "failure mode: derailment", "FM-2.4 applies", "Mode 2.6 is set"),
        *("from MAST", "inter-agent misalignment", "Reasoning-action mismatch", "STEP  REPETITION"),
        *(f"This is {name}." for name in MODE_NAMES.values()),
    ],
)
def test_a_mast_label_in_a_prompt_or_question_is_found(text: str) -> None:
    assert [f.kind for f in label_faults([item(1, prompt=text)])] == ["label"]
    assert [f.kind for f in label_faults([item(1, question=text)])] == ["label"]


@pytest.mark.parametrize(
    "text",
    ["Version 2.4 of the mast", "MASTER", "the mode is 2", "a failure", "FC24", "fm 101.2"],
)
def test_other_words_are_no_labels(text: str) -> None:
    assert label_faults([item(1, prompt=text)]) == []


def test_a_gold_that_the_prompt_gives_away_is_noted(tmp_path: Path) -> None:
    told = item(1, prompt="So it knows\nfact: It knows  fact number 1.")
    assert [f.kind for f in label_faults([told, item(2)])] == ["gold_in_prompt"]
    write_tomas(tmp_path / "a.jsonl", [told])
    result = ok("tomas", "check", tmp_path / "a.jsonl", "--json")  # for a reader to judge
    assert [note["items"] for note in json.loads(result.stdout)["notes"]] == [["i1"]]


def test_later_turns_and_quotes_are_looked_up_in_the_trace(tmp_path: Path) -> None:
    records = list(mast_records(500_000))[:4]
    text = (
        "Planner: build the weekly report module\n"
        "Coder: I emit the cron string with an hour field\n"
        "Tester: I check the schedule of the deployment\n"
        "Reviewer: it failed since the field is odd\n"
    )
    for record in records:
        record["trace"]["trajectory"] = text
    traces = write_mast(tmp_path / "traces.json", iter(records))
    lines = text.splitlines()
    cut = {"cut": text.index("Tester:")}

    def made(number: int, n_lines: int, **changes: Any) -> TomasItem:
        source = f"AG2_GSM_Plus_Claude/{number}" if number else "AG2/GSM/Claude/0"
        return item(number, **{"prompt": "\n".join(lines[:n_lines]), "source": source} | changes)

    good = [made(0, 2, extra=cut), made(1, 3), made(2, 2, supporting_quote="cron  string")]
    write_tomas(tmp_path / "a.jsonl", good)
    assert faults(tmp_path / "a.jsonl", "--traces", traces) == []
    printed = ok("tomas", "check", tmp_path / "a.jsonl", "--traces", traces).stdout
    assert "2 items have no `cut`" in printed
    bad = [
        made(0, 3, extra=cut),
        made(1, 4),
        made(2, 2, supporting_quote="chron string"),
        made(3, 2, source="AG2_GSM_Plus_Claude/77"),
    ]
    write_tomas(tmp_path / "b.jsonl", bad)
    result = invoke("tomas", "check", tmp_path / "b.jsonl", "--traces", traces, "--json")
    details = {f["items"][0]: f["detail"] for f in json.loads(result.stdout)["faults"]}
    assert details == {
        "i0": "the prompt has a later turn: 'Tester: I check the schedule of the deployment'",
        "i1": "the prompt has the last turn of the trace",
        "i2": "the supporting quote is not in the trace",
        "i3": "there is no trace AG2_GSM_Plus_Claude/77",
    }
    # Without the traces none of this can be seen, and the command says so.
    assert "needs --traces" in ok("tomas", "check", tmp_path / "b.jsonl").stdout


# ---------------------------------------------------------------- True/False


FRAMEWORKS = st.sampled_from(["MetaGPT", "AppWorld"])
ROW = st.tuples(FRAMEWORKS, st.integers(0, 6), st.integers(0, 8))
ROWS = st.lists(ROW, min_size=2, max_size=25)


def n_linked(items: list[TomasItem], framework: str) -> int:
    """Components of a framework's items under "same trace or same gold", by spreading labels."""
    members = [each for each in items if each.source.startswith(framework)]
    labels = list(range(len(members)))
    for _ in members:
        for i, one in enumerate(members):
            for j, two in enumerate(members):
                if one.source == two.source or one.gold == two.gold:
                    labels[i] = labels[j] = min(labels[i], labels[j])
    return len(set(labels))


@settings(max_examples=100)
@given(ROWS, st.integers(0, 3))
def test_true_false_items_hold_what_they_promise(rows: list[Any], seed: int) -> None:
    made = [
        item(n, source=f"{framework}/x/{trace}", gold=f"gold {gold}")
        for n, (framework, trace, gold) in enumerate(rows)
    ]
    by_id = {each.id: each for each in made}
    try:
        items = true_false_items(made, seed=seed)
    except SourceError:
        assert all(n_linked(made, name) <= 1 for name in ("MetaGPT", "AppWorld"))
        return
    assert any(n_linked(made, name) > 1 for name in ("MetaGPT", "AppWorld"))
    assert items == true_false_items(made, seed=seed)
    counts: dict[tuple[str, str], Counter[bool]] = defaultdict(Counter)
    for each in items:
        claim = each.metadata["claim"]
        asked, answer = by_id[claim["asked"]], by_id[claim["answer"]]
        # The label follows from the claim.
        assert each.label is (asked.id == answer.id)
        assert each.statement == answer.gold
        assert each.group_id == asked.source
        assert asked.source.split("/")[0] == answer.source.split("/")[0] == each.category
        if not each.label:
            assert asked.source != answer.source
            assert asked.gold != answer.gold
        counts[each.category, answer.id][bool(each.label)] += 1
        assert asked.question in each.messages[-1].content
    # Every gold is said once truly and once falsely, so wording alone is at chance.
    assert all(count == {True: 1, False: 1} for count in counts.values())


def test_true_false_items_from_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write_tomas(path, [item(n, source=f"MetaGPT/x/{n // 2}") for n in range(12)])
    source = open_source(f"tomas:{path},true-false")
    items = load_items(source)
    assert len(items) == 24
    assert sum(bool(each.label) for each in items) == 12
    bare = load_items(source, view="no-facts")
    assert "SETUP" in items[0].messages[0].content
    assert "SETUP" not in bare[0].messages[0].content
    assert load_items(source, seed=1) != items
    assert source.fingerprint() != open_source(f"tomas:{path}").fingerprint()
    out = tmp_path / "o.jsonl"
    assert "12 items" in ok("items", f"tomas:{path},true-false", "--n", 12, "--out", out).stderr


def test_a_trace_with_most_items_gives_up_some(tmp_path: Path) -> None:
    made = [item(n, source=f"MetaGPT/x/{0 if n < 8 else n}") for n in range(11)]
    items = true_false_items(made, seed=0)
    assert Counter(each.group_id for each in items)["MetaGPT/x/0"] == 6
    assert len(items) == 12
    with pytest.raises(SourceError, match="linked neither"):
        true_false_items(made[:8], seed=0)


# ---------------------------------------------------------------- provenance


def test_pools_of_two_worlds_are_told_apart_and_of_one_are_not(tmp_path: Path) -> None:
    train = [item(n) for n in range(24)]
    far = [
        item(n, words=OTHER, source=f"Magentic/GAIA/GPT-4o/{n}", id=f"h{n}") for n in range(50, 66)
    ]
    found = json.loads(ok("tomas", "provenance", *pools(tmp_path, train, far), "--json").stdout)
    assert found["train"] == {"MetaGPT": 24}
    assert found["held_out"] == {"Magentic": 16}
    assert found["overlap"] == 0
    assert found["auroc"] > 0.95
    assert found["p_value"] == pytest.approx(0.01)
    assert set(found["telling"]["held_out"]) & set(OTHER)
    assert any("different worlds" in warning for warning in found["warnings"])
    assert any("out of domain" in warning for warning in found["warnings"])
    near = [item(n, id=f"h{n}") for n in range(50, 66)]
    paths = pools(tmp_path, train, near)
    same = json.loads(ok("tomas", "provenance", *paths, "--json").stdout)
    assert same["overlap"] == 1
    assert same["warnings"] == []
    assert same["auroc"] < 0.75
    assert "Shared mix: 100%" in ok("tomas", "provenance", *paths).stdout


def test_provenance_of_few_traces_has_no_classifier() -> None:
    few = [item(n, source="MetaGPT/x/1") for n in range(9)]
    found = provenance(few, [item(n) for n in range(20, 30)])
    assert found.auroc is None
    assert any("No domain classifier" in warning for warning in found.warnings)
    mixed = [item(1), item(2), item(3, source="AppWorld/x/3"), item(4, source="AppWorld/x/4")]
    # Half of MetaGPT against all of it: the shared mass is a half.
    assert provenance(mixed, [item(7)]).overlap == pytest.approx(0.5)
