"""`interp extract` and `interp answer`: items through a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from experiments.options import (
    AdapterOption,
    BatchOption,
    CompressionOption,
    DeviceMapOption,
    DeviceOption,
    DtypeOption,
    EngineOption,
    JsonOption,
    LibraryOption,
    LockingOption,
    MapOption,
    ModelOption,
    NumberOption,
    QuantizationOption,
    SeedOption,
    SharingOption,
    SourceOption,
    TemplateOption,
    TokenOption,
    ViewOption,
    WorkersOption,
    open_items,
    template_args,
)
from interp.errors import InterpError
from interp.prompts import THINKING_ARGUMENT
from interp.vocabulary import ANSWER_CONDITIONS, Reasoning, Store

if TYPE_CHECKING:
    from activations import ActivationCache, HFBackend, ModelSpec
    from activations.cluster import Job
    from interp.items import Item

__all__ = ["answer", "extract", "running"]


@contextmanager
def running(spec: ModelSpec, adapter: Path | None) -> Iterator[HFBackend]:
    """A loaded model in the library that was asked for, with an adapter if one is given."""
    from activations.running import running as run

    with run(spec, adapter) as backend:
        yield backend


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
    backend: LibraryOption = "hf",
    device: DeviceOption = "auto",
    attn: Annotated[
        str | None, typer.Option("--attn", help="eager or sdpa; default: the model's own.")
    ] = None,
    batch_tokens: BatchOption = 2048,
    prefix_sharing: SharingOption = True,
    template_arg: TemplateOption = None,
    adapter: AdapterOption = None,
    device_map: DeviceMapOption = None,
    quantization: QuantizationOption = None,
    compression: CompressionOption = "none",
    file_locking: LockingOption = True,
    engine: EngineOption = "local",
    workers: WorkersOption = 1,
) -> None:
    """Run items through a model and keep residual streams in a cache file.

    A run that was stopped goes on where it was; a finished file is not computed again.
    """
    from activations import ModelSpec, describe_source
    from activations.cluster import Job, extract_on_ray
    from experiments.console import note, progress
    from experiments.tables import self_check_sentence, sharing_sentence

    opened, found = open_items(source, view, n, seed, map_)
    spec = ModelSpec.parse(
        model,
        dtype=dtype,
        device=device,
        attn=attn,
        template_args=template_args(template_arg),
        library=backend,
        device_map=device_map,
        quantization=quantization,
    )
    job = Job(
        spec,
        adapter,
        describe_source(opened, found, view=view, seed=seed),
        token_rule=token,
        store=store,
        batch_tokens=batch_tokens,
        prefix_sharing=prefix_sharing,
        file_locking=file_locking,
        compression=compression,
    )
    # A finished file is only compared with this run, which needs no cluster.
    if engine == "ray" and not out.exists():
        note(
            f"{workers} workers run {spec.model_id} ({dtype}); {len(found)} items of {opened.name}"
        )
        with progress("activations", len(found)) as advance:
            cache = extract_on_ray(job, found, out, workers=workers, progress=advance)
    else:
        cache = _extract_here(job, found, out, opened.name)
    with cache:
        note(sharing_sentence(cache.prefix_sharing))
        note(
            f"{out}: {cache.n_items} items; "
            + self_check_sentence(
                cache.self_check_max_relative or 0.0,
                cache.manifest["model"]["dtype"],
                cache.manifest["store"],
            )
        )


def _extract_here(
    job: Job, items: tuple[Item, ...], out: Path, source_name: str
) -> ActivationCache:
    from activations.cluster import extract_job
    from experiments.console import note, progress
    from experiments.tables import verdict_note

    spec = job.spec
    note(f"Loading {spec.model_id} ({spec.dtype}); {len(items)} items of {source_name}")
    with running(spec, job.adapter) as backend:
        n_bytes = 4 if job.store == "float32" else 2
        size = len(items) * backend.n_layers * backend.d_model * n_bytes / 2**20
        note(f"{backend.n_layers} layers × d_model {backend.d_model}: a file of {size:.1f} MiB")
        note(verdict_note(backend, items))
        with progress("activations", len(items)) as advance:
            return extract_job(job, backend, items, out, progress=advance)


def answer(
    source: SourceOption,
    out: Annotated[Path, typer.Option("--out", help="Answer file (JSONL).")],
    model: ModelOption = "smollm2",
    n: NumberOption = None,
    seed: SeedOption = 0,
    view: ViewOption = None,
    map_: MapOption = None,
    condition: Annotated[
        Literal["both", "forced", "greedy"] | None,
        typer.Option("--condition", help="How to read the answer; default: both."),
    ] = None,
    cot: Annotated[
        bool | None,
        typer.Option(
            "--cot/--no-cot",
            help="Ask to reason step by step first, or to answer at once; default: as the source "
            "words it. --cot generates only, unless --condition says otherwise.",
        ),
    ] = None,
    thinking: Annotated[
        bool | None,
        typer.Option(
            "--thinking/--no-thinking",
            help="Turn the trained reasoning mode on or off (enable_thinking of the chat "
            "template); default: as the template has it.",
        ),
    ] = None,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            min=1,
            help="Cut of greedy answers; default: 48, with --cot 768, with --thinking 4096.",
        ),
    ] = None,
    dtype: DtypeOption = "float32",
    device: DeviceOption = "auto",
    batch_tokens: BatchOption = 2048,
    prefix_sharing: SharingOption = True,
    template_arg: TemplateOption = None,
    adapter: AdapterOption = None,
    json: JsonOption = False,
) -> None:
    """Ask the model: forced choice by logits, and greedy generation with the answer parser."""
    from activations import ModelSpec, describe_source
    from activations import answer as run_answer
    from activations.answers import default_new_tokens
    from experiments.console import note, print_json, progress
    from experiments.tables import answer_rows, print_answers, verdict_note

    arguments = template_args(template_arg)
    if thinking is not None:
        if THINKING_ARGUMENT in arguments:
            raise InterpError(f"--thinking and --template-arg {THINKING_ARGUMENT} are one thing.")
        arguments[THINKING_ARGUMENT] = thinking
    reasoning: Reasoning = "base" if cot is None else "cot" if cot else "no_cot"
    reasons = cot or bool(arguments.get(THINKING_ARGUMENT))
    # A verdict before the reasoning is not the answer that was asked for.
    condition = condition or ("greedy" if reasons else "both")
    conditions = ANSWER_CONDITIONS if condition == "both" else (condition,)
    opened, found = open_items(source, view, n, seed, map_)
    spec = ModelSpec.parse(model, dtype=dtype, device=device, template_args=arguments)
    note(f"Loading {spec.model_id} ({dtype}); {len(found)} items of {opened.name}")
    with running(spec, adapter) as backend:
        note(verdict_note(backend, found))
        with progress("answers", len(found) * len(conditions)) as advance:
            answers = run_answer(
                backend,
                found,
                out,
                source=describe_source(opened, found, view=view, seed=seed),
                conditions=conditions,
                reasoning=reasoning,
                max_new_tokens=max_new_tokens
                or default_new_tokens(reasoning, thinking=bool(arguments.get(THINKING_ARGUMENT))),
                batch_tokens=batch_tokens,
                prefix_sharing=prefix_sharing,
                progress=advance,
            )
    rows = answer_rows(found, answers)
    if json:
        print_json(rows)
    else:
        print_answers(rows)
        note(f"Written to {out}")
