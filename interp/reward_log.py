"""Reward logs of GRPO runs: trainer states, logged metrics, and rewards of single completions."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

from interp.errors import ResultError
from interp.files import require_file
from interp.open_grading import zero_variance_share

__all__ = ["RewardLog", "RewardStep", "read_reward_log", "small_ratio"]

# trl wrote rewards/NAME, later rewards/NAME/mean beside rewards/NAME/std.
_REWARD: Final = re.compile(r"^rewards/(?P<name>.+?)(?:/(?P<part>mean|std))?$")
_LARGEST_DENOMINATOR: Final = 64


@dataclass(frozen=True, slots=True)
class RewardStep:
    """One logged step.

    Attributes:
        step: optimiser step.
        reward: mean reward since the last logged step.
        std: mean over groups of the rewards' standard deviation; None if not logged.
        idle: share of groups without variance; None if neither logged nor certain.
        by_function: mean of each reward function.
        learning_rate: at this step; None if not logged.
    """

    step: int
    reward: float
    std: float | None
    idle: float | None
    by_function: Mapping[str, float]
    learning_rate: float | None


@dataclass(frozen=True, slots=True)
class RewardLog:
    """A run's rewards.

    Attributes:
        kind: `trainer` (logged means) or `completions` (single rewards).
        steps: in order.
        n_steps: optimiser steps of the run.
        zero_variance_share: share of groups with no variance; None where the log cannot tell.
        idle_entries: share of logged entries in which no group at all had any.
        learning_rate_sum: sum of the learning rate over all steps; None if not logged.
        warnings: what to know before believing the run.
    """

    kind: str
    steps: tuple[RewardStep, ...]
    n_steps: int
    zero_variance_share: float | None
    idle_entries: float | None
    learning_rate_sum: float | None
    warnings: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The log as a JSON object; each reward also as a ratio where it is one."""
        return {
            "kind": self.kind,
            "n_steps": self.n_steps,
            "n_logged": len(self.steps),
            "zero_variance_share": self.zero_variance_share,
            "idle_entries": self.idle_entries,
            "learning_rate_sum": self.learning_rate_sum,
            "steps": [
                {
                    "step": each.step,
                    "reward": each.reward,
                    "ratio": small_ratio(each.reward),
                    "std": each.std,
                    "zero_variance_share": each.idle,
                    "by_function": dict(each.by_function),
                    "learning_rate": each.learning_rate,
                }
                for each in self.steps
            ],
            "warnings": list(self.warnings),
        }


def small_ratio(value: float) -> str | None:
    """The ratio with the smallest denominator (up to 64) that a logged mean can be, or None.

    A value with at most three decimals is taken as rounded, so 0.417 is 5/12. With the group size
    and steps between logs, the denominator tells how many rewards a mean is over.
    """
    tolerance = 5e-4 if round(value, 3) == value else 1e-6
    for denominator in range(1, _LARGEST_DENOMINATOR + 1):
        near = Fraction(round(value * denominator), denominator)
        if abs(float(near) - value) <= tolerance:
            return str(near)
    return None


_MOST_STEPS: Final = 10_000_000
"""Longer than any run; a rate is kept for every step, so a damaged count would fill the memory."""


def _number(entry: Mapping[str, Any], name: str) -> float | None:
    value = entry.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _functions(entry: Mapping[str, Any]) -> dict[str, float]:
    found = {}
    for key in entry:
        match = _REWARD.match(key)
        value = _number(entry, key)
        if match and match["part"] != "std" and value is not None:
            found[match["name"]] = value
    return found


def _trainer_step(entry: Mapping[str, Any]) -> RewardStep | None:
    """One logged entry; None if it has no reward (evaluation, the closing summary)."""
    step, functions = _number(entry, "step"), _functions(entry)
    reward = _number(entry, "reward")
    if reward is None and len(functions) == 1:
        (reward,) = functions.values()  # some loggers keep the parts only
    if step is None or reward is None:
        return None
    std, idle = _number(entry, "reward_std"), _number(entry, "frac_reward_zero_std")
    if idle is None and std == 0:
        idle = 1.0  # a mean over groups is 0 only if every group's is
    return RewardStep(int(step), reward, std, idle, functions, _number(entry, "learning_rate"))


