"""The `interp` command. Nothing heavy is imported before a command runs."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from experiments.cli_adapters import adapters_app
from experiments.cli_behave import behave_app
from experiments.cli_cache import cache_app, drift
from experiments.cli_probe import direction, probe, probe_compare
from experiments.cli_run import demo, run_app
from experiments.options import (
    AbilitiesOption,
    AlphasOption,
    BatchOption,
    CacheArgument,
    DeviceOption,
    DtypeOption,
    ExamOption,
    InjectOption,
    JsonOption,
    MapOption,
    ModelOption,
    NewTokensOption,
    NumberOption,
    OutFolder,
    PaperOption,
    RandomOption,
    SeedOption,
    SharingOption,
    SourceOption,
    TemplateOption,
    TokenOption,
    ViewOption,
    layer_numbers,
    numbers,
    open_items,
    read_probe_of,
    source_options,
    template_args,
)
from interp.errors import InterpError
from interp.vocabulary import ANSWER_CONDITIONS, Store

__all__ = ["app"]


class _Commands(TyperGroup):
    """Turns a user's mistake into one paragraph on standard error and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except InterpError as error:
            typer.echo(f"Error: {error}", err=True)
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
app.add_typer(behave_app, name="behave")
app.add_typer(cache_app, name="cache")
app.add_typer(run_app, name="run")
app.command("demo", epilog="Example: interp demo")(demo)
app.command("drift", epilog="Example: interp drift facts.h5 same.h5")(drift)
app.command("probe", epilog="Example: interp probe facts.h5 --out probe")(probe)
app.command("probe-compare", epilog="Example: interp probe-compare probe probe")(probe_compare)
app.command(
    "direction", epilog="Example: interp direction facts.h5 --layer 15 --out direction.npz"
)(direction)


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
    from interp.items import item_to_record, write_items

    source = source_options(
        source,
        inject_truth=inject_truth,
        abilities=abilities,
        rules_exam=rules_exam,
        expect_paper=expect_paper,
    )
    opened, found = open_items(source, view, n, seed, map_)
    if out is None:
        for item in found:
            typer.echo(dumps(item_to_record(item), ensure_ascii=False))
        return
    write_items(out, found)
    groups = len({item.group_id for item in found})
    note(f"{len(found)} items of {opened.name} in {groups} groups written to {out}")


@app.command(epilog="Example: interp extract --source facts:elements --n 40 --out facts.h5")
def extract(
    source: SourceOption,
    out: Annotated[Path, typer.Option("--out", help="Cache file (HDF5).")],
    model: ModelOption = "smollm2",
    n: NumberOption = None,
    seed: SeedOption = 0,
    view: ViewOption = None,
    map_: MapOption = None,
    token: TokenOption = "last_prompt",
    dtype: DtypeOption = "float32",
    store: Annotated[Store, typer.Option("--store", help="Number type in the file.")] = "float32",
    device: DeviceOption = "auto",
    attn: Annotated[
        str | None, typer.Option("--attn", help="eager or sdpa; default: the model's own.")
    ] = None,
    batch_tokens: BatchOption = 2048,
    prefix_sharing: SharingOption = True,
    template_arg: TemplateOption = None,
) -> None:
    """Run items through a model and keep residual streams in a cache file.

    A run that was stopped goes on where it was; a finished file is not computed again.
    """
    from activations import ModelSpec, describe_source, load_backend
    from activations import extract as run_extract
    from experiments.console import note, progress
    from experiments.tables import sharing_sentence, verdict_note

    opened, found = open_items(source, view, n, seed, map_)
    spec = ModelSpec.parse(
        model,
        dtype=dtype,
        device=device,
        attn=attn,
        template_args=template_args(template_arg),
    )
    note(f"Loading {spec.model_id} ({dtype}); {len(found)} items of {opened.name}")
    backend = load_backend(spec)
    size = (
        len(found) * backend.n_layers * backend.d_model * (4 if store == "float32" else 2) / 2**20
    )
    note(f"{backend.n_layers} layers × d_model {backend.d_model}: a file of {size:.1f} MiB")
    note(verdict_note(backend, found))
    with progress("activations", len(found)) as advance:
        cache = run_extract(
            backend,
            found,
            out,
            source=describe_source(opened, found, view=view, seed=seed),
            token_rule=token,
            store=store,
            batch_tokens=batch_tokens,
            prefix_sharing=prefix_sharing,
            progress=advance,
        )
    with cache:
        note(sharing_sentence(cache.prefix_sharing))
        note(
            f"{out}: {cache.n_items} items, self-check: largest relative difference of rerun items "
            f"{cache.self_check_max_relative:.2g}"
        )


