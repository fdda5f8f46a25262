"""`interp adapters audit`: what scripts rely on, and the numbers of the ToMAS paper."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_models import llama, save_case
from peft import LoraConfig
from safetensors.torch import save_file
from typer.testing import CliRunner

from experiments.cli import app
from figures.adapters import draw_adapters
from interp.adapters.findings import REMEDIES
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
    for code, remedy in REMEDIES.items():
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
    # A device that holds no numbers is none to compute on.
    empty = run(paper, "--device", "meta")
    assert empty.exit_code == 2 and "cannot be used" in empty.stderr
    wrong = run(paper, "--fail-on", "negligable")
    assert wrong.exit_code == 2 and "Did you mean negligible" in wrong.stderr


def test_what_was_logged_is_printed(trained: Path) -> None:
    entries = [
        {"step": step, "learning_rate": 1e-4, "grad_norm": norm, "reward": reward}
        for step, norm, reward in ((1, 0.25, 0.5), (5, 0.75, 0.125), (9, 0.5, 0.375))
    ]
    state = {"global_step": 9, "log_history": entries}
    (trained / "adapter" / "trainer_state.json").write_text(json.dumps(state))
    text = " ".join(run(trained / "adapter").stdout.split())
    assert "Logged grad_norm: first 0.25, last 0.5, median 0.5, max 0.75" in text
    assert "Logged reward: first 0.5, last 0.375, median 0.375, max 0.5" in text


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
    assert "NEGLIGIBLE: This adapter will decode like its base, or very nearly:" in text
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
