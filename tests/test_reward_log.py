"""Reward logs of GRPO runs, in the forms that trl's versions write."""

import json
import shutil
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from commands import ok, refused
from hypothesis import given
from hypothesis import strategies as st
from sample_data import sample

from interp.errors import ResultError
from interp.reward_log import read_reward_log, small_ratio


def state(path: Path, entries: list[dict[str, Any]], steps: int) -> Path:
    path.write_text(json.dumps({"global_step": steps, "log_history": entries}))
    return path


def entry(step: int, reward: float, **more: Any) -> dict[str, Any]:
    return {"step": step, "reward": reward, "reward_std": 0.5, "learning_rate": 1e-6, **more}


# Table VIII of the paper: values as printed, and the ratios it names.
@pytest.mark.parametrize(
    ("value", "ratio"),
    [
        *[(0.417, "5/12"), (0.833, "5/6"), (0.125, "1/8"), (0.875, "7/8"), (0.583, "7/12")],
        *[(0.750, "3/4"), (0.167, "1/6"), (0.667, "2/3"), (0.625, "5/8"), (0.5, "1/2"), (0, "0")],
    ],
)
def test_the_papers_values_are_small_ratios(value: float, ratio: str) -> None:
    assert small_ratio(value) == ratio


@given(st.integers(1, 64), st.integers(0, 64))
def test_a_mean_of_binary_rewards_is_found_again(denominator: int, numerator: int) -> None:
    value = Fraction(min(numerator, denominator), denominator)
    found = small_ratio(float(value))
    assert found is not None
    assert abs(float(Fraction(found)) - float(value)) <= 5e-4


def test_a_value_that_is_no_small_ratio_has_none() -> None:
    assert small_ratio(0.123456789) is None


@pytest.mark.parametrize("form", ["rewards/binary_reward", "rewards/binary_reward/mean"])
def test_reward_keys_of_both_versions_of_trl(tmp_path: Path, form: str) -> None:
    entries = [
        entry(10, 0.417, **{form: 0.417, "rewards/binary_reward/std": 0.9}),
        entry(20, 0.125, **{form: 0.125}),
        {"step": 20, "train_runtime": 1.0, "train_loss": 0.0},
    ]
    path = state(tmp_path / "trainer_state.json", entries, 20)
    found = json.loads(ok("tomas", "rewards", path, "--json").stdout)
    assert [(s["step"], s["reward"], s["ratio"]) for s in found["steps"]] == [
        (10, 0.417, "5/12"),
        (20, 0.125, "1/8"),
    ]
    assert found["steps"][0]["by_function"] == {"binary_reward": 0.417}
    assert found["learning_rate_sum"] == pytest.approx(20e-6)
    assert found["zero_variance_share"] is None
    assert "5/12" in ok("tomas", "rewards", path).stdout
    # The same entries as trl's own log lines, without the total reward.
    lines = [{k: v for k, v in e.items() if k != "reward"} for e in entries[:2]]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    log = read_reward_log(tmp_path / "log.jsonl")
    assert [step.reward for step in log.steps] == [0.417, 0.125]


def test_a_linear_schedule_is_summed_over_all_steps(tmp_path: Path) -> None:
    # Logged every tenth step of a linear decay from 1e-6 to 0 over 200 steps.
    entries = [entry(s, 0.5, learning_rate=1e-6 * (1 - s / 200)) for s in range(10, 201, 10)]
    log = read_reward_log(state(tmp_path / "s.json", entries, 200))
    assert log.learning_rate_sum == pytest.approx(sum(1e-6 * (1 - s / 200) for s in range(1, 201)))


def test_groups_without_variance_are_counted_from_what_is_logged(tmp_path: Path) -> None:
    shares = [0.5, 1.0, 0.0, 0.5]
    entries = [entry(n, n / 8, frac_reward_zero_std=s) for n, s in enumerate(shares, start=1)]
    log = read_reward_log(state(tmp_path / "a.json", entries, 4))
    assert log.zero_variance_share == 0.5
    assert log.warnings == ()
    # Without that key, a mean deviation of 0 still says that no group had any variance.
    entries = [entry(n, n / 8, reward_std=0.0 if n < 3 else 0.2) for n in range(1, 5)]
    log = read_reward_log(state(tmp_path / "b.json", entries, 4))
    assert (log.zero_variance_share, log.idle_entries) == (None, 0.5)
    assert [step.idle for step in log.steps] == [1.0, 1.0, None, None]
    many = [entry(n, n / 8, frac_reward_zero_std=0.8) for n in range(1, 5)]
    (warning,) = read_reward_log(state(tmp_path / "c.json", many, 4)).warnings
    assert "80% of the groups" in warning


