"""How far the optimiser could have moved a weight: the learning-rate budget.

AdamW moves a weight by lr_t · m̂_t/(√v̂_t + ε) at step t. By the Cauchy-Schwarz inequality the
ratio is at most

    c_t = (1 − β₁)/√(1 − β₂) · √(Σ_{i<t} (β₁²/β₂)^i) · √(1 − β₂ᵗ)/(1 − β₁ᵗ),

which exceeds 1 (7.3 in the limit for the usual β): Σ lr_t alone is no bound, Σ lr_t·c_t is one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.adapters.findings import Finding, finding
from interp.adapters.trainer_files import WANTED, read_parameter_groups, read_training_arguments

__all__ = [
    "Budget",
    "adam_bounds",
    "live_budget",
    "read_budget",
    "read_parameter_groups",
    "read_training_arguments",
    "step_rates",
]

_BETAS: Final = (0.9, 0.999)
_MOST_STEPS: Final = 10_000_000
# Names in transformers whose steps are Adam's own. GaLore, APOLLO, GrokAdamW, schedule-free and
# other kin take other steps, though "adam" is in their names.
_ADAM: Final = frozenset(
    [
        "adam",
        "adam (from optimizer.pt)",
        "adamw",
        "adamw (assumed)",
        "adamw_8bit",
        "adamw_anyprecision",
        "adamw_apex_fused",
        "adamw_bnb_8bit",
        "adamw_hf",
        "adamw_torch",
        "adamw_torch_4bit",
        "adamw_torch_8bit",
        "adamw_torch_fused",
        "adamw_torch_npu_fused",
        "adamw_torch_xla",
        "paged_adamw",
        "paged_adamw_32bit",
        "paged_adamw_8bit",
    ]
)
_LARGEST: Final = 1e100  # a logged number beyond it is damage


@dataclass(frozen=True, slots=True)
class Budget:
    """What the trainer's log says about the reach of training.

    Attributes:
        n_steps: optimiser steps.
        n_logged: of them, steps with a logged learning rate; between them it is interpolated.
        lr_sum: Σ lr_t.
        lr_root_square: √Σ lr_t², the size of a random walk of unit steps.
        adam_bound: Σ lr_t·c_t, more than which no weight can have moved; None where the
            optimiser is not of Adam's kind, or the log too sparse to tell the rates.
        optimizer: name, or "adamw (assumed)".
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        seed: of the run, None if not known.
        grad_norm: first, last, median and largest logged gradient norm; empty if not logged.
        reward: the same of the reward.
        history: logged steps with learning rate, gradient norm and reward.
    """

    n_steps: int
    n_logged: int
    lr_sum: float
    lr_root_square: float
    adam_bound: float | None
    optimizer: str
    beta1: float
    beta2: float
    seed: int | None
    grad_norm: dict[str, float]
    reward: dict[str, float]
    history: dict[str, list[float | None]]

    @property
    def adam_like(self) -> bool:
        """Whether the steps are Adam's, of about the learning rate's size whatever the gradient."""
        return self.optimizer in _ADAM

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return asdict(self)


def adam_bounds(n_steps: int, beta1: float, beta2: float) -> NDArray[np.float64]:
    """c_t for t = 1 … n_steps: the largest |m̂_t|/√v̂_t of any sequence of gradients."""
    t = np.arange(1, n_steps + 1, dtype=np.float64)
    ratio = beta1**2 / beta2
    series = t if abs(ratio - 1) < 1e-12 else (1 - ratio**t) / (1 - ratio)
    first = (1 - beta1) / math.sqrt(1 - beta2) * np.sqrt(series)
    bounds: NDArray[np.float64] = first * np.sqrt(1 - beta2**t) / (1 - beta1**t)
    return bounds


def step_rates(logged: Mapping[int, float], n_steps: int) -> NDArray[np.float64]:
    """Learning rate of every step 1 … n_steps from logged ones.

    Between logged steps linearly; before the first and after the last, the nearest slope goes on,
    kept between 0 and twice the largest logged rate.
    """
    steps = np.array(sorted(logged), dtype=np.float64)
    rates = np.array([logged[int(step)] for step in steps], dtype=np.float64)
    wanted = np.arange(1, n_steps + 1, dtype=np.float64)
    found = np.interp(wanted, steps, rates)
    if steps.size > 1:
        early, late = wanted < steps[0], wanted > steps[-1]
        slopes = np.diff(rates) / np.diff(steps)
        found[early] = rates[0] + slopes[0] * (wanted[early] - steps[0])
        found[late] = rates[-1] + slopes[-1] * (wanted[late] - steps[-1])
    return np.clip(found, 0, 2 * rates.max())


def read_budget(state: Path | None) -> tuple[Budget | None, list[Finding]]:
    """Read `trainer_state.json` and, if it lies beside it, `training_args.bin`.

    Returns:
        None without a state or without logged learning rates; and what is wrong with the file.
    """
    if state is None:
        return None, []
    try:
        raw = json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        return None, [finding("trainer_state_unreadable", f"{state}: {error!r}.")]
    arguments = read_training_arguments(state.parent / "training_args.bin")
    groups = read_parameter_groups(state.parent / "optimizer.pt")
    return _from_log(raw, _optimizer(arguments, groups), str(state))


def live_budget(
    state: Mapping[str, Any],
    arguments: Mapping[str, Any] | None = None,
    groups: Sequence[Mapping[str, Any]] = (),
) -> tuple[Budget | None, list[Finding]]:
    """The budget of a run that is still in memory.

    Args:
        state: `global_step` and `log_history`, as in `trainer_state.json`.
        arguments: training arguments by name (`optim`, `learning_rate`, `adam_beta1`,
            `adam_beta2`, `seed`); others are not looked at.
        groups: parameter groups of the optimiser.

    Returns:
        as `read_budget`.
    """
    known = {name: (arguments or {}).get(name) for name in WANTED}
    # Enumerations of transformers are texts or carry one.
    plain = {name: getattr(value, "value", value) for name, value in known.items()}
    found = {name: value for name, value in plain.items() if isinstance(value, str | float | int)}
    return _from_log(state, _optimizer(found, groups), "the trainer's state")


def _from_log(raw: Any, used: _Optimizer, where: str) -> tuple[Budget | None, list[Finding]]:
    try:
        entries = [entry for entry in raw["log_history"] if isinstance(entry, Mapping)]
        n_steps = int(raw["global_step"])
        logged = {
            int(entry["step"]): float(entry["learning_rate"])
            for entry in entries
            if entry.get("learning_rate") is not None and "step" in entry
        }
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        return None, [finding("trainer_state_unreadable", f"{where}: {error!r}.")]
    logged = {
        step: lr for step, lr in logged.items() if 0 <= lr < _LARGEST and 0 <= step <= _MOST_STEPS
    }
    if not logged or not 0 < n_steps <= _MOST_STEPS:
        return None, []
    # The trainer logs the rate of the first parameter group; another group may have a larger one.
    rates = step_rates(logged, n_steps) * used.ratio
    highest = _highest(logged, rates, used)
    budget = Budget(
        n_steps=n_steps,
        n_logged=len(logged),
        lr_sum=float(rates.sum()),
        lr_root_square=float(np.sqrt(np.square(rates).sum())),
        adam_bound=float((highest * adam_bounds(n_steps, used.beta1, used.beta2)).sum())
        if highest is not None and used.name in _ADAM
        else None,
        optimizer=used.name,
        beta1=used.beta1,
        beta2=used.beta2,
        seed=used.seed,
        grad_norm=_summary(_column(entries, "grad_norm")),
        reward=_summary(_column(entries, "reward")),
        history={
            name: _column(entries, name)
            for name in ("step", "learning_rate", "grad_norm", "reward")
        },
    )
    norms = [value for value in budget.history["grad_norm"] if value is not None]
    if norms and not any(norms):
        return budget, [
            finding("no_learning_signal", f"All {len(norms)} logged gradient norms are 0.")
        ]
    return budget, []


def _highest(
    logged: Mapping[int, float], rates: NDArray[np.float64], used: _Optimizer
) -> NDArray[np.float64] | None:
    """Rates that a bound may rest on; None where the log does not tell them.

    One point, or two at the ends of a schedule that starts and ends at 0, say nothing about what
    lies between: then the rate that training was started with bounds every step.
    """
    n_positive = sum(rate > 0 for rate in logged.values())
    told = n_positive > 1 or (n_positive == 0 and len(logged) > 2)
    if used.peak is None:
        return rates if told else None
    peak = used.peak * used.ratio
    highest = max(peak, float(rates.max()))
    # Where the logged rates stay far below the peak, it lies between them.
    if not told or float(rates.max()) < peak / 2:
        return np.full_like(rates, highest)
    return np.minimum(rates, max(peak, max(logged.values()) * used.ratio))


@dataclass(frozen=True, slots=True)
class _Optimizer:
    """What is known of the optimiser.

    Attributes:
        name: of the optimiser.
        beta1: decay of the first moment.
        beta2: decay of the second moment.
        ratio: largest initial rate of a parameter group over that of the first.
        seed: of the run.
        peak: learning rate that the schedule scales, None if not known.
    """

    name: str
    beta1: float
    beta2: float
    ratio: float
    seed: int | None
    peak: float | None


def _optimizer(
    arguments: Mapping[str, str | float | int], groups: Sequence[Mapping[str, Any]]
) -> _Optimizer:
    """From training arguments and parameter groups, as far as they are there."""
    name = arguments.get("optim")
    betas: Any = groups[0].get("betas") if groups else None
    if name is None:
        name = "adamw (assumed)" if betas is None else "adam (from optimizer.pt)"
    if not (isinstance(betas, list | tuple) and len(betas) == 2):
        betas = (arguments.get("adam_beta1"), arguments.get("adam_beta2"))
    beta1, beta2 = (
        float(beta) if isinstance(beta, float | int) and 0 <= beta < 1 else usual
        for beta, usual in zip(betas, _BETAS, strict=True)
    )
    if beta2 == 0:
        beta2 = _BETAS[1]
    rates = [group.get("initial_lr", group.get("lr")) for group in groups]
    known = [float(rate) for rate in rates if isinstance(rate, float) and math.isfinite(rate)]
    ratio = max(known) / known[0] if known and known[0] > 0 else 1.0
    seed = arguments.get("seed")
    peak = arguments.get("learning_rate")
    known_peak = isinstance(peak, float | int) and 0 < peak < _LARGEST
    return _Optimizer(
        str(name),
        beta1,
        beta2,
        ratio,
        seed if isinstance(seed, int) else None,
        float(peak) if known_peak and peak is not None else None,
    )


def _column(entries: Sequence[Mapping[str, Any]], name: str) -> list[float | None]:
    found: list[float | None] = []
    for entry in entries:
        value = entry.get(name)
        if value is None and name == "reward":
            # Versions of trl differ: `reward`, `rewards/NAME`, `rewards/NAME/mean`.
            means = [
                v
                for key, v in entry.items()
                if key.startswith("rewards/") and (key.count("/") == 1 or key.endswith("/mean"))
            ]
            value = sum(means) if means and all(isinstance(m, int | float) for m in means) else None
        # Compared, not converted: a whole number of JSON may be too large for a float.
        good = isinstance(value, int | float) and -_LARGEST < value < _LARGEST
        found.append(float(value) if good and value is not None else None)
    return found


def _summary(column: Sequence[float | None]) -> dict[str, float]:
    known = [value for value in column if value is not None]
    if not known:
        return {}
    return {
        "first": known[0],
        "last": known[-1],
        "median": float(np.median(known)),
        "max": max(known),
    }
