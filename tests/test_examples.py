"""Every example in the help and the Python in the README, run as printed on a tiny model."""

import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from attaching import save_adapter
from commands import ok
from mast_files import mast_records, write_mast

from experiments.cli import app


def examples(command: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """(command, its examples) of every command in the tree."""
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
        given = re.findall(r"Example: (.+)", found[name])
        shown = re.sub(r"[\s│]+", " ", ok(*name.split(), "--help").output)
        assert given, name
        spelt = name.replace("probe-compare", "probe compare")
        assert all(each.startswith(f"interp {spelt}") and each in shown for each in given), given
        if name == "answers import":
            write_log(Path("logs/avalon.eval"))
        if name == "cache merge":
            more_of("facts.h5", "more.h5")
        if name == "drift":
            Path("same.h5").write_bytes(Path("facts.h5").read_bytes())
        for each in given:
            ok(*shlex.split(each)[1:])
    assert (tmp_path / "facts.h5").exists()
    assert any((tmp_path / "runs").glob("*-expression-gap-facts/run.json"))
    assert sorted(path.name for path in (tmp_path / "ladder").iterdir()) == ["base.h5", "grpo.h5"]
    assert (tmp_path / "audit" / "audit.json").exists()
    assert (tmp_path / "compared" / "compare.json").exists()


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
