"""`interp behave`: what models say, from answer files or a published table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from experiments.options import JsonOption, SeedOption
from interp.errors import InterpError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from interp.behaviour import ProbeOutcome

__all__ = ["behave_app"]

behave_app = typer.Typer(help="Report what models answer.", no_args_is_help=True)

_Answers = Annotated[
    list[Path] | None,
    typer.Argument(metavar="ANSWERS...", help="Answer files; default: all of the models table."),
]
_Items = Annotated[
    list[Path] | None, typer.Option("--items", help="Item file that was asked; may be repeated.")
]
_Models = Annotated[
    Path | None,
    typer.Option("--models", help="CSV: file, model, condition, family, access, reasoning, base."),
]
_Probes = Annotated[
    list[Path] | None,
    typer.Option("--probe", help="Probe folder of one of the models; may be repeated."),
]
_Table = Annotated[
    Path | None,
    typer.Option(
        "--table", help="Instead of answers, a published table: model, ability, accuracy, f1, n."
    ),
]
_Out = Annotated[
    Path | None, typer.Option("--out", help="Folder for JSON, CSV tables and figures.")
]
_Readout = Annotated[
    Literal["auto", "forced", "greedy"],
    typer.Option("--readout", help="Which verdicts count; auto: greedy where all files have them."),
]


@behave_app.command(
    "report",
    epilog="Example: interp behave report gap/answers.jsonl --items gap/items.jsonl --out said",
)
def report(
    answers: _Answers = None,
    items: _Items = None,
    models: _Models = None,
    probe: _Probes = None,
    table: _Table = None,
    readout: _Readout = "auto",
    seed: SeedOption = 0,
    out: _Out = None,
    json: JsonOption = False,
) -> None:
    """Scores by ability, injection, chain of thought, training, lengths and the two axes.

    Every figure is given with non-answers counted wrong and with non-answers left out.
    """
    from experiments.behaviour_tables import print_behaviour, print_published
    from experiments.console import note, print_json
    from interp.files import require_writable

    if out is not None:
        require_writable(out, folder=True)
    if table is not None:
        if answers or items or probe:
            raise InterpError("--table stands alone: leave answer files, --items and --probe out.")
        found = _published(table, models)
    else:
        if not items or not (answers or models):
            raise InterpError(
                "Give answer files (or a models table) and the items that were asked (--items), or "
                "a published table (--table)."
            )
        found = _answered(answers or [], items, models, probe or [], readout, seed)
    if out is not None:
        _write(out, found, "published" if table is not None else "behaviour")
    if json:
        print_json(found)
    elif table is not None:
        print_published(found)
    else:
        print_behaviour(found)
    if out is not None:
        note(f"Written to {out}")


def _published(table: Path, models: Path | None) -> dict[str, Any]:
    from interp.behaviour import published_report, read_published, read_roster

    roster = None if models is None else read_roster(models, with_files=False)
    return published_report(read_published(table), roster)


def _answered(
    answers: Sequence[Path],
    items: Sequence[Path],
    models: Path | None,
    probes: Sequence[Path],
    readout: Literal["auto", "forced", "greedy"],
    seed: int,
) -> dict[str, Any]:
    from interp.behaviour import behaviour_report, read_answer_sets, read_item_table, read_roster

    asked = read_item_table(items)
    roster = None if models is None else read_roster(models)
    sets = read_answer_sets(answers, asked, roster, readout)
    return behaviour_report(asked, sets, [_probe(folder) for folder in probes], seed=seed)


def _probe(folder: Path) -> ProbeOutcome:
    from interp.behaviour import ProbeOutcome
    from probes import read_sweep

    sweep = read_sweep(folder)
    return ProbeOutcome(
        where=str(folder),
        model_id=str(sweep.manifest["model"]["model_id"]),
        item_id=sweep.item_id,
        label=sweep.label,
        correct=sweep.correct_nested,
        grouping=sweep.grouping,
    )


def _write(folder: Path, found: dict[str, Any], kind: str) -> None:
    """Tables first and the JSON last, so that a whole report is one that has it."""
    from figures import draw_behaviour
    from figures.behaviour import FIGURES
    from interp.files import drawn_files, replaced_together, write_csv, write_json

    other = folder / ("behaviour.json" if kind == "published" else "published.json")
    if other.exists():
        raise InterpError(
            f"{folder} holds another kind of report ({other.name}); give another --out."
        )
    # A table or a figure of an earlier report would pass for one of this report.
    tables = {
        name: rows
        for name, rows in found.items()
        if isinstance(rows, list) and name not in ("warnings", "notes")
    }
    gone = (*(f"{name}.csv" for name in tables), *drawn_files(*FIGURES))
    with replaced_together(folder, last=f"{kind}.json", gone=gone) as aside:
        for name, rows in tables.items():
            if rows:
                write_csv(aside / f"{name}.csv", rows)
        write_json(aside / f"{kind}.json", found)
    draw_behaviour(folder)
