"""`interp extract` and `interp answer`: items through a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from experiments.options import (
    AdapterOption,
    AdaptersOption,
    BatchOption,
    CheckpointsOption,
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
from interp.errors import AdapterError, InterpError
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
    out: Annotated[
        Path, typer.Option("--out", help="Cache file (HDF5); for several models, a folder.")
    ],
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
    adapter: AdaptersOption = None,
    checkpoints: CheckpointsOption = False,
    device_map: DeviceMapOption = None,
    quantization: QuantizationOption = None,
    compression: CompressionOption = "none",
    file_locking: LockingOption = True,
    engine: EngineOption = "local",
    workers: WorkersOption = 1,
    json: JsonOption = False,
) -> None:
    """Run items through a model and keep residual streams in a cache file.

    A run that was stopped goes on where it was; a finished file is not computed again. With several
    --adapter, or with --checkpoints, the base and each adapter are run on the same items in the
    same order: --out is a folder of comparable files.
    """
    from activations import ModelSpec, describe_source
    from activations.cluster import Job, extract_on_ray
    from experiments.console import note, print_json, progress
    from experiments.extracted import describe_caches, print_extracted
    from experiments.tables import self_check_sentence, sharing_sentence
    from interp.files import require_writable

    adapters = _adapters(adapter or [], checkpoints=checkpoints)
    several = checkpoints or len(adapters) > 1
    if not out.exists():
        require_writable(out, folder=several)
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
        None if several else next(iter(adapters), None),
        describe_source(opened, found, view=view, seed=seed),
        token_rule=token,
        store=store,
        batch_tokens=batch_tokens,
        prefix_sharing=prefix_sharing,
        file_locking=file_locking,
        compression=compression,
    )
    on_ray = workers if engine == "ray" else None
    if several:
        paths = _extract_each(job, adapters, found, out, opened.name, on_ray)
        rows = describe_caches(paths, [None, *adapters], file_locking=file_locking)
        worst = max(rows, key=lambda row: row.self_check_max_relative)
        said = self_check_sentence(worst.self_check_max_relative, dtype, store)
        note(f"{worst.file}: {said}")
        if json:
            print_json([asdict(row) for row in rows])
        else:
            print_extracted(rows)
            note(f"Layer by layer: interp drift {paths[0]} {paths[-1]}")
        return
    # A finished file is only compared with this run, which needs no cluster.
    if on_ray is not None and not out.exists():
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
    if json:
        described = describe_caches([out], [job.adapter], file_locking=file_locking)
        print_json([asdict(row) for row in described])


def _adapters(paths: Sequence[Path], *, checkpoints: bool) -> list[Path]:
    """The adapter folders that `--adapter` stands for.

    Raises:
        AdapterError: a path holds none, or several without --checkpoints.
    """
    from interp.adapters.locate import checkpoints as list_checkpoints
    from interp.adapters.locate import find_adapters, find_runs

    if not checkpoints:
        for path in paths:
            if path.is_dir() and not (path / "adapter_config.json").is_file():
                found = [each.path.name for each in find_adapters(path)]
                raise AdapterError(
                    f"{path} is no adapter, but holds {len(found)} (first: {found[0]}). Give one "
                    f"of them, or add --checkpoints to run the base and all of them."
                )
        return list(paths)
    if not paths:
        raise AdapterError(
            "--checkpoints needs the run's folder. Give it as --adapter, for example --adapter "
            "runs/grpo."
        )
    adapters: list[Path] = []
    for run in [run for path in paths for run in find_runs(path)]:
        own = [each.path for each in find_adapters(run)]
        for _, step in list_checkpoints(run) if run.is_dir() else ():
            if not any(path.is_relative_to(step) for path in own):
                raise AdapterError(
                    f"{step} holds no adapter, so it cannot be run with the others. Remove it, or "
                    f"give the adapters one by one; a full model is run by itself, as --model."
                )
        adapters += own
    return adapters


def _extract_each(
    job: Job,
    adapters: Sequence[Path],
    items: tuple[Item, ...],
    out: Path,
    source_name: str,
    workers: int | None,
) -> tuple[Path, ...]:
    from activations.checkpoints import cache_paths, extract_each
    from experiments.console import note, progress

    spec = job.spec
    paths = cache_paths(out, adapters)
    note(
        f"Loading {spec.model_id} ({spec.dtype}); {len(items)} items of {source_name}; the base "
        f"and its adapters give {len(paths)} files in {out}"
    )

    @contextmanager
    def watch(path: Path, backend: HFBackend | None) -> Iterator[Callable[[int], None]]:
        if path == paths[0] and backend is not None:
            _say_size(job, backend, items)
        with progress(path.stem, len(items)) as advance:
            yield advance

    return extract_each(job, adapters, items, out, workers=workers, watch=watch)


def _say_size(job: Job, backend: HFBackend, items: tuple[Item, ...]) -> None:
    """How large a file will be, and where the forced choice is read."""
    from experiments.console import note
    from experiments.tables import verdict_note

    n_bytes = 4 if job.store == "float32" else 2
    size = len(items) * backend.n_layers * backend.d_model * n_bytes / 2**20
    note(f"{backend.n_layers} layers × d_model {backend.d_model}: a file of {size:.1f} MiB")
    note(verdict_note(backend, items))


def _extract_here(
    job: Job, items: tuple[Item, ...], out: Path, source_name: str
) -> ActivationCache:
    from activations.cluster import extract_job
    from experiments.console import note, progress

    spec = job.spec
    note(f"Loading {spec.model_id} ({spec.dtype}); {len(items)} items of {source_name}")
    with running(spec, job.adapter) as backend:
        _say_size(job, backend, items)
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
    from interp.files import require_writable

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
    if not out.exists():
        require_writable(out, folder=False)
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
