"""`interp tomas`: from failure traces to coded traces and items, and what is checked about them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from experiments.options import JsonOption, SeedOption
from interp.errors import InterpError

if TYPE_CHECKING:
    from interp.conversion import ConversionLog
    from interp.conversion.log import LogKey
    from interp.mast import MastRecord

__all__ = ["tomas_app"]

tomas_app = typer.Typer(
    help="Convert failure traces into partner-state items, and check them.", no_args_is_help=True
)

_Traces = Annotated[Path, typer.Argument(metavar="TRACES", help="MAD_full_dataset.json.")]
_Split = Annotated[str, typer.Option("--split", help="step1, all-models, or a TOML file of units.")]


def _to_code(traces: Path, split: str, side: str, only: Path | None) -> Iterator[MastRecord]:
    """FC2-positive traces of one side, or the listed ones, streamed in file order."""
    from interp.mast import iterate_records, read_split

    units = read_split(split)
    wanted = None if only is None else _keys(only)
    for record in iterate_records(traces):
        if wanted is not None:
            if (record.trace_key, str(record.trace_id)) in wanted:
                wanted.discard((record.trace_key, str(record.trace_id)))
                yield record
            continue
        unit = units.unit_of(record.framework, record.model, record.benchmark)
        if record.fc2 and unit is not None and unit.side == side:
            yield record
    if wanted:
        key, number = sorted(wanted)[0]
        raise InterpError(
            f"{only} lists {len(wanted)} traces that are not in {traces} (first: {key}/{number})."
        )


def _keys(path: Path) -> set[LogKey]:
    """Traces that a CSV with the columns trace_key and trace_id lists."""
    import csv

    from interp.errors import ResultError
    from interp.files import require_file

    require_file(path, "a CSV with the columns trace_key and trace_id", ResultError)
    with path.open(encoding="utf-8-sig", newline="") as handle:
        rows = list(csv.DictReader(handle))
    if not rows or not {"trace_key", "trace_id"} <= set(rows[0]):
        raise ResultError(
            f"{path} has no rows with trace_key and trace_id; expected what `interp tomas pilot` "
            f"or `interp mast inventory --out` writes."
        )
    return {(row["trace_key"], row["trace_id"]) for row in rows}


@tomas_app.command(
    "code", epilog="Example: interp tomas code traces.json --coder me --export sheet.csv"
)
def code(
    traces: _Traces,
    coder: Annotated[str, typer.Option("--coder", help="Name that the entries carry.")],
    log: Annotated[Path, typer.Option("--log", help="Log to go on with.")] = Path(
        "conversion_log.jsonl"
    ),
    split: _Split = "step1",
    side: Annotated[
        Literal["train", "hold_out"], typer.Option("--side", help="Which FC2-positive traces.")
    ] = "train",
    only: Annotated[
        Path | None,
        typer.Option("--only", help="CSV of traces (trace_key, trace_id) instead of a side."),
    ] = None,
    export: Annotated[
        Path | None, typer.Option("--export", help="Write a spreadsheet (CSV) and end.")
    ] = None,
    import_: Annotated[
        Path | None, typer.Option("--import", help="Take in a spreadsheet and end.")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="With --import: rows replace what the log has.")
    ] = False,
) -> None:
    """Code traces under the rubric, in the terminal or in a spreadsheet.

    Every decision is on the disk before the next trace is shown; the same command goes on where a
    session ended, however it ended. Quotes must occur in the trace.
    """
    from experiments.console import note, say
    from interp.conversion.log import ConversionLog
    from interp.conversion.session import run_session
    from interp.conversion.sheet import write_sheet

    if export is not None and import_ is not None:
        raise InterpError("--export and --import exclude each other; give one.")
    if not coder.strip():
        raise InterpError("--coder is empty; give a name, so that entries can be told apart.")
    with ConversionLog.opened(log) as opened:
        if export is not None:
            entries = {entry.key: entry for entry in opened.entries}
            n = write_sheet(export, _to_code(traces, split, side, only), entries)
            note(f"{n} traces written to {export}; fill in code to supporting_quote")
            return
        if import_ is not None:
            note(_import(import_, traces, opened, coder, replace=replace))
            return
        done = run_session(_to_code(traces, split, side, only), opened, coder, _ask, say)
        note(f"{done} traces coded; {log} has {len(opened.entries)} entries")


def _ask(prompt: str) -> str | None:
    """A line of input; the end of input and Ctrl-C both end the session in good order."""
    try:
        answer: str = typer.prompt(prompt, default="", show_default=False)
    except typer.Abort:
        return None
    return answer


def _import(sheet: Path, traces: Path, log: ConversionLog, coder: str, *, replace: bool) -> str:
    from interp.conversion.sheet import read_sheet
    from interp.mast import iterate_records

    entries = read_sheet(sheet, iterate_records(traces), coder)
    known = {entry.key: entry for entry in log.entries}
    new = [entry for entry in entries if entry.key not in known]
    changed = [e for e in entries if e.key in known and known[e.key] != e]
    if changed and not replace:
        raise InterpError(
            f"{sheet} codes {len(changed)} traces otherwise than the log does (first: "
            f"{changed[0].name}). With --replace the sheet's rows take their place."
        )
    if changed:
        log.replace([*changed, *new])
    elif new:
        log.append(new)
    return f"{len(new)} entries added, {len(changed)} replaced; the log has {len(log.entries)}"


@tomas_app.command(
    "pilot", epilog="Example: interp tomas pilot traces.json --n 18 --seed 42 --out pilot.csv"
)
def pilot(
    traces: _Traces,
    out: Annotated[Path, typer.Option("--out", help="CSV for --only of `interp tomas code`.")],
    n: Annotated[int, typer.Option("--n", min=1, help="Sample size.")] = 18,
    seed: SeedOption = 42,
    split: _Split = "step1",
    take: Annotated[
        list[str] | None,
        typer.Option(
            "--take",
            metavar="UNIT=N",
            help="Size of a stratum, instead of shares in proportion; repeat for each one.",
        ),
    ] = None,
) -> None:
    """Draw a seeded sample of FC2-positive train traces, stratified by unit of the split."""
    from experiments.console import note
    from interp.conversion.pilot import pilot_sample
    from interp.files import write_csv
    from interp.mast import read_split, take_inventory

    sizes: dict[str, int] = {}
    for pair in take or []:
        unit, _, count = pair.rpartition("=")
        if not unit or not count.isdecimal() or unit in sizes:
            raise InterpError(f"--take is {pair!r}; expected UNIT=N, each unit once.")
        sizes[unit] = int(count)
    entries = take_inventory(traces, read_split(split)).entries
    drawn = pilot_sample(entries, n, seed, sizes or None)
    if not drawn:
        raise InterpError("The sample is empty; --take must ask for at least one trace.")
    write_csv(
        out,
        [
            {
                "trace_key": entry.key[0],
                "trace_id": entry.key[1],
                "framework": entry.framework,
                "model": entry.model,
                "benchmark": entry.benchmark,
                "unit": entry.unit,
                "seed": seed,
            }
            for entry in drawn
        ],
    )
    note(f"{len(drawn)} traces drawn with seed {seed} written to {out}")


@tomas_app.command("accounting", epilog="Example: interp tomas accounting conversion_log.jsonl")
def accounting(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Conversion log.")],
    traces: Annotated[
        Path | None,
        typer.Option("--traces", help="MAD_full_dataset.json: check runs, models and quotes."),
    ] = None,
    expect: Annotated[
        Path | None,
        typer.Option("--expect", help="Stated table (CSV or JSON) that the log must add up to."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """The accounting table of a log: framework x model x code, sums checked."""
    from experiments.console import print_json
    from experiments.tomas_tables import print_accounting
    from interp.conversion import account, read_log
    from interp.conversion.accounting import compare_tables, read_table
    from interp.conversion.verify import require_traces
    from interp.mast import iterate_records

    entries = read_log(log)
    table = account(entries)
    if expect is not None:
        compare_tables(table, read_table(expect))
    if traces is not None:
        require_traces(entries, iterate_records(traces))
    if json:
        print_json(table.as_dict())
    else:
        print_accounting(table.as_dict())


@tomas_app.command(
    "agreement",
    epilog="Example: interp tomas agreement conversion_log.jsonl conversion_log.jsonl",
)
def agreement(
    first: Annotated[Path, typer.Argument(metavar="LOG_A", help="One coder's log.")],
    second: Annotated[Path, typer.Argument(metavar="LOG_B", help="The other's.")],
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Raw agreement and Cohen's kappa of two logs, with an interval and every disagreement."""
    from experiments.console import print_json
    from experiments.tomas_tables import print_agreement
    from interp.conversion import agree, read_log
    from interp.conversion.log import KEYS_AND_CODES

    logs = [read_log(path, KEYS_AND_CODES) for path in (first, second)]
    found = agree(*logs, seed=seed).as_dict()
    if json:
        print_json(found)
    else:
        print_agreement(found)


