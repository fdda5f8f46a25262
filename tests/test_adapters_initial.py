"""Initialisations that take part of the base into the factors: the start must be known."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from adapter_models import gpt2, llama, save_case
from audits import codes, configure, one, rewrite, wrapped
from safetensors.torch import load_file, save_file

from interp.adapters import AdapterAudit
from interp.adapters.recomputed import leading_triplets

L = peft.LoraConfig
LINEAR = ["q_proj", "down_proj"]


def save_run(
    folder: Path, build: Callable[[], torch.nn.Module], scale: float, **options: Any
) -> dict[str, float]:
    """base/, initial/ and adapter/, moved from its start by `scale`; ‖merged − base‖ by parameter.

    In float32, because these initialisations refuse float64.
    """
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = build()
        before = {name: tensor.clone() for name, tensor in base.state_dict().items()}
        base.save_pretrained(folder / "base")
        model = wrapped(base, L(**options))
        model.save_pretrained(folder / "initial")
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad and scale:
                    parameter.add_(torch.randn_like(parameter) * scale)
        model.save_pretrained(folder / "adapter")
        after = model.merge_and_unload().state_dict()
    return {n: float((after[n].double() - before[n].double()).norm()) for n in before}


def agree(audit: AdapterAudit, expected: dict[str, float]) -> None:
    assert audit.verdict in ("effective", "extreme"), audit.summary
    for module in audit.modules:
        assert module.frobenius == pytest.approx(expected[module.name], rel=1e-5), module.name


@pytest.mark.parametrize("init", ["pissa", "olora", "pissa_niter_4"])
@pytest.mark.parametrize("dora", [False, True])
def test_rewritten_bases_need_their_start(init: str, dora: bool, tmp_path: Path) -> None:
    """The initial adapter, or the original base where that alone fixes the start."""
    expected = save_run(
        tmp_path, llama, 0.1, r=4, lora_alpha=3, target_modules=LINEAR,
        init_lora_weights=init, use_dora=dora,
    )  # fmt: skip
    adapter, base, initial = (tmp_path / name for name in ("adapter", "base", "initial"))
    blind = one(adapter)
    assert blind.verdict == "indeterminate" and "rewritten_base" in codes(blind)
    agree(one(adapter, base=base, initial=initial), expected)
    found = one(adapter, base=base)
    if init == "pissa_niter_4":
        assert found.verdict == "indeterminate" and "random numbers" in found.summary
        return
    assert "start_recomputed" in codes(found)
    agree(found, expected)
    # The control: s·BA alone is another number.
    naive = configure_and_audit(adapter, base)
    assert naive.totals.frobenius != pytest.approx(found.totals.frobenius, rel=0.01)


def configure_and_audit(adapter: Path, base: Path) -> AdapterAudit:
    configure(adapter, init_lora_weights=True)
    return one(adapter, base=base)


@pytest.mark.parametrize("init", ["pissa", "olora"])
@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("form", [torch.float32, torch.bfloat16])
def test_what_has_not_moved(init: str, dora: bool, form: torch.dtype, tmp_path: Path) -> None:
    save_run(
        tmp_path, llama, 0, r=4, target_modules=LINEAR, init_lora_weights=init, use_dora=dora
    )  # fmt: skip
    rewrite(tmp_path / "adapter", lambda n, t: {n: t.to(form)})
    for options in ({"initial": tmp_path / "initial"}, {"base": tmp_path / "base"}):
        audit = one(tmp_path / "adapter", **options)
        assert audit.verdict == "untrained", audit.summary
    # One percent of A is seen.
    rewrite(tmp_path / "adapter", lambda n, t: {n: t * 1.01 if "lora_A" in n else t})
    assert one(tmp_path / "adapter", base=tmp_path / "base").verdict in ("weak", "effective")


@pytest.mark.parametrize("init", ["pissa", "olora"])
@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("form", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kept", ["base as loaded", "base in float32"])
def test_a_base_in_half_precision(
    init: str, dora: bool, form: torch.dtype, kept: str, tmp_path: Path
) -> None:
    """PEFT rounds the start to the base's format, and then trains and saves it in float32."""

    def build() -> torch.nn.Module:
        return llama(hidden_size=64).to(form)

    save_run(
        tmp_path, build, 0, r=4, target_modules=["q_proj"], init_lora_weights=init, use_dora=dora
    )  # fmt: skip
    if kept == "base in float32":
        file = tmp_path / "base" / "model.safetensors"
        save_file({name: tensor.float() for name, tensor in load_file(file).items()}, file)
    saved = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert {tensor.dtype for name, tensor in saved.items() if "lora_A" in name} == {torch.float32}
    adapter, base = tmp_path / "adapter", tmp_path / "base"
    if not (dora and kept == "base in float32"):
        # There the magnitudes alone have the format that the base was loaded in.
        assert one(adapter, base=base).verdict == "untrained"
    audit = one(adapter, base=base, initial=tmp_path / "initial")
    assert audit.verdict == "untrained"
    rewrite(adapter, lambda n, t: {n: t * 1.003 if "lora_B" in n else t})
    told, given = (
        one(adapter, base=base, **options).totals.relative
        for options in ({}, {"initial": tmp_path / "initial"})
    )
    assert given is not None and given > 1e-4
    assert told == pytest.approx(given, rel=1e-3)
    # Far less than the rounding of the start would hide.
    rewrite(adapter, lambda n, t: {n: t / 1.003 * 1.00002 if "lora_B" in n else t})
    if not dora:
        assert one(adapter, base=base).verdict == "negligible"


