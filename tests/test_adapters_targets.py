"""Names in a config against the file's and the base's, as PEFT reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from adapter_models import experts, gpt2, llama, save_case
from audits import codes, configure, one, rewrite
from peft.tuners.tuners_utils import check_target_module_exists
from safetensors.torch import load_file, save_file

from interp.adapters.config import parse_config
from interp.adapters.targets import targeted

L = peft.LoraConfig
TARGETS = {"targets_match_nothing", "not_targeted", "targets_missing_from_file"}
CHOICES: dict[str, dict[str, Any]] = {
    "list": {"target_modules": ["q_proj", "down_proj"]},
    "full names": {"target_modules": ["model.layers.1.self_attn.q_proj"]},
    "pattern": {"target_modules": r".*\.(q|v)_proj"},
    "one layer by pattern": {"target_modules": r"model\.layers\.0\..*_proj"},
    "layers": {"target_modules": ["q_proj", "v_proj"], "layers_to_transform": [1]},
    "layers by name": {
        "target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": "layers"
    },
    "excluded": {"target_modules": ["q_proj", "v_proj"], "exclude_modules": ["v_proj"]},
    "excluded by pattern": {
        "target_modules": ["q_proj", "down_proj"], "exclude_modules": r".*mlp.*"
    },
    "all-linear": {"target_modules": "all-linear"},
    "all-linear, some excluded": {
        "target_modules": "all-linear", "exclude_modules": r".*layers\.0\..*|.*gate_proj"
    },
    "all-linear, one saved": {"target_modules": "all-linear", "modules_to_save": ["up_proj"]},
}  # fmt: skip


@pytest.mark.parametrize("case", CHOICES)
def test_choices_that_peft_made_are_sound(case: str, tmp_path: Path) -> None:
    """No false alarm, with the base or without, and the same modules as PEFT's own rule."""
    config = L(r=2, **CHOICES[case])
    save_case(tmp_path, llama, config, scale=0.01)
    for base in (None, tmp_path / "base"):
        assert not codes(one(tmp_path / "adapter", base=base)) & TARGETS, base
    ours, _ = parse_config({name: _listed(value) for name, value in config.to_dict().items()})
    assert ours is not None
    names = [name for name, _ in llama().named_modules()]
    for name in names:
        assert targeted(ours, name) == bool(check_target_module_exists(config, name)), name


def _listed(targets: Any) -> Any:
    return sorted(targets) if isinstance(targets, set) else targets


def test_files_of_the_bare_model_are_searched_as_the_live_one(tmp_path: Path) -> None:
    config = L(r=2, target_modules=r"transformer\.h\.\d+\.attn\.c_attn", fan_in_fan_out=True)
    save_case(tmp_path, gpt2, config, scale=0.01)
    file = tmp_path / "base" / "model.safetensors"
    save_file({n.removeprefix("transformer."): t for n, t in load_file(file).items()}, file)
    rewrite(tmp_path / "adapter", lambda n, t: {} if ".h.1." in n else {n: t})
    assert "targets_missing_from_file" in codes(one(tmp_path / "adapter", base=tmp_path / "base"))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    config = L(r=2, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"])
    save_case(tmp_path, llama, config, scale=0.01)
    return tmp_path


def test_a_pattern_that_fits_nothing(trained: Path) -> None:
    configure(trained / "adapter", target_modules=r".*\.attention\.query")
    audit = one(trained / "adapter")
    assert {"targets_match_nothing", "not_targeted"} <= codes(audit)
    assert audit.verdict == "broken"


def test_modules_that_the_file_lacks(trained: Path) -> None:
    rewrite(trained / "adapter", lambda n, t: {} if "layers.1.self_attn.v_proj" in n else {n: t})
    audit = one(trained / "adapter", base=trained / "base")
    (found,) = (f for f in audit.findings if f.code == "targets_missing_from_file")
    assert "1 of 4" in found.message and "layers.1.self_attn.v_proj" in found.message
    # Without the base nobody can know.
    assert not codes(one(trained / "adapter")) & TARGETS


@pytest.mark.parametrize("with_base", [True, False])
def test_saved_modules_that_the_file_lacks(with_base: bool, trained: Path) -> None:
    base = trained / "base" if with_base else None
    assert "saved_modules_missing" not in codes(one(trained / "adapter", base=base))
    rewrite(trained / "adapter", lambda n, t: {} if "lm_head" in n else {n: t})
    audit = one(trained / "adapter", base=base)
    assert audit.verdict == "broken" and "saved_modules_missing" in codes(audit)


def test_one_of_several_saved_modules_that_the_file_lacks(trained: Path) -> None:
    configure(trained / "adapter", modules_to_save=["lm_head", "norm"])
    assert "targets_match_nothing" in codes(one(trained / "adapter"))
    audit = one(trained / "adapter", base=trained / "base")
    assert audit.verdict == "broken" and "saved_modules_missing" in codes(audit)
    # PEFT itself lists heads of which a model has one.
    configure(trained / "adapter", modules_to_save=["classifier", "score"], task_type="SEQ_CLS")
    rewrite(trained / "adapter", lambda n, t: {n.replace("lm_head", "score"): t})
    assert not codes(one(trained / "adapter")) & {"targets_match_nothing", "saved_modules_missing"}


def test_trainable_tokens_that_the_file_lacks(tmp_path: Path) -> None:
    config = L(r=2, target_modules=["q_proj"], trainable_token_indices=[1, 3])
    save_case(tmp_path, llama, config, scale=0.01)
    assert one(tmp_path / "adapter", base=tmp_path / "base").verdict != "broken"
    rewrite(tmp_path / "adapter", lambda n, t: {} if "token" in n else {n: t})
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "broken" and "saved_modules_missing" in codes(audit)


EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]


def test_fused_experts(tmp_path: Path) -> None:
    """Sound; on a path that the base has not; with one of two parameters gone; misnamed."""
    config = L(r=2, target_modules=["q_proj"], target_parameters=EXPERTS)
    save_case(tmp_path, experts, config, scale=0.01)
    adapter, base = tmp_path / "adapter", tmp_path / "base"
    sound = load_file(adapter / "adapter_model.safetensors")
    assert not codes(one(adapter, base=base)) & (TARGETS | {"path_differs_from_base"})

    def astray(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        wrong = "mlp.experts" in name
        return {name.replace("model.model.layers", "model.layers") if wrong else name: tensor}

    rewrite(adapter, astray)
    audit = one(adapter, base=base)
    assert audit.verdict == "broken" and "path_differs_from_base" in codes(audit)
    save_file(sound, adapter / "adapter_model.safetensors")
    rewrite(adapter, lambda n, t: {} if "base_layer.lora" in n else {n: t})
    assert "targets_missing_from_file" in codes(one(adapter, base=base))
    save_file(sound, adapter / "adapter_model.safetensors")
    configure(adapter, target_parameters=["mlp.expert.down_proj"])
    assert {"targets_match_nothing", "not_targeted"} <= codes(one(adapter))


@pytest.mark.parametrize("start", ["base_model.model.model.", "base_model.model.base."])
def test_saved_modules_on_a_path_that_the_base_does_not_have(start: str, trained: Path) -> None:
    rewrite(
        trained / "adapter",
        lambda n, t: {n.replace("base_model.model.lm_head", f"{start}lm_head"): t},
    )
    audit = one(trained / "adapter", base=trained / "base")
    assert audit.verdict == "broken" and "path_differs_from_base" in codes(audit)
