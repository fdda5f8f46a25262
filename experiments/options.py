"""Options that several commands share, and what turns their text into values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from interp.errors import InterpError, ResultError
from interp.files import parse_json
from interp.vocabulary import (
    Compression,
    Dtype,
    Engine,
    Grouping,
    Library,
    Quantization,
    TokenRule,
)

if TYPE_CHECKING:
    from activations import ActivationCache
    from interp.items import Item
    from interp.registry import ItemSource
    from probes import ProbeSweep

__all__ = [
    "AdapterOption",
    "AdaptersOption",
    "AlphasOption",
    "BatchOption",
    "COption",
    "CacheArgument",
    "CheckpointsOption",
    "CompressionOption",
    "DeviceMapOption",
    "DeviceOption",
    "DtypeOption",
    "EngineOption",
    "FoldsOption",
    "GroupOption",
    "JsonOption",
    "LibraryOption",
    "LockingOption",
    "MapOption",
    "ModelOption",
    "NewTokensOption",
    "NumberOption",
    "OutFolder",
    "PermutationsOption",
    "QuantizationOption",
    "RandomOption",
    "SeedOption",
    "SharingOption",
    "SourceOption",
    "TemplateOption",
    "TokenOption",
    "ViewOption",
    "WorkersOption",
    "field_map",
    "layer_numbers",
    "numbers",
    "open_items",
    "read_probe_of",
    "strength",
    "template_args",
]

ModelOption = Annotated[
    str,
    typer.Option(
        "--model", help="Alias (smollm2), Hub id with optional @revision, folder, or gguf:PATH."
    ),
]
SourceOption = Annotated[
    str, typer.Option("--source", help="Item source, NAME or NAME:ARGUMENT; see `interp sources`.")
]
InjectOption = Annotated[
    bool,
    typer.Option("--inject-truth", help="Put the gold verdict into each prompt (where offered)."),
]
AbilitiesOption = Annotated[
    str | None,
    typer.Option("--abilities", metavar="A,B", help="Only these abilities (avalon)."),
]
ExamOption = Annotated[
    bool, typer.Option("--rules-exam", help="Rule-recall statements instead (avalon).")
]
PaperOption = Annotated[
    bool, typer.Option("--expect-paper", help="Refuse other counts than the paper's.")
]
NumberOption = Annotated[
    int | None,
    typer.Option(
        "--n", help="How many items; default: the whole file, or the source's own number."
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", min=0, help="Seed of every random choice.")]
ViewOption = Annotated[
    str | None, typer.Option("--view", help="View of the prompts; default: the source's first.")
]
MapOption = Annotated[
    list[str] | None,
    typer.Option("--map", metavar="FIELD=COLUMN", help="For files: which column is which field."),
]
TokenOption = Annotated[
    TokenRule, typer.Option("--token", help="Token at which residual streams are read.")
]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Of weights and activations.")]
LibraryOption = Annotated[
    Library,
    typer.Option("--backend", help="What runs the model; all but hf are extras of their name."),
]
DeviceOption = Annotated[str, typer.Option("--device", help="Torch device; auto takes a GPU.")]
BatchOption = Annotated[
    int,
    typer.Option("--batch-tokens", help="Tokens a batch, padded; 1536 at most where a CPU packs."),
]
AdapterOption = Annotated[
    Path | None,
    typer.Option("--adapter", help="PEFT adapter folder to attach; needs interp[train]."),
]
AdaptersOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--adapter",
        help="PEFT adapter folder to attach; needs interp[train]. Given several times: the base "
        "and each of them, one file a model, in the folder --out.",
    ),
]
CheckpointsOption = Annotated[
    bool,
    typer.Option(
        "--checkpoints",
        help="--adapter is a run: the base and every checkpoint of it, one file a model, in the "
        "folder --out.",
    ),
]
TemplateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--template-arg",
        metavar="NAME=VALUE",
        help="Variable of the chat template, for example enable_thinking=false; may be repeated.",
    ),
]
SharingOption = Annotated[
    bool,
    typer.Option(
        "--prefix-sharing/--no-prefix-sharing",
        help="Run first tokens that prompts have in common once; same numbers up to rounding.",
    ),
]
CompressionOption = Annotated[
    Compression, typer.Option("--compression", help="Of the finished file; blosc is an extra.")
]
DeviceMapOption = Annotated[
    str | None,
    typer.Option(
        "--device-map",
        metavar="auto|…|JSON",
        help="Spread the model over devices: a strategy of accelerate, or module to device.",
    ),
]
QuantizationOption = Annotated[
    Quantization | None,
    typer.Option("--quantization", help="Of the weights, by bitsandbytes; an extra."),
]
EngineOption = Annotated[
    Engine,
    typer.Option("--engine", help="ray shards the items over workers; an extra."),
]
WorkersOption = Annotated[int, typer.Option("--workers", help="Workers of --engine ray.")]
LockingOption = Annotated[
    bool,
    typer.Option(
        "--file-locking/--no-file-locking",
        help="Lock the file against a second writer; off where a file system's locks hang.",
    ),
]
COption = Annotated[
    str,
    typer.Option(
        "--C", help="Inverse L2 strength of the probes; auto chooses it inside each training part."
    ),
]
PermutationsOption = Annotated[
    int,
    typer.Option("--permutations", min=0, help="Label permutations of the null; 0 leaves it out."),
]
FoldsOption = Annotated[int, typer.Option("--folds", help="Outer folds, at least 3.")]
GroupOption = Annotated[
    Grouping, typer.Option("--group", help="group keeps groups whole; none lets them leak.")
]
AlphasOption = Annotated[
    str,
    typer.Option(
        "--alphas",
        help="Sizes, comma-separated, in multiples of the median residual norm at the layer; 0 is "
        "always run, cells.csv has all. Runs quote the last one, `interp steer` chooses on folds.",
    ),
]
RandomOption = Annotated[
    int,
    typer.Option(
        "--random-directions",
        help="Random directions, in ± pairs (an odd number is rounded up); 99 give a p-value.",
    ),
]
NewTokensOption = Annotated[
    int, typer.Option("--max-new-tokens", min=1, help="Cut of greedy answers.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
OutFolder = Annotated[Path, typer.Option("--out", help="Folder to write to.")]
CacheArgument = Annotated[Path, typer.Argument(metavar="FILE.h5", help="Activation cache.")]


def field_map(pairs: list[str] | None) -> dict[str, str]:
    """From `FIELD=COLUMN` texts to a map."""
    result: dict[str, str] = {}
    for pair in pairs or []:
        field, equals, column = pair.partition("=")
        if not equals or not field or not column:
            raise InterpError(
                f"--map is {pair!r}; expected FIELD=COLUMN, for example label=is_true."
            )
        result[field] = column
    return result


def source_options(
    source: str,
    *,
    inject_truth: bool,
    abilities: str | None,
    rules_exam: bool,
    expect_paper: bool,
) -> str:
    """The source with the flags written into it, so that every command takes the same text."""
    from interp.registry import with_options

    options: dict[str, str | None] = {}
    if abilities is not None:
        options["abilities"] = "+".join(part.strip() for part in abilities.split(","))
    if inject_truth:
        options["inject-truth"] = None
    if rules_exam:
        options["rules-exam"] = None
    if expect_paper:
        options["expect-paper"] = None
    return with_options(source, options)


def template_args(pairs: list[str] | None) -> dict[str, Any]:
    """From `NAME=VALUE` texts to a map; a value that is JSON is read as such, else it is text."""
    result: dict[str, Any] = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name.isidentifier() or name in result:
            raise InterpError(
                f"--template-arg is {pair!r}; expected NAME=VALUE, each name once, for example "
                f"enable_thinking=false."
            )
        try:
            result[name] = parse_json(value)
        except json.JSONDecodeError:
            result[name] = value
    return result


def open_items(
    source: str, view: str | None, n: int | None, seed: int, pairs: list[str] | None
) -> tuple[ItemSource, tuple[Item, ...]]:
    """Open a source and load its items, with everything checked."""
    from interp.registry import load_items, open_source

    opened = open_source(source, field_map(pairs))
    return opened, load_items(opened, view=view, n=n, seed=seed)


def drawn(found: tuple[Item, ...], size: int, seed: int, name: str) -> tuple[Item, ...]:
    """`size` of the items in the order of `random.Random(seed).sample`, groups not minded.

    Raises:
        InterpError: there are fewer.
    """
    from random import Random

    if size > len(found):
        raise InterpError(
            f"--sample is {size}, and {name} has {len(found)} items; ask for at most that."
        )
    return tuple(Random(seed).sample(list(found), size))


def numbers(text: str, option: str) -> tuple[float, ...]:
    """Comma-separated numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InterpError(
            f"{option} is {text!r}; expected numbers separated by commas, for example 0,1,2."
        ) from error


