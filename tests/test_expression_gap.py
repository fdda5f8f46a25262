"""An expression-gap run: what it leaves, resumes, refuses and concludes, on a tiny model."""

import html
import json
import re
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import ok, refused

from experiments.readouts import gap_verdict
from figures import draw_expression_gap
from interp import read_answers, read_items, read_run
from interp.files import partial_path
from interp.statistics import Estimate, out_of_fold_threshold


def test_a_run_leaves_everything_behind(gap: Path) -> None:
    names = {path.relative_to(gap).as_posix() for path in gap.rglob("*") if path.is_file()}
    assert names == {
        *("config.json", "items.jsonl", "activations.h5", "answers.jsonl"),
        *("answers.jsonl.manifest.json", "readouts.json", "metrics.csv", "run.json"),
        *("probe/probes.h5", "probe/probe.json", "probe/layers.csv", "probe/folds.json"),
        *("steer/steer.h5", "steer/steer.json", "steer/cells.csv"),
        *("steer/draws.csv", "steer/items.csv"),
        *(
            f"figures/{name}.{suffix}"
            for name in ("accuracy_by_layer", "steering", "represented_expressed")
            for suffix in ("png", "pdf")
        ),
    }
    record = read_run(gap)
    assert {artifact.path for artifact in record.artifacts} == names - {"run.json"}
    assert record.config["n"] == 80
    assert record.seeds == {"items": 0, "folds": 0, "steering": 0}
    assert record.model["weights"]
    assert record.source["name"] == "facts"
    assert record.versions["torch"]


def test_metrics_can_be_computed_again_from_the_files(gap: Path) -> None:
    metrics = read_run(gap).metrics
    with h5py.File(gap / "probe" / "probes.h5") as file:
        decisions, fold = file["decision_values"][:], file["fold"][:]
        item_ids = file["item_id"].asstr()[:].tolist()
        assert file["C"].shape == (3, 5)
    items = {item.item_id: item for item in read_items(gap / "items.jsonl")}
    labels = np.array([items[item_id].label for item_id in item_ids])
    correct = (decisions > 0) == labels[:, None]
    assert metrics["n_items"] == len(labels) == 80
    assert metrics["probe_accuracy_best_layer"] == correct.mean(axis=0).max()
    assert metrics["best_layer"] == correct.mean(axis=0).argmax()
    chosen = np.array(metrics["layers_nested"])[fold]
    nested = correct[np.arange(80), chosen]
    assert metrics["probe_accuracy_nested"] == pytest.approx(nested.mean())
    answers = read_answers(gap / "answers.jsonl")
    accuracy = {
        condition: np.mean([a.correct for a in answers if a.condition == condition])
        for condition in ("forced", "greedy")
    }
    assert metrics["answer_accuracy_forced"] == pytest.approx(accuracy["forced"])
    assert metrics["answer_accuracy_greedy"] == pytest.approx(accuracy["greedy"])
    assert metrics["answer_accuracy"] == max(accuracy.values())
    assert metrics["non_answers"] == sum(not a.answered for a in answers)
    four = [
        metrics[name]
        for name in (
            "represented_expressed",
            "represented_not_expressed",
            "not_represented_expressed",
            "not_represented_not_expressed",
        )
    ]
    readouts = json.loads((gap / "readouts.json").read_text())
    by = {(a.condition, a.item_id): a for a in answers}
    difference = np.array(
        [by["forced", i].logit_true - by["forced", i].logit_false for i in item_ids]
    )
    calibrated = out_of_fold_threshold(difference, labels, fold) == labels
    assert metrics["answer_accuracy_calibrated"] == pytest.approx(calibrated.mean())
    assert readouts["gaps"]["calibrated"]["value"] == pytest.approx(
        nested.mean() - calibrated.mean()
    )
    assert readouts["gaps"]["forced"]["value"] == pytest.approx(nested.mean() - accuracy["forced"])
    assert metrics["answer_accuracy_greedy_bare"] >= metrics["answer_accuracy_greedy"]
    assert sum(four) == 80
    assert four[0] + four[1] == nested.sum()
    for name in ("signed", "negated", "random"):
        assert 0 <= metrics[f"steered_accuracy_{name}"] <= 1
    table = (gap / "metrics.csv").read_text().splitlines()
    assert table[0] == "metric,value,low,high"
    assert any(line.startswith("probe_accuracy_nested,0.") for line in table)


def test_a_finished_run_is_not_run_again_and_other_settings_are_refused(
    gap: Path, model_folder: Path
) -> None:
    before = (gap / "run.json").read_bytes()
    base = ["run", "expression-gap", "--model", model_folder, "--source", "facts", "--n", 80]
    again = ok(*base, "--max-new-tokens", 4, "--device", "cpu", "--out", gap)
    assert "finished already" in again.stderr
    assert "quote" not in again.stdout
    assert re.search(r"probe, nested layer choice", again.stdout)
    message = refused(*base, "--max-new-tokens", 4, "--device", "cpu", "--seed", 1, "--out", gap)
    assert "seed: the file has 0, this run has 1" in message
    assert (gap / "run.json").read_bytes() == before


