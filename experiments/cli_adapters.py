"""`interp adapters`: did a training run change the model at all?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from experiments.options import (
    BatchOption,
    DeviceOption,
    DtypeOption,
    JsonOption,
    MapOption,
    NewTokensOption,
    NumberOption,
    OutFolder,
    SeedOption,
    SourceOption,
    ViewOption,
    open_items,
)
from interp.adapters.thresholds import DEFAULT_FAIL_ON, VERDICTS
from interp.errors import AdapterError, did_you_mean

if TYPE_CHECKING:
    from experiments.compare import Comparison
    from interp.adapters.results import AdapterAudit

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
        typer.Argument(metavar="PATH…", help="Adapter folder, checkpoint-N, or run folder."),
    ],
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="MODEL",
            help="Base model, for relative figures: a folder, or the id of a model in the local "
            "Hugging Face cache.",
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
    from experiments.console import note, print_json
    from interp.adapters.audit import audit_path
    from interp.adapters.results import audit_to_json, write_audits

    folder = None if base is None else _base_folder(base)
    audits: list[AdapterAudit] = []
    final: list[AdapterAudit] = []
    for path in paths:
        note(f"Auditing {path}")
        run = audit_path(path, base=folder, initial=initial, device=device)
        audits += run
        # Early checkpoints may well be untrained. A folder may hold several named adapters.
        final += [found for found in run if found.step == run[-1].step]
    if json:
        print_json([audit_to_json(found) for found in audits])
    else:
        for found in audits:
            _print(found)
        if len(audits) > 1:
            _print_overview(audits)
        if len(paths) > 1:
            _print_pairs(paths)
    if out is not None:
        from figures.adapters import draw_adapters

        write_audits(out, audits)
        draw_adapters(out)
        note(f"Written to {out}")
    if any(found.verdict in failing for found in final):
        raise typer.Exit(3)


def _base_folder(model: str) -> Path:
    """A folder as it is, or where the local Hugging Face cache keeps a model; no download."""
    if Path(model).exists():
        return Path(model)
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        name, _, revision = model.partition("@")
        return Path(snapshot_download(name, revision=revision or None, local_files_only=True))
    except (HFValidationError, LocalEntryNotFoundError) as error:
        raise AdapterError(
            f"--base {model} is neither a folder nor a model in the local Hugging Face cache. "
            f"Download it (hf download {model}) or give the folder of its weights."
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


def _print(audit: AdapterAudit) -> None:
    from experiments.console import print_table, say

    by_projection: dict[str, list[int]] = {}
    for place, module in enumerate(audit.modules):
        by_projection.setdefault(f"{module.projection} ({module.kind})", []).append(place)
    rows = []
    for name, places in by_projection.items():
        modules = [audit.modules[place] for place in places]
        rows.append(
            (
                name,
                len(modules),
                _most([m.rank for m in modules]),
                _most([m.a_norm for m in modules]),
                _most([m.max_abs_b for m in modules]),
                _most([m.max_abs_delta for m in modules]),
                _most([m.frobenius for m in modules]),
                _most([m.spectral for m in modules]),
                _most([m.stable_rank for m in modules]),
                _most([m.relative for m in modules]),
            )
        )
    columns = (
        "projection", "n", "rank", "‖A‖", "max|B|", "max|ΔW|", "‖ΔW‖_F", "‖ΔW‖₂", "stable rank", "ρ"
    )  # fmt: skip
    # Without a base, and for methods without factors, some columns are empty.
    filled = [i for i in range(len(columns)) if any(row[i] != "" for row in rows)]
    if rows:
        print_table(
            str(audit.path),
            [columns[i] for i in filled],
            [[row[i] for i in filled] for row in rows],
            caption="largest over the layers",
        )
    totals = audit.totals
    figures = {
        "‖A‖": totals.a_norm,
        "‖B‖": totals.b_norm,
        "max|B|": totals.max_abs_b,
        "max|ΔW|": totals.max_abs_delta,
        "‖ΔW‖_F": totals.frobenius,
        "ρ": totals.relative,
        "changed by a bf16 merge": totals.bf16_changed,
    }
    known = {name: value for name, value in figures.items() if value is not None}
    if known:
        say("In total: " + ", ".join(f"{name} {value:.4g}" for name, value in known.items()))
    if audit.budget:
        budget = audit.budget
        bound = budget["adam_bound"]
        say(
            f"Budget: {budget['n_steps']} steps, Σlr {budget['lr_sum']:.3g}, √Σlr² "
            f"{budget['lr_root_square']:.3g}, AdamW bound "
            f"{'none' if bound is None else format(bound, '.3g')}, kappa "
            f"{'none' if budget['kappa'] is None else format(budget['kappa'], '.3g')}"
        )
    if audit.findings:
        print_table(
            "Findings",
            ("severity", "code", "what", "remedy"),
            [(f.severity, f.code, f.message, f.remedy) for f in audit.findings],
        )
    say(f"{audit.verdict.upper()}: {audit.summary}")


def _print_overview(audits: list[AdapterAudit]) -> None:
    from experiments.console import print_table

    rows = [
        (
            a.path,
            a.verdict,
            _most([a.totals.max_abs_delta]),
            _most([a.totals.frobenius]),
            _most([a.totals.relative]),
        )
        for a in audits
    ]
    print_table("All adapters", ("path", "verdict", "max|ΔW|", "‖ΔW‖_F", "ρ"), rows)


def _print_pairs(paths: list[Path]) -> None:
    """What the last adapters of several runs have in common, where that can be asked."""
    from itertools import combinations
    from statistics import median

    from experiments.console import note, print_table
    from interp.adapters.pairs import compare_runs

    rows = []
    for first, second in combinations(paths, 2):
        try:
            found = compare_runs(first, second)
        except AdapterError as error:
            note(f"Not compared: {error}")
            continue
        cosines = [pair.cosine for pair in found if pair.cosine is not None]
        aligned = [pair.left_alignment for pair in found if pair.left_alignment is not None]
        if cosines and aligned:
            rows.append(
                (
                    first,
                    second,
                    len(found),
                    f"{median(cosines):+.3f}",
                    f"{median(aligned):.3f}",
                    f"{median(pair.chance for pair in found):.3f}",
                )
            )
    columns = ("run", "other run", "n", "cos(ΔW)", "|cos| of top left vectors", "chance")
    if rows:
        print_table("Runs side by side", columns, rows, caption="medians over the parameters")


def _most(values: list[float | None] | list[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known):.3g}" if known else ""


@adapters_app.command(
    "compare",
    epilog="Example: interp adapters compare runs/grpo --base models/qwen --n 20 --out compared",
)
def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH…", help="PEFT adapter folders.")],
    out: OutFolder,
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
    json: JsonOption = False,
) -> None:
    """Run base and adapted model on the same items: what does the adapter change?

    In bfloat16 rounding alone gives a KL of about 2e-3 and changes some greedy answers; compare in
    float32.
    """
    from dataclasses import asdict

    from activations import ModelSpec, describe_source, load_backend
    from experiments.compare import compare_adapters, verdict
    from experiments.console import note, print_json, progress, say
    from interp.files import write_json

    opened, found = open_items(source, view, n, seed, map_)
    spec = ModelSpec.parse(base, dtype=dtype, device=device)
    note(f"Loading {spec.model_id} ({dtype}); {len(found)} items of {opened.name}")
    backend = load_backend(spec)
    with progress("base and adapted", 1 + len(paths)) as advance:
        results = compare_adapters(
            backend,
            paths,
            found,
            out,
            source=describe_source(opened, found, view=view, seed=seed),
            max_new_tokens=max_new_tokens,
            batch_tokens=batch_tokens,
            seed=seed,
            progress=advance,
        )
    rows = [asdict(result) | {"verdict": verdict(result)} for result in results]
    write_json(out / "compare.json", {"comparisons": rows})
    if json:
        print_json(rows)
        return
    _print_comparisons(results)
    for result in results:
        say(f"{result.path}: {verdict(result)}")


def _print_comparisons(results: list[Comparison]) -> None:
    from experiments.console import print_table

    print_table(
        f"Adapted models beside their base, {results[0].n_items} items",
        (
            "adapter",
            "KL mean",
            "KL max",
            "argmax flips",
            "same greedy",
            "forced",
            "greedy",
            "drift",
        ),
        [
            (
                result.path,
                f"{result.kl_mean:.2e}",
                f"{result.kl_max:.2e}",
                str(result.argmax_flips),
                f"{result.identical_greedy:.1%}",
                f"{result.forced_before:.1%} → {result.forced_after:.1%}",
                f"{result.greedy_before:.1%} → {result.greedy_after:.1%}",
                f"{max(row.relative_change for row in result.drift):.2e}",
            )
            for result in results
        ],
        caption="drift: largest relative change of a layer's residual stream, mean over items. In "
        "bfloat16 rounding alone gives a KL of about 2e-3.",
    )