def layer_numbers(text: str, option: str = "--layers") -> list[int]:
    """Comma-separated layers; `option` is named where they are not."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError as error:
        raise InterpError(
            f"{option} is {text!r}; expected layer numbers separated by commas, for example 10,15."
        ) from error


def read_probe_of(cache: ActivationCache, folder: Path) -> ProbeSweep:
    """Read a probe folder and make sure that it was made from this very cache.

    Raises:
        ResultError: it was made from another one; the differing fields are named.
    """
    from activations.cache import manifest_differences
    from probes import read_sweep

    sweep = read_sweep(folder)
    differences = manifest_differences(sweep.manifest, cache.manifest)
    if differences:
        raise ResultError(
            f"{folder} was made from another cache than {cache.path}. Fields that differ (file: "
            f"the probe, run: the cache): {'; '.join(differences)}. Run `interp probe` on this one."
        )
    if sweep.grouping == "none":
        from experiments.console import note

        note(f"GROUPS WERE IGNORED in {folder}: what is taken from its folds leaks within groups.")
    return sweep


def strength(text: str) -> float | Literal["auto"]:
    """A value of C, or `auto`."""
    if text == "auto":
        return "auto"
    try:
        return float(text)
    except ValueError as error:
        raise InterpError(
            f"--C is {text!r}; expected a positive number (inverse L2 strength) or auto."
        ) from error
