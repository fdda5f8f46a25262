"""Options that several commands share, and what turns their text into values."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from interp.errors import InterpError
from interp.vocabulary import Dtype, Grouping, TokenRule

if TYPE_CHECKING:
    from interp.items import Item
    from interp.registry import ItemSource

__all__ = [
    "AlphasOption",
    "BatchOption",
    "COption",
    "CacheArgument",
    "DeviceOption",
    "DtypeOption",
    "FoldsOption",
    "GroupOption",
    "JsonOption",
    "MapOption",
    "ModelOption",
    "NewTokensOption",
    "NumberOption",
    "OutFolder",
    "PermutationsOption",
    "RandomOption",
    "SeedOption",
    "SourceOption",
    "TokenOption",
    "ViewOption",
    "field_map",
    "numbers",
    "open_items",
    "strength",
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
NumberOption = Annotated[
    int | None, typer.Option("--n", help="How many items; default: all of a file, or 200.")
]
SeedOption = Annotated[int, typer.Option("--seed", help="Seed of every random choice.")]
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
DeviceOption = Annotated[str, typer.Option("--device", help="Torch device; auto takes a GPU.")]
BatchOption = Annotated[int, typer.Option("--batch-tokens", help="Padded tokens a batch.")]
COption = Annotated[
    str,
    typer.Option(
        "--C", help="Inverse L2 strength of the probes; auto chooses it inside each training part."
    ),
]
PermutationsOption = Annotated[
    int, typer.Option("--permutations", help="Label permutations of the null; 0 leaves it out.")
]
FoldsOption = Annotated[int, typer.Option("--folds", help="Outer folds, at least 3.")]
GroupOption = Annotated[
    Grouping, typer.Option("--group", help="group keeps groups whole; none lets them leak.")
]
AlphasOption = Annotated[
    str,
    typer.Option(
        "--alphas",
        help="Sizes, comma-separated, in multiples of the median residual norm at the layer. The "
        "last one is quoted; 0 is always run.",
    ),
]
RandomOption = Annotated[
    int, typer.Option("--random-directions", help="Random directions, each in a ± pair.")
]
NewTokensOption = Annotated[int, typer.Option("--max-new-tokens", help="Cut of greedy answers.")]
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


def open_items(
    source: str, view: str | None, n: int | None, seed: int, pairs: list[str] | None
) -> tuple[ItemSource, tuple[Item, ...]]:
    """Open a source and load its items, with everything checked."""
    from interp.registry import load_items, open_source

    opened = open_source(source, field_map(pairs))
    return opened, load_items(opened, view=view, n=n, seed=seed)


def numbers(text: str, option: str) -> tuple[float, ...]:
    """Comma-separated numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InterpError(
            f"{option} is {text!r}; expected numbers separated by commas, for example 0,1,2."
        ) from error


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
