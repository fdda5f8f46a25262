"""LLM-Coordination's CSV files: written here in their shape, and the real ones where they are."""

import csv
import json
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest
from commands import ok, refused
from sample_data import sample

from interp import load_items, open_source, read_items
from interp.open_grading import grade_answer
from interp.sources.tomas import read_tomas

BASE = ["Game Description", "TOM Directive", "State Description"]
TOM = ["TOM Question", "TOM Answer Ordinal", "TOM Answer"]


def write_folder(folder: Path, **changes: Any) -> Path:
    """66 rows in three files with the traps of the published ones."""
    folder.mkdir(exist_ok=True)
    layout: dict[str, tuple[list[str], list[str | None]]] = {
        "OvercookedFixedHeadings.csv": ([*BASE, *TOM, "State Prompt "], [None] * 20),
        "HanabiFixedHeadings.csv": ([*BASE, *TOM, "TOM QUestion"], [None] * 28),
        "CollabGamesFixedHeadings.csv": (
            ["Unnamed: 0", "Game", "Tag", *BASE, "", "Tag.1", *TOM],
            ["Collab Capture"] * 6 + ["Collab Escape"] * 7 + ["Overcooked"] * 5,
        ),
    }
    for name, (header, games) in layout.items():
        with (folder / name).open("w", encoding="utf-8", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(changes.get("header", {}).get(name, header))
            for number, game in enumerate(games):
                row = {
                    "Game": game,
                    "Game Description": f"The game of {name},\nin words.",
                    "State Description": f"State {number // 2} of {name}",
                    "TOM Question": f"Question {number}?\nA. Wait.\nB. Go to room {number}",
                    "TOM Answer Ordinal": "A,B" if number % 3 == 0 else "B",
                    "TOM Answer": f"Wait., Go to\nroom {number}" if number % 3 == 0 else "Go there",
                    "TOM QUestion": "another text",
                    "Tag": "x",
                }
                row |= changes.get("row", {}).get((name, number), {})
                writer.writerow([row.get(column, "") for column in header])
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "coord")


def test_rows_files_games_and_the_right_hanabi_column(folder: Path) -> None:
    items = load_items(open_source(f"coordqa:{folder}"))
    assert Counter(item.category for item in items) == {
        "Overcooked": 25,
        "Hanabi": 28,
        "Collab Capture": 6,
        "Collab Escape": 7,
    }
    # Files by name, rows in file order; the header is row 1.
    assert [items[i].item_id for i in (0, 18, 46, 65)] == [
        "CollabGamesFixedHeadings-002",
        "HanabiFixedHeadings-002",
        "OvercookedFixedHeadings-002",
        "OvercookedFixedHeadings-021",
    ]
    assert "another text" not in str(items[20])
    first = items[0]
    assert first.gold == "Wait., Go to room 0"
    assert first.metadata["extra"]["ordinals"] == ["A", "B"]
    assert first.metadata["extra"]["options"] == ["Wait.", "Go to room 0"]
    text = first.messages[0].content
    assert text.index("The game of Collab") < text.index("State 0") < text.index("Question 0?")
    # Rows of one state stay together.
    assert items[0].group_id == items[1].group_id != items[2].group_id


def check_sample(source: Path, out: Path) -> None:
    base = ["items", f"coordqa:{source}", "--sample", 39, "--seed", 42, "--out"]
    ok(*base, out / "s.jsonl")
    drawn = read_items(out / "s.jsonl")
    assert Counter(item.category for item in drawn) == {
        "Overcooked": 15,
        "Hanabi": 14,
        "Collab Capture": 6,
        "Collab Escape": 4,
    }
    everything = load_items(open_source(f"coordqa:{source}"))
    assert list(drawn) == Random(42).sample(list(everything), 39)
    ok(*base, out / "t.jsonl", "--format", "tomas")
    mapped = read_tomas(out / "t.jsonl")
    assert [item.id for item in mapped] == [item.item_id for item in drawn]
    for tomas, item in zip(mapped, drawn, strict=True):
        assert tomas.gold == item.gold
        assert tomas.prompt in item.messages[0].content
        assert tomas.question in item.messages[0].content
        assert tomas.source.startswith(f"{item.category}/")
    # As a reward: its own gold passes, another one's (with no word in common) does not.
    reply = "[ANSWER] {} [/ANSWER]".format
    assert grade_answer(reply(mapped[0].gold), mapped[0].gold, threshold=0.4).reward == 1
    assert grade_answer(reply("nothing"), mapped[0].gold, threshold=0.2).reward == 0


