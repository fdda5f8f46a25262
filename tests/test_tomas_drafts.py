"""From coded traces to drafts of items: pilot samples, turns, and what is shown of them."""

import csv
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commands import ok, refused
from hypothesis import given, settings
from hypothesis import strategies as st
from mast_files import mast_records, write_mast
from tomas_logs import line, session, write_log

from interp.conversion.pilot import allocate
from interp.conversion.turns import excerpt, relevant_turns, split_turns
from interp.errors import ResultError
from interp.mast import iterate_records


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mast(tmp_path_factory.mktemp("mast") / "traces.json", mast_records(700_000))


def test_a_clean_trace_becomes_a_draft_that_passes_the_checks_once_written(
    traces: Path, tmp_path: Path
) -> None:
    run = {"framework": "AG2", "model": "Claude"}
    texts = {r.key: r.trajectory for r in iterate_records(traces)}
    text = texts["AG2_GSM_Plus_Claude", 5]
    turns = split_turns(text)
    quote = " ".join(text[turns[2].start : turns[2].end].split())
    log = write_log(
        tmp_path / "log.jsonl",
        [
            line("AG2_GSM_Plus_Claude", 5, "clean", supporting_quote=quote, **run),
            line("AG2_GSM_Plus_Claude", 6, "ambiguous", **run),
            line("AG2_GSM_Plus_Claude", 1, "clean", supporting_quote="Task 1 of", **run),
        ],
    )
    drafts, longer = tmp_path / "drafts.jsonl", tmp_path / "longer.jsonl"
    base = ["tomas", "draft", log, traces, "--out"]
    assert "2 drafts" in ok(*base, drafts, "--max-chars", 200).stderr
    rows = [json.loads(each) for each in drafts.read_text().splitlines()]
    assert [row["source"] for row in rows] == ["AG2_GSM_Plus_Claude/5", "AG2_GSM_Plus_Claude/1"]
    ok(*base, longer, "--max-chars", 10**6)
    whole = json.loads(longer.read_text().splitlines()[0])
    # The context ends with the turn of the quote, and nothing of the next one is in it.
    assert whole["cut"] == turns[2].end
    assert whole["prompt"] == text[: turns[2].end].strip()
    assert all(len(row["prompt"]) <= 200 for row in rows)
    # A draft is no item yet; a written file is not overwritten.
    assert "line 1, question: empty" in refused("tomas", "check", drafts)
    assert "may hold questions" in refused(*base, drafts)
    for row in rows:
        row |= {"question": "What does the peer know?", "gold": "The module is done."}
    write_log(drafts, rows)
    ok("tomas", "check", drafts, "--traces", traces)
    write_log(log, [line("AG2_GSM_Plus_Claude", 6, "ambiguous", **run)])
    assert "no clean entry" in refused(*base, tmp_path / "x")
    write_log(log, [line("AG2_GSM_Plus_Claude", 6, "clean", supporting_quote="not it", **run)])
    assert "line 1: the quote 'not it' does not occur" in refused(*base, tmp_path / "x")
    write_log(log, [line("AG2", 6, "clean", supporting_quote="x", **run)])
    assert "not in the file (first: AG2/6)" in refused(*base, tmp_path / "x")


def test_the_pilot_sample_is_stratified_and_seeded(traces: Path, tmp_path: Path) -> None:
    def draw(name: str, *arguments: object) -> list[dict[str, str]]:
        out = tmp_path / f"{name}.csv"
        ok("tomas", "pilot", traces, "--out", out, *arguments)
        with out.open(newline="") as handle:
            return list(csv.DictReader(handle))

    first = draw("a")
    assert draw("b") == first
    assert [r["trace_id"] for r in draw("c", "--seed", 43)] != [r["trace_id"] for r in first]
    assert len(first) == 18
    assert Counter(row["unit"] for row in first) == allocate(
        {
            "AG2/GSM": 127,
            "AG2/Olympiad": 131,
            "ChatDev": 53,
            "MetaGPT": 100,
            "AppWorld": 6,
            "HyperAgent": 6,
        },
        18,
    )
    takes = {"AG2/GSM": 4, "AG2/Olympiad": 4, "ChatDev": 4, "MetaGPT": 4, "AppWorld": 2}
    pairs = [part for unit, n in takes.items() for part in ("--take", f"{unit}={n}")]
    taken = draw("d", *pairs)
    assert Counter(row["unit"] for row in taken) == takes
    # Another allocation draws from the same order within a unit: the smaller one is contained.
    message = refused("tomas", "pilot", traces, "--out", tmp_path / "e", "--take", "AppWorld=7")
    assert "7 traces of the unit 'AppWorld' were asked for; it has 6" in message
    assert "UNIT=N" in refused("tomas", "pilot", traces, "--out", tmp_path / "e", "--take", "x")
    # The sample is what a session takes.
    result = session(traces, tmp_path / "log.jsonl", tmp_path / "a.csv", "q\n")
    assert f"{first[0]['trace_key']}/" in result.output


