"""The MAST inventory, on files whose counts are laid out here."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ok, refused
from mast_files import FC2, NULL, RUNS, mast_records, write_mast
from sample_data import sample

from interp.mast import read_split, take_inventory
from interp.mast.human import human_summary, read_human
from interp.mast.replicated import replicated_blocks

TRAIN = {
    "AG2/GSM": 127,
    "AG2/Olympiad": 131,
    "ChatDev": 53,
    "MetaGPT": 100,
    "AppWorld": 6,
    "HyperAgent": 6,
}


HOLD_OUT = {"Magentic": 103, "OpenManus": 6, "AG2/MMLU": 100}


@pytest.fixture(scope="module")
def records() -> list[dict[str, Any]]:
    return list(mast_records(800_000))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, Any]]) -> Path:
    return write_mast(tmp_path_factory.mktemp("mast") / "MAD_full_dataset.json", iter(records))


def inventory(path: Path, *arguments: object) -> dict[str, Any]:
    return json.loads(ok("mast", "inventory", path, "--json", *arguments).stdout)


def units(found: dict[str, Any], side: str) -> dict[str, int]:
    return {unit["label"]: unit["fc2"] for unit in found["split"][side]["units"]}


def test_both_tables_of_the_paper_come_out(full: Path) -> None:
    found = inventory(full)
    assert units(found, "train") == TRAIN
    assert units(found, "hold_out") == HOLD_OUT
    assert (found["split"]["train"]["fc2"], found["split"]["hold_out"]["fc2"]) == (423, 209)
    # What the Step 1 split leaves out is said, not dropped.
    assert {u["model"]: u["fc2"] for u in found["split"]["unassigned"]} == {
        "CodeLlama": 86,
        "Qwen": 31,
    }
    assert found["n_traces"] == 1642
    assert found["n_fc2"] == 423 + 209 + 117
    printed = ok("mast", "inventory", full).stdout
    assert "423" in printed
    assert "209" in printed


def test_cells_and_code_counts_are_those_of_the_file(
    full: Path, records: list[dict[str, Any]]
) -> None:
    found = inventory(full)
    laid_out: dict[tuple[str, str, str], list[int]] = {}
    for framework, benchmark, model, n, fc2 in RUNS.values():
        cell = laid_out.setdefault((framework, model, benchmark), [0, 0])
        cell[0] += n
        cell[1] += fc2
    cells = {(c["framework"], c["model"], c["benchmark"]): c for c in found["cells"]}
    assert {key: [c["n"], c["fc2"]] for key, c in cells.items()} == laid_out
    assert sum(c["unlabelled"] for c in cells.values()) == len(NULL)
    for code, count in found["code_counts"].items():
        assert count == sum(r["mast_annotation"][code] == 1 for r in records)


def test_with_every_family_metagpt_has_217(full: Path) -> None:
    found = inventory(full, "--split", "all-models")
    assert units(found, "train") == TRAIN | {"MetaGPT": 217}
    assert units(found, "hold_out") == HOLD_OUT
    assert found["split"]["unassigned"] == []


def test_a_split_of_ones_own(full: Path, tmp_path: Path) -> None:
    out = tmp_path / "inventory"
    ok("mast", "inventory", full, "--out", out)
    mine = tmp_path / "mine.toml"
    text = (out / "split.toml").read_text()
    mine.write_text(text.replace('models = ["GPT-4o", "Claude"]', 'models = ["GPT-4o"]'))
    assert units(inventory(full, "--split", mine), "train")["MetaGPT"] == 53
    fc2 = (out / "fc2.csv").read_text().splitlines()
    assert len(fc2) == 1 + 749
    assert sum(",train,MetaGPT" in line for line in fc2) == 100
    assert json.loads((out / "inventory.json").read_text())["n_fc2"] == 749


UNIT = '[[unit]]\nlabel = "A"\nside = "train"\nframework = "AG2"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[unit", "is not TOML"),
        ("name = 'x'", "must hold `name` and tables"),
        (UNIT.replace("label", "lable"), "Did you mean label?"),
        (UNIT.replace("train", "test"), "side is 'test'; expected train or hold_out"),
        (UNIT + 'benchmarks = "GSM"', "expected a list of names"),
        (UNIT + UNIT, "two units have one label"),
        (UNIT + UNIT.replace('"A"', '"B"'), "into 'A' and 'B'; a trace belongs to one unit"),
    ],
)
def test_splits_that_cannot_work(full: Path, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "split.toml"
    path.write_text(text)
    assert words in refused("mast", "inventory", full, "--split", path)


def test_an_unknown_split_names_the_shipped_ones(full: Path) -> None:
    assert "Did you mean step1?" in refused("mast", "inventory", full, "--split", "step2")


def test_a_unit_without_traces_is_warned_of(full: Path, tmp_path: Path) -> None:
    path = tmp_path / "split.toml"
    path.write_text(UNIT + UNIT.replace('"A"', '"B"').replace("AG2", "Ag2"))
    assert any("the unit B" in warning for warning in inventory(full, "--split", path)["warnings"])


def warnings_of(tmp_path: Path, records: list[dict[str, Any]]) -> list[str]:
    path = write_mast(tmp_path / "w.json", iter(records))
    return list(take_inventory(path, read_split("all-models")).warnings)


def test_clean_data_give_the_null_warning_alone(
    tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    (warning,) = warnings_of(tmp_path, records)
    assert "4 traces have null annotations" in warning
    assert "ChatDev_ProgramDev-v2_CodeLlama/4" in warning


def test_copied_traces_are_found_and_across_the_split_they_leak(
    tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    changed = copy.deepcopy(records)
    by_key = {(r["trace"]["key"], r["trace_id"]): r for r in changed}
    first, second = by_key["AppWorld_Test-C_GPT-4o", 3], by_key["AppWorld_Test-C_GPT-4o", 9]
    second["trace"]["trajectory"] = first["trace"]["trajectory"] + "\n"
    second["mast_annotation"] = dict(first["mast_annotation"])
    found = warnings_of(tmp_path, changed)
    assert any("2 traces are copies" in w and "0 of these texts" in w for w in found)
    assert not any("leaks" in w for w in found)
    held_out = by_key["OpenManus_ProgramDev_GPT4o", 0]
    held_out["trace"]["trajectory"] = first["trace"]["trajectory"]
    held_out["mast_annotation"] |= {"1.1": 1 - first["mast_annotation"]["1.1"]}
    found = warnings_of(tmp_path, changed)
    assert any("3 traces are copies" in w and "1 of these texts" in w for w in found)
    assert any("1 texts stand in train and in hold-out" in w for w in found)


def test_annotations_copied_from_another_framework_are_found(
    tmp_path: Path, records: list[dict[str, Any]]
) -> None:
    changed = copy.deepcopy(records)
    by_key = {(r["trace"]["key"], r["trace_id"]): r for r in changed}
    for number in range(12):
        by_key["OpenManus_ProgramDev_GPT4o", 5 + number]["mast_annotation"] = dict(
            by_key["HyperAgent_SWE-Bench-Lite_Claude", 11 + number]["mast_annotation"]
        )
    (warning,) = [w for w in warnings_of(tmp_path, changed) if "in a row" in w]
    assert warning.startswith("12 annotations in a row")
    assert "HyperAgent_SWE-Bench-Lite_Claude/11 onwards" in warning
    assert "OpenManus_ProgramDev_GPT4o/5 onwards" in warning
    assert "runs of different frameworks" in warning


def test_runs_that_are_alike_by_their_frequencies_are_no_copies() -> None:
    rng = np.random.default_rng(0)
    none, one = (False,) * 14, (True,) + (False,) * 13
    # Nine in ten traces carry the same labels: long equal stretches are chance here.
    runs = {f"r{k}": [one if x < 0.1 else none for x in rng.random(150)] for k in range(12)}
    assert replicated_blocks(runs) == ()
    assert replicated_blocks({"a": [none] * 90, "b": [none] * 90}) == ()
    mixed = [tuple((rng.random(14) < 0.5).tolist()) for _ in range(90)]
    (block,) = replicated_blocks({"a": mixed[:50], "b": mixed[20:]})
    assert (block.first_start, block.second_start, block.n) == (20, 0, 30)


def human_file(tmp_path: Path) -> Path:
    """Two taxonomies of the human-labelled file's shape, with its defects."""

    def rows(modes: list[str], *votes: Any) -> list[dict[str, Any]]:
        names = ("annotator_1", "annotator_2", "annotator_3")
        return [
            {"failure mode": f"{mode}\n\nSome text.", **dict(zip(names, votes, strict=True))}
            for mode in modes
        ]

    from interp.mast.taxonomy import MODE_NAMES

    mast = [f"{code} {name.title()}" for code, name in MODE_NAMES.items()]
    old = ["2.1 Unbatched repetitive execution", "2.2 Step repetition"]

    def record(number: int, annotations: Any, **changes: Any) -> dict[str, Any]:
        return {
            "round": "Round 1",
            "mas_name": "MetaGPT",
            "benchmark_name": "ProgramDev",
            "trace_id": number,
            "trace": f"trace {number}",
            "annotations": annotations,
        } | changes

    one = rows(mast, False, False, False)
    one[5] = rows(mast, True, True, False)[5]
    minority = rows(mast, False, True, False)
    minority[0] = rows(mast, True, True, float("nan"))[0]
    found = [
        record(0, rows(old, True, True, True)),
        record(1, rows(old, True, True, True), trace=" trace 0"),
        record(2, one, round="Last"),
        record(3, minority, round="Last", mas_name="GAIA", benchmark_name="Magentic"),
    ]
    path = tmp_path / "human.json"
    path.write_text(json.dumps(found))
    return path


