"""`interp probe` and `interp probe compare`."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperCommand

from experiments.options import (
    CacheArgument,
    COption,
    GroupOption,
    JsonOption,
    OutFolder,
    PermutationsOption,
    SeedOption,
    strength,
)
from interp.errors import InterpError
from interp.vocabulary import ProbeKind, Solver, TransferKind

__all__ = ["ProbeCommand", "probe", "probe_compare"]


class ProbeCommand(TyperCommand):
    """`interp probe FILE.h5`, which also answers to `interp probe compare A B`."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Hand `compare` over to the command `probe-compare` of the same group."""
        if args[:1] == ["compare"] and parent is not None:
            compare = parent.command.get_command(parent, "probe-compare")
            return compare.make_context(f"{info_name} compare", args[1:], parent, **extra)
        return super().make_context(info_name, args, parent, **extra)


def probe(
    file: CacheArgument,
    out: OutFolder,
    C: COption = "0.01",
    folds: Annotated[
        int | None, typer.Option("--folds", help="Outer folds, at least 3; default: 5.")
    ] = None,
    seed: SeedOption = 0,
    group: GroupOption = "group",
    permutations: PermutationsOption = 200,
    solver: Annotated[
        Solver,
        typer.Option("--solver", help="batched, or sklearn: the converged reference, far slower."),
    ] = "batched",
    device: Annotated[
        str, typer.Option("--device", help="Torch device of the solver; auto takes a GPU.")
    ] = "cpu",
    fold_file: Annotated[
        Path | None, typer.Option("--fold-file", help="JSON of item id to fold, from 0.")
    ] = None,
    text_baselines: Annotated[
        bool, typer.Option(help="Probes on the wording alone, under the same folds.")
    ] = True,
    probe: Annotated[
        ProbeKind,
        typer.Option("--probe", help="What is fitted; mass_mean, ridge and lda are closed forms."),
    ] = "logistic",
    one_standard_error: Annotated[
        bool,
        typer.Option(
            "--one-standard-error",
            help="With --C auto: the smallest C within one standard error of the best.",
        ),
    ] = False,
    transfer: Annotated[
        str | None,
        typer.Option(
            "--transfer",
            metavar="KIND,KIND",
            help="Hold each category or template out in turn: category, template, or both.",
        ),
    ] = None,
    untrained: Annotated[
        bool,
        typer.Option(
            "--untrained", help="Also run the items through the model with random weights."
        ),
    ] = False,
    model: Annotated[
        str | None,
        typer.Option("--model", help="Of --untrained; default: the id that the cache names."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Probe every layer for the label, groups kept whole, with controls in the same run.

    interp probe compare A B compares two folders of it on the same items.
    """
    from activations import ActivationCache
    from experiments.console import note, print_json, progress
    from experiments.probe_tables import print_probe
    from figures import draw_probe
    from interp.files import require_writable
    from probes import read_folds, sweep_layers, write_sweep

    if untrained:
        from experiments.untrained import untrained_cache
    if model is not None and not untrained:
        raise InterpError("--model goes with --untrained; a sweep reads the cache alone.")
    if folds is not None and fold_file is not None:
        raise InterpError("--folds and --fold-file exclude each other: the file says how many.")
    n_folds = 5 if folds is None else folds
    size = strength(C)
    held_out = _transfer_kinds(transfer)
    require_writable(out, folder=True)
    how = {"logistic": f"C = {C}; solver {solver}", "lda": "lda, which has no C"}.get(
        probe, f"{probe}, C = {C}"
    )
    if group == "none":
        note("GROUPS ARE IGNORED: items of one group stand on both sides of a split; numbers leak.")
    with ActivationCache.open(file) as cache:
        given = None if fold_file is None else read_folds(fold_file, cache.item_id)
        note(
            f"{cache.n_layers} layers × {n_folds if given is None else given.max() + 1} folds; "
            f"{permutations} label permutations; {how}"
        )
        random = None
        with ExitStack() as stack:
            drawn = None
            if untrained:
                # First: what stands in the folder may be of another seed or model, and the model
                # may not be found.
                with progress("random weights", cache.n_items) as advance:
                    drawn = stack.enter_context(
                        untrained_cache(
                            cache,
                            out / "untrained.h5",
                            model=model,
                            device=device,
                            seed=seed,
                            progress=advance,
                        )
                    )
            with progress("probes", cache.n_layers + 1) as advance:
                sweep = sweep_layers(
                    cache,
                    C=size,
                    n_folds=n_folds,
                    seed=seed,
                    grouping=group,
                    folds=given,
                    probe=probe,
                    one_standard_error=one_standard_error,
                    solver=solver,
                    device=device,
                    n_permutations=permutations,
                    items=cache.items(),
                    wording=text_baselines,
                    transfer=held_out,
                    progress=advance,
                )
            if drawn is not None:
                random = sweep_layers(
                    drawn,
                    C=size,
                    seed=seed,
                    grouping=group,
                    folds=sweep.fold,
                    probe=probe,
                    one_standard_error=one_standard_error,
                    solver=solver,
                    device=device,
                )
    summary = write_sweep(out, sweep, random)
    draw_probe(out)
    if json:
        print_json(summary)
    else:
        print_probe(summary)
        note(f"Written to {out}")


def _transfer_kinds(text: str | None) -> list[TransferKind]:
    known: tuple[TransferKind, ...] = get_args(TransferKind)
    wanted = [part.strip() for part in text.split(",")] if text else []
    unknown = [part for part in wanted if part not in known]
    if unknown:
        raise InterpError(f"--transfer has {unknown[0]!r}; expected {' or '.join(known)}.")
    return [kind for kind in known if kind in wanted]


def probe_compare(
    first: Annotated[Path, typer.Argument(metavar="A", help="Probe folder.")],
    second: Annotated[Path, typer.Argument(metavar="B", help="Probe folder, same items.")],
    seed: SeedOption = 0,
    json: JsonOption = False,
) -> None:
    """Compare two probe sweeps on the same items, paired: A minus B."""
    from experiments.console import print_json
    from experiments.probe_tables import print_comparison
    from probes import compare_sweeps, read_sweep

    found = compare_sweeps(read_sweep(first), read_sweep(second), seed=seed)
    if json:
        print_json(found)
    else:
        print_comparison(str(first), str(second), found)
