"""Several runs at once, and what of an adapter writes along a direction."""

from __future__ import annotations

import json
import math
import pickle
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapter_models import llama, save_case
from audits import codes, configure, one
from peft import LoraConfig
from safetensors.torch import load_file
from test_adapters_command import run

from interp.adapters import audit_runs
from interp.adapters.locate import find_runs
from interp.direction import Direction, write_direction


def test_runs_side_by_side(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1), ("twin", 0)):
        config = LoraConfig(r=2, target_modules=["q_proj"])
        save_case(tmp_path / name, llama, config, scale=0.01, seed=seed)
    runs = [tmp_path / name / "adapter" for name in ("a", "b", "twin")]
    result = run(*runs, "--fail-on", "none")
    assert result.exit_code == 0
    # Two of the three pairs are evidence, the third started alike.
    assert "Runs side by side" in result.stdout and "other run" in result.stdout
    table = result.stdout.partition("Runs side by side")[2]
    assert table.count("│ 2 │") == 2  # parameters in common, a line a pair
    assert result.stderr.count("Not compared:") == 1 and "started alike" in result.stderr


def test_comparisons_are_in_the_files(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1), ("twin", 0)):
        config = LoraConfig(r=2, target_modules=["q_proj", "o_proj"])
        save_case(tmp_path / name, llama, config, scale=0.01, seed=seed)
    runs = [tmp_path / name / "adapter" for name in ("a", "b", "twin")]
    out = tmp_path / "out"
    result = run(*runs, "--fail-on", "none", "--json", "--out", out)
    found = json.loads(result.stdout)
    assert found == json.loads((out / "audit.json").read_text())["audits"]
    for place, audit in enumerate(found):
        others = {other["other"]: other for other in audit["compared"]}
        assert set(others) == {str(path) for i, path in enumerate(runs) if i != place}
    first = {Path(o["other"]).parent.name: o for o in found[0]["compared"]}
    assert "started alike" in first["twin"]["refused"] and first["twin"]["cosine"] is None
    assert first["b"]["refused"] is None and len(first["b"]["modules"]) == 4
    # Against the files themselves.
    assert first["b"]["cosine"] == pytest.approx(flat_cosine(*runs[:2]))
    rows = (out / "compared.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * (4 + 4)
    # One run alone is compared with nothing.
    (alone,) = json.loads(run(runs[0], "--json", "--fail-on", "none").stdout)
    assert alone["compared"] == []


def flat_cosine(first: Path, second: Path) -> float:
    vectors = []
    for folder in (first, second):
        tensors = load_file(folder / "adapter_model.safetensors")
        names = sorted(name for name in tensors if "lora_A" in name)
        products = [tensors[n.replace("lora_A", "lora_B")] @ tensors[n] for n in names]
        vectors.append(torch.cat([product.flatten() for product in products]))
    a, b = vectors
    return float(a @ b / (a.norm() * b.norm()))


def test_runs_of_one_seed_are_no_evidence(tmp_path: Path) -> None:
    """Their A differ here, as after long training; the arguments still tell."""
    for name, seed, said in (("a", 0, 7), ("b", 1, 7), ("c", 2, 8)):
        config = LoraConfig(r=2, target_modules=["q_proj"])
        save_case(tmp_path / name, llama, config, scale=0.01, seed=seed)
        with zipfile.ZipFile(tmp_path / name / "adapter" / "training_args.bin", "w") as archive:
            archive.writestr("a/data.pkl", pickle.dumps({"seed": said}))
    runs = [tmp_path / name / "adapter" for name in ("a", "b", "c")]
    found = json.loads(run(*runs, "--fail-on", "none", "--json").stdout)
    refused = [[other["refused"] is not None for other in audit["compared"]] for audit in found]
    assert refused == [[True, False], [True, False], [False, False]]
    assert "both have seed 7" in found[0]["compared"][0]["refused"]


def save_runs(root: Path, names: tuple[str, ...]) -> None:
    """A folder of runs, each with two checkpoints and a final adapter, all of one seed or not."""
    for seed, name in enumerate(names):
        save_case(root.parent / "made", llama, LoraConfig(r=2, target_modules=["q_proj"]),
                  scale=0.01, seed=seed)  # fmt: skip
        for place in ("checkpoint-2", "checkpoint-10", "."):
            shutil.copytree(
                root.parent / "made" / "adapter", root / name / place, dirs_exist_ok=True
            )


def test_a_folder_of_runs_stands_for_all_of_them(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    save_runs(root, ("seed-1", "seed-2"))
    runs = (root / "seed-1", root / "seed-2")
    assert find_runs(root) == runs
    # One below another folder is found as well; a run by itself is that run.
    assert find_runs(tmp_path) == (tmp_path / "made" / "adapter", *runs)
    assert find_runs(runs[0]) == (runs[0],)
    assert find_runs(runs[0] / "checkpoint-2") == (runs[0] / "checkpoint-2",)
    found = json.loads(run(root, "--json").stdout)
    steps = ["checkpoint-2", "checkpoint-10"]
    assert [Path(f["path"]).name for f in found] == [*steps, "seed-1", *steps, "seed-2"]
    assert [len(f["compared"]) for f in found] == [0, 0, 1, 0, 0, 1]
    assert found[2]["compared"][0]["other"] == str(runs[1])
    assert found[2]["compared"][0]["cosine"] == pytest.approx(flat_cosine(*runs))
    assert "Runs side by side" in run(root).stdout
    # Of each run the last adapter decides.
    for broken, code in (("seed-1/checkpoint-2", 0), ("seed-1", 3)):
        (root / broken / "adapter_model.safetensors").unlink()
        assert run(root).exit_code == code


def test_one_adapter_in_a_subfolder_of_its_run(tmp_path: Path) -> None:
    save_case(tmp_path / "made", llama, LoraConfig(r=2, target_modules=["q_proj"]), scale=0.01)
    shutil.copytree(tmp_path / "made" / "adapter", tmp_path / "run" / "final")
    state = {"global_step": 9, "log_history": [{"step": s, "learning_rate": 1e-4} for s in (1, 9)]}
    (tmp_path / "run" / "trainer_state.json").write_text(json.dumps(state))
    assert find_runs(tmp_path / "run") == (tmp_path / "run",)
    assert one(tmp_path / "run").budget["n_steps"] == 9
    (tmp_path / "empty").mkdir()
    assert find_runs(tmp_path / "empty") == (tmp_path / "empty",)


def test_runs_whose_factors_hold_the_base_are_not_compared(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 1)):
        config = LoraConfig(r=2, target_modules=["q_proj"])
        save_case(tmp_path / name, llama, config, scale=0.01, seed=seed)
    paths = [tmp_path / name / "adapter" for name in ("a", "b")]
    assert all(r.audits[-1].compared[0].refused is None for r in audit_runs(paths))
    configure(paths[1], init_lora_weights="pissa")
    refused = [r.audits[-1].compared[0].refused for r in audit_runs(paths)]
    assert all(why is not None and "part of the base" in why for why in refused)


def test_a_direction_and_what_is_written_along_it(tmp_path: Path) -> None:
    config = LoraConfig(r=2, target_modules=["q_proj", "o_proj", "down_proj"])
    save_case(tmp_path, llama, config, scale=0.01)
    vector = np.zeros(16, dtype=np.float32)
    vector[3] = 1
    fields: dict[str, Any] = {
        "hook_point": "resid_post", "method": "class_mean", "class_gap": 1.0, "median_norm": 1.0,
        "model_id": "tiny", "token_rule": "last_prompt", "n_true": 1, "n_false": 1,
    }  # fmt: skip
    for layer in (0, 1):
        write_direction(tmp_path / f"{layer}.npz", Direction(vector, layer, **fields))
    found = {}
    for layer in (0, 1):
        command = (tmp_path / "adapter", "--direction", tmp_path / f"{layer}.npz")
        (found[layer],) = json.loads(run(*command, "--json").stdout)
    tensors = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    rows: dict[int, list[float]] = {0: [], 1: []}
    for module in found[1]["modules"]:
        key = f"base_model.model.{module['module']}.lora_"
        product = tensors[f"{key}B.weight"] @ tensors[f"{key}A.weight"] * module["scaling"]
        if module["projection"] == "self_attn.q_proj":
            assert module["direction_overlap"] is None
            continue
        assert module["direction_overlap"] == pytest.approx(float(product[3].norm()))
        rows[module["layer"]].append(float(product[3].norm()))
    # The stream after block 0 is written to by block 0 only.
    assert found[0]["direction"]["overlap"] == pytest.approx(math.hypot(*rows[0]))
    assert found[1]["direction"]["overlap"] == pytest.approx(math.hypot(*rows[0], *rows[1]))
    assert [found[layer]["direction"]["n_modules"] for layer in (0, 1)] == [2, 4]
    text = " ".join(run(tmp_path / "adapter", "--direction", tmp_path / "1.npz").stdout.split())
    assert "Along the class_mean direction of layer 1" in text
    assert run(tmp_path / "adapter", "--direction", tmp_path / "none.npz").exit_code == 2


def test_a_direction_of_another_model(trained: Path) -> None:
    def direction(size: int, model: str, layer: int = 1) -> Direction:
        vector = np.eye(size, dtype=np.float32)[0]
        return Direction(vector, layer, "resid_post", "class_mean", 1.0, 1.0, model, "last", 1, 1)

    adapter, base = trained / "adapter", trained / "base"
    # q and v write nothing to the residual stream; o does.
    assert codes(one(adapter, direction=direction(16, "base"))) == {"direction_not_written"}
    save_case(trained / "o", llama, LoraConfig(r=2, target_modules=["o_proj"]), scale=0.01)
    adapter, base = trained / "o" / "adapter", trained / "o" / "base"
    assert codes(one(adapter, direction=direction(16, "base"))) == set()
    assert codes(one(adapter, base=base, direction=direction(16, "base"))) == set()
    named = one(adapter, base=base, direction=direction(16, "org/other"))
    assert codes(named) == {"direction_of_another_model"}
    configure(adapter, base_model_name_or_path="org/Base")
    assert codes(one(adapter, direction=direction(16, "BASE"))) == set()
    assert codes(one(adapter, direction=direction(16, "other"))) == {"direction_of_another_model"}
    audit = one(adapter, direction=direction(24, "org/base"))
    (found,) = audit.findings
    assert found.code == "direction_not_written" and "16 outputs, it has 24" in found.message
    assert audit.direction is None
