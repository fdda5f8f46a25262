"""Files, keys and configs that are damaged, foreign or of another model."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import peft
import pytest
import torch
from adapter_models import llama, save_case
from audits import Touch, attached, codes, configure, drop, one, rewrite
from safetensors.torch import load_file, save_file

from interp.adapters import audit_path, audit_to_json
from interp.errors import AdapterError

L = peft.LoraConfig
PREFIX = "base_model.model.model.layers"


KEYS: Mapping[str, Callable[[str], str]] = {
    "wrapper_segments": lambda n: n.replace("base_model.model.", "base_model.model._orig_mod."),
    "missing_prefix": lambda n: n.removeprefix("base_model.model."),
}


@pytest.mark.parametrize("code", KEYS)
def test_keys_that_peft_ignores_on_load(code: str, trained: Path) -> None:
    """Broken here, because there the adapter attaches nothing and says little."""
    rewrite(trained / "adapter", lambda n, t: {KEYS[code](n): t})
    audit = one(trained / "adapter")
    assert audit.verdict == "broken" and code in codes(audit)
    assert attached(trained) == 0


def test_an_adapter_name_in_keys_is_a_warning(trained: Path) -> None:
    plain = one(trained / "adapter")
    rewrite(trained / "adapter", lambda n, t: {n.replace(".weight", ".default.weight"): t})
    audit = one(trained / "adapter")
    assert "adapter_name_in_key" in codes(audit)
    assert audit.verdict == plain.verdict
    assert audit.totals.frobenius == plain.totals.frobenius
    assert attached(trained) > 0


FAULTS: Mapping[str, Callable[[str, torch.Tensor], dict[str, torch.Tensor]]] = {
    "unpaired_factors": drop("layers.0.self_attn.q_proj.lora_A"),
    "no_tensors": drop(""),
    "non_finite": lambda n, t: {n: t / 0 if "layers.1.self_attn.v_proj.lora_B" in n else t},
    "zero_size_tensor": lambda n, t: {n: t[:0] if "lora_B" in n else t},
    "bad_shape": lambda n, t: {n: t.flatten() if "lora_B" in n else t},
    "foreign_format": lambda n, t: {n.replace("lora_A", "lora_down"): t},
}


@pytest.mark.parametrize("code", FAULTS)
def test_broken_tensors(code: str, trained: Path) -> None:
    rewrite(trained / "adapter", FAULTS[code])
    audit = one(trained / "adapter")
    assert audit.verdict == "broken" and code in codes(audit)
    assert "try:" in audit.summary


@pytest.mark.parametrize(
    ("changes", "code", "verdict"),
    [
        ({"r": 8}, "rank_mismatch", "broken"),
        ({"peft_type": None}, "config_unreadable", "broken"),
        ({"r": "four"}, "config_unreadable", "broken"),
        ({"lora_alpha": float("inf")}, "config_unreadable", "broken"),
        ({"lora_alpha": 1e300}, "non_finite", "broken"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_mismatch", "broken"),
        ({"lora_alpha": 0}, "alpha_zero", "negligible"),
        ({"lora_alpha": None}, "alpha_missing", "effective"),
        ({"r": None}, "rank_mismatch", "broken"),
        ({"alpha_pattern": {"nothing": 3}}, "pattern_matches_nothing", "effective"),
        ({"alpha_pattern": {"(": 3}}, "pattern_invalid", "effective"),
        ({"target_modules": ["q_proj", "v_proj", "gone"]}, "targets_match_nothing", "effective"),
        ({"target_modules": ["q_proj"]}, "not_targeted", "broken"),
        ({"layers_to_transform": [0, 1, 7]}, "targets_match_nothing", "effective"),
        ({"layers_to_transform": [0]}, "not_targeted", "broken"),
        ({"use_qalora": True}, "unsupported_option", "indeterminate"),
        ({"alora_invocation_tokens": [3, 5]}, "applied_after_invocation", "effective"),
    ],
)
def test_configs(changes: dict[str, object], code: str, verdict: str, trained: Path) -> None:
    configure(trained / "adapter", **changes)
    audit = one(trained / "adapter")
    assert code in codes(audit)
    assert audit.verdict == verdict
    json.dumps(audit_to_json(audit), allow_nan=False)


def test_a_fault_of_every_module_is_one_finding_with_its_cause(trained: Path) -> None:
    configure(trained / "adapter", r=8)
    audit = one(trained / "adapter")
    (found,) = (found for found in audit.findings if found.code == "rank_mismatch")
    modules = len(audit.modules)
    assert modules > 3
    assert found.message.count("has rank 4, the config says 8.") == 3
    assert found.message.endswith(f" {modules - 3} more are like these.")
    assert "of different runs" in audit.summary
    # Without an r nothing says that they are of different runs.
    configure(trained / "adapter", r=None)
    audit = one(trained / "adapter")
    assert audit.verdict == "broken" and "of different runs" not in audit.summary
    assert "write the value of the run into the config" in audit.summary


def test_a_damaged_base_gives_no_relative_figures(trained: Path) -> None:
    file = trained / "base" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.self_attn.q_proj.weight"][0, 0] = float("nan")
    save_file(tensors, file)
    audit = one(trained / "adapter", base=trained / "base")
    assert "base_not_finite" in codes(audit)
    assert sum(m.relative is None for m in audit.modules) == 1


@pytest.mark.parametrize("form", ["weight", "qweight"])
def test_a_quantised_base_is_not_another_base(form: str, trained: Path) -> None:
    file = trained / "base" / "model.safetensors"
    name = "model.layers.0.self_attn.q_proj."
    tensors = load_file(file)
    del tensors[f"{name}weight"]
    tensors[name + form] = torch.zeros(128, 1, dtype=torch.uint8)
    save_file(tensors, file)
    audit = one(trained / "adapter", base=trained / "base")
    assert audit.verdict == "effective" and "base_quantized" in codes(audit)


def shallow() -> torch.nn.Module:
    model = llama()
    model.model.layers = model.model.layers[:1]  # type: ignore[union-attr,index]
    return model


def test_another_base(trained: Path, tmp_path: Path) -> None:
    save_case(tmp_path / "wide", lambda: llama(head_dim=4), L(r=4, target_modules=["q_proj"]))
    audit = one(trained / "adapter", base=tmp_path / "wide" / "base")
    assert audit.verdict == "broken" and "shape_differs_from_base" in codes(audit)
    save_case(tmp_path / "shallow", shallow, L(r=4, target_modules=["q_proj"]))
    audit = one(trained / "adapter", base=tmp_path / "shallow" / "base")
    assert audit.verdict == "broken" and "module_absent_from_base" in codes(audit)


def test_truncated_and_hostile_files(trained: Path) -> None:
    file = trained / "adapter" / "adapter_model.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[: len(data) // 2])
    audit = one(trained / "adapter")
    assert audit.verdict == "broken" and "weights_unreadable" in codes(audit)
    file.unlink()
    audit = one(trained / "adapter")
    assert audit.verdict == "broken" and "weights_missing" in codes(audit)

    mark = trained / "executed"
    torch.save({"a": Touch(mark)}, trained / "adapter" / "adapter_model.bin")
    audit = one(trained / "adapter")
    assert audit.verdict == "broken" and "unsafe_pickle" in codes(audit)
    assert not mark.exists()
    # The control: loaded without care, it does run.
    torch.load(trained / "adapter" / "adapter_model.bin", weights_only=False)
    assert mark.exists()


def test_a_bin_file_gives_the_same_figures(trained: Path) -> None:
    before = one(trained / "adapter")
    file = trained / "adapter" / "adapter_model.safetensors"
    torch.save(load_file(file), trained / "adapter" / "adapter_model.bin")
    file.unlink()
    after = one(trained / "adapter")
    assert after.totals == before.totals and after.verdict == before.verdict


def test_a_missing_config_is_broken(trained: Path) -> None:
    (trained / "adapter" / "adapter_config.json").unlink()
    audit = one(trained / "adapter")
    assert audit.verdict == "broken" and codes(audit) == {"config_missing"}


def test_paths_without_an_adapter(tmp_path: Path, trained: Path) -> None:
    with pytest.raises(AdapterError, match="There is no"):
        audit_path(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(AdapterError, match="neither an adapter"):
        audit_path(tmp_path / "empty")
    with pytest.raises(AdapterError, match="full model"):
        audit_path(trained / "base")
    with pytest.raises(AdapterError, match="no base model"):
        audit_path(trained / "adapter", base=tmp_path / "nowhere")
