"""`interp answers`: answer files that another program's runs are turned into."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.options import JsonOption

__all__ = ["answers_app"]

answers_app = typer.Typer(help="Answer files from other programs.", no_args_is_help=True)


@answers_app.command(
    "import", epilog="Example: interp answers import logs/avalon.eval --out provider.jsonl"
)
def import_(
    logs: Annotated[
        list[Path], typer.Argument(metavar="LOG...", help="Logs of `inspect eval interp/...`.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Answer file (JSONL).")],
    json: JsonOption = False,
) -> None:
    """Turn logs of Inspect into an answer file, for `interp behave report`.

    Verdicts are parsed again from the replies. Needs interp[agents].
    """
    from experiments.console import note, print_json
    from interp.agents.logs import import_logs

    answers = import_logs(logs, out)
    found = {
        "n_items": len(answers),
        "accuracy": sum(answer.correct for answer in answers) / len(answers),
        "non_answers": sum(not answer.answered for answer in answers),
    }
    if json:
        print_json(found)
    else:
        note(
            f"{out}: {found['n_items']} answers, {100 * found['accuracy']:.1f}% right, "
            f"{found['non_answers']} without a verdict (counted wrong)"
        )