@app.command(epilog="Example: interp steer facts.h5 --probe probe --model smollm2 --out steer")
def steer(
    file: CacheArgument,
    probe: Annotated[Path, typer.Option("--probe", help="Probe folder made from the same file.")],
    out: OutFolder,
    model: ModelOption = "smollm2",
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers",
            help="Fixed layers, comma-separated, the first one is quoted; default: nested.",
        ),
    ] = None,
    alphas: AlphasOption = "1",
    random_directions: RandomOption = 5,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    batch_tokens: BatchOption = 2048,
    json: JsonOption = False,
) -> None:
    """Steer the model towards what the probe reads, with controls, and read its forced choice."""
    from activations import ActivationCache, ModelSpec, load_backend
    from experiments.console import note, print_json, progress
    from experiments.expression_gap import signed_items
    from experiments.tables import print_steering
    from steering import sweep_steering, write_steering

    sizes = numbers(alphas, "--alphas")
    fixed = None if layers is None else layer_numbers(layers)
    with ActivationCache.open(file) as cache:
        sweep = read_probe_of(cache, probe)
        manifest = cache.manifest["model"]
        spec = ModelSpec.parse(
            model,
            dtype=manifest["dtype"],
            device=device,
            attn=manifest["attn_implementation"],
            template_args=manifest.get("template_args"),
        )
        note(f"Loading {spec.model_id} ({spec.dtype})")
        backend = load_backend(spec)
        with progress("steering", cache.n_items) as advance:
            steered = sweep_steering(
                cache,
                signed_items(sweep),
                backend,
                alphas=sizes,
                layers=fixed,
                n_random=random_directions,
                seed=seed,
                batch_tokens=batch_tokens,
                progress=advance,
            )
    summary = write_steering(out, steered)
    if json:
        print_json(summary)
    else:
        print_steering(summary)
        note(f"Written to {out}")


@app.command(epilog="Example: interp answer --source facts:elements --n 40 --out answers.jsonl")
def answer(
    source: SourceOption,
    out: Annotated[Path, typer.Option("--out", help="Answer file (JSONL).")],
    model: ModelOption = "smollm2",
    n: NumberOption = None,
    seed: SeedOption = 0,
    view: ViewOption = None,
    map_: MapOption = None,
    condition: Annotated[
        Literal["both", "forced", "greedy"], typer.Option("--condition", help="How to ask.")
    ] = "both",
    max_new_tokens: NewTokensOption = 48,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "auto",
    batch_tokens: BatchOption = 2048,
    template_arg: TemplateOption = None,
    json: JsonOption = False,
) -> None:
    """Ask the model: forced choice by logits, and greedy generation with the answer parser."""
    from activations import ModelSpec, describe_source, load_backend
    from activations import answer as run_answer
    from experiments.console import note, print_json, progress
    from experiments.tables import answer_rows, print_answers, verdict_note

    conditions = ANSWER_CONDITIONS if condition == "both" else (condition,)
    opened, found = open_items(source, view, n, seed, map_)
    arguments = template_args(template_arg)
    spec = ModelSpec.parse(model, dtype=dtype, device=device, template_args=arguments)
    note(f"Loading {spec.model_id} ({dtype}); {len(found)} items of {opened.name}")
    backend = load_backend(spec)
    note(verdict_note(backend, found))
    with progress("answers", len(found) * len(conditions)) as advance:
        answers = run_answer(
            backend,
            found,
            out,
            source=describe_source(opened, found, view=view, seed=seed),
            conditions=conditions,
            max_new_tokens=max_new_tokens,
            batch_tokens=batch_tokens,
            progress=advance,
        )
    rows = answer_rows(found, answers)
    if json:
        print_json(rows)
    else:
        print_answers(rows)
        note(f"Written to {out}")