@tomas_app.command(
    "draft", epilog="Example: interp tomas draft clean.jsonl traces.json --out drafts.jsonl"
)
def draft(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="Conversion log.")],
    traces: _Traces,
    out: Annotated[Path, typer.Option("--out", help="JSONL file in the ToMAS schema.")],
    max_chars: Annotated[
        int, typer.Option("--max-chars", help="Longest prompt, in characters.")
    ] = 2000,
) -> None:
    """Draft an item for every clean trace: context, source and quote, no question and gold yet.

    An existing file is not overwritten: it may hold questions already.
    """
    from experiments.console import note
    from interp.conversion import read_log
    from interp.conversion.draft import draft_items
    from interp.mast import iterate_records
    from interp.sources.tomas import write_tomas

    if out.exists():
        raise InterpError(f"{out} exists and may hold questions; give another file, or remove it.")
    drafts = draft_items(read_log(log), iterate_records(traces), max_chars=max_chars)
    write_tomas(out, drafts)
    note(f"{len(drafts)} drafts written to {out}; write question and gold of each")


_Train = Annotated[Path, typer.Argument(metavar="TRAIN", help="ToMAS item file.")]


@tomas_app.command("check", epilog="Example: interp tomas check train.jsonl held_out.jsonl")
def check(
    train: _Train,
    held_out: Annotated[
        Path | None, typer.Argument(metavar="[HELD_OUT]", help="The other pool.")
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option("--traces", help="MAD_full_dataset.json: look for later turns, and quotes."),
    ] = None,
    near: Annotated[
        float, typer.Option("--near", help="Share of common 5-grams that makes a duplicate.")
    ] = 0.8,
    json: JsonOption = False,
) -> None:
    """Fail (exit code 3) if pools leak into each other, or a prompt says what it must not.

    Leaks: one source trace or nearly one text in both pools. Prompts must not hold a MAST label or,
    with --traces, a later turn of the trace. A gold in the prompt is noted.
    """
    from experiments.console import print_json
    from experiments.tomas_tables import print_faults
    from interp.mast import iterate_records
    from interp.sources.tomas import read_tomas
    from interp.sources.tomas.checks import find_leaks, label_faults, trace_faults

    pools = [read_tomas(path) for path in (train, held_out) if path is not None]
    items = [item for pool in pools for item in pool]
    faults = label_faults(items)
    if len(pools) == 2:
        faults += find_leaks(pools[0], pools[1], near=near)
    uncut: tuple[str, ...] | None = None
    if traces is not None:
        against = trace_faults(items, iterate_records(traces))
        faults += against.faults
        uncut = against.uncut
    rows = [
        {"kind": each.kind, "items": list(each.items), "detail": each.detail} for each in faults
    ]
    failing = [row for row in rows if row["kind"] != "gold_in_prompt"]
    found = {
        "n_items": [len(pool) for pool in pools],
        "faults": failing,
        "notes": [row for row in rows if row not in failing],
        "later_turns_checked": uncut is not None,
        "items_without_cut": list(uncut or ()),
    }
    if json:
        print_json(found)
    else:
        print_faults(found)
    if failing:
        raise typer.Exit(3)


