"""An adapter in memory is judged as the same adapter in its files."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from adapter_models import llama
from audits import codes, one

from interp.adapters import AdapterAudit, audit_tensors, audit_to_json

CONFIG: dict[str, peft.PeftConfig] = {
    "lora": peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"]),
    "dora": peft.LoraConfig(r=4, target_modules=["q_proj"], use_dora=True),
    "loha": peft.LoHaConfig(r=3, target_modules=["down_proj"]),
}


def live(folder: Path, config: peft.PeftConfig, scale: float) -> tuple[Any, dict[str, Any]]:
    """A PEFT model whose adapter has moved, saved as well; and the base's own weights."""
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = llama()
        base.save_pretrained(folder / "base")
        weights = {name: tensor.clone() for name, tensor in base.state_dict().items()}
        model = peft.get_peft_model(base, config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad and scale:
                    parameter.add_(torch.randn_like(parameter) * scale)
        model.save_pretrained(folder / "adapter")
    return model, weights


def audited(model: Any, **options: Any) -> AdapterAudit:
    config = model.peft_config["default"].to_dict()
    return audit_tensors(peft.get_peft_model_state_dict(model), config, **options)


def figures(audit: AdapterAudit) -> dict[str, Any]:
    found = audit_to_json(audit)
    # Only a path can be compared with the base's name in the config.
    found["findings"] = [f for f in found["findings"] if f["code"] != "base_overridden"]
    return {name: value for name, value in found.items() if name != "path"}


@pytest.mark.parametrize("case", CONFIG)
@pytest.mark.parametrize("scale", [0.0, 0.05])
def test_the_audit_is_that_of_the_files(case: str, scale: float, tmp_path: Path) -> None:
    model, weights = live(tmp_path, CONFIG[case], scale)
    saved = one(tmp_path / "adapter", base=tmp_path / "base")
    assert (saved.verdict == "untrained") == (not scale)
    assert figures(audited(model, base=weights)) == figures(saved)
    assert figures(audited(model, base=weights.get)) == figures(saved)
    assert figures(audited(model)) == figures(one(tmp_path / "adapter"))


def test_training_goes_on_undisturbed(tmp_path: Path) -> None:
    model, weights = live(tmp_path, CONFIG["lora"], 0.05)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    needed = {name: p.requires_grad for name, p in model.named_parameters()}
    n_threads = torch.get_num_threads()
    audited(model, base=weights)
    assert torch.get_num_threads() == n_threads
    assert {name: p.requires_grad for name, p in model.named_parameters()} == needed
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_a_live_budget_is_that_of_the_files(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    model, _ = live(tmp_path, peft.LoraConfig(r=4, target_modules=["q_proj"]), 1e-7)
    history = [{"step": s, "learning_rate": 1e-8, "grad_norm": 0.5} for s in (50, 100)]
    state = {"global_step": 100, "log_history": history}
    (tmp_path / "adapter" / "trainer_state.json").write_text(json.dumps(state))
    arguments = TrainingArguments(
        output_dir=str(tmp_path), optim="adamw_torch", learning_rate=1e-8, adam_beta2=0.95,
        seed=3, use_cpu=True,
    )  # fmt: skip
    torch.save(arguments, tmp_path / "adapter" / "training_args.bin")
    saved = one(tmp_path / "adapter")
    found = audited(model, trainer_state=state, training_arguments=arguments.to_dict(), step=100)
    assert found.budget == saved.budget and found.budget["beta2"] == 0.95
    assert found.step == 100 and found.verdict == saved.verdict
    # Objects of the library itself, whose optimiser is an enumeration, do as well.
    assert audited(model, trainer_state=state, training_arguments=vars(arguments)).budget == (
        saved.budget
    )
    assert audited(model).budget == {}
    junk = audited(model, trainer_state={"global_step": "x"})
    assert "trainer_state_unreadable" in codes(junk) and junk.budget == {}


def test_a_rewritten_base_needs_the_start(tmp_path: Path) -> None:
    config = peft.LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights="pissa")
    model, _ = live(tmp_path, config, 0.0)
    start = {n: t.clone() for n, t in peft.get_peft_model_state_dict(model).items()}
    assert audited(model).verdict == "indeterminate"
    assert audited(model, initial=start).verdict == "untrained"
    # Saved in another format, the start is still the start.
    half = {name: tensor.bfloat16() for name, tensor in start.items()}
    assert audited(model, initial=half).verdict == "untrained"
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
    assert audited(model, initial=start).verdict in ("effective", "extreme")
    moved = audited(model, initial=half)
    assert moved.verdict in ("effective", "extreme")


def test_nothing_and_nonsense_have_a_verdict() -> None:
    empty = audit_tensors({}, {"peft_type": "LORA", "r": 4, "lora_alpha": 4})
    assert empty.verdict == "broken" and codes(empty) == {"no_tensors"}
    odd = audit_tensors({"a": torch.ones(2)}, {"peft_type": "LORA", "r": "four"})
    assert odd.verdict == "broken" and "config_unreadable" in codes(odd)
