"""`interp unco`: build tasks with unreliable colleagues, play them, report on the episodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.options import (
    BatchOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    SeedOption,
    TemplateOption,
    template_args,
)
from interp.errors import ResultError, SourceError, did_you_mean
from interp.files import require_file
from interp.sources.unco.interventions import Arm

if TYPE_CHECKING:
    from interp.sources.unco.tasks import Task

__all__ = ["unco_app"]

unco_app = typer.Typer(
    help="Tasks whose colleagues may be unreliable: build, play, report.", no_args_is_help=True
)


@unco_app.command(
    "build", epilog="Example: interp unco build --groups 4 --seed 0 --out tasks.jsonl"
)
def build(
    out: Annotated[Path, typer.Option("--out", help="Task file (JSONL, one task a line).")],
    groups: Annotated[int, typer.Option("--groups", min=1, help="Task groups.")] = 100,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Build groups of five tasks: one decision problem under five behaviours of the colleagues."""
    from json import dumps

    from experiments.console import note, print_json, print_table, progress
    from interp.files import atomic_path
    from interp.sources.unco.build import Ledger, build_groups
    from interp.sources.unco.tasks import task_to_json

    ledger = Ledger()
    cells: dict[tuple[str, str], int] = {}
    nobody = 0
    with (
        progress("task groups", groups) as advance,
        atomic_path(out) as aside,
        aside.open("w", encoding="utf-8") as handle,
    ):
        for tasks in build_groups(groups, seed, ledger=ledger):
            spec = tasks[0].instance.spec
            key = (spec.domain, spec.rule.operation)
            cells[key] = cells.get(key, 0) + 1
            nobody += tasks[0].instance.gold.decision == "none"
            for task in tasks:
                handle.write(dumps(task_to_json(task), ensure_ascii=False) + "\n")
            advance(1)
    summary: dict[str, Any] = {
        "groups": ledger.retained,
        "tasks": 5 * ledger.retained,
        "candidates": ledger.candidates,
        "rejected": dict(ledger.rejected),
        "rejected_rules": dict(ledger.reasons),
        "domains": len({domain for domain, _ in cells}),
        "operations": len({operation for _, operation in cells}),
        "cells": len(cells),
        "groups_by_cell": {
            f"{domain}, {op}": count for (domain, op), count in sorted(cells.items())
        },
        "share_none": nobody / ledger.retained,
    }
    if json:
        print_json(summary)
        return
    rejected = sum(ledger.rejected.values())
    print_table(
        f"{ledger.retained} task groups × 5 settings",
        ("", "groups"),
        [
            ("begun", ledger.candidates),
            *((f"refused: {stage}", count) for stage, count in sorted(ledger.rejected.items())),
            ("kept", ledger.retained),
            ("of these, no candidate is eligible", nobody),
        ],
        caption=f"{rejected / ledger.candidates:.1%} refused; {summary['domains']} domains × "
        f"{summary['operations']} operations, {summary['cells']} pairs occur.",
    )
    note(f"Written to {out}")


