"""`interp run grpo-audit`: the same GRPO run at two learning rates, and what each changed.

The case of ToMAS, section IV-C, on a small model: at a rate of 1e-6 the adapter hardly moves, and
equal scores of base and adapter say nothing about the reward or the items.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from activations import HFBackend, describe_source
from activations.digests import weights_sha256
from activations.spec import ModelSpec
from experiments.console import note, progress
from experiments.grpo.callback import TRAJECTORY, read_trajectory
from experiments.grpo.config import GrpoConfig, read_config
from experiments.grpo.evaluate import BASE, Condition, Pool, evaluate
from experiments.grpo.rewards import read_rewards, reward_summary
from experiments.grpo.train import REWARDS, load_base, train
from experiments.resuming import CONFIG, finished_run
from figures import draw_grpo_audit
from interp.adapters import AdapterAudit, audit_path, write_audits
from interp.errors import TrainingError
from interp.files import atomic_path, write_json
from interp.items import Item
from interp.records import RunRecord, Started, finish_run
from interp.registry import load_items, open_source
from interp.sources.partners import partner_items
from interp.sources.tomas import write_tomas

__all__ = ["NAME", "GrpoAuditConfig", "report", "run_grpo_audit"]

NAME: Final = "grpo-audit"
_VARIANCE_WANTED: Final = 0.3


@dataclass(frozen=True, slots=True)
class GrpoAuditConfig:
    """What a grpo-audit run depends on. The rest is as in Table IV.

    Attributes:
        model: alias, Hub id, folder or `gguf:PATH`.
        learning_rates: one run each, smallest first.
        steps: optimiser steps of a run.
        n: training items.
        n_held_out: held-out items.
        prompts_per_step: items a step.
        group_size: completions of an item.
        max_new_tokens: cut of completions and replies.
        answer_prefix: opens the assistant's turn.
        audit_steps: an audit every so many steps.
        seed: of items, adapters and sampling.
        dtype: of the base.
        device: torch device or `auto`.
    """

    model: str = "smollm2"
    learning_rates: tuple[float, ...] = (1e-6, 2e-3)
    steps: int = 10
    n: int = 12
    n_held_out: int = 8
    prompts_per_step: int = 1
    group_size: int = 4
    max_new_tokens: int = 24
    answer_prefix: str = "[ANSWER]"
    audit_steps: int = 1
    seed: int = 42
    dtype: str = "float32"
    device: str = "auto"


def run_grpo_audit(config: GrpoAuditConfig, folder: Path, *, command: str = "") -> RunRecord:
    """Run everything into `folder`; started again with the same configuration, it goes on.

    Raises:
        CacheError: the folder holds a run with another configuration.
        InterpError: whatever the parts raise.
    """
    started, wall = Started.now(), time.perf_counter()
    rates = config.learning_rates
    if len(rates) < 2 or len({f"{rate:g}" for rate in rates}) != len(rates):
        raise TrainingError(
            f"--learning-rates are {list(rates)}; expected at least two different ones."
        )
    settings = asdict(config) | {"learning_rates": list(rates)}
    runs = {f"lr-{rate:g}": _grpo_config(config, rate) for rate in sorted(rates)}
    weights = weights_sha256(ModelSpec.parse(config.model))
    finished = finished_run(folder, settings, weights=weights)
    if finished is not None:
        note(f"{folder} is finished already; nothing is computed.")
        return finished
    note(f"1/4  loading {config.model}; {config.n} training and {config.n_held_out} held-out items")
    # First: without a model or a device nothing is left that another try would clash with.
    backend = load_base(next(iter(runs.values())))
    write_json(folder / CONFIG, settings)
    items, described = _items(config, folder)
    for place, (name, run) in enumerate(runs.items(), 1):
        note(
            f"2/4  run {place} of {len(runs)}: learning rate {run.learning_rate:g}, "
            f"{run.max_steps} steps of {run.prompts_per_step} × {run.group_size} completions"
        )
        with progress(name, run.max_steps) as advance:
            train(
                run,
                config.seed,
                items["train"],
                folder / name,
                backend=backend,
                source=described,
                command=command,
                note=note,
                progress=advance,
            )
    note("3/4  audits of the saved adapters")
    audits = {name: audit_path(folder / name) for name in runs}
    write_audits(folder / "audit", [found for run in audits.values() for found in run])
    evaluation = _evaluate(config, backend, runs, items, folder)
    results = [
        _result(name, run, folder, audits[name][-1], evaluation) for name, run in runs.items()
    ]
    text = report(results)
    write_json(folder / "grpo_audit.json", {"config": settings, "runs": results, "report": text})
    with atomic_path(folder / "report.md") as aside:
        aside.write_text(text, encoding="utf-8")
    draw_grpo_audit(folder)
    return finish_run(
        folder,
        started,
        experiment=NAME,
        command=command,
        config=settings,
        seeds={"items": config.seed, "training": config.seed},
        model=dict(backend.fingerprint()),
        source=described,
        metrics=_metrics(results) | {"wall_seconds": round(time.perf_counter() - wall, 1)},
    )


def _grpo_config(config: GrpoAuditConfig, rate: float) -> GrpoConfig:
    return read_config(
        None,
        {
            "condition": f"lr-{rate:g}",
            "model": config.model,
            "dtype": config.dtype,
            "device": config.device,
            "learning_rate": rate,
            "max_steps": config.steps,
            "prompts_per_step": config.prompts_per_step,
            "group_size": config.group_size,
            "max_new_tokens": config.max_new_tokens,
            "answer_prefix": config.answer_prefix,
            "seeds": [config.seed],
            "save_steps": config.steps,
            "logging_steps": 1,
            "audit_steps": config.audit_steps,
        },
    )


def _items(
    config: GrpoAuditConfig, folder: Path
) -> tuple[dict[str, tuple[Item, ...]], dict[str, Any]]:
    """Both pools, written as ToMAS files and read back from there."""
    items = {}
    for name, pool, n in (
        ("train", "train", config.n),
        ("held_out", "held-out", config.n_held_out),
    ):
        path = folder / f"{name}.jsonl"
        write_tomas(path, partner_items(n, seed=config.seed, pool=pool))  # type: ignore[arg-type]
        items[name] = load_items(open_source(f"tomas:{path}"))
    source = open_source("partners:train")
    described = describe_source(source, items["train"], view=None, seed=config.seed)
    return items, described


def _evaluate(
    config: GrpoAuditConfig,
    backend: HFBackend,
    runs: Mapping[str, GrpoConfig],
    items: Mapping[str, tuple[Item, ...]],
    folder: Path,
) -> dict[str, Any]:
    conditions = [
        Condition(BASE),
        *(Condition(name, folder / name, config.seed) for name in runs),
    ]
    first = next(iter(runs.values()))
    pools = [
        Pool("train", items["train"], first.train_threshold),
        Pool("held_out", items["held_out"], first.held_out_threshold),
    ]
    n_replies = len(conditions) * sum(len(pool.items) for pool in pools)
    with progress("4/4  greedy replies", n_replies) as advance:
        return evaluate(
            backend,
            conditions,
            pools,
            folder / "evaluation",
            max_new_tokens=config.max_new_tokens,
            prefix=config.answer_prefix,
            stop=first.stop,
            progress=advance,
        )


def _result(
    name: str,
    run: GrpoConfig,
    folder: Path,
    saved: AdapterAudit,
    evaluation: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything that the report says of one run."""
    rows = read_trajectory(folder / name / TRAJECTORY)
    first, last = rows[0], rows[-1]
    pools = {}
    for pool, found in evaluation["pools"].items():
        mine, base = found["conditions"][name], found["conditions"][BASE]
        pools[pool] = {
            "n_items": found["n_items"],
            "threshold": found["threshold"],
            "same_as_base": mine["same_as_base"],
            "same_as_base_share": mine["same_as_base"] / found["n_items"],
            "positives": mine["positives"],
            "positives_base": base["positives"],
        }
    rewards = reward_summary(read_rewards(folder / name / REWARDS))
    return {
        "name": name,
        "learning_rate": run.learning_rate,
        "n_steps": last["step"],
        "verdict": last["verdict"],
        "summary": last["summary"],
        "verdict_from_files": saved.verdict,
        "max_abs_delta": last["max_abs_delta"],
        "max_abs_b": last["max_abs_b"],
        "relative": last["relative"],
        "largest_relative": last["largest_relative"],
        "bf16_changed": last["bf16_changed"],
        "lr_sum": last["lr_sum"],
        "kappa": last["kappa"],
        "possible_at_start": first["possible"],
        "rewards": rewards,
        "pools": pools,
    }


