"""Rules of PEFT's that are easily missed, each on files that PEFT itself has written."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import peft
import pytest
import torch
from adapter_models import experts, llama, save_case, tied
from audits import attached, codes, configure, one, rewrite, wrapped
from safetensors.torch import load_file, save_file
from test_adapters_formulas import computed
from transformers import AutoModelForImageClassification, ViTConfig

from interp.adapters import audit_tensors, audit_to_json

L = peft.LoraConfig


MOE = ["q_proj", "gate_proj", "up_proj", "down_proj"]


@pytest.mark.parametrize("with_base", [True, False])
def test_target_parameters_without_a_dot(with_base: bool, tmp_path: Path) -> None:
    """PEFT turns the usual targets of fused experts into parameters of any module."""
    expected = save_case(tmp_path, experts, L(r=2, lora_alpha=3, target_modules=MOE), scale=0.01)
    config = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert sorted(config["target_parameters"]) == ["down_proj", "gate_up_proj"]
    audit = one(tmp_path / "adapter", base=tmp_path / "base" if with_base else None)
    assert audit.verdict == "effective", audit.summary
    assert not {f.code for f in audit.findings if f.severity != "info"}
    changed = {name: delta for name, delta in expected.items() if delta.abs().max() > 1e-9}
    assert {m.name for m in audit.modules} == set(changed)
    for module in audit.modules:
        assert module.frobenius == pytest.approx(float(changed[module.name].norm()), rel=1e-5)
    if with_base:
        for name, delta in computed(tmp_path, expected).items():
            assert (delta - expected[name]).norm() <= 1e-5 * expected[name].norm(), name


def test_a_stray_module_beside_target_parameters_without_a_dot(tmp_path: Path) -> None:
    save_case(tmp_path, experts, L(r=2, target_modules=MOE), scale=0.01)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    tensors = load_file(file)
    for name in [n for n in tensors if "q_proj" in n]:
        tensors[name.replace("q_proj", "o_proj")] = tensors[name].clone()
    save_file(tensors, file)
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "broken" and "not_targeted" in codes(audit)


def test_modules_that_adalora_has_pruned_whole(tmp_path: Path) -> None:
    """An empty factor is a change of zero there, and damage where its partners are not empty."""
    config = peft.AdaLoraConfig(
        init_r=3, target_r=2, total_step=9, target_modules=["q_proj", "v_proj"]
    )
    save_case(tmp_path, llama, config, scale=0.1)

    def prune(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        if "layers.0.self_attn.q_proj" not in name or tensor.ndim < 2:
            return {name: tensor}
        return {name: tensor[:, :0] if "lora_B" in name else tensor[:0]}

    rewrite(tmp_path / "adapter", prune)
    for base in (None, tmp_path / "base"):
        audit = one(tmp_path / "adapter", base=base)
        assert audit.verdict == "effective", audit.summary
        sizes = {m.name: m.frobenius for m in audit.modules}
        assert sizes.pop("model.layers.0.self_attn.q_proj.weight") == 0
        assert len(sizes) == 3 and all(sizes.values())
    rewrite(
        tmp_path / "adapter", lambda n, t: {n: t[:0] if "1.self_attn.v_proj.lora_E" in n else t}
    )
    audit = one(tmp_path / "adapter")
    assert audit.verdict == "broken" and "zero_size_tensor" in codes(audit)


def test_idle_factors_beside_a_trained_head(tmp_path: Path) -> None:
    save_case(tmp_path, llama, L(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"]))
    assert "some_modules_zero" not in codes(one(tmp_path / "adapter", base=tmp_path / "base"))
    rewrite(tmp_path / "adapter", lambda n, t: {n: t * 0 if "lora_B" in n else t})
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    found = next(f for f in audit.findings if f.code == "some_modules_zero")
    assert audit.verdict in ("effective", "extreme") and "2 of 2" in found.message


def test_another_adapter_name_in_keys_attaches_nothing(tmp_path: Path) -> None:
    save_case(tmp_path, llama, L(r=2, target_modules=["q_proj"]), scale=0.1)
    rewrite(tmp_path / "adapter", lambda n, t: {n.replace(".weight", ".policy.weight"): t})
    audit = one(tmp_path / "adapter")
    assert audit.verdict == "broken" and "adapter_name_not_default" in codes(audit)
    assert attached(tmp_path) == 0


def test_dora_without_its_magnitudes(tmp_path: Path) -> None:
    save_case(tmp_path, llama, L(r=2, target_modules=["q_proj"], use_dora=True), scale=0.1)
    assert one(tmp_path / "adapter").verdict != "broken"
    rewrite(tmp_path / "adapter", lambda n, t: {} if "magnitude" in n else {n: t})
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "broken" and "unpaired_factors" in codes(audit)


def test_saved_modules_are_named_by_their_ends(tmp_path: Path) -> None:
    """`head` is `lm_head` to PEFT."""
    config = L(r=2, target_modules=["q_proj"], modules_to_save=["head"])
    save_case(tmp_path, llama, config, scale=0.01)
    for base in (None, tmp_path / "base"):
        audit = one(tmp_path / "adapter", base=base)
        assert "lm_head.weight" in {m.name for m in audit.modules}
        assert audit.verdict != "broken", audit.summary
        assert not codes(audit) & {"saved_modules_missing", "base_tensors_saved"}


@pytest.mark.parametrize(
    ("optimizer", "adam"),
    [("adamw_torch_fused", True), ("paged_adamw_8bit", True)]
    + [(name, False) for name in ("galore_adamw", "apollo_adamw", "grokadamw")]
    + [(name, False) for name in ("schedule_free_adamw", "sgd", "adafactor")],
)
def test_claims_about_steps_are_of_adam_alone(optimizer: str, adam: bool) -> None:
    """With B at 1, at 0.1 and at 9 times √Σlr², and beyond what the optimiser can reach."""
    model = wrapped(llama(), L(r=2, target_modules=["q_proj"]))
    config = model.peft_config["default"].to_dict()
    tensors = peft.get_peft_model_state_dict(model)
    history = [{"step": step, "learning_rate": 1e-8} for step in range(1, 101)]

    def claims(kappa: float) -> set[str]:
        moved = {n: t + kappa * 1e-7 if "lora_B" in n else t for n, t in tensors.items()}
        audit = audit_tensors(
            moved,
            config,
            trainer_state={"global_step": 100, "log_history": history},
            training_arguments={"optim": optimizer},
        )
        return {f.code for f in audit.findings}

    assert claims(1) == ({"compatible_with_noise", "lr_capped"} if adam else set())
    assert claims(0.1) == ({"lr_capped"} if adam else set())
    assert claims(9) == ({"coherent_step_limited", "lr_capped"} if adam else set())
    assert claims(1e3) == ({"budget_exceeded"} if adam else set())


def test_no_figure_for_the_whole_where_only_a_part_is_known(tmp_path: Path) -> None:
    save_case(tmp_path, llama, L(r=2, target_modules=["q_proj"]))
    configure(tmp_path / "adapter", init_lora_weights="corda")
    for base in (None, tmp_path / "base"):
        audit = one(tmp_path / "adapter", base=base)
        totals = audit_to_json(audit)["totals"]
        assert audit.verdict == "indeterminate"
        unknown = ("relative", "max_abs_delta", "frobenius", "bf16_changed")
        assert all(totals[name] is None for name in unknown)
        assert totals["a_norm"] > 0
    written = audit_to_json(replace(audit, budget={"kappa": -0.0}))
    assert math.copysign(1, written["budget"]["kappa"]) == 1


def test_a_pattern_that_gives_alpha_of_zero(tmp_path: Path) -> None:
    config = L(r=2, target_modules=["q_proj", "v_proj"], alpha_pattern={"q_proj": 0})
    save_case(tmp_path, llama, config, scale=0.1)
    audit = one(tmp_path / "adapter")
    assert audit.verdict == "effective"
    assert "alpha_zero" in codes(audit)
    configure(tmp_path / "adapter", alpha_pattern={"q_proj": 1})
    assert "alpha_zero" not in codes(one(tmp_path / "adapter"))


def test_the_other_end_of_tied_embeddings_has_factors_too(tmp_path: Path) -> None:
    config = L(r=2, target_modules=["q_proj", "embed_tokens"], ensure_weight_tying=True)
    save_case(tmp_path, tied, config, scale=0.01)
    for base in (None, tmp_path / "base"):
        audit = one(tmp_path / "adapter", base=base)
        assert any(m.module == "lm_head" and m.rank == 2 for m in audit.modules)
        assert audit.verdict != "broken", audit.summary
    configure(tmp_path / "adapter", ensure_weight_tying=False)
    assert "not_targeted" in codes(one(tmp_path / "adapter"))


def test_a_family_whose_files_have_names_of_their_own(tmp_path: Path) -> None:
    """The base's tensors cannot be told, which is no fault of the adapter."""
    sizes = {"hidden_size": 16, "intermediate_size": 24, "image_size": 16, "patch_size": 8}
    shape = ViTConfig(**sizes, num_hidden_layers=2, num_attention_heads=2)

    def build() -> torch.nn.Module:
        return AutoModelForImageClassification.from_config(shape)

    save_case(tmp_path, build, L(r=2, target_modules=["q_proj", "classifier"]), scale=0.1)
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert "base_names_unknown" in codes(audit) and audit.verdict != "broken", audit.summary
    assert audit.totals.relative is None
    # One that was found has its own figure, which does not stand for the whole.
    assert {m.projection for m in audit.modules if m.relative is not None} == {"classifier"}
    # Of any other family such modules are of another base.
    file = tmp_path / "base" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"model_type": "swin"}))
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "broken" and "module_absent_from_base" in codes(audit)