def test_the_human_file_and_what_cannot_be_compared(tmp_path: Path) -> None:
    path = human_file(tmp_path)
    found = inventory(path)
    assert found["format"] == "human"
    assert [trace["fc2"] for trace in found["traces"]] == [None, None, True, False]
    assert (found["n_fc2"], found["n_not_comparable"]) == (1, 2)
    assert [(t["n_modes"], t["n_traces"], t["is_mast"]) for t in found["taxonomies"]] == [
        (2, 2, False),
        (14, 2, True),
    ]
    assert found["traces"][3]["framework"] == "Magentic"
    text = " ".join(found["warnings"])
    for words in (
        "There is no llm_name",
        "traces 0, 1 are annotated with modes that are not the 14 of MAST (2.1, 2.2",
        "Traces 3: mas_name and benchmark_name are swapped",
        "1 in trace 3",
        "Traces 0, 1 have the same text",
        "Only 3 different annotation blocks for 4 traces",
    ):
        assert words in text, words
    assert "not defined" in ok("mast", "inventory", path).stdout


def test_faults_of_a_human_file(tmp_path: Path) -> None:
    text = human_file(tmp_path).read_text()
    path = tmp_path / "bad.json"
    path.write_text(text.replace('"annotator_2": true', '"annotator_2": 1', 1))
    assert "record 1, annotation 1, annotator_2: the vote is 1" in refused(
        "mast", "inventory", path
    )
    path.write_text(text[:-1] + "!")
    assert f"at byte {len(text) - 1} " in refused("mast", "inventory", path)
    path.write_text(text.replace('"trace_id": 1', '"trace_id": 0'))
    assert "a trace_id occurs twice" in refused("mast", "inventory", path)


def test_the_published_human_file() -> None:
    records = read_human(sample("mast/MAD_human_labelled_dataset.json"))
    found = human_summary(records)
    assert found["n_traces"] == 19
    assert [t["n_modes"] for t in found["taxonomies"]] == [18, 17, 14]
    assert [r.trace_id for r in records if r.is_mast] == [15, 16, 17, 18]
    text = " ".join(found["warnings"])
    for words in (
        "Traces 17, 18: mas_name",
        "2 in trace 18",
        "Traces 3, 8 have the same text",
        "Only 8 different annotation blocks for 19 traces",
    ):
        assert words in text


def test_the_generator_has_the_runs_of_the_published_facts() -> None:
    facts = json.loads(sample("mast/mad_full_schema_facts.json").read_text())
    assert {key: run[:4] for key, run in RUNS.items()} == {
        r["trace.key"]: (r["mas_name"], r["benchmark_name"], r["llm_name"], r["records"])
        for r in facts["runs"]
    }
    assert {(r["trace.key"], r["trace_id"]) for r in facts["null_records"]} == NULL
    assert sum(run[3] for run in RUNS.values()) == facts["file"]["records"]
    assert set(FC2) == {code for code in facts["codes"] if code[0] == "2"}
