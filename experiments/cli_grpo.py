"""`interp grpo` and `interp run grpo-audit`: training with GRPO, and what came of it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from experiments.options import (
    BatchOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    MapOption,
    NumberOption,
    OutFolder,
    SeedOption,
    SourceOption,
    numbers,
    open_items,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from experiments.grpo.config import GrpoConfig
    from interp.items import Item

__all__ = ["grpo_app", "grpo_audit"]

ConfigOption = Annotated[
    Path | None,
    typer.Option("--config", help="TOML with values in place of Table IV's."),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="One value in place of the file's; may be repeated."
    ),
]
_MODEL_HELP = "Base model: alias, Hub id with optional @revision, folder, gguf:PATH."
ModelOverride = Annotated[str | None, typer.Option("--model", help=_MODEL_HELP)]

grpo_app = typer.Typer(
    help="Train with GRPO on open-ended items, and evaluate what came of it.", no_args_is_help=True
)


@grpo_app.command(
    "train",
    epilog="Example: interp grpo train --model smollm2 --source partners:train --n 8 "
    "--set answer_prefix=[ANSWER] --set max_steps=2 --set max_new_tokens=8 --set seeds=42 "
    "--out grpo",
)
def train(
    out: OutFolder,
    source: SourceOption = "partners:train",
    n: NumberOption = None,
    seed: SeedOption = 0,
    map_: MapOption = None,
    model: ModelOverride = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Train a LoRA adapter with trl's GRPOTrainer, once for each seed, into OUT/seed-N.

    Without --config and --set everything is as in Table IV of ToMAS (Qwen2.5-1.5B, learning rate
    1e-6, 200 steps, seeds 42 and 43). `interp grpo config` prints the values. --seed is that of
    the items; those of the training are --set seeds=[42,43]. A run that was stopped goes on from
    its last checkpoint. Needs interp[train].
    """
    from activations import describe_source
    from experiments.console import note, print_json, print_table, progress
    from experiments.grpo.config import parse_settings, read_config
    from experiments.grpo.train import load_base
    from experiments.grpo.train import train as run_train
    from interp.files import require_writable

    require_writable(out, folder=True)
    settings = parse_settings(set_ or []) | ({} if model is None else {"model": model})
    resolved = read_config(config, settings)
    opened, found = open_items(source, None, n, seed, map_)
    note(
        f"Loading {resolved.model}; {len(found)} items of {opened.name}, {len(resolved.seeds)} "
        f"run(s) of {resolved.max_steps} steps, {resolved.prompts_per_step} × "
        f"{resolved.group_size} completions of up to {resolved.max_new_tokens} tokens a step"
    )
    backend = load_base(resolved)
    rows: list[dict[str, Any]] = []
    for each in resolved.seeds:
        folder = out / f"seed-{each}"
        with progress(f"seed {each}", resolved.max_steps) as advance:
            record = run_train(
                resolved,
                each,
                found,
                folder,
                backend=backend,
                source=describe_source(opened, found, view=None, seed=seed),
                command=shlex.join(["interp", *sys.argv[1:]]),
                note=note,
                progress=advance,
            )
        rows.append({"folder": str(folder), "seed": each, **record.metrics})
    if json:
        print_json(rows)
        return
    columns = ("seed", "steps", "mean reward", "groups without variance", "max|ΔW|", "ρ", "verdict")
    names = (
        *("seed", "n_steps", "reward_mean", "zero_variance_share", "max_abs_delta", "relative"),
        "verdict",
    )
    print_table("GRPO", columns, [[_cell(row.get(name)) for name in names] for row in rows])
    note(f"Written to {out}")


@grpo_app.command("config", epilog="Example: interp grpo config --set learning_rate=1e-4")
def config(config: ConfigOption = None, set_: SetOption = None, json: JsonOption = False) -> None:
    """Print the values that `interp grpo train` would use."""
    from json import dumps

    from experiments.console import print_json
    from experiments.grpo.config import config_to_json, parse_settings, read_config

    values = config_to_json(read_config(config, parse_settings(set_ or [])))
    if json:
        print_json(values)
        return
    for name, value in values.items():
        # JSON's texts, numbers, lists and booleans are TOML's as well.
        typer.echo(f"{name} = {dumps(value, ensure_ascii=False)}")


