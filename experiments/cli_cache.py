"""`interp cache`: look into activation caches."""

from __future__ import annotations

import typer

from experiments.options import CacheArgument, JsonOption

__all__ = ["cache_app"]

cache_app = typer.Typer(help="Look into activation caches.", no_args_is_help=True)


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
    """Check that a cache is finished and every row is finite; exit code 3 if it is not."""
    from activations.cache import ActivationCache, verify
    from experiments.console import print_json

    with ActivationCache.open(file, allow_unfinished=True) as cache:
        faults = verify(cache)
    if json:
        print_json({"file": str(file), "faults": faults})
    else:
        for fault in faults:
            typer.echo(fault)
        typer.echo(f"{file}: {'not ' if faults else ''}sound")
    if faults:
        raise typer.Exit(3)
