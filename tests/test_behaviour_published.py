"""A published table: the arithmetic of the paper, and what its digits give away."""

from pathlib import Path
from typing import Any

import pytest

from interp.behaviour import published_report, read_published, read_roster
from interp.behaviour.published import counts
from interp.behaviour.taxonomy import ABILITIES
from interp.errors import ResultError

DATA = Path(__file__).parent / "data"
TABLE_1 = DATA / "avalon_table1.csv"
PT, SS, IA, TC = ABILITIES


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    roster = read_roster(DATA / "avalon_table1_models.csv", with_files=False)
    return published_report(read_published(TABLE_1), roster)


def column(rows: list[dict[str, Any]], key: str, value: str) -> dict[str, float]:
    return {row[key]: 100 * row[value] for row in rows}


def test_column_averages_are_the_printed_ones(report: dict[str, Any]) -> None:
    printed = {PT: 63.46, SS: 70.42, IA: 78.21, TC: 75.83, "rules": 84.77}
    accuracy = column(report["averages"], "ability", "accuracy_printed")
    assert {name: round(value, 2) for name, value in accuracy.items()} == printed
    f1 = {row["ability"]: row["f1_printed"] for row in report["averages"]}
    assert f1.pop("rules") is None
    assert {name: round(100 * value, 2) for name, value in f1.items()} == {
        PT: 60.80,
        SS: 68.54,
        IA: 77.01,
        TC: pytest.approx(74.70, abs=0.006),
    }


def test_model_averages_and_ordering_are_the_printed_ones(report: dict[str, Any]) -> None:
    averages = column(report["models"], "model", "average_printed")
    assert len(averages) == 28
    printed = {"Gemini-2.5-Pro": 89.67, "Qwen3-8B": 79.51, "OLMo-2-7B": 55.41}
    for model, value in printed.items():
        assert averages[model] == pytest.approx(value, abs=0.008)
    # Rows are printed in this order.
    assert [row["rank_printed"] for row in report["models"]] == list(range(1, 29))
    assert report["summary"]["ordering_printed"] == [IA, TC, SS, PT]


def test_class_means_are_the_printed_ones(report: dict[str, Any]) -> None:
    classes = column(report["classes"], "model_class", "average_printed")
    assert {name: round(value, 1) for name, value in classes.items()} == {
        "proprietary": 84.1,
        "open reasoning": 71.9,
        "open non-reasoning": 66.5,
    }


def test_effects_of_table_2(report: dict[str, Any]) -> None:
    effects = {
        (row["effect"], row["weighting"]): 100 * row["value_printed"] for row in report["axes"]
    }
    assert effects["epistemic − motivational", "items"] == pytest.approx(-8.399, abs=0.001)
    assert effects["epistemic − motivational", "cells"] == pytest.approx(-10.081, abs=0.001)
    assert effects["inference − action", "items"] == pytest.approx(-2.750, abs=0.001)
    assert effects["interaction", "cells"] == pytest.approx(-9.345, abs=0.001)


def test_twelve_models_are_no_multiples_of_one_over_n(report: dict[str, Any]) -> None:
    odd = report["summary"]["models_not_multiples"]
    assert len(odd) == 12
    assert {"Gemini-2.5-Flash", "Qwen3-8B", "Llama-3.2-3B", "Qwen3-0.6B"} <= set(odd)
    assert not {"Gemini-2.5-Pro", "GPT-5", "OLMo-2-7B"} & set(odd)
    assert report["summary"]["cells_without_any_count"] == 0
    assert report["summary"]["non_answers_at_least"] == 234
    cells = {(row["model"], row["ability"]): row for row in report["cells"]}
    cell = cells["Qwen3-8B", PT]
    assert (cell["right"], cell["answered_at_most"], cell["n"]) == (39, 57, 68)
    assert cell["counts_that_fit"] == "39/57 26/38 13/19"
    assert all(row["multiple_of_1_over_n"] for row in report["cells"] if row["ability"] == "rules")


def test_counting_non_answers_wrong_gives_two_of_table_3(report: dict[str, Any]) -> None:
    averages = column(report["averages"], "ability", "accuracy_wrong_at_most")
    assert round(averages[PT], 1) == 61.0
    assert round(averages[SS], 1) == 69.2
    # The other two are upper bounds of 75.4 and 73.9.
    assert averages[IA] == pytest.approx(76.31, abs=0.01)
    assert averages[TC] == pytest.approx(74.80, abs=0.01)
    assert column(report["averages"], "ability", "accuracy_printed")[PT] > 63.4


def test_counting_non_answers_wrong_gives_the_training_gains(report: dict[str, Any]) -> None:
    rows = {row["category"]: row for row in report["training"]}
    assert {row["base"] for row in report["training"]} == {"Qwen3-4B"}
    # Printed: +11.0 overall, up to +20.6 on Perspective-Taking.
    assert 100 * rows["all"]["delta_wrong"] == pytest.approx(100 * 45 / 408)
    assert 100 * rows[PT]["delta_wrong"] == pytest.approx(100 * 14 / 68)
    assert 100 * rows["all"]["delta_printed"] == pytest.approx(6.42, abs=0.01)
    assert 100 * rows[PT]["delta_printed"] == pytest.approx(17.89, abs=0.01)


