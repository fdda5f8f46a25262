"""The loader of the released benchmark, on files written here."""

from __future__ import annotations

import csv
import json

import pytest
from typer.testing import CliRunner

from experiments.cli import app
from interp import load_items, open_source
from interp.errors import SourceError
from interp.sources.avalon.source import PROPORTIONS

SPELLED = {name: name.replace("_", "-").title() for name in PROPORTIONS}
MAP = {"group_id": "scenario", "category": "ability", "label": "gold", "setup": "facts"}


def rows(n_scenarios: int = 97):
    """As many rows an ability as the paper has, in its number of scenarios, and 34 on rules."""
    found = []
    for ability, count in PROPORTIONS.items():
        for number in range(count):
            index = len(found)
            found.append(
                {
                    "item_id": f"q{index}",
                    "scenario": f"s{index % n_scenarios}",
                    "ability": SPELLED[ability],
                    "facts": f"state {index}",
                    "history": f"events {index}" if index % 2 else "",
                    "statement": f"Statement {index}.",
                    "gold": "True" if number % 2 else "False",
                }
            )
    for number in range(34):
        rule = {"item_id": f"r{number}", "scenario": f"rule{number}", "ability": "rules"}
        rest = {"facts": "", "history": "", "statement": f"Rule {number}.", "gold": "True"}
        found.append(rule | rest)
    return found


def write(path, found):
    if path.suffix == ".csv":
        with path.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, found[0])
            writer.writeheader()
            writer.writerows(found)
    elif path.suffix == ".jsonl":
        path.write_text("\n".join(json.dumps(row) for row in found), encoding="utf-8")
    else:
        path.write_text(json.dumps(found), encoding="utf-8")
    return path


def draw(path, options: str = "", **kwargs):
    return load_items(open_source(f"avalon-tom-bench:{path}{options}", MAP), **kwargs)


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".csv"])
def test_the_same_items_from_every_format(tmp_path, suffix: str) -> None:
    items = draw(write(tmp_path / f"bench{suffix}", rows()), ",expect-paper")
    assert len(items) == 442
    assert items[1].category == "perspective_taking"
    assert items[1].label is True
    text = items[1].messages[-1].content
    assert text.index("SETUP: state 1") < text.index("WHAT HAS HAPPENED: events 1")
    assert "WHAT HAS HAPPENED" not in items[2].messages[-1].content
    assert items[1].messages[0].role == "system"


def test_views_and_injection(tmp_path) -> None:
    path = write(tmp_path / "bench.json", rows())
    assert "SETUP" not in draw(path, view="no-facts")[1].messages[-1].content
    told = draw(path, ",inject-truth")[1].messages[-1].content
    assert "statement below is True.\n\nSTATEMENT: Statement 1." in told
    with pytest.raises(SourceError, match=r"in 408 of 442 rows \(row 1, .*--map pov_setup=COLUMN"):
        draw(path, view="pov")


def test_a_row_without_its_projected_setup_is_not_taken_for_one_without_setup(tmp_path) -> None:
    found = [row | {"pov_setup": f"seen {n}" if n < 408 else ""} for n, row in enumerate(rows())]
    items = draw(write(tmp_path / "bench.json", found), view="pov")
    assert "SETUP: seen 3\n" in items[3].messages[-1].content
    found[3]["pov_setup"] = ""
    with pytest.raises(SourceError, match=r"'pov_setup', in 1 of 442 rows \(row 4\)"):
        draw(write(tmp_path / "bench.json", found), view="pov")


def test_rules_are_asked_as_in_the_generated_exam(tmp_path) -> None:
    items = draw(write(tmp_path / "bench.json", rows()))
    (generated,) = load_items(open_source("avalon:rules-exam"), n=1)
    asked = generated.messages[-1].content.split("STATEMENT")[0]
    assert items[-1].messages[-1].content.startswith(asked)
    assert not items[0].messages[-1].content.startswith(asked)


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("ability", "Telepathy", "row 3, ability: unknown ability 'Telepathy'"),
        ("gold", "maybe", "row 3, gold: the label is 'maybe'"),
        ("item_id", "q0", "row 3, item_id: the id 'q0' is that of row 1"),
        ("statement", " ", "row 3, statement: empty"),
    ],
)
def test_rows_that_cannot_be_used_are_named(tmp_path, field, value, words) -> None:
    found = rows()
    found[2] = {**found[2], field: value}
    found[5] = {**found[5], "gold": None}
    with pytest.raises(SourceError) as caught:
        draw(write(tmp_path / "bench.json", found))
    assert words in str(caught.value)
    assert "row 6, gold: empty" in str(caught.value)
    assert "2 of 442 rows" in str(caught.value)


def test_missing_and_mismapped_columns(tmp_path) -> None:
    path = write(tmp_path / "bench.json", rows())
    with pytest.raises(SourceError, match=r"no column group_id, category, label; its columns are"):
        load_items(open_source(f"avalon-tom-bench:{path}"))
    with pytest.raises(SourceError, match=r"no column 'golden'.*Did you mean gold"):
        load_items(open_source(f"avalon-tom-bench:{path}", {**MAP, "label": "golden"}))
    with pytest.raises(SourceError, match="'gold_label' is no field"):
        load_items(open_source(f"avalon-tom-bench:{path}", {"gold_label": "gold"}))


def test_counts_are_compared_with_the_papers_only_when_asked(tmp_path) -> None:
    found = rows(n_scenarios=90)
    found[0]["gold"] = "True"
    del found[-1]
    path = write(tmp_path / "bench.csv", found)
    assert len(draw(path)) == 441
    with pytest.raises(SourceError) as caught:
        draw(path, ",expect-paper")
    for words in (
        "rules: 33 rows, expected 34",
        "perspective_taking: 35 are true, expected 34",
        "90 scenarios, expected 97",
    ):
        assert words in str(caught.value)


def test_mistakes_exit_with_code_2_on_the_command_line(tmp_path) -> None:
    path = write(tmp_path / "bench.json", rows(n_scenarios=90))
    maps = [part for pair in MAP.items() for part in ("--map", "=".join(pair))]
    arguments = ["items", f"avalon-tom-bench:{path}", *maps]
    assert CliRunner().invoke(app, [*arguments, "--n", "5"]).exit_code == 0
    result = CliRunner().invoke(app, [*arguments, "--expect-paper"])
    assert result.exit_code == 2
    assert "90 scenarios, expected 97" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("bench.txt", "x", "expected .json, .jsonl or .csv"),
        ("bench.json", "{", "cannot be read"),
        ("bench.json", "[]", "holds no rows"),
        ("bench.csv", "a,b\n1,2,3\n", "row 1: more values than the header has .* is '3'"),
        ("bench.json", "[{}, 5]", "row 2: expected an object; got 5"),
        ("bench.jsonl", '{"a": 1}\n\n{oops\n', "row 2: not a JSON object"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, words) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(SourceError, match=words):
        draw(path)