def report(results: Sequence[Mapping[str, Any]]) -> str:
    """What the runs show, in words."""
    first = results[0]
    lines = [
        "# Did these GRPO runs change their model?",
        "",
        f"{len(results)} runs of {first['n_steps']} steps on the same items with the same seed; "
        f"only the learning rate differs.",
    ]
    for run in results:
        lines += ["", f"## Learning rate {run['learning_rate']:g}: {run['verdict']}", ""]
        lines += [" ".join(_said_of(run))]
    idle = [run for run in results if run["verdict"] in ("untrained", "negligible")]
    moved = [run for run in results if run["verdict"] in ("effective", "extreme")]
    lines += ["", "## What follows", ""]
    if idle and moved:
        lines.append(
            f"Equal answers of base and adapter at {_rates(idle)} are no finding about the reward, "
            f"the items or the method: the weights had hardly moved. The same items, rewards and "
            f"number of steps move them at {_rates(moved)}. In ToMAS this came to light after the "
            f"evaluation, from three further checks: that the adapters were attached, what the "
            f"training items decode to, and the norms of the factors. Here the forecast from the "
            f"learning rates was there before the first step, and each audit since has shown it."
        )
    elif idle:
        lines.append(
            "No run moved its weights enough to be noticed, so equal answers of base and adapters "
            "say nothing about the reward, the items or the method."
        )
    else:
        lines.append("Every run moved its weights, so its answers can be compared with the base's.")
    return "\n".join(lines) + "\n"


