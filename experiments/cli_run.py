"""`interp run` and `interp demo`: whole experiments into a folder."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.options import (
    AlphasOption,
    BatchOption,
    COption,
    DeviceOption,
    DtypeOption,
    FoldsOption,
    GroupOption,
    JsonOption,
    MapOption,
    ModelOption,
    NewTokensOption,
    NumberOption,
    PermutationsOption,
    RandomOption,
    SeedOption,
    SourceOption,
    TemplateOption,
    ViewOption,
    field_map,
    numbers,
    strength,
    template_args,
)

if TYPE_CHECKING:
    from experiments.expression_gap import ExpressionGapConfig

__all__ = ["demo", "run_app"]

run_app = typer.Typer(help="Run a whole experiment into a folder.", no_args_is_help=True)


@run_app.command(
    "expression-gap",
    epilog="Example: interp run expression-gap --model smollm2 --source facts --n 40 --out gap",
)
def expression_gap(
    model: ModelOption = "smollm2",
    source: SourceOption = "facts:capitals",
    n: NumberOption = None,
    seed: SeedOption = 0,
    view: ViewOption = None,
    map_: MapOption = None,
    C: COption = "0.01",
    folds: FoldsOption = 5,
    group: GroupOption = "group",
    permutations: PermutationsOption = 200,
    alphas: AlphasOption = "1",
    random_directions: RandomOption = 10,
    max_new_tokens: NewTokensOption = 48,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "auto",
    batch_tokens: BatchOption = 2048,
    template_arg: TemplateOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder; default: runs/<utc>-<slug>.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Probe, own answers and steering on the same items: is truth represented and not said?"""
    from experiments.expression_gap import ExpressionGapConfig

    config = ExpressionGapConfig(
        model=model,
        source=source,
        n=n,
        view=view,
        field_map=field_map(map_),
        C=strength(C),
        permutations=permutations,
        folds=folds,
        grouping=group,
        alphas=numbers(alphas, "--alphas"),
        random_directions=random_directions,
        max_new_tokens=max_new_tokens,
        batch_tokens=batch_tokens,
        dtype=dtype,
        device=device,
        seed=seed,
        template_args=template_args(template_arg) or None,
    )
    _run_expression_gap(config, out, json)


def _run_expression_gap(config: ExpressionGapConfig, out: Path | None, json: bool) -> None:
    from experiments.console import print_json
    from experiments.expression_gap import NAME, run_expression_gap
    from experiments.resuming import place_of_run
    from experiments.tables import print_expression_gap

    folder = place_of_run(out, f"{NAME}-{config.source.split(':')[0]}")
    command = shlex.join(["interp", *sys.argv[1:]])
    record = run_expression_gap(config, folder, command=command)
    if json:
        print_json({"folder": str(folder), "metrics": dict(record.metrics)})
    else:
        print_expression_gap(folder, record)


@run_app.command(
    "noticed-but-silent",
    epilog="Example: interp run noticed-but-silent --groups 3 --played 1 --folds 3 "
    "--permutations 0 --max-rounds 2 --max-new-tokens 32 --out noticed",
)
def noticed_but_silent(
    model: ModelOption = "smollm2",
    groups: Annotated[
        int, typer.Option("--groups", min=2, help="Task groups whose replies are read.")
    ] = 40,
    played: Annotated[
        int, typer.Option("--played", min=1, help="Of these, groups that the agent plays.")
    ] = 10,
    C: COption = "0.01",
    folds: FoldsOption = 5,
    permutations: PermutationsOption = 200,
    max_rounds: Annotated[
        int, typer.Option("--max-rounds", min=2, help="Budget, with the first round.")
    ] = 4,
    max_new_tokens: NewTokensOption = 96,
    seed: SeedOption = 0,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "auto",
    batch_tokens: BatchOption = 2048,
    template_arg: TemplateOption = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder; default: runs/<utc>-<slug>.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Does the model know that a colleague's reply is of no use when it does not ask again?"""
    from experiments.console import print_json
    from experiments.noticed_but_silent import NAME, NoticedConfig, run_noticed
    from experiments.resuming import place_of_run
    from experiments.unco_tables import print_noticed

    config = NoticedConfig(
        model=model,
        groups=groups,
        played=played,
        C=strength(C),
        permutations=permutations,
        folds=folds,
        max_rounds=max_rounds,
        max_new_tokens=max_new_tokens,
        batch_tokens=batch_tokens,
        dtype=dtype,
        device=device,
        seed=seed,
        template_args=template_args(template_arg) or None,
    )
    folder = place_of_run(out, NAME)
    record = run_noticed(config, folder, command=shlex.join(["interp", *sys.argv[1:]]))
    if json:
        print_json({"folder": str(folder), "metrics": dict(record.metrics)})
    else:
        print_noticed(folder, record.metrics)


def demo(
    out: Annotated[
        Path | None, typer.Option("--out", help="Run folder; default: runs/<utc>-<slug>.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """The expression gap of SmolLM2-135M-Instruct on capitals of countries; minutes on a laptop."""
    from experiments.expression_gap import ExpressionGapConfig

    _run_expression_gap(
        ExpressionGapConfig(model="smollm2", source="facts:capitals", n=320), out, json
    )