def _load(path: Path) -> tuple[list[Mapping[str, Any]], int | None]:
    """Entries, and the number of steps if the file says it."""
    require_file(path, "trainer_state.json or a JSONL reward log", ResultError)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ResultError(f"{path} is not UTF-8 ({error}).") from error
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError):
        value = None
    if isinstance(value, dict) and isinstance(value.get("log_history"), list):
        total = value.get("global_step")
        entries = value["log_history"]
        n_steps = total if isinstance(total, int) and total > 0 else None
    elif isinstance(value, list):
        entries, n_steps = value, None
    else:
        entries, n_steps = [], None
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                try:
                    entries.append(json.loads(line))
                except (ValueError, RecursionError) as error:
                    raise ResultError(f"{path}, line {number}: not JSON ({error}).") from error
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise ResultError(f"{path}, entry {number}: got a {type(entry).__name__}, no object.")
    return entries, n_steps


def read_reward_log(path: Path) -> RewardLog:
    """Read `trainer_state.json`, trl's logged metrics (JSONL or a JSON list), or a completion log.

    A completion log has a line a completion with `step`, `group` and `reward`.

    Raises:
        ResultError: the file is missing, no JSON, or holds no rewards.
    """
    entries, n_steps = _load(path)
    if entries and all("group" in entry and "reward" in entry for entry in entries):
        return _of_completions(path, entries)
    steps = [step for step in map(_trainer_step, entries) if step is not None]
    steps.sort(key=lambda each: each.step)
    if not steps:
        raise ResultError(
            f"{path} has no logged rewards; expected entries with `step` and `reward` or "
            f"`rewards/NAME` (or `rewards/NAME/mean`), as trl's GRPOTrainer logs them."
        )
    total = n_steps or steps[-1].step
    first, last = steps[0].step, max(total, steps[-1].step)
    if first < 0 or last > _MOST_STEPS:
        raise ResultError(
            f"{path} counts steps from {first} to {last}; expected 0 to {_MOST_STEPS}. Is it a "
            f"training run's log?"
        )
    idle = [each.idle for each in steps if each.idle is not None]
    known = len(idle) == len(steps) and any("frac_reward_zero_std" in e for e in entries)
    stds = [each.std for each in steps]
    return _finished(
        "trainer",
        steps,
        total,
        sum(idle) / len(idle) if known else None,
        sum(std == 0 for std in stds) / len(stds) if None not in stds else None,
        _rate_sum(steps, total),
    )


def _rate_sum(steps: Sequence[RewardStep], n_steps: int) -> float | None:
    from interp.adapters.budget import step_rates

    logged = {each.step: each.learning_rate for each in steps if each.learning_rate is not None}
    return float(step_rates(logged, n_steps).sum()) if logged else None


def _of_completions(path: Path, entries: Sequence[Mapping[str, Any]]) -> RewardLog:
    groups: dict[tuple[int, str], list[float]] = defaultdict(list)
    for number, entry in enumerate(entries, start=1):
        step, reward = _number(entry, "step"), _number(entry, "reward")
        if step is None or reward is None:
            raise ResultError(f"{path}, entry {number}: `step` and `reward` must be numbers.")
        groups[int(step), str(entry["group"])].append(reward)
    steps = []
    for step in sorted({step for step, _ in groups}):
        members = [rewards for (at, _), rewards in groups.items() if at == step]
        rewards = [reward for group in members for reward in group]
        steps.append(
            RewardStep(
                step,
                sum(rewards) / len(rewards),
                sum(_std(group) for group in members) / len(members),
                zero_variance_share(members),
                {},
                None,
            )
        )
    share = zero_variance_share(list(groups.values()))
    idle_entries = sum(each.idle == 1 for each in steps) / len(steps)
    return _finished("completions", steps, steps[-1].step, share, idle_entries, None)


def _std(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / max(1, len(values) - 1))


def _finished(
    kind: str,
    steps: Sequence[RewardStep],
    n_steps: int,
    share: float | None,
    idle_entries: float | None,
    rate_sum: float | None,
) -> RewardLog:
    warnings = []
    if idle_entries == 1:
        warnings.append(
            "All rewards of a group are equal at every logged step: there is no gradient, and the "
            "policy does not learn."
        )
    elif share is not None and share > 0.7:
        warnings.append(
            f"{share:.0%} of the groups have no reward variance: fewer than 30% give a gradient."
        )
    if len({each.reward for each in steps}) == 1 and len(steps) > 1:
        warnings.append(f"The mean reward is {steps[0].reward:g} at every logged step.")
    if rate_sum == 0:
        warnings.append("The learning rate is 0 throughout: nothing can move.")
    return RewardLog(kind, tuple(steps), n_steps, share, idle_entries, rate_sum, tuple(warnings))
