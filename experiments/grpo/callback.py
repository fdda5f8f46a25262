"""`AdapterAuditCallback`: does the adapter that is being trained change its base, and can it?

For any `Trainer` of transformers or trl whose model is a PEFT model:

    trainer = Trainer(model, …, callbacks=[AdapterAuditCallback(every=10)])
"""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from experiments.grpo.outlook import planned_rates, possible_size, remaining_bound
from interp.adapters import AdapterAudit, audit_tensors
from interp.errors import AdapterError, ResultError
from interp.files import atomic_path

__all__ = ["TRAJECTORY", "AdapterAuditCallback", "read_trajectory"]

TRAJECTORY: Final = "adapter_audit.jsonl"
"""The trajectory, in the trainer's output folder: one JSON object an audit."""

_PREFIX: Final = "adapter/"
_LOGGED: Final = (
    *("max_abs_delta", "relative", "bf16_changed", "lr_sum", "lr_root_square", "adam_bound"),
    "possible",
)


def _warned(message: str) -> None:
    warnings.warn(message, UserWarning, stacklevel=2)


class AdapterAuditCallback(TrainerCallback):  # type: ignore[misc]  # transformers is untyped
    """Audits the live adapter every few steps, and says when a run cannot move its policy.

    Each audit is the one that `interp adapters audit --base` would make of a checkpoint saved then.
    Its figures go into the trainer's log (`adapter/max_abs_delta`, `adapter/relative`,
    `adapter/bf16_changed`, the budget `adapter/lr_sum`, `adapter/lr_root_square`,
    `adapter/adam_bound`, and `adapter/possible`) with the log's next entry, and into
    `adapter_audit.jsonl` beside the checkpoints. Reporters that come before this callback in the
    trainer's list see the log without them.

    `possible` is what the run can still reach if all gradients agree from now on, in units of the
    size that a weak update needs: below 1 the planned learning rates cannot make the adapter
    effective. Before the first step it is a forecast of the whole run.

    Args:
        every: steps between audits; the start and the end of training are always audited.
        stop: stop training once `possible` is below 1.
        adapter: PEFT's name of the adapter.
        relative: compare with the base's weights; without, only ΔW itself is measured.
        device: where the arithmetic runs; `auto` takes a GPU.
        warn: called with each warning; by default Python's `warnings.warn`.

    Attributes:
        last: the latest audit.
        stopped: why training was stopped; None if it was not.
    """

    def __init__(
        self,
        every: int = 10,
        *,
        stop: bool = False,
        adapter: str = "default",
        relative: bool = True,
        device: str = "cpu",
        warn: Callable[[str], None] = _warned,
    ) -> None:
        if every < 1:
            raise AdapterError(f"every is {every}; expected at least 1 step between audits.")
        self.every = every
        self.stop = stop
        self.adapter = adapter
        self.relative = relative
        self.device = device
        self.warn = warn
        self.last: AdapterAudit | None = None
        self.stopped: str | None = None
        self._rates: NDArray[np.float64] = np.zeros(0)
        self._pending: dict[str, float] = {}
        self._audited = -1
        self._told = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any
    ) -> None:
        """Plan the learning rates, take up an earlier trajectory, and audit the start."""
        _require_adapter(event["model"], self.adapter)
        self._rates = planned_rates(event.get("lr_scheduler"), state.max_steps)
        self._told, self.stopped, self._audited = False, None, -1
        if state.is_world_process_zero:
            path = Path(args.output_dir) / TRAJECTORY
            kept = read_trajectory(path) if state.global_step and path.is_file() else ()
            kept = tuple(row for row in kept if row["step"] < state.global_step)
            for row in kept:
                first = row["step"] - len(row["learning_rates"])
                self._rates[first : row["step"]] = row["learning_rates"]
            with atomic_path(path) as aside:
                aside.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            self._audited = kept[-1]["step"] if kept else 0
        self._audit(args, state, control, event["model"])

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **event: Any,
    ) -> None:
        """Note the rate that the coming step uses."""
        groups = event["optimizer"].param_groups
        if state.global_step < len(self._rates):
            self._rates[state.global_step] = max(float(group["lr"]) for group in groups)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any
    ) -> None:
        """Audit every `every` steps."""
        if state.global_step % self.every == 0:
            self._audit(args, state, control, event["model"])

    def on_log(
        self,
        args: TrainingArguments,  # noqa: ARG002
        state: TrainerState,
        control: TrainerControl,  # noqa: ARG002
        **event: Any,
    ) -> None:
        """Put the figures of the latest audit into the log."""
        if not self._pending:
            return
        for entry in (event.get("logs"), state.log_history[-1] if state.log_history else None):
            if entry is not None:
                entry.update(self._pending)
        self._pending = {}

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **event: Any
    ) -> None:
        """Audit the end, and say so if the adapter will decode like its base."""
        if self._audited != state.global_step:
            self._audit(args, state, control, event["model"])
        if self.last is not None and self.last.verdict in ("untrained", "negligible"):
            self.warn(f"After {state.global_step} steps: {self.last.summary}")

    def _audit(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, model: Any
    ) -> None:
        if not state.is_world_process_zero:
            return
        clock = time.perf_counter()
        done = state.global_step
        audit = audit_model(
            model,
            adapter=self.adapter,
            relative=self.relative,
            device=self.device,
            state=_budget_state(state, self._rates),
            arguments=_arguments(args),
            step=done,
        )
        self.last = audit
        bound = None
        if "adam" in str(_arguments(args)["optim"]) and state.max_steps > 0:
            bound = remaining_bound(
                self._rates, done, float(args.adam_beta1), float(args.adam_beta2)
            )
        possible = None if bound is None else possible_size(audit.modules, bound)
        totals, budget = audit.totals, audit.budget
        row: dict[str, Any] = {
            "step": done,
            "verdict": audit.verdict,
            "max_abs_delta": totals.max_abs_delta,
            "frobenius": totals.frobenius,
            "relative": totals.relative,
            "largest_relative": _largest(audit),
            "bf16_changed": totals.bf16_changed,
            "max_abs_b": None if totals.max_abs_b is None else abs(totals.max_abs_b),
            "lr_sum": budget.get("lr_sum", 0.0),
            "lr_root_square": budget.get("lr_root_square", 0.0),
            "adam_bound": budget.get("adam_bound", 0.0),
            "kappa": budget.get("kappa"),
            "possible": possible,
            "remaining_bound": bound,
            "learning_rates": self._rates[max(self._audited, 0) : done].tolist(),
            "summary": audit.summary,
            "seconds": time.perf_counter() - clock,
        }
        self._audited = done
        with (Path(args.output_dir) / TRAJECTORY).open("a", encoding="utf-8") as handle:
            handle.write(json.dumps(row) + "\n")
        self._pending = {f"{_PREFIX}{name}": row[name] for name in _LOGGED if row[name] is not None}
        if possible is not None and possible < 1 and done < state.max_steps:
            self._tell(possible, state, control)

    def _tell(self, possible: float, state: TrainerState, control: TrainerControl) -> None:
        left = self._rates[state.global_step :]
        message = (
            f"This run cannot move its policy: with Σ lr = {left.sum():.2g} over the "
            f"{len(left)} steps that are left, even gradients that always agree reach "
            f"{possible:.2g} of what a weak update needs. Raise the learning rate about "
            f"{1 / possible:.2g} times or more, or train longer."
        )
        if self.stop and self.stopped is None:
            control.should_training_stop = True
            self.stopped = message
            message = f"Training is stopped. {message}"
        if not self._told:
            self._told = True
            self.warn(message)


