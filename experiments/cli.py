"""The `interp` command. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import errno
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from experiments.cli_adapters import adapters_app
from experiments.cli_answers import answers_app
from experiments.cli_behave import behave_app
from experiments.cli_cache import cache_app, drift
from experiments.cli_direction import direction
from experiments.cli_grpo import grpo_app, grpo_audit
from experiments.cli_mast import mast_app
from experiments.cli_model import answer, extract
from experiments.cli_probe import ProbeCommand, probe, probe_compare
from experiments.cli_report import report
from experiments.cli_run import demo, run_app
from experiments.cli_steer import steer
from experiments.cli_tomas import tomas_app
from experiments.cli_unco import unco_app
from experiments.options import (
    AbilitiesOption,
    ExamOption,
    InjectOption,
    JsonOption,
    MapOption,
    NumberOption,
    PaperOption,
    SeedOption,
    ViewOption,
    open_items,
    source_options,
)
from interp.errors import InterpError

__all__ = ["app"]


class _Commands(TyperGroup):
    """Turns a user's mistake into one paragraph on standard error and exit code 2."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command, with help texts that are shown as they are written."""
        command = super().get_command(ctx, cmd_name)
        if command is not None:
            _show_brackets(command)
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InterpError as error:
            typer.echo(f"Error: {error}", err=True)
            raise typer.Exit(2) from error
        except UnicodeDecodeError as error:
            typer.echo(
                f"Error: A file is not UTF-8 text ({error}). Save it as UTF-8 and try again.",
                err=True,
            )
            raise typer.Exit(2) from error
        except OSError as error:
            if error.errno in (None, errno.EPIPE):
                raise
            what = error.filename or "A file"
            typer.echo(
                f"Error: {what} cannot be read or written ({error.strerror}). Check the path, its "
                f"permissions and the space on the disk.",
                err=True,
            )
            raise typer.Exit(2) from error


def _show_brackets(command: Any) -> None:
    """Escape what would be taken for markup in the help texts of a command and of those below it.

    None of them has any, and `interp[train]` would be shown as `interp`.
    """
    for owner in (command, *command.params):
        for name in ("help", "short_help", "epilog"):
            text = getattr(owner, name, None)
            if text:
                # Once, however often the command is looked up.
                setattr(owner, name, re.sub(r"(?<!\\)\[(?=[a-z/@#])", r"\\[", text))
    for child in getattr(command, "commands", {}).values():
        _show_brackets(child)


app = typer.Typer(
    cls=_Commands,
    name="interp",
    help="What does a model represent but not express? Probe it, steer it, and ask it.",
    epilog="Start here: interp demo",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(adapters_app, name="adapters")
app.add_typer(answers_app, name="answers")
app.add_typer(behave_app, name="behave")
app.add_typer(cache_app, name="cache")
app.add_typer(grpo_app, name="grpo")
app.add_typer(mast_app, name="mast")
app.add_typer(run_app, name="run")
run_app.command(
    "grpo-audit",
    epilog="Example: interp run grpo-audit --steps 2 --n 8 --n-held-out 4 --out grpo-audit",
)(grpo_audit)
app.add_typer(tomas_app, name="tomas")
app.add_typer(unco_app, name="unco")
app.command("demo", epilog="Example: interp demo")(demo)
app.command(
    "extract",
    epilog="Example: interp extract --source facts:elements --n 40 --out facts.h5\n\n"
    "Example: interp extract --source facts:elements --n 20 --adapter runs/grpo --checkpoints "
    "--out ladder",
)(extract)
app.command(
    "answer", epilog="Example: interp answer --source facts:elements --n 40 --out answers.jsonl"
)(answer)
app.command("drift", epilog="Example: interp drift facts.h5 same.h5")(drift)
app.command("probe", cls=ProbeCommand, epilog="Example: interp probe facts.h5 --out probe")(probe)
app.command("probe-compare", epilog="Example: interp probe compare probe probe")(probe_compare)
app.command(
    "direction", epilog="Example: interp direction facts.h5 --layer 15 --out direction.npz"
)(direction)
app.command(
    "steer",
    epilog="Example: interp steer facts.h5 --probe probe --layers 10,15 --alphas 0,1,4 --out steer",
)(steer)
app.command("report", epilog="Example: interp report steer")(report)


@app.command(epilog="Example: interp sources")
def sources(json: JsonOption = False) -> None:
    """List the item sources."""
    from experiments.console import print_json, print_table
    from interp.registry import list_sources

    found = list_sources()
    if json:
        fields = ("name", "usage", "summary", "license", "distribution")
        print_json([{field: getattr(info, field) for field in fields} for info in found])
        return
    rows = [(info.usage, info.summary, info.license) for info in found]
    print_table("Item sources", ("source", "what it yields", "licence"), rows)


@app.command(epilog="Example: interp items avalon --n 408 --seed 1 --out items.jsonl")
def items(
    source: Annotated[str, typer.Argument(help="Item source, NAME or NAME:ARGUMENT.")],
    n: NumberOption = None,
    seed: SeedOption = 0,
    view: ViewOption = None,
    map_: MapOption = None,
    inject_truth: InjectOption = False,
    abilities: AbilitiesOption = None,
    rules_exam: ExamOption = False,
    expect_paper: PaperOption = False,
    sample: Annotated[
        int | None,
        typer.Option("--sample", min=1, help="Draw so many of all items, one by one."),
    ] = None,
    format_: Annotated[
        Literal["items", "tomas"],
        typer.Option("--format", help="tomas: the ToMAS schema, for partner-state questions."),
    ] = "items",
    out: Annotated[
        Path | None, typer.Option("--out", help="JSONL file; default: standard output.")
    ] = None,
) -> None:
    """Write items, one JSON object a line.

    The flags below --map are options of the source. Other commands take them inside the source:
    --source avalon:inject-truth or avalon:abilities=perspective_taking.
    """
    from json import dumps

    from experiments.console import note
    from experiments.options import drawn
    from interp.items import item_to_record, write_items
    from interp.sources.tomas import as_tomas, tomas_to_record, write_tomas

    if sample is not None and n is not None:
        raise InterpError("--sample and --n exclude each other; --n keeps groups together.")
    source = source_options(
        source,
        inject_truth=inject_truth,
        abilities=abilities,
        rules_exam=rules_exam,
        expect_paper=expect_paper,
    )
    opened, found = open_items(source, view, n, seed, map_)
    if sample is not None:
        found = drawn(found, sample, seed, opened.name)
    mapped = [as_tomas(item) for item in found] if format_ == "tomas" else None
    if out is None:
        records = (
            [item_to_record(item) for item in found]
            if mapped is None
            else [tomas_to_record(item) for item in mapped]
        )
        for record in records:
            typer.echo(dumps(record, ensure_ascii=False))
        return
    if mapped is None:
        write_items(out, found)
    else:
        write_tomas(out, mapped)
    groups = len({item.group_id for item in found})
    note(f"{len(found)} items of {opened.name} in {groups} groups written to {out}")
