"""From saved adapters to verdicts: every row of the table, and the findings behind it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import peft
import pytest
import torch
from adapter_models import llama, save_case, tied
from audits import codes, one, rewrite
from safetensors.torch import load_file, save_file

from interp.adapters import audit_path
from interp.adapters.thresholds import (
    EXTREME_RHO,
    NEGLIGIBLE_DELTA,
    NEGLIGIBLE_RHO,
    WEAK_DELTA,
    WEAK_RHO,
)
from interp.adapters.verdict import judge

L = peft.LoraConfig
PREFIX = "base_model.model.model.layers"


@pytest.mark.parametrize(
    ("rho", "verdict"),
    [(0.0, "untrained"), (0.5e-4, "negligible"), (5e-4, "weak"), (1e-2, "effective"),
     (0.9, "extreme")],
)  # fmt: skip
def test_sizes_with_the_base(rho: float, verdict: str, trained: Path) -> None:
    before = one(trained / "adapter", base=trained / "base")
    # All modules alike: each B is scaled so that its own module has this relative change.
    factor = {m.module: rho / m.relative for m in before.modules if m.relative}

    def scale(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        module = name.removeprefix("base_model.model.").partition(".lora_")[0]
        return {name: tensor * factor[module] if "lora_B" in name else tensor}

    rewrite(trained / "adapter", scale)
    audit = one(trained / "adapter", base=trained / "base")
    assert audit.verdict == verdict
    assert audit.totals.relative == pytest.approx(rho, rel=1e-6)
    assert audit.summary.startswith(("This adapter", "Whether"))


def test_one_trained_layer_among_idle_ones_is_not_negligible(trained: Path) -> None:
    def scale(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        idle = "lora_B" in name and "layers.0.self_attn.q_proj" not in name
        return {name: tensor * 0 if idle else tensor}

    rewrite(trained / "adapter", scale)
    audit = one(trained / "adapter", base=trained / "base")
    assert audit.verdict in ("effective", "extreme")
    assert "some_modules_zero" in codes(audit)


@pytest.mark.parametrize(
    ("largest", "verdict"), [(1e-5, "negligible"), (1e-4, "weak"), (1e-3, "effective")]
)
def test_sizes_without_the_base(largest: float, verdict: str, trained: Path) -> None:
    now = one(trained / "adapter").totals.max_abs_delta
    assert now is not None
    rewrite(trained / "adapter", lambda n, t: {n: t * (largest / now) if "lora_B" in n else t})
    audit = one(trained / "adapter")
    assert audit.verdict == verdict
    assert audit.totals.max_abs_delta == pytest.approx(largest)
    assert audit.totals.relative is None


def test_an_untrained_adapter_whose_saved_head_moved_is_not_untrained(tmp_path: Path) -> None:
    config = L(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"])
    save_case(tmp_path, llama, config, scale=0)
    same = one(tmp_path / "adapter", base=tmp_path / "base")
    assert same.verdict == "untrained" and "saved_tensors_identical" in codes(same)
    # Without the base nobody can know.
    blind = one(tmp_path / "adapter")
    assert blind.verdict == "indeterminate" and "saved_tensors_unverified" in codes(blind)
    rewrite(tmp_path / "adapter", lambda n, t: {n: t + 1 if "lm_head" in n else t})
    assert one(tmp_path / "adapter", base=tmp_path / "base").verdict in ("effective", "extreme")


def test_a_new_head_is_not_called_a_missing_base(tmp_path: Path) -> None:
    config = L(r=4, target_modules=["q_proj"], modules_to_save=["lm_head"])
    save_case(tmp_path, llama, config, scale=0)
    base = tmp_path / "base" / "model.safetensors"
    save_file({n: t for n, t in load_file(base).items() if "lm_head" not in n}, base)
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "indeterminate"
    (found,) = (f for f in audit.findings if f.code == "saved_tensors_unverified")
    assert "not in the base" in found.message and "--base" not in found.remedy


def test_a_final_adapter_takes_the_state_of_its_last_checkpoint(trained: Path) -> None:
    for step in (5, 20):
        folder = trained / "adapter" / f"checkpoint-{step}"
        folder.mkdir()
        for file in ("adapter_config.json", "adapter_model.safetensors"):
            (folder / file).write_bytes((trained / "adapter" / file).read_bytes())
        state = {"global_step": step, "log_history": [{"step": step, "learning_rate": 1e-4}]}
        (folder / "trainer_state.json").write_text(json.dumps(state))
    audits = audit_path(trained / "adapter")
    assert [audit.step for audit in audits] == [5, 20, None]
    assert [audit.budget["n_steps"] for audit in audits] == [5, 20, 20]


def test_embedding_factors_start_at_zero_the_other_way_round(tmp_path: Path) -> None:
    save_case(tmp_path, tied, L(r=4, target_modules=["embed_tokens"]), scale=0)
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "untrained"
    assert {"base_tensors_saved", "saved_tensors_identical"} <= codes(audit)
    assert audit.totals.b_norm and audit.totals.a_norm == 0
    rewrite(tmp_path / "adapter", lambda n, t: {n: t + 0.1 if "embedding_A" in n else t})
    moved = one(tmp_path / "adapter", base=tmp_path / "base")
    assert moved.verdict in ("effective", "extreme") and "tied_embeddings" in codes(moved)


def test_dora_without_a_base_is_told_only_where_the_product_is_large(tmp_path: Path) -> None:
    save_case(tmp_path, llama, L(r=4, target_modules=["q_proj"], use_dora=True), scale=0)
    assert one(tmp_path / "adapter").verdict == "indeterminate"
    assert "needs_base" in codes(one(tmp_path / "adapter"))
    # A magnitude alone changes the model; B is still zero.
    rewrite(tmp_path / "adapter", lambda n, t: {n: t * 1.1 if "magnitude" in n else t})
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "effective"
    assert audit.totals.relative == pytest.approx(0.1, rel=1e-6)


def test_methods_without_a_formula_are_named(tmp_path: Path) -> None:
    config = peft.WaveFTConfig(n_frequency=4, target_modules=["q_proj"])
    save_case(tmp_path, llama, config)
    audit = one(tmp_path / "adapter")
    assert audit.verdict == "indeterminate" and codes(audit) == {"unsupported_method"}
    assert "WAVEFT" in audit.summary


def test_a_sound_adapter_has_no_findings(trained: Path) -> None:
    """The control for all of the above."""
    assert codes(one(trained / "adapter")) == set()
    assert codes(one(trained / "adapter", base=trained / "base")) <= {"base_overridden"}


def test_full_fine_tunes(tmp_path: Path) -> None:
    """Against a base in bfloat16, steps that its rounding swallows leave no trace."""
    torch.manual_seed(0)
    model = llama().bfloat16()
    model.save_pretrained(tmp_path / "base")
    before = {n: t.clone() for n, t in model.state_dict().items()}
    model.save_pretrained(tmp_path / "same")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 1e-3)
    model.save_pretrained(tmp_path / "tuned")
    assert one(tmp_path / "same", base=tmp_path / "base").verdict == "untrained"
    audit = one(tmp_path / "tuned", base=tmp_path / "base")
    assert audit.verdict == "effective" and audit.method == "FULL"
    after = model.state_dict()
    assert {m.name for m in audit.modules} == set(after)
    for module in audit.modules:
        delta = after[module.name].double() - before[module.name].double()
        assert module.frobenius == pytest.approx(float(delta.norm()), rel=1e-6)
        assert module.max_abs_delta == pytest.approx(float(delta.abs().max()), rel=1e-6)


def test_a_run_is_a_trajectory_in_the_order_of_steps(tmp_path: Path) -> None:
    for step, scale in ((10, 0.1), (9, 0.01), (100, 0.3)):
        folder = tmp_path / "case" / str(step)
        save_case(folder, llama, L(r=4, target_modules=["q_proj"]), scale=scale)
        target = tmp_path / "run" / f"checkpoint-{step}"
        target.parent.mkdir(exist_ok=True)
        (folder / "adapter").rename(target)
    audits = audit_path(tmp_path / "run")
    assert [audit.step for audit in audits] == [9, 10, 100]
    sizes = [audit.totals.frobenius or 0 for audit in audits]
    assert sizes == sorted(sizes)


def test_findings_of_the_budget(trained: Path) -> None:
    """Steps too small for anything; agreeing steps; steps smaller than B shows; enough."""
    size = 1e-7
    rewrite(trained / "adapter", lambda n, t: {n: t.sign() * size if "lora_B" in n else t})

    def codes_at(rate: float) -> set[str]:
        history = [{"step": step, "learning_rate": rate} for step in (50, 100)]
        state = {"global_step": 100, "log_history": history}
        (trained / "adapter" / "trainer_state.json").write_text(json.dumps(state))
        return codes(one(trained / "adapter", base=trained / "base"))

    walk = size / 10  # √Σlr² of 100 such steps is RMS(B)
    assert {"lr_capped", "compatible_with_noise"} <= codes_at(walk)
    assert "coherent_step_limited" in codes_at(walk / 9)
    assert "budget_exceeded" in codes_at(walk / 1e3)
    assert not codes_at(walk * 1e6) & {"lr_capped", "budget_exceeded"}


def test_verdicts_change_exactly_at_their_thresholds(trained: Path) -> None:
    """The named constants are the ones that decide: just below and just above each."""
    names = ["negligible", "weak", "effective", "extreme"]
    limits = ((NEGLIGIBLE_RHO, WEAK_RHO, EXTREME_RHO), (NEGLIGIBLE_DELTA, WEAK_DELTA))
    (module,) = one(trained / "adapter", base=trained / "base").modules[:1]
    for by_base, levels in zip((True, False), limits, strict=True):
        for place, limit in enumerate(levels):
            for factor, verdict in ((1 - 1e-6, names[place]), (1 + 1e-6, names[place + 1])):
                size = {"relative": limit * factor} if by_base else {"relative": None}
                audit = replace(module, max_abs_delta=limit * factor, **size)
                assert judge([audit], [], indeterminate=False).verdict == verdict
    # A quarter of bfloat16's half-ulp at 0.02, and two ulps: what the constants stand for.
    ulp = 2.0**-6 * torch.finfo(torch.bfloat16).eps
    assert pytest.approx(ulp / 8, rel=0.02) == NEGLIGIBLE_DELTA
    assert pytest.approx(2 * ulp, rel=0.02) == WEAK_DELTA