def test_a_run_that_was_cut_off_ends_with_the_same_numbers(
    gap: Path, model_folder: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "cut"
    folder.mkdir()
    for name in ("config.json", "activations.h5"):
        (folder / name).write_bytes((gap / name).read_bytes())
    lines = (gap / "answers.jsonl").read_text().splitlines(keepends=True)
    manifest = json.loads((gap / "answers.jsonl.manifest.json").read_text())
    head = json.dumps(manifest) + "\n"
    partial_path(folder / "answers.jsonl").write_text(head + "".join(lines[:100]) + lines[100][:20])
    ok(
        *("run", "expression-gap", "--model", model_folder, "--source", "facts", "--n", 80),
        *("--max-new-tokens", 4, "--device", "cpu", "--out", folder),
    )
    assert read_run(folder).metrics == read_run(gap).metrics


def test_a_finished_run_is_refused_when_its_source_or_model_changed(
    gap: Path, model_folder: Path, tmp_path: Path
) -> None:
    rows = "".join(f"S{i} is so.,{i % 2},g{i // 4}\n" for i in range(40))
    table = tmp_path / "rows.csv"
    table.write_text("statement,label,group_id\n" + rows)
    copied = tmp_path / "model"
    shutil.copytree(model_folder, copied)
    base = ["run", "expression-gap", "--model", copied, "--source", f"csv:{table}"]
    base += ["--max-new-tokens", 2, "--out", tmp_path / "run"]
    ok(*base)
    ok(*base)
    weights = bytearray((copied / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copied / "model.safetensors").write_bytes(weights)
    assert "model.weights: the file has" in refused(*base)
    weights[-1] ^= 1
    (copied / "model.safetensors").write_bytes(weights)
    ok(*base)
    table.write_text(
        table.read_text().replace(",1,", ",x,").replace(",0,", ",1,").replace(",x,", ",0,")
    )
    assert "source.fingerprint: the file has" in refused(*base)


def test_settings_that_cannot_work_fail_at_once_and_leave_nothing(
    model_folder: Path, tmp_path: Path
) -> None:
    base = ["run", "expression-gap", "--model", model_folder, "--source", "facts", "--n", 40]
    out = tmp_path / "run"
    for change, words in (
        (["--alphas", "0"], "--alphas"),
        (["--random-directions", 0], "--random-directions is 0"),
        (["--folds", 2], "--folds is 2"),
        (["--folds", 30], "10 groups and 30 folds"),
        (["--C", -1], "--C is -1"),
        (["--model", "/no/such"], "'/no/such'"),
    ):
        assert words in refused(*base, *change, "--out", out)
        assert not out.exists()
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    assert "is not empty and holds no run" in refused(*base, "--out", out)


def test_the_verdict_follows_from_the_numbers() -> None:
    wide, narrow = Estimate(0.25, 0.10, 0.40), Estimate(0.20, 0.15, 0.25)
    gaps = {"forced": wide, "greedy": narrow, "greedy_bare": narrow, "calibrated": narrow}
    assert "beats every readout" in gap_verdict(gaps)
    assert "The closest is the forced choice: +25.0 points [+10.0, +40.0]" in gap_verdict(gaps)
    gaps["calibrated"] = Estimate(0.05, -0.02, 0.12)
    assert "No expression gap is shown" in gap_verdict(gaps)
    assert "fitted threshold the nested probe's lead is +5.0 points [-2.0, +12.0]" in gap_verdict(
        gaps
    )


def test_a_probe_of_another_cache_is_refused(gap: Path, model_folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.h5"
    ok(
        *("extract", "--model", model_folder, "--source", "facts", "--n", 80),
        *("--view", "statement", "--out", other),
    )
    for arguments in (
        [
            "steer",
            other,
            "--probe",
            gap / "probe",
            "--model",
            model_folder,
            "--out",
            tmp_path / "s",
        ],
        [
            "direction",
            other,
            "--layer",
            1,
            "--probe",
            gap / "probe",
            "--without-fold",
            1,
            "--out",
            tmp_path / "d.npz",
        ],
    ):
        assert "source.view: the file has 'full', this run has 'statement'" in refused(*arguments)


def test_figures_can_be_drawn_again_from_the_files_alone(gap: Path, tmp_path: Path) -> None:
    for name in ("probe/probe.json", "steer/steer.json", "readouts.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((gap / name).read_bytes())
    drawn = draw_expression_gap(tmp_path)
    assert len(drawn) == 3
    for path in drawn:
        assert path.read_bytes() == (gap / "figures" / path.name).read_bytes()


def test_the_report_of_a_run_is_one_file_drawn_from_its_files(gap: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    assert ok("report", gap, "--out", out).stdout.split() == [str(out)]
    text = html.unescape(out.read_text())
    assert text.count('src="data:image/png;base64,') == text.count("<img ") == 7
    for name in ("probe/probe.json", "steer/steer.json", "readouts.json"):
        assert json.loads((gap / name).read_text())["verdict"] in text
    assert f"expression-gap: {read_run(gap).run_id}" in text
    assert "has been changed since" not in text