@pytest.mark.parametrize("shape", [(1100, 1300), (1300, 1100)])
def test_leading_triplets_of_large_matrices(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator)
    u, values, v = leading_triplets(weight, 8)
    assert values.shape == (9,)
    whole = torch.linalg.svd(weight.double(), full_matrices=False)
    assert values.double() == pytest.approx(whole.S[:9], rel=1e-6)
    product = (u[:, :8] * values[:8]).double() @ v[:8].double()
    best = (whole.U[:, :8] * whole.S[:8]) @ whole.Vh[:8]
    assert (product - best).norm() <= 1e-5 * best.norm()
    # The control: one more or less is another product.
    assert (product - (u * values).double() @ v.double()).norm() > 0.1 * best.norm()


def test_a_turned_matrix(tmp_path: Path) -> None:
    expected = save_run(
        tmp_path, gpt2, 0.1, r=4, target_modules=["c_attn", "c_proj"],
        init_lora_weights="pissa", fan_in_fan_out=True,
    )  # fmt: skip
    agree(one(tmp_path / "adapter", base=tmp_path / "base"), expected)


def test_embeddings_start_as_plain_lora(tmp_path: Path) -> None:
    expected = save_run(
        tmp_path, llama, 0.1, r=4, target_modules=["q_proj", "embed_tokens"],
        init_lora_weights="olora", use_dora=True,
    )  # fmt: skip
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    factored = [m for m in audit.modules if m.kind == "dora"]
    assert any("embed_tokens" in m.name for m in factored)
    for module in factored:
        assert module.frobenius == pytest.approx(expected[module.name], rel=1e-5), module.name


def test_equal_singular_values_leave_the_start_open(tmp_path: Path) -> None:
    """The best product of rank 4 of an orthogonal matrix is any of them."""
    save_run(tmp_path, llama, 1e-4, r=4, target_modules=["q_proj"], init_lora_weights="pissa")
    file = tmp_path / "base" / "model.safetensors"
    turned = {
        name: torch.linalg.qr(tensor).Q if "q_proj.weight" in name else tensor
        for name, tensor in load_file(file).items()
    }
    save_file({name: tensor.contiguous() for name, tensor in turned.items()}, file)
    base = turned["model.layers.0.self_attn.q_proj.weight"]
    rewrite(
        tmp_path / "adapter",
        lambda n, t: {n: (base.T[:4] if "lora_A" in n else torch.eye(16, 4)).contiguous() * 0.5},
    )
    audit = one(tmp_path / "adapter", base=tmp_path / "base")
    assert audit.verdict == "indeterminate" and "rewritten_base" in codes(audit)
    assert "too close together" in audit.summary


