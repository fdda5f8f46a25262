"""The ToMAS item file and the `tomas` source."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import ok, refused
from hypothesis import given
from hypothesis import strategies as st

from interp import load_items, open_source
from interp.errors import SourceError
from interp.sources.tomas import TomasItem, read_tomas, write_tomas
from interp.sources.tomas.schema import TOMAS_FIELDS, framework_of


def record(number: int, **changes: Any) -> dict[str, Any]:
    base = {
        "id": f"item_{number}",
        "source": f"MetaGPT/ProgramDev/GPT-4o/{number // 2}",
        "prompt": f"Coder wrote module {number}; Tester has not seen it.",
        "question": "What does Tester know?",
        "gold": f"Tester has not seen module {number}.",
        "supporting_quote": "has not seen",
    }
    return base | changes


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def test_items_reach_the_model_without_quote_or_notes(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [record(i, rationale="SECRET 2.4") for i in range(6)])
    items = load_items(open_source(f"tomas:{path}"))
    assert [item.item_id for item in items] == [f"item_{i}" for i in range(6)]
    assert [item.group_id for item in items[:3]] == [
        "MetaGPT/ProgramDev/GPT-4o/0",
        "MetaGPT/ProgramDev/GPT-4o/0",
        "MetaGPT/ProgramDev/GPT-4o/1",
    ]
    first = items[0]
    assert (first.label, first.gold, first.category) == (
        None,
        "Tester has not seen module 0.",
        "MetaGPT",
    )
    text = first.messages[0].content
    assert text.index("Coder wrote module 0") < text.index("What does Tester know?")
    assert text.index("What does Tester know?") < text.index("[ANSWER]")
    assert "SECRET" not in text
    assert "SECRET" in str(first.metadata)
    # The quote is part of the context here, so look for one that is not.
    (tmp_path / "q.jsonl").write_text(json.dumps(record(1, supporting_quote="never shown")))
    (quoted,) = load_items(open_source(f"tomas:{tmp_path / 'q.jsonl'}"))
    assert "never shown" not in quoted.messages[0].content


def test_a_sample_keeps_traces_together_and_follows_the_seed(tmp_path: Path) -> None:
    source = open_source(f"tomas:{write(tmp_path / 't.jsonl', [record(i) for i in range(40)])}")
    drawn = {seed: load_items(source, n=8, seed=seed) for seed in (0, 1)}
    assert drawn[0] == load_items(source, n=8, seed=0)
    assert drawn[0] != drawn[1]
    for items in drawn.values():
        assert len({item.group_id for item in items}) == 4


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{not json", "line 3: not a JSON object"),
        ("[1]", "line 3: not a JSON object (got a list"),
        ('{"id": NaN}', "NaN is no JSON value"),
        ('{"id": "\\ud800"}', "line 3: not a JSON object"),
        (record(9, gold=" "), "line 3, gold: empty"),
        (record(9, gold="…"), "line 3, gold: '…' has no letter"),
        (record(9, gold=3), "line 3, gold: got a int, expected a string"),
        (record(9, id="item_0"), "line 3, id: 'item_0' is that of line 1"),
        ({k: v for k, v in record(9).items() if k != "question"}, "line 3, question: the key"),
        ({("Gold" if k == "gold" else k): v for k, v in record(9).items()}, "Did you mean Gold?"),
    ],
)
def test_faults_are_named_by_line_and_field(tmp_path: Path, line: Any, words: str) -> None:
    path = write(tmp_path / "t.jsonl", [record(0), "", line, record(1, prompt="")])
    with pytest.raises(SourceError) as caught:
        read_tomas(path)
    assert words in str(caught.value)
    # Every fault is listed, not only the first.
    assert "line 4, prompt: empty" in str(caught.value)


def test_an_empty_quote_is_allowed_and_long_lists_are_cut(tmp_path: Path) -> None:
    (item,) = read_tomas(write(tmp_path / "t.jsonl", [record(0, supporting_quote="")]))
    assert item.supporting_quote == ""
    bad = write(tmp_path / "bad.jsonl", [record(i, gold="") for i in range(30)])
    with pytest.raises(SourceError, match=r"30 faults.*line 10, gold.*and 20 more") as caught:
        read_tomas(bad)
    assert "line 11" not in str(caught.value)


def test_files_that_hold_no_items(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    (tmp_path / "latin.jsonl").write_bytes(b'{"id": "\xe9"}')
    with pytest.raises(SourceError, match="holds no items"):
        read_tomas(tmp_path / "empty.jsonl")
    with pytest.raises(SourceError, match="not UTF-8"):
        read_tomas(tmp_path / "latin.jsonl")
    assert "Check the path" in refused("items", "tomas:/no/such.jsonl")
    assert "tomas:PATH" in refused("items", "tomas")
    path = write(tmp_path / "t.jsonl", [record(0)])
    assert "fixed schema" in refused("items", f"tomas:{path}", "--map", "gold=answer")


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda t: t.strip())


@given(st.lists(st.tuples(*[TEXT] * 4), min_size=1, max_size=4))
def test_reading_gives_back_what_was_written(tmp_path_factory: Any, rows: list[Any]) -> None:
    path = tmp_path_factory.mktemp("tomas") / "t.jsonl"
    items = [
        TomasItem(f"{i}", source, prompt, question, f"gold {rest}", "", {"note": rest})
        for i, (source, prompt, question, rest) in enumerate(rows)
    ]
    write_tomas(path, items)
    assert list(read_tomas(path)) == items
    assert list(json.loads(path.read_text().split("\n")[0]))[:6] == list(TOMAS_FIELDS)


@pytest.mark.parametrize(
    ("source", "framework"),
    [
        ("AppWorld/Test-C/GPT-4o/18", "AppWorld"),
        ("MetaGPT_ProgramDev2_GPT4o/7", "MetaGPT"),
        ("Magentic", "Magentic"),
        ("/x", "/x"),
    ],
)
def test_the_framework_of_a_trace_id(source: str, framework: str) -> None:
    assert framework_of(source) == framework


def test_the_fingerprint_follows_the_content(tmp_path: Path) -> None:
    path = write(tmp_path / "t.jsonl", [record(0)])
    before = open_source(f"tomas:{path}").fingerprint()
    assert open_source(f"tomas:{path}").fingerprint() == before
    write(path, [record(1)])
    assert open_source(f"tomas:{path}").fingerprint() != before
    assert "1 items" in ok("items", f"tomas:{path}", "--out", tmp_path / "out.jsonl").stderr