def test_the_published_sample_from_rows_of_the_same_shape(folder: Path, tmp_path: Path) -> None:
    check_sample(folder, tmp_path)


def test_the_published_sample(tmp_path: Path) -> None:
    source = sample("llm_coordination")
    items = load_items(open_source(f"coordqa:{source}"))
    assert len(items) == 66
    several = [item for item in items if len(item.metadata["extra"]["ordinals"]) > 1]
    assert len(several) == 16
    check_sample(source, tmp_path)


def test_another_seed_gives_another_sample(folder: Path, tmp_path: Path) -> None:
    drawn = []
    for seed in (42, 43):
        ok("items", f"coordqa:{folder}", "--sample", 39, "--seed", seed, "--out", tmp_path / "s")
        drawn.append((tmp_path / "s").read_text())
    assert drawn[0] != drawn[1]
    source = f"coordqa:{folder}"
    assert "66 items" in refused("items", source, "--sample", 67)
    assert "exclude each other" in refused("items", source, "--sample", 3, "--n", 3)
    assert "no open-ended partner-state question" in refused(
        "items", "facts", "--n", 4, "--format", "tomas", "--out", tmp_path / "x"
    )


def test_a_tomas_file_round_trips_through_items(tmp_path: Path) -> None:
    record = dict.fromkeys(("id", "source", "prompt", "question", "gold", "supporting_quote"), "a")
    (tmp_path / "a.jsonl").write_text(json.dumps(record | {"note": 1}) + "\n")
    ok("items", f"tomas:{tmp_path / 'a.jsonl'}", "--format", "tomas", "--out", tmp_path / "b.jsonl")
    assert (tmp_path / "b.jsonl").read_text() == (tmp_path / "a.jsonl").read_text()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"header": {"HanabiFixedHeadings.csv": [*BASE, "TOM QUestion", *TOM[1:], "x"]}},
            "no column 'TOM Question'. Did you mean TOM QUestion or",
        ),
        (
            {"header": {"HanabiFixedHeadings.csv": [*BASE, *TOM, "TOM Question"]}},
            "more than one column 'TOM Question'",
        ),
        (
            {"row": {("HanabiFixedHeadings.csv", 3): {"TOM Answer": " "}}},
            "row 5, column 'TOM Answer': empty",
        ),
        ({"row": {("CollabGamesFixedHeadings.csv", 0): {"Game": ""}}}, "row 2: no game"),
    ],
)
def test_files_of_another_shape_are_refused(tmp_path: Path, changes: Any, words: str) -> None:
    assert words in refused("items", f"coordqa:{write_folder(tmp_path / 'c', **changes)}")


def test_rows_without_a_question_are_not_eligible(tmp_path: Path) -> None:
    blank = {"TOM Question": "", "TOM Answer": "", "TOM Answer Ordinal": ""}
    folder = write_folder(tmp_path / "c", row={("HanabiFixedHeadings.csv", 3): blank})
    assert len(load_items(open_source(f"coordqa:{folder}"))) == 65
    assert "coordqa:DIR" in refused("items", "coordqa")
    assert "There is no folder" in refused("items", f"coordqa:{tmp_path / 'none'}")
    (tmp_path / "empty").mkdir()
    assert "no CSV file" in refused("items", f"coordqa:{tmp_path / 'empty'}")
