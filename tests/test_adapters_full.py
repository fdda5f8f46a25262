"""Whole models against their base: runs of checkpoints, and bases that are not theirs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from adapter_models import llama, save_case, tied
from audits import codes, one
from commands import invoke
from safetensors.torch import load_file, save_file
from test_adapters_formulas import computed

from interp.adapters import audit_path, audit_runs
from interp.adapters.locate import find_adapters, find_runs
from interp.errors import AdapterError


def saved(folder: Path, seed: int = 0, noise: float = 0.0, **changes: Any) -> Path:
    torch.manual_seed(seed)
    model = llama(**changes)
    torch.manual_seed(seed + 100)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    model.save_pretrained(folder)
    return folder


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_a_fine_tune_and_models_that_are_none(tmp_path: Path) -> None:
    base = saved(tmp_path / "base")
    tuned = one(saved(tmp_path / "tuned", noise=1e-3), base=base)
    assert tuned.verdict == "effective" and not codes(tuned)
    cosines = [m.base_cosine for m in tuned.modules if m.base_norm]
    assert all(cosine is not None and cosine > 0.99 for cosine in cosines)
    # Changed by its own size, it is still the same model.
    far = one(saved(tmp_path / "far", noise=0.02), base=base)
    assert far.verdict == "extreme" and "another_base" not in codes(far)
    other = one(saved(tmp_path / "other", seed=1), base=base)
    assert other.verdict == "broken" and "another_base" in codes(other)


def test_the_cosine_is_that_of_the_weights(tmp_path: Path) -> None:
    base, other = saved(tmp_path / "base"), saved(tmp_path / "other", seed=1)
    old, new = (load_file(folder / "model.safetensors") for folder in (base, other))
    for module in one(other, base=base).modules:
        a, b = old[module.name].double().flatten(), new[module.name].double().flatten()
        if a.norm() > 0 and b.norm() > 0:
            assert module.base_cosine == pytest.approx(float(a @ b / (a.norm() * b.norm())))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"intermediate_size": 32}, "shape_differs_from_base"),
        ({"hidden_size": 32}, "shape_differs_from_base"),
        ({"num_hidden_layers": 3}, "module_absent_from_base"),
        ({"num_hidden_layers": 1}, "module_absent_from_base"),
    ],
)
def test_models_of_another_shape(changes: dict[str, int], code: str, tmp_path: Path) -> None:
    base = saved(tmp_path / "base")
    audit = one(saved(tmp_path / "other", **changes), base=base)
    assert audit.verdict == "broken" and code in codes(audit)


def test_a_resized_vocabulary_and_a_new_head_are_no_other_model(tmp_path: Path) -> None:
    base = saved(tmp_path / "base")

    def resize(tensors: dict[str, torch.Tensor]) -> None:
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = torch.cat((tensors[name], torch.zeros(3, 16)))

    audit = one(change(saved(tmp_path / "more", noise=1e-3), resize), base=base)
    assert audit.verdict == "effective" and "base_tensors_saved" in codes(audit)

    def classify(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["lm_head.weight"]
        tensors["score.weight"] = torch.ones(2, 16)

    audit = one(change(saved(tmp_path / "head", noise=1e-3), classify), base=base)
    assert audit.verdict == "effective" and "saved_tensors_unverified" in codes(audit)


def test_a_run_of_whole_models_is_a_trajectory(tmp_path: Path) -> None:
    base = saved(tmp_path / "base")
    for step, noise in ((10, 1e-3), (9, 1e-4), (100, 4e-3)):
        saved(tmp_path / "run" / f"checkpoint-{step}", noise=noise)
    saved(tmp_path / "run" / "final", noise=5e-3)
    audits = audit_path(tmp_path / "run", base=base)
    assert [audit.step for audit in audits] == [9, 10, 100, None]
    sizes = [audit.totals.relative or 0 for audit in audits]
    assert sizes == sorted(sizes) and all(audit.method == "FULL" for audit in audits)
    assert audit_path(tmp_path / "run" / "checkpoint-10", base=base)[0].step == 10
    with pytest.raises(AdapterError, match="full model"):
        audit_path(tmp_path / "run")
    command = ("adapters", "audit", tmp_path / "run")
    assert invoke(*command, "--base", base).exit_code == 0
    assert invoke(*command).exit_code == 2


def test_a_folder_of_runs_of_whole_models(tmp_path: Path) -> None:
    base = saved(tmp_path / "base")
    root = tmp_path / "runs"
    for name in ("a", "b"):
        for step in (5, 10):
            saved(root / name / f"checkpoint-{step}", noise=1e-3)
    assert find_runs(root) == (root / "a", root / "b")
    audits = audit_path(root, base=base)
    assert [(audit.path.parent.name, audit.step) for audit in audits] == [
        ("a", 5), ("a", 10), ("b", 5), ("b", 10)
    ]  # fmt: skip
    runs = audit_runs([root], base=base)
    refused = [found.refused for run in runs for found in run.audits[-1].compared]
    assert len(refused) == 2 and all(why is not None and "full model" in why for why in refused)
    # Beside an adapter a whole model is its base, and no run.
    save_case(root, llama, peft.LoraConfig(r=2, target_modules=["q_proj"]), scale=0.01)
    found = [folder.path for run in find_runs(root) for folder in find_adapters(run)]
    assert found == [root / "adapter"]


LOOKALIKES = {
    "adapter_model.pt": "weights_missing",
    "adapter_model.ckpt": "weights_missing",
    "adapter_model.gguf": "foreign_format",
    "my-lora-f16.gguf": "foreign_format",
    "adapter_model-00001-of-00002.safetensors": "sharded_weights",
    "adapter_model.safetensors.index.json": "sharded_weights",
    "adapter_model.bin.index.json": "sharded_weights",
    "adapters.npz": "foreign_format",
    "pytorch_lora_weights.safetensors": "foreign_format",
}


@pytest.mark.parametrize("name", LOOKALIKES)
@pytest.mark.parametrize("configured", [True, False])
def test_what_looks_like_an_adapter_has_a_verdict(
    name: str, configured: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "adapter"
    folder.mkdir()
    (folder / name).write_bytes(b"not looked into")
    if configured:
        (folder / "adapter_config.json").write_text('{"peft_type": "LORA", "r": 4}')
    for path in (folder, folder / name):
        audit = one(path)
        assert audit.verdict == "broken" and LOOKALIKES[name] in codes(audit)
        assert name in audit.summary and "pEFT" not in audit.summary
    assert invoke("adapters", "audit", folder).exit_code == 3


@pytest.mark.parametrize("name", ["model.gguf", "notes.txt", "weights.bin"])
def test_other_files_make_no_adapter(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    with pytest.raises(AdapterError, match="neither an adapter"):
        audit_path(tmp_path)


def test_a_tied_base_and_two_ends(tmp_path: Path) -> None:
    """PEFT's merge adds both updates to the one tensor; loaded, each end has its own."""
    config = peft.LoraConfig(r=2, target_modules=["embed_tokens", "lm_head"])
    merged = save_case(tmp_path, tied, config, scale=0.1)
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    (found,) = (f for f in audit.findings if f.code == "tied_embeddings")
    assert "a merge adds both" in found.message
    ends = computed(tmp_path, merged)
    assert torch.allclose(merged["lm_head.weight"], sum(ends.values(), torch.zeros(40, 16)))
    assert len(ends) == 2 and all(bool(delta.any()) for delta in ends.values())
    one_end = peft.LoraConfig(r=2, target_modules=["embed_tokens"])
    merged = save_case(tmp_path / "one", tied, one_end, scale=0.1)
    audit = one(tmp_path / "one" / "adapter", base=tmp_path / "one" / "base")
    (found,) = (f for f in audit.findings if f.code == "tied_embeddings")
    assert "a merge changes both" in found.message
    assert torch.equal(merged["lm_head.weight"], merged["model.embed_tokens.weight"])
