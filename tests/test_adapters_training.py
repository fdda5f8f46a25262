"""A run as transformers' Trainer writes it: checkpoints, trainer state, training arguments."""

from __future__ import annotations

import warnings
from pathlib import Path

import peft
import pytest
import torch
from adapter_models import llama
from transformers import Trainer, TrainingArguments

from interp.adapters import audit_path


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six steps at a rate that decays to 0, a checkpoint every two; `base/` lies beside."""
    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    rows = [{"input_ids": torch.arange(8) + i, "labels": torch.arange(8) + i} for i in range(24)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        base = llama()
        base.save_pretrained(folder / "base")
        config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
        arguments = TrainingArguments(
            output_dir=str(folder / "run"),
            max_steps=6,
            save_steps=2,
            logging_steps=1,
            learning_rate=2e-3,
            adam_beta2=0.98,
            per_device_train_batch_size=4,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            seed=7,
        )
        trainer = Trainer(peft.get_peft_model(base, config), arguments, train_dataset=rows)
        trainer.train()
        trainer.save_model(str(folder / "run"))
    return folder


def test_a_trainer_s_run(run: Path) -> None:
    audits = audit_path(run / "run", base=run / "base")
    assert [audit.step for audit in audits] == [2, 4, 6, None]
    sizes = [audit.totals.relative or 0 for audit in audits]
    assert 0 < sizes[0] < sizes[1] < sizes[2]
    assert sizes[3] == sizes[2]
    for audit in audits:
        assert audit.verdict == "effective", audit.findings
        budget = audit.budget
        assert budget["beta2"] == 0.98 and budget["seed"] == 7
        assert "adam" in budget["optimizer"]
        # The bound holds for a real optimiser, and is not idle: a third of it is reached.
        assert audit.totals.max_abs_b is not None
        assert budget["adam_bound"] / 3 < audit.totals.max_abs_b <= budget["adam_bound"]
        assert budget["lr_capped"] is False
        assert budget["grad_norm"]["last"] > 0
    assert audits[2].budget["n_steps"] == 6


def test_without_arguments_the_optimizer_s_state_serves(run: Path) -> None:
    (before,) = audit_path(run / "run" / "checkpoint-4")
    (run / "run" / "checkpoint-4" / "training_args.bin").unlink()
    (after,) = audit_path(run / "run" / "checkpoint-4")
    assert after.budget["optimizer"] == "adam (from optimizer.pt)"
    assert after.budget["adam_bound"] == before.budget["adam_bound"]