def _said_of(run: Mapping[str, Any]) -> list[str]:
    said = []
    possible = run["possible_at_start"]
    if possible is not None:
        verb = "cannot" if possible < 1 else "can"
        said.append(
            f"Before the first step: its learning rates {verb} move the policy (even gradients "
            f"that always agree reach {possible:.2g} of what a weak update needs)."
        )
    share = run["rewards"]["zero_variance_share"]
    n_groups = run["rewards"]["n_groups"]
    if share is not None:
        varied = round((1 - share) * n_groups)
        enough = 1 - share >= _VARIANCE_WANTED
        said.append(
            f"Rewards differed within {varied} of {n_groups} groups ({1 - share:.0%}), so "
            + (
                "there was something to learn from."
                if enough
                else "there was little to learn from."
            )
        )
    if run["max_abs_delta"] is not None and run["largest_relative"] is not None:
        changed = run["bf16_changed"]
        said.append(
            f"After {run['n_steps']} steps max|ΔW| is {run['max_abs_delta']:.2g}, the largest "
            f"relative change of a module {run['largest_relative']:.2g}"
            + (
                "."
                if changed is None
                else f"; a merge into bfloat16 would change {changed:.2%} of "
            )
            + ("" if changed is None else "the adapted weights at all.")
        )
    said.append(run["summary"])
    for pool, name in (("train", "training"), ("held_out", "held-out")):
        found = run["pools"][pool]
        said.append(
            f"Greedy replies equal the base's on {found['same_as_base']} of {found['n_items']} "
            f"{name} items; above ROUGE-L {found['threshold']:g}: {found['positives']} (base "
            f"{found['positives_base']})."
        )
    return said


def _rates(runs: Sequence[Mapping[str, Any]]) -> str:
    return " and ".join(f"{run['learning_rate']:g}" for run in runs)


def _metrics(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    metrics: dict[str, Any] = {}
    for run in results:
        name = run["name"]
        for key in ("verdict", "verdict_from_files", "max_abs_delta", "relative", "bf16_changed"):
            metrics[f"{key} {name}"] = run[key]
        share = run["rewards"]["zero_variance_share"]
        metrics[f"reward_variance_share {name}"] = None if share is None else 1 - share
        for pool, found in run["pools"].items():
            metrics[f"same_as_base_share_{pool} {name}"] = found["same_as_base_share"]
    return metrics
