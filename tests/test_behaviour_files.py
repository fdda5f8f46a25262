"""Item files, answer files and models tables: what is read, and what is refused by name."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from behaviours import PT

from interp import Answer, Item, Message, write_answers, write_items
from interp.behaviour import (
    AnswerSet,
    ModelEntry,
    read_answer_sets,
    read_item_table,
    read_roster,
)
from interp.errors import InterpError, ItemError, ResultError


def write_files(folder: Path, *, n: int = 4, categories: Sequence[str] = (PT,)) -> Path:
    items = [
        Item(f"i{k}", (Message("user", "?"),), k % 2 == 0, None, f"g{k // 2}", c, {})
        for k, c in ((k, categories[k % len(categories)]) for k in range(n))
    ]
    write_items(folder / "items.jsonl", items)
    write_answers(
        folder / "a.jsonl",
        [Answer(i.item_id, "greedy", i.label, True, True, "ANSWER: x", 3, 0.0, 0.0) for i in items],
    )
    return folder / "a.jsonl"


def read(folder: Path, **changes: Any) -> tuple[AnswerSet, ...]:
    items = read_item_table([folder / "items.jsonl"])
    return read_answer_sets([folder / "a.jsonl"], items, **changes)


def test_the_manifest_names_the_model(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    assert read(tmp_path)[0].entry == ModelEntry("a")
    path.with_name("a.jsonl.manifest.json").write_text('{"model": {"model_id": "org/x"}}')
    (found,) = read(tmp_path)
    assert (found.entry.model, found.entry.condition) == ("org/x", "base")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("item_id", "i9", ["line 2", "'item_id'", "'i9'", "--items"]),
        ("item_id", "i0", ["line 2", "'correct'"]),
        ("correct", False, ["line 2", "'correct'", "'i1'"]),
        ("verdict", "False", ["line 2", "'verdict'", "'False'"]),
        ("n_tokens", -1, ["line 2", "'n_tokens'"]),
        ("condition", "gredy", ["line 2", "'condition'"]),
        ("answered", False, ["line 2", "'answered'"]),
    ],
)
def test_a_bad_answer_is_named_by_line_and_field(
    tmp_path: Path, field: str, value: object, words: list[str]
) -> None:
    path = write_files(tmp_path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1][field] = value
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InterpError) as caught:
        read(tmp_path)
    assert all(word in str(caught.value) for word in words), caught.value


def test_missing_and_repeated_answers_are_refused(tmp_path: Path) -> None:
    path = write_files(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]))
    with pytest.raises(ResultError, match=r"1 of 4 perspective_taking items.*'i3'"):
        read(tmp_path)
    path.write_text("".join([*lines, lines[0]]))
    with pytest.raises(ResultError, match=r"line 5.*'i0' is answered twice"):
        read(tmp_path)
    path.write_text("".join(lines))
    (tmp_path / "b.jsonl").write_text("".join(lines))
    (tmp_path / "models.csv").write_text("file,model,condition\na.jsonl,m,base\nb.jsonl,m,base\n")
    items = read_item_table([tmp_path / "items.jsonl"])
    with pytest.raises(ResultError, match=r"b\.jsonl.*another file of 'm'"):
        read_answer_sets([], items, read_roster(tmp_path / "models.csv"))
    with pytest.raises(ResultError, match="no answers read as 'forced'"):
        read(tmp_path, readout="forced")


def test_a_stray_category_among_abilities_is_named(tmp_path: Path) -> None:
    write_files(tmp_path, categories=(PT, "strategic-signaling"))
    with pytest.raises(ItemError, match=r"'i1', field 'category'.*strategic_signaling"):
        read_item_table([tmp_path / "items.jsonl"])
    write_files(tmp_path, categories=("capitals", "elements"))
    assert read_item_table([tmp_path / "items.jsonl"]).abilities == ("capitals", "elements")


def test_two_item_files_must_agree(tmp_path: Path) -> None:
    write_files(tmp_path)
    again = tmp_path / "again"
    again.mkdir()
    write_files(again)
    both = [tmp_path / "items.jsonl", again / "items.jsonl"]
    assert len(read_item_table(both).item_id) == 4
    text = both[1].read_text().replace('"label": false', '"label": true', 1)
    both[1].write_text(text)
    with pytest.raises(ItemError, match=r"item 2 \('i1'\), field 'label': True.*False"):
        read_item_table(both)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model\nm\n", ["row 1", "'file' is missing"]),
        ("file,model,condition,acess\na.jsonl,m,base,open\n", ["row 1", "'acess'", "access"]),
        ("file,model,condition\na.jsonl,m,cott\n", ["row 2", "'condition'", "cot"]),
        ("file,model,condition,access\na.jsonl,m,base,close\n", ["row 2", "'access'", "'close'"]),
        ("file,model,condition,base\na.jsonl,m,base,n\n", ["row 2", "'base'", "'n'"]),
        ("file,model,condition\nb.jsonl,m,base\n", ["'file'", "a.jsonl"]),
        (
            "file,model,condition,family\na.jsonl,m,base,X\nb.jsonl,m,cot,Y\n",
            ["row 3", "'family'", "'Y'"],
        ),
        ("file,model,condition\na.jsonl,m\n", ["row 2", "2 cells under 3 columns"]),
    ],
)
def test_a_bad_models_table_is_named_by_row_and_field(
    tmp_path: Path, text: str, words: list[str]
) -> None:
    write_files(tmp_path)
    (tmp_path / "models.csv").write_text(text)
    with pytest.raises(ResultError) as caught:
        read(tmp_path, roster=read_roster(tmp_path / "models.csv"))
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_line_that_is_no_answer_is_named_with_its_field(tmp_path: Path) -> None:
    write_files(tmp_path)
    path = tmp_path / "a.jsonl"
    lines = path.read_text().splitlines()
    for line, words in (
        (lines[1].replace(', "n_tokens": 3', ""), "line 2, field 'n_tokens': missing"),
        (lines[1].replace('"raw"', '"rawe"'), "line 2, field 'raw': missing"),
        (lines[1][:-1] + ', "rawe": 1}', "line 2, field 'rawe': no field.* Did you mean raw"),
        ("[1]", r"line 2: not an answer, but '\[1\]'"),
    ):
        path.write_text("\n".join([lines[0], line, *lines[2:]]))
        with pytest.raises(ResultError, match=words):
            read(tmp_path)
    path.write_text("")
    with pytest.raises(ResultError, match=r"a\.jsonl holds no answers"):
        read(tmp_path)
