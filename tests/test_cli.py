"""The command line as a user meets it, on a tiny model."""

import html
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from attaching import save_adapter
from commands import invoke, ok, refused
from mast_files import mast_records, write_mast

from experiments.cli import app
from experiments.readouts import gap_verdict
from figures import draw_expression_gap
from interp import read_answers, read_items, read_run
from interp.files import partial_path
from interp.statistics import Estimate, out_of_fold_threshold


@pytest.fixture(scope="module")
def gap(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    """A finished expression-gap run."""
    folder = tmp_path_factory.mktemp("runs") / "gap"
    ok(
        *("run", "expression-gap", "--model", model_folder, "--source", "facts", "--n", 80),
        *("--max-new-tokens", 4, "--device", "cpu", "--out", folder, "--json"),
    )
    return folder


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


def examples(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """(command, its example) of every command in the tree."""
    import typer.main

    command = command or typer.main.get_command(app)
    for name, child in getattr(command, "commands", {}).items():
        yield from examples(child, (*path, name))
    if not hasattr(command, "commands"):
        yield " ".join(path), command.epilog or ""


def write_log(path: Path) -> None:
    """A finished log of Inspect, as a run of the task `interp/avalon` leaves it."""
    from inspect_ai.log import (
        EvalConfig,
        EvalDataset,
        EvalLog,
        EvalSample,
        EvalSpec,
        write_eval_log,
    )
    from inspect_ai.model import ModelOutput

    spec = EvalSpec(
        created="2026-01-01T00:00:00+00:00",
        task="interp/avalon",
        dataset=EvalDataset(name="avalon"),
        model="provider/model",
        config=EvalConfig(),
        metadata={"interp": {"source": {}, "asked": {"condition": "base"}}},
    )
    said = ModelOutput.from_content("model", "ANSWER: True")
    sample = EvalSample(id="x", epoch=1, input="?", target="True", output=said)
    path.parent.mkdir()
    write_eval_log(EvalLog(status="success", eval=spec, samples=[sample]), str(path))


def more_of(first: str, second: str) -> None:
    """A cache of items of the same source that another cache does not hold."""
    from activations import ActivationCache, ModelSpec, describe_source, extract, load_backend
    from interp import load_items, open_source

    source = open_source("facts:elements")
    with ActivationCache.open(Path(first)) as cache:
        known = set(cache.item_id)
    items = [item for item in load_items(source, n=80) if item.item_id not in known]
    backend = load_backend(ModelSpec.parse("smollm2"))
    described = describe_source(source, items, view=None, seed=0)
    extract(backend, items, Path(second), source=described).close()


def test_every_example_in_the_help_works(
    tmp_path: Path,
    tiny_model: Callable[..., Any],
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = dict(examples())
    assert set(found) >= {
        *("sources", "items", "extract", "probe", "direction", "steer", "answer", "demo"),
        *("cache info", "cache verify", "cache merge", "cache export", "drift", "behave report"),
        "probe-compare",
        *("run expression-gap", "adapters audit", "adapters compare", "mast inventory"),
        *("tomas code", "tomas pilot", "tomas accounting", "tomas agreement"),
        *("tomas check", "tomas draft", "tomas provenance", "tomas rewards"),
        *("unco build", "unco play", "unco report", "run noticed-but-silent"),
    }
    # The alias stands for a tiny model here; everything else is as printed.
    folder = tmp_path / "tiny"
    model = tiny_model("llama", num_hidden_layers=16, max_position_embeddings=8192)
    for name in ("tiny", "models/qwen"):
        model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    save_adapter(model, tmp_path / "runs" / "grpo")
    write_mast(tmp_path / "traces.json", mast_records(400_000))
    entry = {"trace_key": "r", "trace_id": 1, "framework": "MetaGPT", "model": "GPT-4o"}
    entry |= {"code": "ambiguous", "rationale": "why", "supporting_quote": "", "coder": "me"}
    (tmp_path / "conversion_log.jsonl").write_text(json.dumps(entry) + "\n")
    entry |= {"trace_key": "AppWorld_Test-C_GPT-4o", "code": "clean", "supporting_quote": "Task"}
    (tmp_path / "clean.jsonl").write_text(json.dumps(entry) + "\n")
    for name, words in (("train", "Coder wrote it."), ("held_out", "WebSurfer found it.")):
        item = {"id": name, "source": f"{name}/1", "prompt": words, "question": "Who knows?"}
        item |= {"gold": "Nobody.", "supporting_quote": ""}
        (tmp_path / f"{name}.jsonl").write_text(json.dumps(item) + "\n")
    logged = {"global_step": 1, "log_history": [{"step": 1, "reward": 0.5, "reward_std": 0.5}]}
    (tmp_path / "trainer_state.json").write_text(json.dumps(logged))
    monkeypatch.setattr(
        "activations.spec._locate", lambda _: ("local", str(folder), "smollm2", None)
    )
    monkeypatch.chdir(tmp_path)
    order = (
        *("sources", "items", "extract", "probe", "probe-compare", "direction", "steer", "answer"),
        *("answers", "drift", "report", "cache", "run", "grpo", "adapters", "behave", "mast"),
        *("tomas", "unco"),
        "demo",
    )
    # What a command reads, an earlier example has written.
    names = sorted(found, key=lambda name: order.index(name.split()[0]))
    for name in names:
        example = found[name].removeprefix("Example: ")
        assert example.startswith(f"interp {name}"), (name, found[name])
        shown = re.sub(r"[\s│]+", " ", ok(*name.split(), "--help").output)
        assert example in shown
        if name == "answers import":
            write_log(Path("logs/avalon.eval"))
        if name == "cache merge":
            more_of("facts.h5", "more.h5")
        if name == "drift":
            Path("same.h5").write_bytes(Path("facts.h5").read_bytes())
        ok(*shlex.split(example)[1:])
    assert (tmp_path / "facts.h5").exists()
    assert any((tmp_path / "runs").glob("*-expression-gap-facts/run.json"))
    assert (tmp_path / "audit" / "audit.json").exists()
    assert (tmp_path / "compared" / "compare.json").exists()


def test_items_are_written_with_the_field_names(tmp_path: Path) -> None:
    ok("items", "facts:capitals", "--n", 8, "--seed", 3, "--out", tmp_path / "i.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "i.jsonl").read_text().splitlines()]
    assert len(lines) == 8
    assert list(lines[0]) == [
        "item_id",
        "messages",
        "label",
        "gold",
        "group_id",
        "category",
        "metadata",
    ]
    assert lines[0]["metadata"]["statement"] in lines[0]["messages"][-1]["content"]
    printed = ok("items", "facts:capitals", "--n", 8, "--seed", 3).stdout
    assert printed == (tmp_path / "i.jsonl").read_text()


def test_sources_as_json() -> None:
    listed = json.loads(ok("sources", "--json").stdout)
    assert {"facts", "csv", "jsonl", "truth"} <= {entry["name"] for entry in listed}


def test_cache_info_and_verify(gap: Path, tmp_path: Path) -> None:
    info = json.loads(ok("cache", "info", gap / "activations.h5", "--json").stdout)
    assert (info["n_items"], info["n_layers"], info["n_done"]) == (80, 3, 80)
    assert info["self_check_max_relative"] < 1e-4
    assert info["manifest"]["source"]["name"] == "facts"
    assert "manifest" not in ok("cache", "info", gap / "activations.h5").stdout
    assert "sound" in ok("cache", "verify", gap / "activations.h5").stdout
    broken = tmp_path / "broken.h5"
    broken.write_bytes((gap / "activations.h5").read_bytes())
    with h5py.File(broken, "r+") as file:
        file["done"][3] = 0
    result = invoke("cache", "verify", broken)
    assert result.exit_code == 3
    assert "1 of 80 rows are not written" in result.stdout


def test_sharing_can_be_turned_off_and_gives_the_same_manifest(
    model_folder: Path, tmp_path: Path
) -> None:
    base = ["extract", "--model", model_folder, "--source", "facts", "--n", 24, "--out"]
    said = ok(*base, tmp_path / "on.h5").stderr
    assert re.search(r"\d+ shared prefixes for \d+ items: [\d,]+ of [\d,]+ prompt tokens", said)
    assert "No prefix was shared" in ok(*base, tmp_path / "off.h5", "--no-prefix-sharing").stderr
    on, off = (
        json.loads(ok("cache", "info", tmp_path / name, "--json").stdout)
        for name in ("on.h5", "off.h5")
    )
    assert on["manifest"] == off["manifest"]
    assert on["prefix_sharing"]["tokens_saved"] > 0 == off["prefix_sharing"]["tokens_saved"]
    # So a file made one way is reopened the other way.
    ok(*base, tmp_path / "on.h5", "--no-prefix-sharing")


def test_template_arguments_reach_the_template_and_the_manifest(
    tiny_model: Callable[..., Any], tokenizer: Any, tmp_path: Path
) -> None:
    import copy

    folder = tmp_path / "moody"
    tiny_model("llama").save_pretrained(folder)
    moody = copy.deepcopy(tokenizer)
    moody.chat_template += "{% if mood is defined %}{{ mood }}:{{ mood == 3 }}{% endif %}"
    moody.save_pretrained(folder)
    base = ["--model", folder, "--source", "facts", "--n", 40]
    plain, dry = tmp_path / "plain.h5", tmp_path / "dry.h5"
    ok("extract", *base, "--out", plain)
    ok("extract", *base, "--template-arg", "mood=3", "--out", dry)
    with h5py.File(plain) as a, h5py.File(dry) as b:
        assert json.loads(b.attrs["manifest"])["model"]["template_args"] == {"mood": 3}
        # "3:True" follows every prompt: JSON values keep their type.
        more = b["n_tokens"][:] - a["n_tokens"][:]
        assert set(more.tolist()) == {len(moody("3:True", add_special_tokens=False)["input_ids"])}
    message = refused("extract", *base, "--out", dry)
    assert "model.template_args.mood: the file has 3, this run has None" in message
    # Steering takes them from the cache.
    ok("probe", dry, "--out", tmp_path / "probe")
    ok(
        *("steer", dry, "--probe", tmp_path / "probe", "--model", folder),
        *("--random-directions", 1, "--out", tmp_path / "steer"),
    )
    out = tmp_path / "x.h5"
    for pair in ("mood", "=3", "2x=3"):
        assert "NAME=VALUE" in refused("extract", *base, "--template-arg", pair, "--out", out)
    message = refused("extract", *base, "--template-arg", "moood=3", "--out", out)
    assert "does not read 'moood'" in message


def test_a_direction_without_a_fold(gap: Path, tmp_path: Path) -> None:
    base = ["direction", gap / "activations.h5", "--layer", 1, "--json", "--out"]
    whole = json.loads(ok(*base, tmp_path / "a.npz").stdout)
    part = json.loads(
        ok(*base, tmp_path / "b.npz", "--probe", gap / "probe", "--without-fold", 2).stdout
    )
    assert whole["n_true"] + whole["n_false"] == 80
    assert part["n_true"] + part["n_false"] == 64
    assert "go together" in refused(*base, tmp_path / "c.npz", "--without-fold", 2)
    assert "folds 0 to 4; got 5" in refused(
        *base, tmp_path / "c.npz", "--probe", gap / "probe", "--without-fold", 5
    )


def test_ungrouped_folds_are_said_loudly(gap: Path, tmp_path: Path) -> None:
    result = ok("probe", gap / "activations.h5", "--group", "none", "--out", tmp_path / "p")
    assert "GROUPS ARE IGNORED" in result.stderr
    assert "GROUPS WERE IGNORED" in result.stdout
    assert "IGNORED" not in ok("probe", gap / "activations.h5", "--out", tmp_path / "q").output


def csv_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "rows.csv"
    path.write_text(text)
    return f"csv:{path}"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["items", "fact"], ["'fact'", "Did you mean facts"]),
        (["items", "csv:/no/such.csv"], ["/no/such.csv", "Check the path"]),
        (["items", "facts:capitals", "--n", "400"], ["320 statements", "n = 400"]),
        (["items", "facts", "--n", "0"], ["--n is 0"]),
        (["items", "facts", "--view", "fulll"], ["'fulll'", "Did you mean full"]),
        (["items", "facts", "--map", "label"], ["FIELD=COLUMN"]),
        (["items", "facts", "--map", "label=x"], ["no columns to map"]),
        (["items", "facts", "--n", "4", "--out", "/proc/none/x"], ["/proc/none", "permissions"]),
        (["probe", "/no/such.h5", "--out", "x"], ["/no/such.h5"]),
        (["cache", "info", "/no/such.h5"], ["/no/such.h5"]),
        (
            ["extract", "--source", "facts", "--model", "/no/such", "--out", "x.h5"],
            ["'/no/such'", "Check the path"],
        ),
    ],
)
def test_bad_input_gets_one_paragraph(arguments: list[str], words: list[str]) -> None:
    message = refused(*arguments)
    assert all(word in message for word in words), message


def test_bad_options_name_the_choices() -> None:
    for arguments in (
        ["extract", "--source", "facts", "--out", "x.h5", "--token", "last"],
        ["extract", "--source", "facts", "--out", "x.h5", "--dtype", "float8"],
        ["run", "expression-gaps"],
        ["probe", "x.h5", "--out", "x", "--seed", "-1"],
        ["answer", "--source", "facts", "--out", "x", "--max-new-tokens", "0"],
        ["probe", "x.h5", "--out", "x", "--group", "some"],
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2
        assert "Traceback" not in result.output


def test_bad_tables_are_named_by_row_and_column(tmp_path: Path) -> None:
    no_label = csv_file(tmp_path, "statement,truth\nA.,1\n")
    assert "'label'" in refused("items", no_label)
    odd = csv_file(tmp_path, "statement,label\nA.,1\nB.,perhaps\n")
    message = refused("items", odd)
    assert "row 3" in message
    assert "'label'" in message
    assert "'perhaps'" in message


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Callable[..., Path]:
    """A cache of the rows of a table."""

    def extract(name: str, rows: str) -> Path:
        folder = tmp_path_factory.mktemp("small")
        (folder / "rows.csv").write_text("statement,label,group_id\n" + rows)
        source = f"csv:{folder / 'rows.csv'}"
        ok("extract", "--model", model_folder, "--source", source, "--out", folder / name)
        return folder / name

    return extract


def test_one_class_and_too_few_groups_are_refused(
    small: Callable[..., Path], tmp_path: Path
) -> None:
    same = small("same.h5", "".join(f"S{i}.,1,g{i}\n" for i in range(20)))
    assert "All 20 labels are True" in refused("probe", same, "--out", tmp_path / "p")
    few = small("few.h5", "".join(f"S{i}.,{i % 2},g{i % 4}\n" for i in range(20)))
    assert "4 groups and 5 folds" in refused("probe", few, "--out", tmp_path / "p")
    assert not (tmp_path / "p").exists()


def test_layers_and_files_that_are_not_there(gap: Path, model_folder: Path, tmp_path: Path) -> None:
    cache = gap / "activations.h5"
    base = [
        "steer",
        cache,
        "--probe",
        gap / "probe",
        "--model",
        model_folder,
        "--out",
        tmp_path / "s",
    ]
    assert "Layer 7 is out of range" in refused(*base, "--layers", "1,7")
    for layers in ("x", "1.7", "nan"):
        assert f"--layers is '{layers}'" in refused(*base, "--layers", layers)
    assert "--alphas" in refused(*base, "--alphas", "0")
    assert "layers 0 to 2" in refused("direction", cache, "--layer", 3, "--out", tmp_path / "d.npz")
    cut = tmp_path / "cut.h5"
    cut.write_bytes(cache.read_bytes()[:5000])
    assert "truncated" in refused("probe", cut, "--out", tmp_path / "p")
    foreign = tmp_path / "foreign.h5"
    with h5py.File(foreign, "w") as file:
        file["x"] = [1]
    assert "not an activation cache" in refused("probe", foreign, "--out", tmp_path / "p")
    assert {path.name for path in tmp_path.iterdir()} == {"cut.h5", "foreign.h5"}


def test_a_stale_cache_is_refused_by_name(model_folder: Path, tmp_path: Path) -> None:
    base = ["extract", "--model", model_folder, "--source", "facts", "--n", 12]
    out = tmp_path / "c.h5"
    ok(*base, "--out", out)
    before = out.read_bytes()
    for change, field in (
        (["--seed", 5], "source.seed"),
        (["--view", "statement"], "source.view"),
        (["--dtype", "bfloat16"], "model.dtype"),
        (["--token", "answer_stub"], "token_rule"),
    ):
        message = refused(*base, *change, "--out", out)
        assert f"{field}: the file has" in message
    assert out.read_bytes() == before
    ok(*base, "--out", out)
    assert out.read_bytes() == before


def test_the_python_example_of_the_readme_works(
    tmp_path: Path,
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    readme = (Path(__file__).resolve().parents[1] / "README.md").read_text()
    # The first block is the tour; another one steers a model object.
    code, *others = re.findall(r"```python\n(.*?)```", readme, flags=re.S)
    (own_model,) = (other for other in others if "with steer(" in other)
    monkeypatch.setattr(
        "activations.spec._locate", lambda _: ("local", str(model_folder), "smollm2", None)
    )
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)  # noqa: S102 - our own text
    printed = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in printed[:2]] == ["probe, nested", "said"]
    assert "random direction" in printed[2]
    # Steering a model of one's own, with a direction from the same cache.
    from interp.direction import write_direction
    from steering import fold_direction

    write_direction(tmp_path / "d.npz", fold_direction(names["cache"], 1))
    mine = {
        "path": tmp_path / "d.npz",
        "model": names["backend"].model,
        "tokenizer": names["backend"].tokenizer,
        "prompts": ["Is it true?", "Paris"],
    }
    exec(compile(own_model, "README.md", "exec"), mine)  # noqa: S102 - our own text
    assert mine["output"].shape[0] == 2