@grpo_app.command(
    "evaluate",
    epilog="Example: interp grpo evaluate grpo/seed-42 --held-out partners:held-out --n 8 "
    "--out evaluated",
)
def evaluate(
    adapters: Annotated[
        list[Path],
        typer.Argument(metavar="ADAPTER…", help="Run folders of `grpo train`, or PEFT adapters."),
    ],
    out: OutFolder,
    held_out: Annotated[
        str | None, typer.Option("--held-out", help="Item source that was not trained on.")
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            "--train", help="Training items; default: those of the first run, none for none."
        ),
    ] = None,
    n: NumberOption = None,
    seed: SeedOption = 0,
    model: ModelOverride = None,
    config: ConfigOption = None,
    set_: SetOption = None,
    encoder: Annotated[
        Path | None,
        typer.Option(
            "--encoder",
            help="Folder of a sentence encoder, for a second score; needs interp[similarity].",
        ),
    ] = None,
    batch_tokens: BatchOption = 2048,
    json: JsonOption = False,
) -> None:
    """Greedy answers of the base and of each adapter, and how many of them are the same.

    Model, lengths, prefix, stop text and thresholds are those of the first adapter's run, if it is
    one of `interp grpo train`, and else those of Table IV. Each adapter must have been trained on
    this base, attach to it tensor by tensor, and reach its output. --n and --seed choose held-out
    items.
    """
    from experiments.console import note, print_json, progress
    from experiments.grpo.evaluate import Pool, conditions_of
    from experiments.grpo.evaluate import evaluate as run_evaluate
    from experiments.grpo.similarity import load_encoder
    from experiments.grpo.train import load_base
    from interp.errors import TrainingError
    from interp.files import require_writable

    require_writable(out, folder=True)
    scores = None if encoder is None else load_encoder(encoder)
    conditions = conditions_of(adapters)
    resolved = _settings_of(adapters[0], config, set_, model)
    pools = []
    trained = _training_items(adapters[0], train)
    if trained:
        pools.append(Pool("train", tuple(trained), resolved.train_threshold))
    if held_out is not None:
        _, items = open_items(held_out, None, n, seed, None)
        pools.append(Pool("held_out", items, resolved.held_out_threshold))
    if not pools:
        raise TrainingError("There are no items: give --held-out SOURCE, --train SOURCE or both.")
    note(f"Loading {resolved.model}; {len(conditions)} conditions")
    backend = load_base(resolved)
    total = len(conditions) * sum(len(pool.items) for pool in pools)
    with progress("greedy replies", total) as advance:
        summary = run_evaluate(
            backend,
            conditions,
            pools,
            out,
            max_new_tokens=resolved.max_new_tokens,
            prefix=resolved.answer_prefix,
            stop=resolved.stop,
            encoder=scores,
            batch_tokens=batch_tokens,
            progress=advance,
        )
    if json:
        print_json(summary)
        return
    _print_evaluation(summary)
    note(f"Written to {out}")


def _settings_of(
    adapter: Path, config: Path | None, set_: Sequence[str] | None, model: str | None
) -> GrpoConfig:
    """The configuration of an adapter's run, changed by the options."""
    from experiments.grpo.config import parse_settings, read_config
    from experiments.grpo.evaluate import record_of

    record = record_of(adapter)
    known: dict[str, Any] = {} if record is None or config is not None else dict(record.config)
    changed = parse_settings(set_ or []) | ({} if model is None else {"model": model})
    return read_config(config, known | changed)


def _training_items(adapter: Path, source: str | None) -> Sequence[Item]:
    from experiments.grpo.evaluate import items_of

    if source == "none":
        return ()
    return items_of(adapter) if source is None else open_items(source, None, None, 0, None)[1]


def _print_evaluation(summary: Mapping[str, Any]) -> None:
    from experiments.console import print_table, say

    for pool, found in summary["pools"].items():
        names = list(found["conditions"])
        second = "mean_similarity" in found["conditions"][names[0]]
        rows = []
        for name, scores in found["conditions"].items():
            row = [
                name,
                _cell(scores["seed"]),
                f"{scores['positives']}/{found['n_items']}",
                f"{scores['mean_rouge_l_f1']:.3f}",
                str(scores["no_answer"]),
            ]
            if second:
                row.append(f"{scores['mean_similarity']:.3f}")
            rows.append([*row, *(str(found["identical"][name][other]) for other in names)])
        print_table(
            f"{pool}: {found['n_items']} items, positive above ROUGE-L {found['threshold']:g}",
            (
                *("condition", "seed", "positive", "mean F1", "no answer"),
                *(["similarity"] * second),
                *(f"= {name}" for name in names),
            ),
            rows,
            caption="= NAME: replies that are the same, character for character",
        )
        for name, scores in found["conditions"].items():
            if scores["positive_ids"]:
                say(f"Positive, {name}: {', '.join(scores['positive_ids'])}")


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def grpo_audit(
    model: Annotated[
        str,
        typer.Option("--model", help="Alias, Hub id with optional @revision, folder, gguf:PATH."),
    ] = "smollm2",
    learning_rates: Annotated[
        str, typer.Option("--learning-rates", help="One run each, comma-separated.")
    ] = "1e-6,2e-3",
    steps: Annotated[int, typer.Option("--steps", min=1, help="Optimiser steps of a run.")] = 10,
    n: Annotated[int, typer.Option("--n", min=1, help="Generated training items.")] = 12,
    n_held_out: Annotated[
        int, typer.Option("--n-held-out", min=1, help="Generated held-out items.")
    ] = 8,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="Cut of completions and replies.")
    ] = 24,
    seed: SeedOption = 42,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "auto",
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder; default: runs/<utc>-grpo-audit.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """The same GRPO run at two learning rates, audited and evaluated: did the weights move at all?

    The rest is as in Table IV of ToMAS, on generated items. Needs interp[train].
    """
    from experiments.console import note, print_json, say
    from experiments.grpo.audit_run import NAME, GrpoAuditConfig, run_grpo_audit
    from experiments.resuming import place_of_run

    folder = place_of_run(out, NAME)
    settings = GrpoAuditConfig(
        model=model,
        learning_rates=numbers(learning_rates, "--learning-rates"),
        steps=steps,
        n=n,
        n_held_out=n_held_out,
        max_new_tokens=max_new_tokens,
        seed=seed,
        dtype=dtype,
        device=device,
    )
    record = run_grpo_audit(settings, folder, command=shlex.join(["interp", *sys.argv[1:]]))
    if json:
        print_json({"folder": str(folder), "metrics": dict(record.metrics)})
        return
    say((folder / "report.md").read_text(encoding="utf-8").rstrip())
    note(f"Written to {folder}")
    note(f"Figure:  {folder / 'figures' / 'trajectories.png'}")
