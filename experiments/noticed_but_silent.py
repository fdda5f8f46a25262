"""Does the residual stream know that a reply is of no use when the agent does not follow up?

Right after a defective first reply, a probe reads whether that reply settles a fact; then the agent
plays on, and what it does about the reply is set beside what the probe read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from activations import ModelSpec, extract, load_backend
from activations.batches import BATCH_TOKENS
from experiments.console import note, progress
from experiments.resuming import CONFIG, finished_run
from experiments.unco_play import model_agent, play_tasks
from figures.unco import draw_noticed
from interp.errors import ResultError
from interp.files import atomic_path, sha256_file, write_csv, write_json
from interp.items import Item, items_sha256, write_items
from interp.records import RunRecord, Started, finish_run
from interp.sources.unco.agents import REPORT
from interp.sources.unco.build import VERSION, build_groups
from interp.sources.unco.environment import Ask, Round, start, step
from interp.sources.unco.source import statement_item
from interp.sources.unco.statements import about_reply
from interp.sources.unco.tasks import Task, task_to_json
from interp.statistics import bootstrap_mean
from interp.vocabulary import Dtype
from probes import ProbeSweep, sweep_layers, write_sweep

__all__ = ["NAME", "NoticedConfig", "reply_items", "run_noticed"]

NAME: Final = "noticed-but-silent"
_SETTINGS: Final = ("misaligned", "incomplete")


@dataclass(frozen=True, slots=True)
class NoticedConfig:
    """What a run depends on.

    Attributes:
        model: alias, Hub id, folder or `gguf:PATH`; the main agent, and the model that is read.
        groups: task groups whose replies are read; each gives two tasks and four statements.
        played: of these, the groups that the agent plays.
        C: inverse L2 strength of the probes, or `auto`.
        permutations: label permutations of the probes' null.
        folds: outer folds.
        max_rounds: budget of an episode, its given first round included.
        max_new_tokens: cut of an agent's turn.
        batch_tokens: padded tokens a batch.
        dtype: of the model.
        device: torch device or `auto`.
        seed: of tasks, statements, folds and intervals.
        template_args: further variables of the chat template.
    """

    model: str
    groups: int = 40
    played: int = 10
    C: float | Literal["auto"] = 0.01
    permutations: int = 200
    folds: int = 5
    max_rounds: int = 4
    max_new_tokens: int = 96
    batch_tokens: int = BATCH_TOKENS
    dtype: Dtype = "float32"
    device: str = "auto"
    seed: int = 0
    template_args: Mapping[str, Any] | None = None


def reply_items(tasks: Sequence[Task], seed: int) -> tuple[Item, ...]:
    """Two statements a task, right after its defective reply: one that holds, one that does not.

    The exchange is the opening round that every episode of the run begins with, up to that reply.
    """
    items = []
    for task in tasks:
        rng = Random(f"noticed/{task.task_id}/{seed}")
        rounds, replies = _opening(task)
        pair = about_reply(task, "settles", rounds, replies, rng)
        assert pair is not None  # a defect spoils one candidate's fact and leaves the others' whole
        for statement in pair:
            items.append(statement_item(task, statement, f"{task.task_id}/{statement.label}"))
    return tuple(items)


def _opening(task: Task) -> tuple[tuple[Round, ...], int]:
    spec = task.instance.spec
    state = step(start(task), Ask(tuple((role, REPORT) for role in spec.roles)))
    at = next(i for i, said in enumerate(state.rounds[0].replies, 1) if task.defect_of(said.role))
    return state.rounds, at


def run_noticed(config: NoticedConfig, folder: Path, *, command: str = "") -> RunRecord:
    """Run everything into `folder`; started again with the same configuration, it goes on.

    Raises:
        ResultError: fewer groups than are to be played, or a folder of something else.
        CacheError: the folder holds a run with another configuration.
    """
    if not 0 < config.played <= config.groups:
        raise ResultError(
            f"--played is {config.played} of --groups {config.groups}; expected 1 to that."
        )
    started = Started.now()
    settings = asdict(config)
    finished = finished_run(folder, settings)
    if finished is not None:
        note(f"{folder} is finished already; nothing is computed.")
        return finished
    tasks = tuple(
        task
        for group in build_groups(config.groups, config.seed)
        for task in group
        if task.setting in _SETTINGS
    )
    spec = ModelSpec.parse(
        config.model,
        dtype=config.dtype,
        device=config.device,
        template_args=config.template_args,
    )
    items = reply_items(tasks, config.seed)
    note(f"1/4  loading {spec.model_id} ({spec.dtype}); {len(items)} statements, "
         f"{config.played * len(_SETTINGS)} episodes")  # fmt: skip
    backend = load_backend(spec)
    write_json(folder / CONFIG, settings)
    write_items(folder / "items.jsonl", items)
    _write_tasks(folder / "tasks.jsonl", tasks)
    described = {
        "name": "unco (replies)",
        "version": VERSION,
        "seed": config.seed,
        "items": items_sha256(items),
    }
    with progress("2/4  activations", len(items)) as advance:
        cache = extract(
            backend,
            items,
            folder / "activations.h5",
            source=described,
            batch_tokens=config.batch_tokens,
            progress=advance,
        )
    with cache:
        with progress("3/4  probes", cache.n_layers + 1) as advance:
            sweep = sweep_layers(
                cache,
                C=config.C,
                n_folds=config.folds,
                seed=config.seed,
                n_permutations=config.permutations,
                items=items,
                progress=advance,
            )
        logits = np.asarray(cache.answer_logits, dtype=float)
    probe = write_sweep(folder / "probe", sweep)
    played = tasks[: config.played * len(_SETTINGS)]
    with progress("4/4  episodes", len(played)) as advance:
        episodes = play_tasks(
            played,
            model_agent(
                backend,
                max_new_tokens=config.max_new_tokens,
                batch_tokens=config.batch_tokens,
            ),
            folder / "episodes.jsonl",
            identity={
                "tasks": sha256_file(folder / "tasks.jsonl"),
                "model": dict(backend.fingerprint()),
            },
            name=config.model,
            seed=config.seed,
            arm="none",
            max_rounds=config.max_rounds,
            opening=True,
            progress=advance,
        )
    metrics, rows = compare(sweep, items, logits[:, 0] - logits[:, 1], episodes, seed=config.seed)
    metrics |= {
        "probe_p_familywise": probe["p_familywise"],
        "probe_text_baseline_accuracy": probe["text_baseline_accuracy"],
    }
    metrics["verdict"] = verdict(metrics)
    write_json(folder / "noticed.json", metrics)
    write_csv(folder / "noticed.csv", rows)
    draw_noticed(folder)
    return finish_run(
        folder,
        started,
        experiment=NAME,
        command=command,
        config=settings,
        seeds=dict.fromkeys(("tasks", "statements", "folds"), config.seed),
        model=dict(backend.fingerprint()),
        source=described,
        metrics=metrics,
    )


def compare(
    sweep: ProbeSweep,
    items: Sequence[Item],
    logit_difference: NDArray[np.float64],
    episodes: Sequence[Mapping[str, Any]],
    *,
    seed: int,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What the probe read, what the model said when asked, and what the agent then did.

    Args:
        sweep: nested out-of-fold decisions on `items`.
        items: two statements a task, from `reply_items`.
        logit_difference: (n_items,) True minus False after the answer stub.
        episodes: of some of the tasks.
        seed: of the intervals.

    Returns:
        the flat metrics, and one row an episode.
    """
    noticed = sweep.correct_nested
    said = (logit_difference > 0) == sweep.label
    by_task: dict[tuple[str, str], int] = {}
    for i, item in enumerate(items):
        group, setting, label = item.item_id.rsplit("/", 2)
        if label == "False":
            by_task[group, setting] = i
    rows = []
    for episode in episodes:
        i = by_task[str(episode["group_id"]), str(episode["setting"])]
        (defect,) = episode["defects"]
        rows.append(
            {
                "group_id": episode["group_id"],
                "setting": episode["setting"],
                "probe_noticed": bool(noticed[i]),
                "said_so": bool(said[i]),
                "follow_up": defect["follow_up"],
                "recovered": defect["recovered"],
                "correct": episode["correct"],
                "rounds": episode["rounds"],
                "malformed": episode["counts"].get("malformed", 0),
                # The first round was made for the agent.
                "acted": episode["ended"] == "submitted"
                or episode["rounds"] - 1 > episode["counts"].get("malformed", 0),
            }
        )
    groups = [str(row["group_id"]) for row in rows]
    metrics: dict[str, Any] = {
        "n_items": len(items),
        "n_groups": len({item.group_id for item in items}),
        "n_episodes": len(rows),
    }

    def add(name: str, values: Any, of: Sequence[str]) -> None:
        estimate = bootstrap_mean(values, of, seed=seed)
        metrics.update(
            {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
        )

    add("probe_accuracy_nested", noticed, sweep.group_id)
    add("said_accuracy", said, sweep.group_id)
    true = sweep.label
    metrics["probe_recall_useful"] = float(noticed[true].mean())
    metrics["probe_recall_useless"] = float(noticed[~true].mean())
    add("probe_noticed", [row["probe_noticed"] for row in rows], groups)
    add("said_so", [row["said_so"] for row in rows], groups)
    add("followed_up", [row["follow_up"] != "none" for row in rows], groups)
    add("targeted", [row["follow_up"] == "targeted" for row in rows], groups)
    add(
        "noticed_but_silent",
        [row["probe_noticed"] and row["follow_up"] != "targeted" for row in rows],
        groups,
    )
    add("correct", [row["correct"] for row in rows], groups)
    add("acted", [row["acted"] for row in rows], groups)
    for name, wanted in (("noticed", True), ("unnoticed", False)):
        silent = [row["follow_up"] != "targeted" for row in rows if row["probe_noticed"] == wanted]
        metrics[f"silent_given_{name}"] = sum(silent) / len(silent) if silent else None
    metrics["by_setting"] = {
        setting: {
            "probe_accuracy_nested": float(
                np.mean([noticed[i] for i, item in enumerate(items) if _setting(item) == setting])
            ),
            "targeted": _share(rows, setting),
        }
        for setting in _SETTINGS
    }
    return metrics, rows


def _setting(item: Item) -> str:
    return item.item_id.rsplit("/", 2)[1]


def _share(rows: Sequence[Mapping[str, Any]], setting: str) -> float | None:
    found = [row["follow_up"] == "targeted" for row in rows if row["setting"] == setting]
    return sum(found) / len(found) if found else None


def verdict(metrics: Mapping[str, Any]) -> str:
    """One sentence that follows from the numbers."""
    wording = metrics["probe_text_baseline_accuracy"] or 0.0
    p = metrics["probe_p_familywise"]
    reads = metrics["probe_accuracy_nested_low"] > max(0.5, wording)
    tested = "" if p is not None else " (no permutation test was run)"
    told = f"{metrics['probe_accuracy_nested']:.1%} [{metrics['probe_accuracy_nested_low']:.1%}, "
    told += f"{metrics['probe_accuracy_nested_high']:.1%}]"
    acted = f"{metrics['targeted']:.1%} of {metrics['n_episodes']} episodes"
    if not reads or (p is not None and p > 0.05):
        return (
            f"The probe does not tell useful replies from useless ones here ({told}; wording "
            f"alone: {wording:.1%}), so nothing shows that the model knew; it took the corrective "
            f"action in {acted}."
        )
    head = f"The probe tells useful replies from useless ones ({told}){tested}; "
    if metrics["acted"] < 0.5:
        return (
            f"{head}the agent wrote an action that could be read in only {metrics['acted']:.1%} "
            f"of {metrics['n_episodes']} episodes, so its silence says nothing about what it knew."
        )
    other = metrics["silent_given_unnoticed"]
    beside = "in no other" if other is None else f"{other:.1%} where it had not"
    return (
        f"{head}the agent took the corrective action in {acted}, and was silent in "
        f"{metrics['silent_given_noticed']:.1%} of those where the probe had noticed ({beside})."
    )


def _write_tasks(path: Path, tasks: Sequence[Task]) -> None:
    with atomic_path(path) as aside:
        aside.write_text(
            "".join(json.dumps(task_to_json(t), ensure_ascii=False) + "\n" for t in tasks),
            encoding="utf-8",
        )