@unco_app.command(
    "play", epilog="Example: interp unco play tasks.jsonl --agent oracle --out oracle.jsonl"
)
def play(
    tasks: Annotated[Path, typer.Argument(help="Task file of `interp unco build`.")],
    out: Annotated[Path, typer.Option("--out", help="Log of episodes (JSONL).")],
    agent: Annotated[
        str,
        typer.Option("--agent", help="oracle, gullible, random, hint, or a model (as --model)."),
    ] = "oracle",
    arm: Annotated[Arm, typer.Option("--arm", help="How much the agent is told.")] = "none",
    settings: Annotated[
        str | None, typer.Option("--settings", help="Some of the five, between commas.")
    ] = None,
    max_rounds: Annotated[int, typer.Option("--max-rounds", min=1, help="Budget.")] = 8,
    opening: Annotated[
        bool, typer.Option("--opening", help="Make the first round, a question to all, for it.")
    ] = False,
    seed: SeedOption = 0,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="Cut of a model's turn.")
    ] = 160,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "auto",
    batch_tokens: BatchOption = 8192,
    template_arg: TemplateOption = None,
    json: JsonOption = False,
) -> None:
    """Let an agent work on tasks; every episode is one line of the log, a stopped run goes on."""
    from experiments.console import note, print_json, progress
    from experiments.unco_play import model_agent, play_tasks, scripted_agent
    from experiments.unco_tables import print_settings, setting_records
    from interp.files import require_writable, sha256_file
    from interp.sources.unco.agents import SCRIPTED
    from interp.sources.unco.report import setting_rows
    from interp.sources.unco.tasks import read_tasks

    if not out.exists():
        require_writable(out, folder=False)
    chosen = _of_settings(read_tasks(tasks), settings)
    identity: dict[str, Any] = {"tasks": sha256_file(tasks), "settings": settings}
    if agent in SCRIPTED:
        acting = scripted_agent(agent, seed)
    else:
        from activations import ModelSpec, load_backend

        spec = ModelSpec.parse(
            agent, dtype=dtype, device=device, template_args=template_args(template_arg)
        )
        note(f"Loading {spec.model_id} ({dtype}) for {len(chosen)} episodes")
        backend = load_backend(spec)
        identity |= {"model": dict(backend.fingerprint()), "max_new_tokens": max_new_tokens}
        acting = model_agent(backend, max_new_tokens=max_new_tokens, batch_tokens=batch_tokens)
    with progress("episodes", len(chosen)) as advance:
        episodes = play_tasks(
            chosen,
            acting,
            out,
            identity=identity,
            name=agent,
            seed=seed,
            arm=arm,
            max_rounds=max_rounds,
            opening=opening,
            progress=advance,
        )
    rows = setting_rows(episodes, seed=seed)
    if json:
        print_json(setting_records(rows))
    else:
        print_settings(rows)
        note(f"Written to {out}")


@unco_app.command("report", epilog="Example: interp unco report oracle.jsonl --out report")
def report(
    logs: Annotated[list[Path], typer.Argument(help="Logs of `interp unco play` or of Inspect.")],
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for CSV, JSON and the figure.")
    ] = None,
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Accuracy, rounds, drops, recovery and interventions, from any number of logs."""
    from experiments.console import note, print_json
    from experiments.unco_tables import (
        print_recovery,
        print_settings,
        recovery_records,
        setting_records,
        write_report,
    )
    from interp.sources.unco.report import recovery_rows, setting_rows

    episodes = [episode for log in logs for episode in _read_log(log)]
    rows, recovered = setting_rows(episodes, seed=seed), recovery_rows(episodes)
    if json:
        print_json({"settings": setting_records(rows), "recovery": recovery_records(recovered)})
    else:
        print_settings(rows)
        print_recovery(recovered)
    if out is not None:
        write_report(out, rows, recovered)
        note(f"Tables and figure in {out}")


def _read_log(path: Path) -> list[Mapping[str, Any]]:
    from interp.sources.unco.episodes import read_episodes

    if path.suffix not in (".eval", ".json") or _is_ours(path):
        return read_episodes(path)
    try:
        from interp.agents.unco import episodes_of_log
    except ModuleNotFoundError as error:
        if error.name != "inspect_ai":
            raise
        raise ResultError(
            f"{path} is an Inspect log, and inspect_ai is not installed. Install the extra: "
            f"pip install 'interp[agents]'."
        ) from error
    require_file(path, "an Inspect log", ResultError)
    return episodes_of_log(path)


def _is_ours(path: Path) -> bool:
    """Whether a file begins with an episode of ours, whatever it is called."""
    from json import loads

    try:
        with path.open(encoding="utf-8") as handle:
            return "group_id" in loads(handle.readline())
    except (OSError, ValueError, TypeError):
        return False


def _of_settings(tasks: tuple[Task, ...], text: str | None) -> tuple[Task, ...]:
    from interp.sources.unco.defects import SETTINGS

    if text is None:
        return tasks
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in SETTINGS:
            raise SourceError(f"There is no setting {name!r}. {did_you_mean(name, SETTINGS)}")
    chosen = tuple(task for task in tasks if task.setting in names)
    if not chosen:
        raise SourceError(f"The file has no task with the settings {', '.join(names)}.")
    return chosen
