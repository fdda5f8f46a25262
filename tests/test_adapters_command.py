"""`interp adapters audit`: what scripts rely on, and the numbers of the ToMAS paper."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapter_models import llama, save_case
from peft import LoraConfig
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from experiments.cli import app
from figures.adapters import draw_adapters
from interp.adapters.findings import CODES
from interp.direction import Direction, write_direction
from interp.errors import ResultError

TOTALS = {
    "a_norm", "b_norm", "max_abs_b", "max_abs_delta", "frobenius", "relative", "bf16_changed"
}  # fmt: skip


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["adapters", "audit", *map(str, arguments)])


@pytest.fixture(scope="module")
def paper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The adapter of the ToMAS paper, section IV-C: Qwen2.5-1.5B's shapes, B of the size of 200
    AdamW steps at 1e-6."""
    folder = tmp_path_factory.mktemp("paper") / "checkpoint-200"
    folder.mkdir()
    generator = torch.Generator().manual_seed(0)
    tensors = {}
    for layer in range(28):
        for name, out in (("q_proj", 1536), ("v_proj", 256)):
            key = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            a = torch.rand(8, 1536, generator=generator) * 2 - 1
            tensors[f"{key}.lora_A.weight"] = a / math.sqrt(1536)
            tensors[f"{key}.lora_B.weight"] = torch.randn(out, 8, generator=generator) * 8.7e-6
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    history = [{"step": s, "learning_rate": 1e-6 * (1 - s / 200)} for s in range(10, 201, 10)]
    state = {"global_step": 200, "log_history": history}
    (folder / "trainer_state.json").write_text(json.dumps(state))
    return folder


def test_the_paper_s_adapter_is_told_from_its_files(paper: Path) -> None:
    result = run(paper, "--json")
    assert result.exit_code == 3
    (audit,) = json.loads(result.stdout)
    assert audit["verdict"] == "negligible"
    totals = audit["totals"]
    assert totals["a_norm"] == pytest.approx(12.22, rel=1e-3)
    assert 0.005 <= totals["b_norm"] <= 0.006
    assert totals["max_abs_b"] == pytest.approx(4e-5, rel=0.2)
    assert 3e-6 < totals["max_abs_delta"] < 1e-5
    assert all(m["a_init_ratio"] == pytest.approx(1, abs=0.05) for m in audit["modules"])
    codes = {found["code"] for found in audit["findings"]}
    assert codes == {"lr_capped", "compatible_with_noise"}
    assert audit["budget"]["lr_capped"] is True
    assert audit["budget"]["kappa"] == pytest.approx(1, abs=0.2)


def test_json_has_the_names_that_scripts_rely_on(paper: Path) -> None:
    (audit,) = json.loads(run(paper, "--json").stdout)
    assert set(audit) >= {"path", "verdict", "findings", "totals", "modules", "budget"}
    assert set(audit["totals"]) == TOTALS
    for part, n_parts in (("by_layer", 28), ("by_projection", 2)):
        assert len(audit[part]) == n_parts
        for name in ("a_norm", "b_norm", "frobenius"):
            whole = math.hypot(*(found[name] for found in audit[part]))
            assert whole == pytest.approx(audit["totals"][name])
        for name in ("max_abs_b", "max_abs_delta"):
            assert max(found[name] for found in audit[part]) == audit["totals"][name]
    assert [found["layer"] for found in audit["by_layer"]] == list(range(28))
    for found in audit["findings"]:
        assert set(found) == {"code", "severity", "message", "remedy"}
    assert len(audit["modules"]) == 56
    assert audit["modules"][2]["layer"] == 1 and audit["modules"][-1]["layer"] == 27


def test_every_code_is_lower_snake_case_with_a_remedy() -> None:
    for code, (_, _, remedy) in CODES.items():
        assert code == code.lower() and code.replace("_", "").isalpha()
        assert remedy.endswith(".")