@tomas_app.command(
    "provenance", epilog="Example: interp tomas provenance train.jsonl held_out.jsonl"
)
def provenance(
    train: _Train,
    held_out: Annotated[Path, typer.Argument(metavar="HELDOUT", help="ToMAS item file.")],
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """The source mix of two pools, and how well wording tells them apart."""
    from experiments.console import print_json
    from experiments.tomas_tables import print_provenance
    from interp.sources.tomas import read_tomas
    from interp.sources.tomas.provenance import provenance as compare

    found = compare(read_tomas(train), read_tomas(held_out), seed=seed).as_dict()
    if json:
        print_json(found)
    else:
        print_provenance(found)


@tomas_app.command("rewards", epilog="Example: interp tomas rewards trainer_state.json")
def rewards(
    log: Annotated[
        Path,
        typer.Argument(
            metavar="LOG", help="trainer_state.json, trl's log (JSONL), or single completions."
        ),
    ],
    json: JsonOption = False,
) -> None:
    """Reward by step, groups without variance, and the learning-rate sum of a GRPO run."""
    from experiments.console import print_json
    from experiments.tomas_tables import print_rewards
    from interp.reward_log import read_reward_log

    found = read_reward_log(log).as_dict()
    if json:
        print_json(found)
    else:
        print_rewards(found)
