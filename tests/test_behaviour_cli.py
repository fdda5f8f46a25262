"""`interp behave report` as a user meets it."""

import csv
import json
import re
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from activations import ActivationCache, ModelSpec, describe_source, extract, load_backend
from activations import answer as run_answer
from experiments.cli import app
from figures import draw_behaviour
from interp import Answer, Item, Message, load_items, open_source, write_answers, write_items
from interp.behaviour.report import SECTIONS
from interp.behaviour.taxonomy import ABILITIES, RULES
from interp.errors import ResultError
from interp.vocabulary import GROUPS_IGNORED
from probes import sweep_layers, write_sweep

runner = CliRunner()
TABLE_1 = Path(__file__).parent / "data" / "avalon_table1.csv"
ROSTER = TABLE_1.with_name("avalon_table1_models.csv")


def invoke(*arguments: object) -> Result:
    return runner.invoke(app, ["behave", "report", *map(str, arguments)], catch_exceptions=False)


def ok(*arguments: object) -> Result:
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refused(*arguments: object) -> str:
    result = invoke(*arguments)
    assert result.exit_code == 2, result.output
    (message,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return message


@pytest.fixture(scope="module")
def asked(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path, facts: tuple[Item, ...]
) -> Path:
    """Items, a tiny model's answers, and a probe of it."""
    folder = tmp_path_factory.mktemp("asked")
    write_items(folder / "items.jsonl", facts)
    backend = load_backend(ModelSpec.parse(str(model_folder), dtype="float32", device="cpu"))
    source = describe_source(open_source("facts"), facts, view=None, seed=1)
    run_answer(backend, facts, folder / "answers.jsonl", source=source, max_new_tokens=4)
    with extract(backend, facts, folder / "cache.h5", source=source) as cache:
        write_sweep(folder / "probe", sweep_layers(cache, C=0.01, n_folds=5, seed=0))
    return folder


def test_answers_and_probe_of_a_model_that_ran(asked: Path, tmp_path: Path) -> None:
    base = (asked / "answers.jsonl", "--items", asked / "items.jsonl", "--probe", asked / "probe")
    out = tmp_path / "out"
    report = json.loads(ok(*base, "--readout", "forced", "--out", out, "--json").stdout)
    assert report == json.loads((out / "behaviour.json").read_text())
    answers = [json.loads(line) for line in (asked / "answers.jsonl").read_text().splitlines()]
    forced = [a["correct"] for a in answers if a["condition"] == "forced"]
    (whole,) = [r for r in report["probe"] if (r["category"], r["policy"]) == ("all", "wrong")]
    assert whole["before"] == pytest.approx(sum(forced) / 40)
    probe = json.loads((asked / "probe" / "probe.json").read_text())
    assert whole["after"] == pytest.approx(probe["accuracy_nested"])
    with (out / "scores.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert len(rows) == len(report["scores"])
    assert rows[0]["accuracy_wrong"] == str(report["scores"][0]["accuracy_wrong"])
    printed = ok(*base, "--readout", "forced").stdout
    assert "what the probe reads" in printed
    assert "No axes table" in printed


def test_a_probe_that_ignored_groups_is_warned_of(asked: Path, tmp_path: Path) -> None:
    with ActivationCache.open(asked / "cache.h5") as cache:
        write_sweep(tmp_path / "leaks", sweep_layers(cache, grouping="none"))
    base = (asked / "answers.jsonl", "--items", asked / "items.jsonl", "--readout", "forced")
    for folder, warned in ((tmp_path / "leaks", 1), (asked / "probe", 0)):
        report = json.loads(ok(*base, "--probe", folder, "--json").stdout)
        said = [text for text in report["warnings"] if text.startswith(GROUPS_IGNORED)]
        assert len(said) == warned
    assert GROUPS_IGNORED in ok(*base, "--probe", tmp_path / "leaks").output


def test_figures_are_drawn_from_the_report_alone(asked: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    base = (asked / "answers.jsonl", "--items", asked / "items.jsonl", "--probe", asked / "probe")
    ok(*base, "--out", first)
    second.mkdir()
    shutil.copy(first / "behaviour.json", second)
    drawn = draw_behaviour(second)
    assert {path.stem for path in drawn} >= {"scores", "probe"}
    for path in drawn:
        assert path.read_bytes() == (first / "figures" / path.name).read_bytes()
    with pytest.raises(ResultError, match="neither"):
        draw_behaviour(tmp_path)


def write_conditions(folder: Path) -> None:
    """Model b and its reasoning-trained sibling r; wrong are the first so many items."""
    items = [
        Item(f"{a}-{i}", (Message("user", "?"),), i % 2 == 0, None, f"{a}-g{i // 2}", a, {})
        for a in (*ABILITIES, RULES)
        for i in range(12)
    ]
    write_items(folder / "items.jsonl", items)
    wrong = {"base": 20, "injected": 5, "no_cot": 30, "cot": 24}
    rows = ["file,model,condition,access,reasoning,base"]
    for model, tail in (("b", "open,no,"), ("r", "proprietary,yes,b")):
        for condition, k in wrong.items():
            write_answers(
                folder / f"{model}-{condition}.jsonl",
                [
                    Answer(
                        i.item_id,
                        "greedy",
                        (not i.label) if n < k else i.label,
                        n >= k,
                        True,
                        "ANSWER: x",
                        5 + n,
                        0.0,
                        0.0,
                    )
                    for n, i in enumerate(items)
                ],
            )
            rows.append(f"{model}-{condition}.jsonl,{model},{condition},{tail}")
    (folder / "models.csv").write_text("\n".join(rows) + "\n")


def test_every_table_and_figure_of_a_full_roster(tmp_path: Path) -> None:
    write_conditions(tmp_path)
    out = tmp_path / "out"
    base = ("--items", tmp_path / "items.jsonl", "--models", tmp_path / "models.csv")
    printed = ok(*base, "--out", out).stdout
    assert {p.stem for p in out.glob("*.csv")} == set(SECTIONS) - {"probe"}
    assert {p.stem for p in (out / "figures").glob("*.png")} == {
        *("scores", "injection", "toggle", "training", "lengths", "axes")
    }
    # PT is all wrong and SS wrong for 8 of 12 without the answer in the prompt; PT for 5 with it.
    assert re.search(r"perspective taking +│ +0\.0 → 58\.3", printed)
    assert re.search(r"strategic signaling +│ +33\.3 → 100\.0", printed)
    assert re.search(r"average +│ +0/48 │ +58\.3 ", printed)
    assert "No probe table" in printed
    files = [tmp_path / "b-base.jsonl", tmp_path / "r-base.jsonl"]
    injected = ok(tmp_path / "b-injected.jsonl", *base, "--out", tmp_path / "only").stdout
    assert re.search(r"b \(injected\) │ average +│ +0/48 │ +89\.6 ", injected)
    two = json.loads(ok(*files, *base, "--json").stdout)
    assert {(r["model"], r["condition"]) for r in two["scores"]} == {("b", "base"), ("r", "base")}
    assert two["injection"] == []
    again = json.loads(ok(*files, *base, "--json").stdout)
    assert again == two
    other_seed = json.loads(ok(*files, *base, "--seed", 1, "--json").stdout)
    assert other_seed["averages"] != two["averages"]


def test_a_second_report_leaves_nothing_of_the_first(asked: Path, tmp_path: Path) -> None:
    base = (asked / "answers.jsonl", "--items", asked / "items.jsonl", "--out", tmp_path)
    ok(*base, "--probe", asked / "probe")
    assert (tmp_path / "probe.csv").exists()
    assert (tmp_path / "figures" / "probe.pdf").exists()
    ok(*base)
    assert not (tmp_path / "probe.csv").exists()
    assert not (tmp_path / "figures" / "probe.pdf").exists()
    assert (tmp_path / "scores.csv").exists()
    assert "another kind of report" in refused("--table", TABLE_1, "--out", tmp_path)


def test_a_published_table(tmp_path: Path) -> None:
    result = ok("--table", TABLE_1, "--models", ROSTER, "--out", tmp_path)
    for words in ("12 models", "≥ 46", "79.51", "≤ 68.86", "-8.40", "-9.34", "71.93", "+11.03"):
        assert words in result.stdout, words
    assert {path.name for path in tmp_path.iterdir()} == {
        *("averages.csv", "axes.csv", "cells.csv", "classes.csv", "models.csv", "training.csv"),
        *("published.json", "figures"),
    }
    assert (tmp_path / "figures" / "published.png").stat().st_size > 10_000
    bare = json.loads(ok("--table", TABLE_1, "--json").stdout)
    assert bare["classes"] == []


def test_bad_input_gets_one_paragraph_and_exit_code_2(asked: Path, tmp_path: Path) -> None:
    answers, items = asked / "answers.jsonl", asked / "items.jsonl"
    assert "--items" in refused(answers)
    assert "stands alone" in refused(answers, "--table", TABLE_1)
    assert "/no/such" in refused("/no/such.jsonl", "--items", items)
    other = tmp_path / "other.jsonl"
    write_items(other, load_items(open_source("facts:capitals"), n=8, seed=0))
    message = refused(answers, "--items", other)
    assert "line 1, field 'item_id'" in message
    table = tmp_path / "t.csv"
    table.write_text(TABLE_1.read_text().replace("tacit_coordination", "tacit", 1))
    assert "row 6, field 'ability': got 'tacit'" in refused("--table", table)
    table.write_text(TABLE_1.read_text().replace("97.06", "97,06", 1))
    assert "row 2: 6 cells under 5 columns" in refused("--table", table)
    assert not (tmp_path / "out").exists()
