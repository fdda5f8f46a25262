"""`interp report`: what a run found, in one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["report"]


def report(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="Folder of a run, or of one probe or steering sweep."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="HTML file; default: report.html in the folder.")
    ] = None,
) -> None:
    """Write the report of a run: verdicts, figures, numbers and where they come from.

    One file that opens offline. It is drawn from the folder's files alone, and names those that
    have changed since a run recorded them.
    """
    from figures import write_report

    typer.echo(str(write_report(run, out)))