@settings(max_examples=50)
@given(st.lists(st.integers(1, 60), min_size=1, max_size=6), st.data())
def test_shares_are_in_proportion(sizes: list[int], data: Any) -> None:
    named = {f"u{i}": size for i, size in enumerate(sizes)}
    n = data.draw(st.integers(len(sizes), sum(sizes)))
    counts = allocate(named, n)
    assert sum(counts.values()) == n
    assert all(1 <= counts[name] <= named[name] for name in named)
    for name, other in zip(named, list(named)[1:], strict=False):
        if named[name] <= named[other]:
            assert counts[name] <= counts[other] + 1
    with pytest.raises(ResultError, match="not possible"):
        allocate(named, sum(sizes) + 1)


# One beginning a framework, as in the human-labelled traces.
CHATDEV = (
    "[2025-17-01 11:36:43 INFO] System: **[chatting]**\n"
    "[2025-17-01 11:36:44 INFO] Programmer: **Programmer<->Chief Technology Officer on : Coding**\n"
    "Language: Python\n[2025-17-01 11:36:46 INFO] HTTP Request: POST\n"
    "[2025-17-01 11:36:47 INFO] Chief Technology Officer: **x**"
)


HYPERAGENT = (
    '"HyperAgent_repo-1 - INFO - Planner\'s Response: Thought: look",\n "Subgoal: find it",\n'
    '"HyperAgent_repo-1 - INFO - Navigator->Planner: found"'
)


METAGPT = (
    "{\n"
    r' "content": "2025-01-17 11:40:27.872 | INFO | roles:_act:391 - Alice(SimpleCoder): to do'
    r"\ncode\n2025-01-17 11:40:30.812 | INFO | __main__:_act:85 - Bob(SimpleTester): to do"
)


AG2 = (
    '[\n{"role": "x",\n"content": [\n"go"\n],\n"name": "proxy"},\n{\n"content": [\n"no"\n],\n'
    '"name": "assistant"}]'
)


@pytest.mark.parametrize(
    ("text", "speakers"),
    [
        ("task\nPlanner: go\nCoder: done\n", ["", "Planner", "Coder"]),
        ("Task: x\nPlanner: go\nTypeError: no\nNote: y", ["", "Planner"]),
        (
            "Response from Spotify Agent\n  x\nMessage to Supervisor Agent\n  y",
            ["Spotify Agent", "Supervisor Agent"],
        ),
        (
            "---------- WebSurfer ----------\na\n---------- Coder ----------\nb",
            ["WebSurfer", "Coder"],
        ),
        ("2025-03-31 20:37:06.020 | INFO | a\n2025-03-31 20:37:07 | INFO | b", ["", ""]),
        (CHATDEV, ["", "Programmer", "Chief Technology Officer"]),
        (HYPERAGENT, ["Planner", "Navigator"]),
        (METAGPT, ["", "SimpleCoder", "SimpleTester"]),
        (AG2, ["", "proxy", "assistant"]),
        ("x" * 4000, ["", "", ""]),
        ("", [""]),
    ],
)
def test_turns_cover_the_text_and_name_who_speaks(text: str, speakers: list[str]) -> None:
    turns = split_turns(text)
    assert "".join(text[turn.start : turn.end] for turn in turns) == text
    assert [turn.speaker for turn in turns] == speakers


def test_a_trace_cannot_steer_the_terminal() -> None:
    text = "Coder: \x1b[2Jgone\x00\tend\n"
    assert excerpt(text, split_turns(text)) == "[turn 1 Coder] Coder: �[2Jgone�\tend"


def test_turns_that_name_a_peer_come_first() -> None:
    lines = ["Task: sort a list."]
    lines += [f"Coder: line {n} is plain." for n in range(50)]
    lines[30] = "Coder: Tester has not seen this."
    text = "\n".join([*lines, "Tester: all good.", "Coder: end."])
    turns = split_turns(text)
    shown = relevant_turns(text, turns, limit=4)
    assert [turn.number for turn in shown] == [1, 31, 52, 53]
