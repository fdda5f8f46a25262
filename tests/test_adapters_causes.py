"""A learning rate is named as the cause only where it can be, and where the log tells it."""

from __future__ import annotations

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import peft
import pytest
from adapter_models import llama, save_case
from audits import codes, one, rewrite

from interp.adapters import AdapterAudit

CLAIMS = {"lr_capped", "budget_exceeded"}
HISTORY = dict[int, float]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_case(tmp_path, llama, peft.LoraConfig(r=4, target_modules=["q_proj"]), scale=0.01)
    return tmp_path


def audited(folder: Path, size: float, history: HISTORY, rate: float | None = None) -> AdapterAudit:
    """With every entry of B of this size, and this log of 100 steps."""
    rewrite(folder / "adapter", lambda n, t: {n: t.sign() * size if "lora_B" in n else t})
    entries = [{"step": step, "learning_rate": lr} for step, lr in history.items()]
    state = {"global_step": 100, "log_history": entries}
    (folder / "adapter" / "trainer_state.json").write_text(json.dumps(state))
    if rate is not None:
        with zipfile.ZipFile(folder / "adapter" / "training_args.bin", "w") as archive:
            archive.writestr("a/data.pkl", pickle.dumps({"learning_rate": rate, "optim": "adamw"}))
    return one(folder / "adapter", base=folder / "base")


def test_a_factor_of_exactly_zero_is_no_matter_of_the_rate(folder: Path) -> None:
    audit = audited(folder, 0.0, {50: 1e-8, 100: 1e-8})
    assert audit.verdict == "untrained" and not codes(audit) & CLAIMS
    assert audit.budget["lr_capped"] is False
    assert "learning rate" not in audit.summary
    # But a rate of 0 is one.
    assert "lr_capped" in codes(audited(folder, 0.0, {1: 0.0, 50: 0.0, 100: 0.0}))


def test_a_state_of_another_run_is_no_cause(folder: Path) -> None:
    audit = audited(folder, 1e-6, {50: 1e-10, 100: 1e-10})
    assert codes(audit) & CLAIMS == {"budget_exceeded"}
    assert audit.budget["lr_capped"] is False


@pytest.mark.parametrize("history", [{100: 1e-10}, {100: 0.0}, {1: 0.0, 100: 0.0}, {50: 1e-10}])
@pytest.mark.parametrize("size", [1e-7, 1e-5])
def test_sparse_logs_claim_nothing(history: HISTORY, size: float, folder: Path) -> None:
    audit = audited(folder, size, history)
    assert not codes(audit) & (CLAIMS | {"coherent_step_limited", "compatible_with_noise"})
    assert audit.budget["adam_bound"] is None and audit.budget["lr_capped"] is None


@pytest.mark.parametrize("history", [{100: 1e-10}, {1: 0.0, 100: 0.0}, {1: 1e-10, 100: 1e-10}])
def test_the_rate_of_the_arguments_bounds_every_step(history: HISTORY, folder: Path) -> None:
    assert not codes(audited(folder, 1e-5, history, 1e-3)) & CLAIMS
    assert codes(audited(folder, 1e-7, history, 1e-8)) & CLAIMS == {"lr_capped"}
    assert codes(audited(folder, 1e-4, history, 1e-9)) & CLAIMS == {"budget_exceeded"}


@pytest.mark.parametrize(
    "entry",
    [
        {"grad_norm": 10**400},
        {"reward": -(10**400)},
        {"rewards/f/mean": 10**400},
        {"learning_rate": 10**400},
        {"learning_rate": 1e308},
        {"step": 10**300},
        {"step": 10**400},
        {"step": -5},
        {"grad_norm": 1.7e308},
    ],
)
def test_numbers_beyond_all_measure_are_left_out(entry: dict[str, Any], folder: Path) -> None:
    history = [{"step": s, "learning_rate": 1e-6, "grad_norm": 1.0} | entry for s in (50, 100)]
    state = {"global_step": 100, "log_history": history}
    (folder / "adapter" / "trainer_state.json").write_text(json.dumps(state))
    audit = one(folder / "adapter")
    assert audit.verdict == "effective"
    json.dumps(audit.budget, allow_nan=False)
