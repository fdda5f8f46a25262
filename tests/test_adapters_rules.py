"""Rules of PEFT's that are easily missed, each on files that PEFT itself has written."""

from __future__ import annotations

import json
from pathlib import Path

import peft
import pytest
import torch
from adapter_models import experts, llama, save_case
from safetensors.torch import load_file, save_file
from test_adapters_formulas import computed
from test_adapters_verdicts import attached, codes, one, rewrite

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
