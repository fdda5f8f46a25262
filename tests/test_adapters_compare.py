"""What an adapter does to a model's behaviour, against numbers worked out here."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attaching import save_adapter
from audits import Touch
from safetensors.torch import load_file
from typer.testing import CliRunner

from activations import HFBackend, describe_source
from experiments.cli import app
from experiments.compare import compare_adapters, verdict
from interp import Item, open_source
from interp.errors import ModelError

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")


def options(facts: tuple[Item, ...]) -> dict[str, Any]:
    source = describe_source(open_source("facts"), facts, view=None, seed=1)
    return {"source": source, "max_new_tokens": 4, "batch_tokens": 2048}


def test_the_figures_are_those_of_base_and_merged_model(
    tmp_path: Path,
    tiny_model: Callable[..., Any],
    tiny_backend: Callable[..., HFBackend],
    facts: tuple[Item, ...],
) -> None:
    merged = save_adapter(tiny_model("llama"), tmp_path / "a")
    backend = tiny_backend("llama")
    (found,) = compare_adapters(
        backend, [tmp_path / "a"], facts, tmp_path / "out", **options(facts)
    )
    prompts = backend.tokenize(facts)
    verdicts = backend.verdict_ids(prompts)
    kl, flips, right = [], 0, {"base": 0, "merged": 0}
    for item, prompt in zip(facts, prompts, strict=True):
        ids = torch.tensor([prompt.ids_with_stub])
        with torch.inference_mode():
            logits = {
                "base": backend.model(ids).logits[0, -1].double(),
                "merged": merged(ids).logits[0, -1].double(),
            }
        p, q = (logits[name].softmax(dim=0) for name in ("base", "merged"))
        kl.append(float((p * (p / q).log()).sum()))
        flips += int(p.argmax() != q.argmax())
        for name, values in logits.items():
            said = bool(values[verdicts.true_id] > values[verdicts.false_id])
            right[name] += said == item.label
    assert found.kl_mean == pytest.approx(np.mean(kl), rel=1e-3)
    assert found.kl_max == pytest.approx(np.max(kl), rel=1e-3)
    assert found.kl_mean > 0.01
    assert found.argmax_flips == flips
    assert found.forced_before == pytest.approx(right["base"] / len(facts))
    assert found.forced_after == pytest.approx(right["merged"] / len(facts))
    assert found.forced_change.value == pytest.approx(found.forced_after - found.forced_before)
    assert found.identical_greedy < 1
    assert len(found.drift) == 3
    assert found.drift[0].relative_change > 1e-3
    caches = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert len(caches) == 2
    assert caches[0].startswith("a-")
    assert caches[1] == "base.h5"


def test_an_untrained_adapter_is_said_to_change_nothing(
    tmp_path: Path,
    tiny_model: Callable[..., Any],
    tiny_backend: Callable[..., HFBackend],
    facts: tuple[Item, ...],
) -> None:
    save_adapter(tiny_model("llama"), tmp_path / "a", trained=False)
    (found,) = compare_adapters(
        tiny_backend("llama"), [tmp_path / "a"], facts, tmp_path / "out", **options(facts)
    )
    assert found.kl_max == pytest.approx(0, abs=1e-9)
    assert found.argmax_flips == 0
    assert found.identical_greedy == 1
    assert all(row.relative_change < 1e-6 for row in found.drift)
    assert all(row.cosine == pytest.approx(1, abs=1e-6) for row in found.drift)
    sentence = verdict(found)
    assert "changes nothing" in sentence or "every greedy answer is the same" in sentence
    assert "does not change the accuracy" in sentence or "changes nothing" in sentence


def test_the_command_compares_runs_and_refuses_what_does_not_fit(
    tmp_path: Path, model_folder: Path, tiny_model: Callable[..., Any]
) -> None:
    runner = CliRunner()
    # Two runs often have checkpoints of one name.
    save_adapter(tiny_model("llama"), tmp_path / "first" / "checkpoint-10")
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    base = ["adapters", "compare"]
    base += [str(tmp_path / run / "checkpoint-10") for run in ("first", "second")]
    base += ["--base", str(model_folder), "--source", "facts", "--n", "12", "--max-new-tokens", "2"]
    result = runner.invoke(app, [*base, "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "out" / "compare.json").read_text())["comparisons"]
    assert [Path(row["path"]).parent.name for row in rows] == ["first", "second"]
    same = [{k: v for k, v in row.items() if k != "path"} for row in rows]
    assert same[0] == same[1]
    # Twelve items are too few for folds, and that must not cost the rest.
    assert all(layer["probe_transfer"] is None for layer in rows[0]["drift"])
    save_adapter(tiny_model("llama", hidden_size=48), tmp_path / "wide")
    base[2] = str(tmp_path / "wide")
    result = runner.invoke(app, [*base, "--out", str(tmp_path / "other")])
    assert result.exit_code == 2
    assert "cannot be attached" in result.stderr
    assert not (tmp_path / "other").exists()


def test_an_adapter_that_the_model_does_not_use_is_an_error(
    tmp_path: Path,
    tiny_model: Callable[..., Any],
    tiny_backend: Callable[..., HFBackend],
    facts: tuple[Item, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    save_adapter(tiny_model("llama"), tmp_path / "a", trained=False)
    backend = tiny_backend("llama")
    # A model whose attention ignores its projections: whatever the adapter does, nothing comes out.
    for block in backend.model.model.layers:
        monkeypatch.setattr(block.self_attn.o_proj.weight, "data", torch.zeros(32, 32))
    with pytest.raises(ModelError, match="leaves the output as it is"):
        compare_adapters(backend, [tmp_path / "a"], facts, tmp_path / "out", **options(facts))
    assert not (tmp_path / "out").exists()


def test_a_run_folder_and_a_bin_file_are_what_they_stand_for(
    tmp_path: Path, model_folder: Path, tiny_model: Callable[..., Any]
) -> None:
    run = tmp_path / "run"
    save_adapter(tiny_model("llama"), run / "checkpoint-5", trained=False)
    save_adapter(tiny_model("llama"), run / "checkpoint-10")
    pickled = tmp_path / "pickled"
    shutil.copytree(run / "checkpoint-10", pickled)
    weights = pickled / "adapter_model.safetensors"
    torch.save(load_file(weights), pickled / "adapter_model.bin")
    weights.unlink()
    command = ["adapters", "compare", str(run), str(pickled), "--base", str(model_folder)]
    command += ["--source", "facts", "--n", "8", "--max-new-tokens", "2"]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out"), "--json"])
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)
    # The run stands for its last checkpoint, and the format of the file changes nothing.
    assert [Path(row["path"]).name for row in rows] == ["checkpoint-10", "pickled"]
    assert "comparing the last one" in result.stderr
    same = [{k: v for k, v in row.items() if k != "path"} for row in rows]
    assert same[0] == same[1] and rows[0]["kl_mean"] > 0.01


def test_a_folder_of_runs_and_a_default_place(
    tmp_path: Path,
    model_folder: Path,
    tiny_model: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("first", "second"):
        for step in (5, 10):
            save_adapter(tiny_model("llama"), tmp_path / "trained" / name / f"checkpoint-{step}")
    monkeypatch.chdir(tmp_path)
    command = ["adapters", "compare", "trained", "--base", str(model_folder), "--json"]
    command += ["--source", "facts", "--n", "8", "--max-new-tokens", "2"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    paths = [Path(row["path"]) for row in json.loads(result.stdout)]
    assert [path.parent.name for path in paths] == ["first", "second"]
    assert {path.name for path in paths} == {"checkpoint-10"}
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.endswith("-adapters-compare") and (folder / "compare.json").is_file()


def test_a_bin_that_would_run_code_is_refused(
    tmp_path: Path, model_folder: Path, tiny_model: Callable[..., Any]
) -> None:
    save_adapter(tiny_model("llama"), tmp_path / "a")
    (tmp_path / "a" / "adapter_model.safetensors").unlink()
    mark = tmp_path / "executed"
    torch.save({"a": Touch(mark)}, tmp_path / "a" / "adapter_model.bin")
    command = ["adapters", "compare", str(tmp_path / "a"), "--base", str(model_folder), "--n", "8"]
    result = CliRunner().invoke(app, [*command, "--out", str(tmp_path / "out")])
    assert result.exit_code == 2 and "holds more than tensors" in result.stderr
    assert not mark.exists()