def audit_model(
    model: Any,
    *,
    adapter: str = "default",
    relative: bool = True,
    device: str = "cpu",
    state: Mapping[str, Any] | None = None,
    arguments: Mapping[str, Any] | None = None,
    step: int | None = None,
) -> AdapterAudit:
    """Audit an adapter of a PEFT model in memory.

    Args:
        model: the PEFT model.
        adapter: PEFT's name of the adapter.
        relative: compare with the base's weights.
        device: where the arithmetic runs.
        state: `global_step` and `log_history` of a trainer, for the learning-rate budget.
        arguments: of the trainer, see `interp.adapters.audit_tensors`.
        step: optimiser steps so far.

    Raises:
        AdapterError: the model has no such adapter.
    """
    from peft import get_peft_model_state_dict

    _require_adapter(model, adapter)
    with torch.no_grad():
        tensors = get_peft_model_state_dict(
            model, adapter_name=adapter, save_embedding_layers=False
        )
        base = model.get_base_model()
        return audit_tensors(
            tensors,
            model.peft_config[adapter].to_dict(),
            base=_weights_of(base) if relative else None,
            tied=bool(getattr(base.config, "tie_word_embeddings", False)),
            trainer_state=state,
            training_arguments=arguments,
            step=step,
            device=device,
        )


