"""What counts as untrained, and what must not."""

from __future__ import annotations

import warnings
from pathlib import Path

import peft
import pytest
import torch
from adapter_models import llama, save_case
from audits import codes, one, rewrite
from safetensors.torch import load_file, save_file
from test_adapters_formulas import LORA, OTHER

# Of these ΔW is not 0 at the start, by design.
STARTS_AT_RANDOM = ("c3a", "fourierft", "hra orthogonal", "orthogonal", "vblora")


@pytest.mark.parametrize("case", [*LORA, *OTHER])
def test_what_has_just_been_made_is_untrained(case: str, tmp_path: Path) -> None:
    build, config = (LORA | OTHER)[case]
    save_case(tmp_path, build, config, scale=0)
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    moved = case.startswith(STARTS_AT_RANDOM)
    assert (audit.verdict == "untrained") != moved, (audit.verdict, audit.summary)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kept", ["as PEFT has it", "rounded like the base"])
def test_untrained_dora(dtype: torch.dtype, kept: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "embed_tokens"], use_dora=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = llama().to(dtype)
        base.save_pretrained(tmp_path / "base")
        peft.get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    save_file({n: t for n, t in load_file(file).items() if "base_layer" not in n}, file)
    if kept != "as PEFT has it":
        rewrite(tmp_path / "adapter", lambda n, t: {n: t.to(dtype)})
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "untrained", audit.summary
    assert {m.kind for m in audit.modules} == {"dora"}
    # Without the base the magnitudes cannot be judged.
    assert one(tmp_path / "adapter").verdict == "indeterminate"
    factor = 1.01 if dtype == torch.bfloat16 else 1.0001
    rewrite(tmp_path / "adapter", lambda n, t: {n: t * factor if "magnitude" in n else t})
    assert one(tmp_path / "adapter", base=tmp_path / "base").verdict != "untrained"


@pytest.mark.parametrize("rows", [3, -3])
def test_a_resized_vocabulary_is_a_change(rows: int, tmp_path: Path) -> None:
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], modules_to_save=["embed_tokens"])
    save_case(tmp_path, llama, config, scale=0)
    assert one(tmp_path / "adapter", base=tmp_path / "base").verdict == "untrained"

    def resize(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        if "embed_tokens" not in name:
            return {name: tensor}
        new = torch.cat((tensor, torch.ones(3, tensor.shape[1]))) if rows > 0 else tensor[:rows]
        return {name: new}

    rewrite(tmp_path / "adapter", resize)
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "indeterminate"
    assert "base_tensors_saved" in codes(audit)
    (found,) = (f for f in audit.findings if f.code == "saved_tensors_unverified")
    assert "--base" not in found.remedy
    assert "saved_tensors_identical" not in codes(audit)
