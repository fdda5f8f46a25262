"""The learning-rate budget: the bound holds, is reached, and the log is read as it stands."""

from __future__ import annotations

import json
import math
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from interp.adapters.budget import adam_bounds, read_budget, read_training_arguments, step_rates


def adam_path(gradients: list[float], rates: list[float], beta1: float, beta2: float) -> float:
    """Distance that Adam moves one weight from 0, with ε = 0."""
    weight = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.Adam([weight], lr=1.0, betas=(beta1, beta2), eps=0.0)
    for gradient, rate in zip(gradients, rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        weight.grad = torch.tensor([gradient], dtype=torch.float64)
        optimizer.step()
    return abs(float(weight.detach()))


@given(
    st.lists(st.floats(1e-6, 1e3) | st.floats(-1e3, -1e-6), min_size=1, max_size=30),
    st.sampled_from([(0.9, 0.999), (0.9, 0.95), (0.5, 0.9)]),
)
def test_no_sequence_of_gradients_exceeds_the_bound(
    gradients: list[float], betas: tuple[float, float]
) -> None:
    rates = [1e-3] * len(gradients)
    bound = float((np.array(rates) * adam_bounds(len(gradients), *betas)).sum())
    assert adam_path(gradients, rates, *betas) <= bound * (1 + 1e-9)


def test_a_single_step_reaches_the_bound_of_that_step() -> None:
    """c_t is the least such number: gradients in proportion (β₁/β₂)^(t−i) attain it."""
    n, beta1, beta2 = 40, 0.9, 0.999
    gradients = [(beta1 / beta2) ** (n - i) for i in range(1, n + 1)]
    rates = [0.0] * (n - 1) + [1.0]
    bound = adam_bounds(n, beta1, beta2)
    assert math.isclose(adam_path(gradients, rates, beta1, beta2), bound[-1], rel_tol=1e-9)
    assert bound[-1] > 1.4  # so Σ lr alone is no bound


def test_limits_of_the_bound() -> None:
    bounds = adam_bounds(20_000, 0.9, 0.999)
    assert math.isclose(bounds[0], 1)
    assert math.isclose(bounds[-1], 7.27, rel_tol=1e-3)
    assert math.isclose(adam_bounds(5, 0.9, 0.81)[0], 1)  # β₁² = β₂: the series is t


def test_rates_between_and_beyond_logged_steps() -> None:
    rates = step_rates({10: 1.0, 20: 0.5}, 22)
    assert math.isclose(rates[14], 0.75)
    assert math.isclose(rates[0], 1.45) and math.isclose(rates[21], 0.4)
    assert np.allclose(step_rates({10: 2.0}, 12), 2.0)
    assert step_rates({10: 0.01, 20: 0.11}, 20)[0] == 0  # a warm-up does not go below 0


def state(folder: Path, **changes: object) -> Path:
    raw = {
        "global_step": 4,
        "log_history": [
            {"step": 2, "learning_rate": 1e-3, "grad_norm": 0.5, "rewards/f/mean": 0.25},
            {"step": 4, "learning_rate": 1e-3, "grad_norm": 0.1, "rewards/f/mean": 0.75},
            {"step": 4, "train_loss": 0.1},
        ],
    }
    path = folder / "trainer_state.json"
    path.write_text(json.dumps(raw | changes))
    return path


def test_a_trainer_state(tmp_path: Path) -> None:
    budget, findings = read_budget(state(tmp_path))
    assert budget is not None and findings == []
    assert math.isclose(budget.lr_sum, 4e-3) and math.isclose(budget.lr_root_square, 2e-3)
    assert budget.adam_bound is not None and budget.adam_bound > budget.lr_sum
    assert budget.optimizer == "adamw (assumed)"
    assert budget.reward == {"first": 0.25, "last": 0.75, "median": 0.5, "max": 0.75}
    assert budget.grad_norm["max"] == 0.5


def test_gradients_that_are_all_zero_are_said(tmp_path: Path) -> None:
    entry = {"step": 4, "learning_rate": 1e-3, "grad_norm": 0.0}
    _, findings = read_budget(state(tmp_path, log_history=[entry]))
    assert [found.code for found in findings] == ["no_learning_signal"]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"global_step": "x", "log_history": []}'])
def test_a_broken_state_is_a_finding(text: str, tmp_path: Path) -> None:
    path = tmp_path / "trainer_state.json"
    path.write_text(text)
    budget, findings = read_budget(path)
    assert budget is None
    assert [found.code for found in findings] == ["trainer_state_unreadable"]


def test_training_arguments_are_read_without_unpickling(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(tmp_path), optim="sgd", adam_beta2=0.95, learning_rate=3e-6, seed=11,
        use_cpu=True,
    )  # fmt: skip
    path = tmp_path / "training_args.bin"
    torch.save(arguments, path)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)  # what a reader without care would have to allow
    found = read_training_arguments(path)
    assert found["optim"] == "sgd" and found["seed"] == 11
    assert found["adam_beta2"] == 0.95 and found["learning_rate"] == 3e-6
    budget, _ = read_budget(state(tmp_path))
    assert budget is not None and budget.adam_bound is None and budget.seed == 11


def test_the_optimizer_s_own_state(tmp_path: Path) -> None:
    """β from it where there are no arguments; the larger rate of LoRA+ counts."""
    slow, fast = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = torch.optim.AdamW(
        [{"params": [slow], "lr": 1e-3}, {"params": [fast], "lr": 16e-3}], betas=(0.9, 0.95)
    )
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    budget, _ = read_budget(state(tmp_path))
    assert budget is not None and budget.beta2 == 0.95
    assert math.isclose(budget.lr_sum, 16 * 4e-3)
    assert budget.optimizer == "adam (from optimizer.pt)"
    torch.save({"param_groups": Bomb()}, tmp_path / "optimizer.pt")
    budget, _ = read_budget(state(tmp_path))
    assert budget is not None and budget.optimizer == "adamw (assumed)"


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('executed')",))


def test_hostile_training_arguments_are_not_executed(tmp_path: Path) -> None:
    path = tmp_path / "training_args.bin"
    torch.save({"optim": Bomb()}, path)
    assert "adam_beta1" not in read_training_arguments(path)
    path.write_bytes(b"not a file of torch")
    assert read_training_arguments(path) == {}
