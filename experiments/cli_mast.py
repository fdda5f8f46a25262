"""`interp mast`: what a file of annotated failure traces holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from experiments.options import JsonOption

__all__ = ["mast_app"]

mast_app = typer.Typer(help="Count and split annotated failure traces.", no_args_is_help=True)

_Split = Annotated[
    str,
    typer.Option(
        "--split",
        help="step1 (the paper's two tables), all-models (every MetaGPT family), or a TOML file.",
    ),
]


@mast_app.command("inventory", epilog="Example: interp mast inventory traces.json --out inventory")
def inventory(
    path: Annotated[
        Path,
        typer.Argument(metavar="PATH", help="MAD_full_dataset.json, or the human-labelled file."),
    ],
    split: _Split = "step1",
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for inventory.json, cells.csv, fc2.csv and split.toml."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """FC2-positive traces by framework, model and benchmark, and by train and hold-out unit.

    The file is streamed. Warnings tell what the counts hide: null annotations, copied traces,
    annotations that occur again in another run, traces that no unit takes.
    """
    from experiments.console import print_json
    from experiments.mast_tables import print_human, print_inventory
    from interp.mast.human import human_summary, is_human_file, read_human

    if is_human_file(path):
        found = {"format": "human", "file": str(path), **human_summary(read_human(path))}
        _write_summary(out, found)
        (print_json if json else print_human)(found)
        return
    found = _full(path, split, out)
    (print_json if json else print_inventory)(found)


def _full(path: Path, split: str, out: Path | None) -> dict[str, Any]:
    from experiments.console import progress
    from interp.files import atomic_path, require_writable, write_csv
    from interp.mast import read_split, take_inventory
    from interp.mast.split import split_text

    if out is not None:
        require_writable(out, folder=True)
    units = read_split(split)
    with progress("reading", path.stat().st_size) as advance:
        taken = take_inventory(path, units, progress=advance)
    found = {"format": "full", "file": str(path), **taken.summary()}
    if out is not None:
        write_csv(out / "cells.csv", found["cells"])
        rows = [
            {
                "trace_key": entry.key[0],
                "trace_id": entry.key[1],
                "framework": entry.framework,
                "model": entry.model,
                "benchmark": entry.benchmark,
                "codes": " ".join(entry.fc2_codes),
                "n_chars": entry.n_chars,
                "side": entry.side or "",
                "unit": entry.unit or "",
            }
            for entry in taken.entries
            if entry.fc2
        ]
        if rows:
            write_csv(out / "fc2.csv", rows)
        with atomic_path(out / "split.toml") as aside:
            aside.write_text(split_text(split), encoding="utf-8")
    _write_summary(out, found)
    return found


def _write_summary(out: Path | None, found: dict[str, Any]) -> None:
    from experiments.console import note
    from interp.files import write_json

    if out is not None:
        write_json(out / "inventory.json", found)
        note(f"Written to {out}")
