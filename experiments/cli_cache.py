"""`interp cache`: look into activation caches, merge and export them; and `interp drift`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from experiments.options import (
    CacheArgument,
    GroupOption,
    JsonOption,
    SeedOption,
)

__all__ = ["cache_app", "drift"]

cache_app = typer.Typer(
    help="Look into activation caches, merge and export them.", no_args_is_help=True
)


@cache_app.command("info", epilog="Example: interp cache info facts.h5")
def cache_info(file: CacheArgument, json: JsonOption = False) -> None:
    """Show what a cache holds, and its manifest."""
    from activations.cache import ActivationCache, flat
    from experiments.console import print_json, print_table

    with ActivationCache.open(file, allow_unfinished=True) as cache:
        counts = {
            "n_items": cache.n_items,
            "n_layers": cache.n_layers,
            "d_model": cache.d_model,
            "n_done": int(cache.done.sum()),
            "n_true": int((cache.label == 1).sum()),
            "n_false": int((cache.label == 0).sum()),
            "n_groups": len(set(cache.group_id)),
            "self_check_max_relative": cache.self_check_max_relative,
        }
        shared = cache.prefix_sharing
        if json:
            print_json(counts | {"prefix_sharing": shared, "manifest": cache.manifest})
            return
        rows = [
            *counts.items(),
            *flat({"prefix_sharing": shared or {}}),
            *flat(cache.manifest),
        ]
        print_table(str(file), ("field", "value"), rows)


@cache_app.command("verify", epilog="Example: interp cache verify facts.h5")
def cache_verify(file: CacheArgument, json: JsonOption = False) -> None:
    """Check that a cache is finished, finite and of its manifest's items; exit code 3 if not."""
    from activations.cache import ActivationCache, verify
    from experiments.console import print_json
    from interp.errors import DamagedCacheError

    try:
        with ActivationCache.open(file, allow_unfinished=True) as cache:
            faults = verify(cache)
    except DamagedCacheError as error:
        faults = [str(error)]
    except OSError as error:  # a chunk that cannot be read
        faults = [f"a part of the file cannot be read ({error})"]
    if json:
        print_json({"file": str(file), "faults": faults})
    else:
        for fault in faults:
            typer.echo(fault)
        typer.echo(f"{file}: {'not ' if faults else ''}sound")
    if faults:
        raise typer.Exit(3)


@cache_app.command("merge", epilog="Example: interp cache merge both.h5 facts.h5 more.h5")
def cache_merge(
    out: Annotated[Path, typer.Argument(metavar="OUT.h5", help="Cache to write.")],
    shards: Annotated[list[Path], typer.Argument(metavar="FILE.h5…", help="Caches to merge.")],
) -> None:
    """Put caches together that differ in their items alone; they are only read."""
    from activations.portable import merge_caches
    from experiments.console import note

    n = merge_caches(out, shards)
    note(f"{out}: {n} items of {len(shards)} caches")


@cache_app.command("export", epilog="Example: interp cache export facts.h5 --out facts.safetensors")
def cache_export(
    file: CacheArgument,
    out: Annotated[Path, typer.Option("--out", help="File to write: .safetensors or .npz.")],
) -> None:
    """Write a cache's arrays for programs that do not read HDF5."""
    from activations.cache import ActivationCache
    from activations.portable import export_cache
    from experiments.console import note

    with ActivationCache.open(file) as cache:
        export_cache(cache, out)
        note(f"{out}: {cache.n_items} items, {cache.n_layers} layers, d_model {cache.d_model}")


def drift(
    a: Annotated[Path, typer.Argument(metavar="A.h5", help="Cache of the reference model.")],
    b: Annotated[Path, typer.Argument(metavar="B.h5", help="Cache of the same items.")],
    C: Annotated[float, typer.Option("--C", help="Inverse L2 strength of the probes.")] = 0.01,
    folds: Annotated[
        int, typer.Option("--folds", help="Of the probes, at least 3; 0 leaves the probes out.")
    ] = 5,
    seed: SeedOption = 0,
    group: GroupOption = "group",
    json: JsonOption = False,
) -> None:
    """Compare two caches of the same items, layer by layer: a model before and after training.

    probe_transfer is the accuracy on B of probes fitted on A, on items that they have not seen.
    """
    from dataclasses import asdict

    from activations.cache import ActivationCache
    from experiments.console import note, print_json, print_table
    from experiments.drift import layer_drift
    from interp.errors import ProbeError

    with ActivationCache.open(a) as first, ActivationCache.open(b) as second:
        try:
            rows = layer_drift(first, second, C=C, n_folds=folds or None, seed=seed, grouping=group)
        except ProbeError as error:
            raise ProbeError(f"{error} --folds 0 compares the streams alone.") from error
    if group == "none":
        note("GROUPS ARE IGNORED: items of one group stand on both sides of a split; numbers leak.")
    if json:
        print_json([{**asdict(row), "grouping": group} for row in rows])
        return
    cells = [
        (
            row.layer,
            f"{row.cosine:.6f}",
            f"{row.relative_change:.3g}",
            "–" if row.probe_transfer is None else f"{100 * row.probe_transfer:.1f}%",
        )
        for row in rows
    ]
    columns = ("layer", "cosine", "relative change", "probe transfer")
    leaks = "GROUPS WERE IGNORED: probe transfer leaks between items of one group."
    caption = leaks if group == "none" and folds else None
    print_table(f"Drift from {a} to {b}", columns, cells, caption=caption)
