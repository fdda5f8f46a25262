"""Rounding on the way to a file is no training, and hides none."""

from __future__ import annotations

import warnings
from pathlib import Path

import peft
import pytest
import torch
from adapter_models import Convolutions, llama, save_case, vera
from audits import codes, one, rewrite
from safetensors.torch import load_file, save_file

FORMATS = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float8": torch.float8_e4m3fn}


def base_in(dtype: torch.dtype, folder: Path) -> None:
    file = folder / "base" / "model.safetensors"
    save_file({name: tensor.to(dtype) for name, tensor in load_file(file).items()}, file)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(
    "config",
    [
        peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head", "norm"]),
        peft.LoraConfig(r=2, target_modules=["q_proj"], trainable_token_indices=[1, 3]),
        peft.LoraConfig(r=2, target_modules=["q_proj"], bias="all"),
    ],
    ids=["modules", "tokens", "biases"],
)
def test_what_is_saved_unchanged_in_a_coarser_format(
    config: peft.LoraConfig, form: str, tmp_path: Path
) -> None:
    dtype = FORMATS[form]
    save_case(tmp_path, llama, config, scale=0)
    base_in(torch.float32, tmp_path)
    rewrite(tmp_path / "adapter", lambda n, t: {n: t if "lora" in n else t.to(dtype)})
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "untrained", audit.summary
    assert "saved_tensors_identical" in codes(audit)

    def nudge(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
        if "lora" not in name:
            wide = tensor.float()
            wide.flatten()[0] = wide.flatten()[0] + 1  # one entry by many steps of the format
            tensor = wide.to(dtype)
        return {name: tensor}

    rewrite(tmp_path / "adapter", nudge)
    moved = one(tmp_path / "adapter", base=tmp_path / "base")
    assert moved.verdict in ("effective", "extreme")
    # Only that entry has moved: rounding is in no figure.
    for module in moved.modules:
        if module.kind in ("saved", "tokens", "bias"):
            assert module.max_abs_delta == pytest.approx(module.frobenius or 0, rel=1e-6)


def test_a_finer_copy_must_be_exact(tmp_path: Path) -> None:
    """A float32 tensor that left its bfloat16 start by less than a bfloat16 step has moved."""
    config = peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"])
    save_case(tmp_path, llama, config, scale=0)
    base_in(torch.bfloat16, tmp_path)
    rewrite(tmp_path / "adapter", lambda n, t: {n: t.bfloat16().float() if "head" in n else t})
    assert one(tmp_path / "adapter", base=tmp_path / "base").verdict == "untrained"
    rewrite(tmp_path / "adapter", lambda n, t: {n: t * (1 + 1e-3) if "head" in n else t})
    moved = one(tmp_path / "adapter", base=tmp_path / "base")
    assert moved.verdict in ("weak", "effective") and moved.totals.frobenius


@pytest.mark.parametrize("form", ["bfloat16", "float16"])
def test_full_fine_tunes_saved_in_a_coarser_format(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = llama()
    model.save_pretrained(tmp_path / "base")
    model.to(FORMATS[form]).save_pretrained(tmp_path / "tuned")
    assert one(tmp_path / "tuned", base=tmp_path / "base").verdict == "untrained"


@pytest.mark.parametrize("form", ["bfloat16", "float16"])
def test_untrained_dora_saved_in_a_coarser_format_than_the_base(form: str, tmp_path: Path) -> None:
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], use_dora=True)
    save_case(tmp_path, llama, config, scale=0)
    rewrite(tmp_path / "adapter", lambda n, t: {n: t.to(FORMATS[form])})
    assert one(tmp_path / "adapter", base=tmp_path / "base").verdict == "untrained"
    rewrite(tmp_path / "adapter", lambda n, t: {n: t * 1.02 if "magnitude" in n else t})
    assert one(tmp_path / "adapter", base=tmp_path / "base").verdict == "effective"


@pytest.mark.parametrize("target", ["plane", "point", "line"])
@pytest.mark.parametrize("effective", [True, False])
@pytest.mark.parametrize("method", [peft.LoHaConfig, peft.LoKrConfig])
def test_untrained_convolutions(
    method: type[peft.LoHaConfig] | type[peft.LoKrConfig],
    effective: bool,
    target: str,
    tmp_path: Path,
) -> None:
    config = method(r=2, target_modules=[target], use_effective_conv2d=effective)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save_case(tmp_path, Convolutions, config, scale=0)
    for base in (None, tmp_path / "base"):
        assert one(tmp_path / "adapter", base=base).verdict == "untrained"


def test_the_shared_bases_of_vera_need_a_base_only_for_their_width(tmp_path: Path) -> None:
    config = vera(r=4, target_modules=["q_proj", "down_proj"])
    save_case(tmp_path, llama, config)
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict in ("effective", "extreme") and "needs_base" not in codes(audit)
    blind = one(tmp_path / "adapter")
    assert blind.verdict == "indeterminate"
    (found,) = (f for f in blind.findings if f.code == "needs_base")
    assert "--base" in found.remedy


def test_a_base_that_was_given_is_not_asked_for(tmp_path: Path) -> None:
    """In integers it says nothing: that is the reason, not its absence."""
    config = vera(r=4, target_modules=["q_proj"])
    save_case(tmp_path, llama, config)
    base_in(torch.int8, tmp_path)
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "indeterminate"
    assert "base_quantized" in codes(audit)
    assert "--base" not in audit.summary
    assert all(f.code != "needs_base" for f in audit.findings)