def test_exit_codes(paper: Path, tmp_path: Path) -> None:
    assert run(paper).exit_code == 3
    assert run(paper, "--fail-on", "broken").exit_code == 0
    assert run(paper, "--fail-on", "none").exit_code == 0
    assert run(paper, "--fail-on", "broken, negligible").exit_code == 3
    missing = run(tmp_path / "nowhere")
    assert missing.exit_code == 2 and "There is no" in missing.stderr
    assert run(tmp_path).exit_code == 2
    unknown = run(paper, "--base", "nobody/nothing")
    assert unknown.exit_code == 2 and "local Hugging Face cache" in unknown.stderr
    nowhere = run(paper, "--device", "cuda:99")
    assert nowhere.exit_code == 2 and "cannot be used" in nowhere.stderr
    wrong = run(paper, "--fail-on", "negligable")
    assert wrong.exit_code == 2 and "Did you mean negligible" in wrong.stderr


def test_of_a_run_the_last_adapter_decides(tmp_path: Path) -> None:
    config = LoraConfig(r=2, target_modules=["q_proj"])
    for name, scale in (("idle", 0.0), ("trained", 0.05)):
        save_case(tmp_path / name, llama, config, scale=scale)

    def lay(*names: str) -> Path:
        folder = tmp_path / "_".join(names)
        for step, name in enumerate(names):
            target = folder / (f"checkpoint-{step}" if step < 2 else "final")
            target.mkdir(parents=True)
            for file in ("adapter_config.json", "adapter_model.safetensors"):
                (target / file).write_bytes((tmp_path / name / "adapter" / file).read_bytes())
        return folder

    good, bad = lay("idle", "trained"), lay("trained", "idle")
    assert run(good).exit_code == 0
    assert run(bad).exit_code == 3
    assert run(bad, good).exit_code == 3
    assert run(lay("idle", "idle", "trained")).exit_code == 0
    assert run(lay("trained", "trained", "idle")).exit_code == 3


def test_the_plain_verdict_says_what_to_do(paper: Path) -> None:
    text = " ".join(run(paper).stdout.split())
    assert "NEGLIGIBLE: This adapter will decode like its base:" in text
    assert "cause: the learning rate was too small" in text
    assert "try: raise the learning rate" in text


def test_files_and_figures(tmp_path: Path) -> None:
    for step, scale in ((1, 0.001), (2, 0.02)):
        save_case(
            tmp_path / str(step), llama, LoraConfig(r=2, target_modules=["q_proj"]), scale=scale
        )
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / str(step) / "adapter").rename(tmp_path / "run" / f"checkpoint-{step}")
    out = tmp_path / "out"
    result = run(
        tmp_path / "run", "--base", tmp_path / "1" / "base", "--out", out, "--fail-on", "none"
    )
    assert result.exit_code == 0
    assert "All adapters" in result.stdout
    rows = (out / "modules.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 2 and "16x16" in rows[1]
    totals = (out / "totals.csv").read_text().splitlines()
    # Each of two checkpoints: whole, two layers, one projection.
    assert len(totals) == 1 + 2 * 4 and not (out / "compared.csv").exists()
    names = {path.name for path in (out / "figures").iterdir()}
    assert names == {
        f"{name}.{kind}"
        for name in ("heat_map", "spectrum", "trajectory")
        for kind in ("png", "pdf")
    }


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


def test_what_is_printed_by_layer_and_against_the_initialisation(paper: Path) -> None:
    text = run(paper).stdout
    assert "By layer" in text and "‖A‖/init" in text
    assert "‖A‖ over its initialisation's: " in text


def test_figures_are_drawn_from_the_file_alone(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="adapter audit"):
        draw_adapters(tmp_path)
    (tmp_path / "audit.json").write_text('{"audits": []}')
    with pytest.raises(ResultError, match="no audits"):
        draw_adapters(tmp_path)
    nothing = {"path": "x", "verdict": "broken", "totals": dict.fromkeys(TOTALS), "modules": []}
    (tmp_path / "audit.json").write_text(json.dumps({"audits": [nothing]}))
    assert draw_adapters(tmp_path) == ()


def test_help_and_figures_do_not_import_torch() -> None:
    code = (
        "import sys, interp.adapters, interp.adapters.thresholds, figures, experiments.cli\n"
        "sys.exit('torch' in sys.modules)"
    )
    root = Path(__file__).parents[1]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
    loaded = code.replace("figures,", "figures, interp.adapters.audit,")
    assert subprocess.run([sys.executable, "-c", loaded], cwd=root, check=False).returncode == 1
