"""The callback that audits an adapter in training, in a plain Trainer of transformers."""

from __future__ import annotations

import json
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch
from adapter_models import llama
from transformers import Trainer, TrainerCallback, TrainingArguments

from experiments.grpo import AdapterAuditCallback
from experiments.grpo.callback import TRAJECTORY, read_trajectory
from experiments.grpo.outlook import planned_rates, possible_size, remaining_bound
from interp.adapters import audit_path
from interp.errors import AdapterError, ResultError

ROWS = [{"input_ids": torch.arange(8) + i, "labels": torch.arange(8) + i} for i in range(24)]


def trainer(
    folder: Path, rate: float, *callbacks: TrainerCallback, lora: bool = True, **options: Any
) -> Trainer:
    """Six steps on a tiny random Llama; a checkpoint every two."""
    torch.manual_seed(0)
    arguments: dict[str, Any] = {
        "max_steps": 6,
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": rate,
        "per_device_train_batch_size": 4,
        "use_cpu": True,
        "report_to": [],
        "disable_tqdm": True,
        "seed": 7,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = llama()
        model.save_pretrained(folder / "base")
        if lora:
            config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
            model = peft.get_peft_model(model, config)
        return Trainer(
            model,
            TrainingArguments(output_dir=str(folder / "run"), **arguments | options),
            train_dataset=ROWS,
            callbacks=list(callbacks),
        )


def run(train: Trainer, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*pin_memory.*")
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated")
        train.train(**options)


class Killed(Exception):
    pass


class KilledAfter(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **event: Any) -> None:
        if state.global_step == self.step:
            raise Killed


def test_the_figures_are_those_of_the_saved_checkpoints(tmp_path: Path) -> None:
    said: list[str] = []
    train = trainer(tmp_path, 2e-3, AdapterAuditCallback(every=2, warn=said.append))
    run(train)
    rows = read_trajectory(tmp_path / "run" / TRAJECTORY)
    assert [row["step"] for row in rows] == [0, 2, 4, 6]
    assert (rows[0]["max_abs_delta"], rows[0]["verdict"]) == (0, "untrained")
    for row, saved in zip(
        rows[1:], audit_path(tmp_path / "run", base=tmp_path / "base"), strict=True
    ):
        assert row["verdict"] == saved.verdict == "effective"
        for name in ("max_abs_delta", "frobenius", "relative", "bf16_changed", "max_abs_b"):
            assert row[name] == pytest.approx(getattr(saved.totals, name), rel=1e-6), name
        # The files know the rates to one step; the callback knows each.
        done = row["step"]
        used = 2e-3 * (1 - np.arange(done) / 6)
        assert row["lr_sum"] == pytest.approx(used.sum(), rel=1e-9)
        assert row["lr_root_square"] == pytest.approx(math.sqrt((used**2).sum()), rel=1e-9)
    assert rows[1]["max_abs_delta"] < rows[2]["max_abs_delta"]
    assert not said
    # Every audit is in the trainer's log, and so in trainer_state.json.
    state = json.loads((tmp_path / "run" / "checkpoint-6" / "trainer_state.json").read_text())
    logged = {e["step"]: e for e in state["log_history"] if "adapter/max_abs_delta" in e}
    for row in rows[1:]:
        entry = logged[row["step"]]
        assert entry["adapter/max_abs_delta"] == row["max_abs_delta"]
        assert entry["adapter/bf16_changed"] == row["bf16_changed"]
        assert entry["adapter/lr_sum"] == row["lr_sum"]
        assert "loss" in entry


def test_the_trained_weights_are_those_of_a_run_without_it(tmp_path: Path) -> None:
    weights = []
    for name, callbacks in (("a", ()), ("b", (AdapterAuditCallback(every=1),))):
        train = trainer(tmp_path / name, 2e-3, *callbacks)
        run(train)
        weights.append({n: p.detach().clone() for n, p in train.model.named_parameters()})
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_rate_that_cannot_move_the_policy_is_said_before_the_first_step(tmp_path: Path) -> None:
    said: list[str] = []
    train = trainer(tmp_path, 1e-8, AdapterAuditCallback(every=3, warn=said.append))
    run(train)
    rows = read_trajectory(tmp_path / "run" / TRAJECTORY)
    assert [row["step"] for row in rows] == [0, 3, 6]  # it was warned of, and went on
    assert 0 < rows[0]["possible"] < 1
    assert "cannot move its policy" in said[0]
    assert "over the 6 steps that are left" in said[0]
    # Once, and at the end what became of it.
    assert len(said) == 2
    assert "After 6 steps: This adapter will decode like its base, or very nearly" in said[1]
    assert "the learning rate was too small" in said[1]
    assert rows[-1]["verdict"] == "negligible"
    # The forecast holds: what was reached is within what was possible before.
    reached = rows[-1]["largest_relative"] / 1e-3
    assert reached < rows[1]["possible"] < rows[0]["possible"]


def test_it_stops_the_run_if_asked(tmp_path: Path) -> None:
    said: list[str] = []
    callback = AdapterAuditCallback(every=3, stop=True, warn=said.append)
    train = trainer(tmp_path, 1e-8, callback)
    run(train)
    assert train.state.global_step <= 1
    assert callback.stopped is not None and "cannot move" in callback.stopped
    assert said[0].startswith("Training is stopped.")
    # The control: at a rate that can, nothing is stopped.
    callback = AdapterAuditCallback(every=3, stop=True, warn=said.append)
    train = trainer(tmp_path / "more", 2e-3, callback)
    run(train)
    assert (train.state.global_step, callback.stopped) == (6, None)


def test_by_default_it_warns_as_python_does(tmp_path: Path) -> None:
    train = trainer(tmp_path, 1e-8, AdapterAuditCallback(every=6))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(train)
    assert any("cannot move its policy" in str(w.message) for w in caught)


def test_a_resumed_run_has_one_trajectory(tmp_path: Path) -> None:
    whole = trainer(tmp_path / "whole", 2e-3, AdapterAuditCallback(every=1))
    run(whole)
    killed = trainer(tmp_path / "part", 2e-3, AdapterAuditCallback(every=1), KilledAfter(5))
    with pytest.raises(Killed):
        run(killed)
    path = tmp_path / "part" / "run" / TRAJECTORY
    assert [row["step"] for row in read_trajectory(path)] == [0, 1, 2, 3, 4, 5]
    again = trainer(tmp_path / "part", 2e-3, AdapterAuditCallback(every=1))
    run(again, resume_from_checkpoint=str(tmp_path / "part" / "run" / "checkpoint-4"))
    expected = read_trajectory(tmp_path / "whole" / "run" / TRAJECTORY)
    found = read_trajectory(path)
    assert [row["step"] for row in found] == [row["step"] for row in expected]
    for one, other in zip(found, expected, strict=True):
        for name in set(one) - {"seconds"}:
            assert one[name] == other[name], name


def test_the_plan_follows_the_schedule() -> None:
    parameter = torch.nn.Parameter(torch.zeros(2))
    slow = torch.nn.Parameter(torch.zeros(2))
    optimizer = torch.optim.AdamW([{"params": [slow], "lr": 1e-4}, {"params": [parameter]}], 1e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10)
    used = []
    for _ in range(10):
        used.append(max(group["lr"] for group in optimizer.param_groups))
        optimizer.step()
        schedule.step()
    np.testing.assert_allclose(planned_rates(schedule, 10), used)
    # A schedule that is no function of the step is taken at its peak.
    other = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    np.testing.assert_allclose(planned_rates(other, 3), [1e-3] * 3)


def test_no_gradients_reach_beyond_what_is_possible(tmp_path: Path) -> None:
    """AdamW with gradients that always agree, against the forecast from before it starts."""
    callback = AdapterAuditCallback(every=10)
    train = trainer(tmp_path, 1e-4, callback, max_steps=12, weight_decay=0.0, max_grad_norm=0.0)

    class Agreeing(TrainerCallback):
        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **event: Any) -> None:
            for parameter in event["model"].parameters():
                if parameter.grad is not None:
                    parameter.grad = torch.sign(parameter.detach() + 1e-30)
                    parameter.grad *= -1.0

    train.add_callback(Agreeing())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(train)
    rows = read_trajectory(tmp_path / "run" / TRAJECTORY)
    reached = rows[-1]["largest_relative"] / 1e-3
    forecast = rows[0]["possible"]
    # A bound, and one that is not idle.
    assert forecast / 10 < reached < forecast
    assert rows[-1]["possible"] == pytest.approx(reached)
    assert remaining_bound(np.full(12, 1e-4), 12, 0.9, 0.999) == 0
    assert callback.last is not None
    assert possible_size(callback.last.modules, 0.0) == pytest.approx(reached)
    assert possible_size([], 1.0) is None


def test_what_it_cannot_audit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="LlamaForCausalLM; an adapter audit needs a PEFT"):
        run(trainer(tmp_path / "a", 1e-3, AdapterAuditCallback(), lora=False))
    with pytest.raises(AdapterError, match="no adapter 'mine'; it has default"):
        run(trainer(tmp_path / "b", 1e-3, AdapterAuditCallback(adapter="mine")))
    with pytest.raises(AdapterError, match="every is 0"):
        AdapterAuditCallback(0)
    path = tmp_path / TRAJECTORY
    with pytest.raises(ResultError, match="There is no"):
        read_trajectory(path)
    path.write_text('{"step": 1}\n{"step": 2}\n{"st')
    assert [row["step"] for row in read_trajectory(path)] == [1, 2]
    path.write_text('{"x": 1}\n{"step": 2}\n')
    with pytest.raises(ResultError, match="line 1"):
        read_trajectory(path)