def test_counts_that_print_alike() -> None:
    assert counts(66.67, 2, 3) == 2
    assert counts(66.67, 2, 4) is None
    assert counts(66.7, 1, 3) == 2
    assert counts(66.66, 2, 3) is None
    assert counts(100.0, 2, 7) == 7
    assert counts(0.0, 2, 7) == 0
    assert counts(12.5, 0, 8) == 1  # a tie: 12.5 prints as 12 or 13, and both are near enough
    assert counts(0.4, 1, 3) is None


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "t.csv"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model,ability,accuracy,f1\nm,rules,50,\n", ["row 1", "'n' is missing"]),
        (
            "model,ability,accuracy,f1,n\nm,ruls,50,,34\n",
            ["row 2", "'ability'", "Did you mean rul"],
        ),
        ("model,ability,accuracy,f1,n\nm,rules,high,,34\n", ["row 2", "'accuracy'", "'high'"]),
        ("model,ability,accuracy,f1,n\nm,rules,nan,,34\n", ["row 2", "'accuracy'", "'nan'"]),
        ("model,ability,accuracy,f1,n\nm,rules,101,,34\n", ["row 2", "'accuracy'", "0 to 100"]),
        ("model,ability,accuracy,f1,n\nm,rules,,,34\n", ["row 2", "'accuracy'", "empty"]),
        ("model,ability,accuracy,f1,n\nm,rules,50,x,34\n", ["row 2", "'f1'", "'x'"]),
        ("model,ability,accuracy,f1,n\nm,rules,50,,3.5\n", ["row 2", "'n'", "'3.5'"]),
        ("model,ability,accuracy,f1,n\nm,rules,50,,0\n", ["row 2", "'n'"]),
        ("model,ability,accuracy,f1,n\nm,rules,0.5,,34\n", ["'accuracy'", "not fractions"]),
        (
            "model,ability,accuracy,f1,n\nm,rules,50,,34\n\nm,rules,60,,34\n",
            ["row 4", "'ability'", "twice"],
        ),
        (
            "model,ability,accuracy,f1,n\nm,rules,50,,34\nk,rules,60,,30\n",
            ["row 3", "'n'", "30", "34"],
        ),
        (
            f"model,ability,accuracy,f1,n\nm,rules,50,,34\nm,{PT},50,,4\nk,rules,60,,34\n",
            ["'ability'", "'k' has no row for perspective_taking"],
        ),
        ("model,ability,accuracy,f1,n\n", ["no rows"]),
        ("", ["row 1", "nothing"]),
    ],
)
def test_a_bad_table_is_named_by_row_and_field(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(ResultError) as caught:
        read_published(write(tmp_path, text))
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_model_that_the_roster_lacks_is_named(tmp_path: Path) -> None:
    roster = read_roster(write(tmp_path, "model\nGPT-5\n"), with_files=False)
    with pytest.raises(ResultError, match=r"no row for 'Gemini-2\.5-Pro'"):
        published_report(read_published(TABLE_1), roster)


def test_the_documented_leaderboard_is_the_computed_one(report: dict[str, Any]) -> None:
    text = (Path(__file__).parents[1] / "docs" / "behaviour.md").read_text()
    for row in report["models"]:
        cells = (
            row["model"],
            row["non_answers_at_least"],
            f"{100 * row['average_printed']:.2f}",
            f"{100 * row['average_wrong_at_most']:.2f}",
            f"{row['rank_printed']} → {row['rank_wrong_at_most']}",
        )
        line = "| " + " | ".join(map(str, cells)) + " |\n"
        odd = row["model"] in report["summary"]["models_not_multiples"]
        assert (line in text) is odd, line


def test_the_documented_bounds_are_the_computed_ones(report: dict[str, Any]) -> None:
    wrong = column(report["averages"], "ability", "accuracy_wrong_at_most")
    printed = column(report["averages"], "ability", "accuracy_printed")
    lower = [round(printed[name] - wrong[name], 1) for name in ABILITIES]
    assert lower == [2.4, 1.2, 1.9, 1.0]
    silent = sorted(row["non_answers_at_least"] for row in report["models"])
    assert (sum(silent), sum(silent[-4:])) == (234, 180)
    classes = column(report["classes"], "model_class", "average_wrong_at_most")
    assert [round(value, 1) for value in classes.values()] == [83.9, 69.5, 65.1]
    effects = [round(100 * row["value_wrong_at_most"], 1) for row in report["axes"]]
    assert (effects[0], effects[2], effects[4]) == (-8.7, -3.8, -9.7)
    rules = [row for row in report["cells"] if row["ability"] == "rules"]
    assert sum(row["accuracy_printed"] >= 0.88 for row in rules) == 17


def test_a_table_of_the_rules_exam_alone_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "model,ability,accuracy,f1,n\nm,rules,50.00,,34\n")
    with pytest.raises(ResultError, match="no row for any ability, field 'ability'"):
        published_report(read_published(path))
