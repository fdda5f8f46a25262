"""`interp items avalon` from the command line."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from experiments.cli import app

LIGHT = (
    "import sys; from interp.registry import list_sources, open_source; list_sources();"
    "open_source('avalon'); print('numpy' in sys.modules, 'torch' in sys.modules)"
)


def run(*arguments: str):
    return CliRunner().invoke(app, ["items", *arguments])


def read(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_items_with_every_flag(tmp_path) -> None:
    out = tmp_path / "items.jsonl"
    result = run(
        *("avalon", "--n", "10", "--seed", "3", "--view", "pov", "--inject-truth"),
        *("--abilities", "tacit_coordination,perspective_taking", "--out", str(out)),
    )
    assert result.exit_code == 0, result.output
    records = read(out)
    assert [r["category"] for r in records] == ["perspective_taking"] * 3 + [
        "tacit_coordination"
    ] * 7
    assert all("GROUND TRUTH" in r["messages"][1]["content"] for r in records)


def test_the_same_seed_writes_the_same_bytes(tmp_path) -> None:
    files = [tmp_path / name for name in ("one.jsonl", "two.jsonl", "three.jsonl")]
    for file, seed in zip(files, "112", strict=True):
        assert run("avalon", "--n", "40", "--seed", seed, "--out", str(file)).exit_code == 0
    one, two, three = (file.read_bytes() for file in files)
    assert one == two != three


def test_the_rules_exam(tmp_path) -> None:
    out = tmp_path / "exam.jsonl"
    assert run("avalon", "--rules-exam", "--out", str(out)).exit_code == 0
    assert {r["category"] for r in read(out)} == {"rules"}
    assert len(read(out)) == 34


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("avalon", "--abilities", "tacit"), "no ability 'tacit'"),
        (("avalon", "--view", "povs"), "Did you mean pov"),
        (("facts", "--inject-truth"), "has no option 'inject-truth'"),
        (("avalon", "--map", "label=x"), "no columns to map"),
    ],
)
def test_mistakes_exit_with_code_2(arguments, words: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert words in " ".join(result.output.split())


def test_listing_and_opening_load_nothing_heavy() -> None:
    found = subprocess.run(
        [sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True
    )
    assert found.stdout.split() == ["False", "False"]