def _require_adapter(model: Any, adapter: str) -> None:
    from peft import PeftModel

    if not isinstance(model, PeftModel):
        raise AdapterError(
            f"The model in training is a {type(model).__name__}; an adapter audit needs a PEFT "
            f"model (peft.get_peft_model, or peft_config of trl's trainers)."
        )
    if adapter not in model.peft_config:
        raise AdapterError(
            f"The model in training has no adapter {adapter!r}; it has "
            f"{', '.join(model.peft_config)}."
        )


def _weights_of(base: Any) -> Callable[[str], torch.Tensor | None]:
    """Weights by the names that they had before PEFT wrapped their modules."""

    def weight(name: str) -> torch.Tensor | None:
        path, _, leaf = name.rpartition(".")
        try:
            module = base.get_submodule(path)
        except AttributeError:
            return None
        while hasattr(module, "base_layer"):
            module = module.base_layer
        found = getattr(module, leaf, None)
        return found.detach() if isinstance(found, torch.Tensor) else None

    return weight


def _budget_state(state: TrainerState, rates: NDArray[np.float64]) -> dict[str, Any]:
    """What a `trainer_state.json` with the exact rate of every step would say."""
    history = [{"step": step, "learning_rate": rate} for step, rate in enumerate(rates, 1)]
    norms = [
        {"step": entry["step"], "grad_norm": entry["grad_norm"]}
        for entry in state.log_history
        if entry.get("grad_norm") is not None
    ]
    done = state.global_step
    return {"global_step": done, "log_history": [*history[:done], *norms]}


def _arguments(args: TrainingArguments) -> dict[str, Any]:
    return {
        "optim": str(getattr(args.optim, "value", args.optim)),
        "learning_rate": float(args.learning_rate),
        "adam_beta1": float(args.adam_beta1),
        "adam_beta2": float(args.adam_beta2),
        "weight_decay": float(args.weight_decay),
        "seed": int(args.seed),
    }


def _largest(audit: AdapterAudit) -> float | None:
    """ρ of the most changed module: what the verdict rests on."""
    return max((m.relative for m in audit.modules if m.relative is not None), default=None)


def read_trajectory(path: Path) -> tuple[dict[str, Any], ...]:
    """Rows of `adapter_audit.jsonl`; a last line that was not written to its end is left out.

    Raises:
        ResultError: there is no such file, or another line is no audit.
    """
    if not path.is_file():
        raise ResultError(f"There is no {path}; expected the trajectory of an adapter audit.")
    rows = []
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            rows.append(row | {"step": int(row["step"])})
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise ResultError(f"{path}, line {number} is no adapter audit.") from error
    return tuple(rows)
