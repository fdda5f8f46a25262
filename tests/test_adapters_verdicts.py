"""From saved adapters to verdicts: every row of the table, and the findings behind it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from adapter_models import llama, save_case, tied
from safetensors.torch import load_file, save_file

from interp.adapters import AdapterAudit, audit_path, audit_to_json
from interp.adapters.thresholds import (
    EXTREME_RHO,
    NEGLIGIBLE_DELTA,
    NEGLIGIBLE_RHO,
    WEAK_DELTA,
    WEAK_RHO,
)
from interp.adapters.verdict import judge
from interp.errors import AdapterError

L = peft.LoraConfig
PREFIX = "base_model.model.model.layers"


def codes(audit: AdapterAudit) -> set[str]:
    return {found.code for found in audit.findings}


def one(path: Path, **options: Any) -> AdapterAudit:
    (audit,) = audit_path(path, **options)
    return audit


def rewrite(folder: Path, change: Callable[[str, torch.Tensor], dict[str, torch.Tensor]]) -> None:
    """Replace each tensor of an adapter by what `change` makes of it."""
    file = folder / "adapter_model.safetensors"
    new: dict[str, torch.Tensor] = {}
    for name, tensor in load_file(file).items():
        new |= change(name, tensor.clone())
    save_file(new, file)


def configure(folder: Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    raw = json.loads(path.read_text())
    for name, value in changes.items():
        if value is None:
            raw.pop(name, None)
        else:
            raw[name] = value
    path.write_text(json.dumps(raw))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """base/ and adapter/ with a clear change in q and v."""
    save_case(tmp_path, llama, L(r=4, target_modules=["q_proj", "v_proj"]), scale=0.01)
    return tmp_path


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


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_rewritten_bases_need_the_initial_adapter(init: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = llama()  # float32: these initialisations refuse float64
        before = {n: t.clone() for n, t in base.state_dict().items()}
        base.save_pretrained(tmp_path / "base")
        config = L(r=4, target_modules=["q_proj"], init_lora_weights=init)
        model = peft.get_peft_model(base, config)
        model.save_pretrained(tmp_path / "initial")
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
        model.save_pretrained(tmp_path / "adapter")
        after = model.merge_and_unload().state_dict()
    blind = one(tmp_path / "adapter", base=tmp_path / "base")
    assert blind.verdict == "indeterminate" and "rewritten_base" in codes(blind)
    audit = one(tmp_path / "adapter", base=tmp_path / "base", initial=tmp_path / "initial")
    assert audit.verdict in ("effective", "extreme")
    for module in audit.modules:
        expected = float((after[module.name] - before[module.name]).norm())
        assert module.frobenius == pytest.approx(expected, rel=1e-5)
    same = one(tmp_path / "initial", base=tmp_path / "base", initial=tmp_path / "initial")
    assert same.verdict == "untrained"


def test_methods_without_a_formula_are_named(tmp_path: Path) -> None:
    config = peft.FourierFTConfig(n_frequency=4, target_modules=["q_proj"])
    save_case(tmp_path, llama, config)
    audit = one(tmp_path / "adapter")
    assert audit.verdict == "indeterminate" and codes(audit) == {"unsupported_method"}
    assert "FOURIERFT" in audit.summary


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


def attached(folder: Path) -> float:
    """Largest entry of any B after PEFT has loaded the adapter: 0 if it attached nothing."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = peft.PeftModel.from_pretrained(llama().double(), folder / "adapter")
    return max(float(p.abs().max()) for n, p in model.named_parameters() if "lora_B" in n)


def drop(part: str) -> Callable[[str, torch.Tensor], dict[str, torch.Tensor]]:
    return lambda n, t: {} if part in n else {n: t}


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


def test_a_sound_adapter_has_no_findings(trained: Path) -> None:
    """The control for all of the above."""
    assert codes(one(trained / "adapter")) == set()
    assert codes(one(trained / "adapter", base=trained / "base")) <= {"base_overridden"}


def test_another_base(trained: Path, tmp_path: Path) -> None:
    save_case(tmp_path / "wide", lambda: llama(head_dim=4), L(r=4, target_modules=["q_proj"]))
    audit = one(trained / "adapter", base=tmp_path / "wide" / "base")
    assert audit.verdict == "broken" and "shape_differs_from_base" in codes(audit)
    save_case(tmp_path / "shallow", shallow, L(r=4, target_modules=["q_proj"]))
    audit = one(trained / "adapter", base=tmp_path / "shallow" / "base")
    assert audit.verdict == "broken" and "module_absent_from_base" in codes(audit)


def shallow() -> torch.nn.Module:
    model = llama()
    model.model.layers = model.model.layers[:1]  # type: ignore[union-attr,index]
    return model


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


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return (Path.touch, (self.path,))


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