def test_a_run_without_any_gradient_is_warned_of(tmp_path: Path) -> None:
    entries = [entry(n, 0.0, reward_std=0.0, learning_rate=0.0) for n in range(1, 5)]
    path = state(tmp_path / "s.json", entries, 4)
    text = ok("tomas", "rewards", path).stdout.replace("\n", " ")
    assert "there is no gradient" in text
    assert "The mean reward is 0 at every logged step" in text
    assert "The learning rate is 0 throughout" in text


def test_single_completions_give_groups(tmp_path: Path) -> None:
    rewards = {(1, 1): [1, 0, 0, 1], (1, 2): [0, 0, 0, 0], (2, 3): [1, 1, 1, 1]}
    lines = [
        {"step": step, "group": group, "reward": reward, "completion": "x"}
        for (step, group), values in rewards.items()
        for reward in values
    ]
    path = tmp_path / "rewards.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    log = read_reward_log(path)
    assert [(s.step, s.reward, s.idle) for s in log.steps] == [(1, 0.25, 0.5), (2, 1.0, 1.0)]
    assert log.zero_variance_share == pytest.approx(2 / 3)
    assert log.steps[0].std == pytest.approx((1 / 3) ** 0.5 / 2)
    path.write_text("\n".join(json.dumps(x | {"reward": 1}) for x in lines))
    assert any("no gradient" in warning for warning in read_reward_log(path).warnings)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "line 1: not JSON"),
        ("", "has no logged rewards"),
        ('{"log_history": []}', "has no logged rewards"),
        ('{"log_history": [1]}', "entry 1: got a int"),
        ('[{"step": 1, "loss": 2}]', "has no logged rewards"),
        ('{"step": 1, "reward": NaN}', "has no logged rewards"),
        ('{"step": "x", "group": 1, "reward": 1}', "must be numbers"),
    ],
)
def test_files_without_rewards(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert words in refused("tomas", "rewards", path)


@pytest.mark.parametrize(
    ("name", "n", "functions", "share"),
    [
        ("grpo_llama3.1-8b_IMJONEZZ-UnslothGRPO_ckpt250.json", 250, 5, None),
        ("grpo_gemma3-1b_abdo-ashraf_ckpt250.json", 25, 5, None),
        ("grpo_shortrun_Ray-Cheng-11_12steps.json", 1, 1, 0.45),
    ],
)
def test_published_trainer_states(
    tmp_path: Path, name: str, n: int, functions: int, share: float | None
) -> None:
    source = sample(f"trainer_states/{name}")
    shutil.copy(source, tmp_path / "trainer_state.json")
    log = read_reward_log(tmp_path / "trainer_state.json")
    assert len(log.steps) == n
    assert len(log.steps[0].by_function) == functions
    assert log.zero_variance_share == share
    raw = json.loads(source.read_text())
    assert [s.reward for s in log.steps] == [e["reward"] for e in raw["log_history"]]
    assert log.n_steps == raw["global_step"]
    if n == raw["global_step"]:
        rates = [e["learning_rate"] for e in raw["log_history"]]
        assert log.learning_rate_sum == pytest.approx(sum(rates))


@pytest.mark.parametrize("damage", [{"global_step": 10**13}, {"step": 1e300}, {"step": -4}])
def test_steps_that_no_run_has_are_refused(tmp_path: Path, damage: dict[str, float]) -> None:
    entry = {"step": 1, "reward": 0.5, "learning_rate": 1e-6}
    entry |= {k: v for k, v in damage.items() if k == "step"}
    state = {"global_step": damage.get("global_step"), "log_history": [entry]}
    path = tmp_path / "trainer_state.json"
    path.write_text(json.dumps(state))
    with pytest.raises(ResultError, match="counts steps"):
        read_reward_log(path)
