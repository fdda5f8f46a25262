"""`interp adapters`: did a training run change the model at all?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.options import (
    BatchOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    MapOption,
    NewTokensOption,
    NumberOption,
    SeedOption,
    SourceOption,
    ViewOption,
    open_items,
)
from interp.adapters.thresholds import DEFAULT_FAIL_ON, VERDICTS
from interp.errors import AdapterError, did_you_mean

__all__ = ["adapters_app"]

BaseOption = Annotated[
    str,
    typer.Option("--base", help="Base model: alias, Hub id, folder, or gguf:PATH."),
]

adapters_app = typer.Typer(
    help="Audit adapters from their files, or compare what they do.", no_args_is_help=True
)


@adapters_app.command(
    "audit", epilog="Example: interp adapters audit runs/grpo --base models/qwen --out audit"
)
def audit(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH…", help="Adapter folder, checkpoint-N, run folder, or a folder of runs."
        ),
    ],
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="MODEL",
            help="Base model, for relative figures: alias, folder, gguf:PATH, or the id of a model "
            "in the local Hugging Face cache.",
        ),
    ] = None,
    initial: Annotated[
        Path | None,
        typer.Option("--initial", help="The adapter before training (PiSSA, OLoRA and others)."),
    ] = None,
    fail_on: Annotated[
        str,
        typer.Option("--fail-on", help="Verdicts that give exit code 3, comma-separated, or none."),
    ] = ",".join(DEFAULT_FAIL_ON),
    direction: Annotated[
        Path | None,
        typer.Option(
            "--direction",
            help="A probe's direction (.npz, see `interp direction`): how much of the change "
            "writes along it.",
        ),
    ] = None,
    json: JsonOption = False,
    out: Annotated[
        Path | None, typer.Option("--out", help="Folder for JSON, CSV and figures.")
    ] = None,
    device: Annotated[
        str, typer.Option("--device", help="Where the arithmetic runs; auto takes a GPU.")
    ] = "cpu",
) -> None:
    """Say whether training changed the model, and if not, why. No model is built.

    Exit code 3 if a verdict is in --fail-on (of a run's checkpoints the last one counts), 2 if a
    path holds no adapter.
    """
    failing = _verdicts(fail_on)
    from experiments.adapter_tables import print_audit, print_overview, print_runs
    from experiments.console import note, print_json
    from interp.adapters.runs import audit_runs
    from interp.adapters.writing import audit_to_json, write_audits
    from interp.direction import read_direction
    from interp.files import require_writable

    if out is not None:
        require_writable(out, folder=True)
    read = None if direction is None else read_direction(direction)
    folder = None if base is None else _base_path(base)
    runs = audit_runs(
        paths,
        base=folder,
        initial=initial,
        direction=read,
        device=device,
        started=lambda run: note(f"Auditing {run}"),
    )
    audits = [found for run in runs for found in run.audits]
    if json:
        print_json([audit_to_json(found) for found in audits])
    else:
        for found in audits:
            print_audit(found)
        if len(audits) > 1:
            print_overview(audits)
        print_runs(runs)
    if out is not None:
        from figures.adapters import draw_adapters

        write_audits(out, audits)
        draw_adapters(out)
        note(f"Written to {out}")
    # Early checkpoints may well be untrained.
    if any(found.verdict in failing for run in runs for found in run.final):
        raise typer.Exit(3)


def _base_path(model: str) -> Path:
    """Where a base's weights lie: a folder, a GGUF file, or the local Hugging Face cache.

    Aliases and `gguf:PATH` are those of `--model`. Nothing is downloaded.
    """
    from activations.spec import ALIASES, ModelSpec

    if model in ALIASES or model.startswith("gguf:"):
        return Path(ModelSpec.parse(model).location)
    if Path(model).exists():
        return Path(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        name, _, revision = model.partition("@")
        return Path(snapshot_download(name, revision=revision or None, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError) as error:
        raise AdapterError(
            f"--base {model} is neither an alias, gguf:PATH, a folder nor a model in the local "
            f"Hugging Face cache. Download it (hf download {model}) or give the folder of its "
            f"weights. {did_you_mean(model, ALIASES)}"
        ) from error


def _verdicts(text: str) -> frozenset[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["none"]:
        return frozenset()
    for name in names:
        if name not in VERDICTS:
            raise AdapterError(
                f"--fail-on names {name!r}, which is no verdict. {did_you_mean(name, VERDICTS)}"
            )
    return frozenset(names)


@adapters_app.command(
    "compare",
    epilog="Example: interp adapters compare runs/grpo --base models/qwen --n 20 --out compared",
)
def compare(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH…",
            help="Adapter folders, checkpoints, or runs (the last adapter of each).",
        ),
    ],
    base: BaseOption = "smollm2",
    source: SourceOption = "facts",
    n: NumberOption = None,
    seed: SeedOption = 0,
    view: ViewOption = None,
    map_: MapOption = None,
    max_new_tokens: NewTokensOption = 48,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "auto",
    batch_tokens: BatchOption = 2048,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder to write to; default: runs/<utc>-adapters-compare."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Run base and adapted model on the same items: what does the adapter change?

    In bfloat16 rounding alone gives a KL of about 2e-3 and changes some greedy answers; compare in
    float32.
    """
    from dataclasses import asdict

    from activations import ModelSpec, describe_source, load_backend
    from experiments.adapter_tables import print_comparisons
    from experiments.compare import compare_adapters, verdict
    from experiments.console import note, print_json, progress, say
    from interp.files import require_writable, write_json
    from interp.records import run_folder

    folders = [last for path in paths for last in _last_adapters(path)]
    folder = require_writable(out or run_folder("adapters-compare"), folder=True)
    opened, found = open_items(source, view, n, seed, map_)
    spec = ModelSpec.parse(base, dtype=dtype, device=device)
    note(f"Loading {spec.model_id} ({dtype}); {len(found)} items of {opened.name}")
    backend = load_backend(spec)
    with progress("base and adapted", 1 + len(folders)) as advance:
        results = compare_adapters(
            backend,
            folders,
            found,
            folder,
            source=describe_source(opened, found, view=view, seed=seed),
            max_new_tokens=max_new_tokens,
            batch_tokens=batch_tokens,
            seed=seed,
            progress=advance,
        )
    rows = [asdict(result) | {"verdict": verdict(result)} for result in results]
    write_json(folder / "compare.json", {"comparisons": rows})
    if json:
        print_json(rows)
        return
    print_comparisons(results)
    for result in results:
        say(f"{result.path}: {verdict(result)}")
    note(f"Written to {folder}")


def _last_adapters(path: Path) -> list[Path]:
    """The adapters that a path stands for: the last one of each run; said if there are more."""
    from experiments.console import note
    from interp.adapters.locate import find_adapters, find_runs

    last = []
    for run in find_runs(path):
        found = find_adapters(run)
        if len(found) > 1:
            note(f"{run} holds {len(found)} adapters; comparing the last one, {found[-1].path}")
        last.append(found[-1].path)
    return last