@pytest.mark.parametrize("init", [True, "pissa", "olora"])
def test_dora_against_its_start(init: bool | str, tmp_path: Path) -> None:
    """Unmoved, with its magnitudes moved, and with its factors moved."""
    save_run(
        tmp_path, llama, 0, r=2, target_modules=["q_proj"], use_dora=True, init_lora_weights=init
    )  # fmt: skip
    start = tmp_path / "initial"
    bases = (None, tmp_path / "base")
    for given in bases:
        audit = one(tmp_path / "adapter", base=given, initial=start)
        assert audit.verdict == "untrained", audit.summary
    rewrite(tmp_path / "adapter", lambda n, t: {n: t * 1.2 if "magnitude" in n else t})
    found = [one(tmp_path / "adapter", base=given, initial=start) for given in bases]
    assert [audit.verdict for audit in found] == ["indeterminate", "effective"]
    # All rows are 1.2 times as long.
    assert found[1].totals.relative == pytest.approx(0.2, rel=1e-5)
    rewrite(tmp_path / "adapter", lambda n, t: {n: t + 0.1 if "lora_B" in n else t})
    for given in bases:
        assert one(tmp_path / "adapter", base=given, initial=start).verdict in (
            "effective",
            "extreme",
        )


def test_dora_trained_on_from_an_earlier_adapter(tmp_path: Path) -> None:
    """Against a start that had moved already: the difference of what the two make of the base."""
    save_run(tmp_path, llama, 0.2, r=2, target_modules=["q_proj"], use_dora=True)
    shutil.copytree(tmp_path / "adapter", tmp_path / "later")
    rewrite(tmp_path / "later", lambda n, t: {n: t * 1.1 if "magnitude" in n else t})
    base, start = tmp_path / "base", tmp_path / "adapter"
    weight = load_file(base / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
    prefix = "base_model.model.model.layers.0.self_attn.q_proj"
    tensors = load_file(start / "adapter_model.safetensors")
    a, b = (tensors[f"{prefix}.lora_{part}.weight"].double() for part in "AB")
    moved = weight.double() + 4 * (b @ a)
    unit = moved / moved.norm(dim=1, keepdim=True)
    change = 0.1 * tensors[f"{prefix}.lora_magnitude_vector"].double()[:, None] * unit
    audit = one(tmp_path / "later", base=base, initial=start)
    assert audit.modules[0].frobenius == pytest.approx(float(change.norm()), rel=1e-5)
    assert one(start, base=base, initial=start).verdict == "untrained"


RANDOM: Mapping[str, peft.PeftConfig] = {
    "c3a": peft.C3AConfig(block_size=8, target_modules=LINEAR),
    "fourierft": peft.FourierFTConfig(n_frequency=6, target_modules=LINEAR),
    "vblora": peft.VBLoRAConfig(r=2, num_vectors=5, vector_length=4, target_modules=LINEAR),
    "hra": peft.HRAConfig(r=4, target_modules=LINEAR, init_weights=False),
    "ia3": peft.IA3Config(target_modules=LINEAR, feedforward_modules=["down_proj"]),
}


@pytest.mark.parametrize("case", RANDOM)
def test_other_methods_against_their_start(case: str, tmp_path: Path) -> None:
    """What they were made with is no training; the difference of two merges is."""
    first = save_case(tmp_path / "first", llama, RANDOM[case], scale=0)
    later = save_case(tmp_path / "later", llama, RANDOM[case], scale=0.1)
    base, start = tmp_path / "first" / "base", tmp_path / "first" / "adapter"
    assert one(start, base=base, initial=start).verdict == "untrained"
    assert (one(start, base=base).verdict == "untrained") == (case == "ia3")
    audit = one(tmp_path / "later" / "adapter", base=base, initial=start)
    assert audit.verdict in ("effective", "extreme")
    for module in (m for m in audit.modules if m.kind == "method"):
        expected = float((later[module.name] - first[module.name]).norm())
        assert module.frobenius == pytest.approx(expected, rel=1e-5), module.name
