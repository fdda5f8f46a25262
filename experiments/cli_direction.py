"""`interp direction`: directions of a cache's layers, and how they lie to each other."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from experiments.cli_model import running
from experiments.options import (
    AdapterOption,
    CacheArgument,
    DeviceOption,
    JsonOption,
    SeedOption,
    layer_numbers,
    read_probe_of,
)
from interp.adapters.device import usable_device
from interp.errors import InterpError
from interp.vocabulary import ProbeKind

if TYPE_CHECKING:
    from activations import ActivationCache, HFBackend
    from interp.direction import CosineTable, Direction

__all__ = ["direction"]

Kind = Literal[
    "class_mean",
    "whitened",
    "pca",
    "leace",
    "probe",
    "mass_mean",
    "ridge",
    "lda",
    "writer",
    "shuffled",
    "orthogonal",
    "random",
]


def direction(
    file: CacheArgument,
    layer: Annotated[
        str, typer.Option("--layer", help="0-based block index, or several with commas.")
    ],
    out: Annotated[
        Path,
        typer.Option("--out", help="FILE.npz (one layer), .safetensors or .gguf (control vector)."),
    ],
    kind: Annotated[
        Kind,
        typer.Option(
            "--kind",
            "--method",
            help="class_mean; whitened by the shared covariance; pca of twins' differences; leace: "
            "what erasure reads; weights of a probe (of the kind that --probe DIR has), or of a "
            "mass_mean, ridge or lda one; writer: the unembedding's True − False; or, "
            "as controls, shuffled labels, orthogonal within the covariance, random.",
        ),
    ] = "class_mean",
    C: Annotated[
        float | None,
        typer.Option("--C", help="Of the probe; default: as in --probe, else 0.01."),
    ] = None,
    shrinkage: Annotated[
        float | None,
        typer.Option("--shrinkage", help="Of whitened and leace, 0 to 1; default: estimated."),
    ] = None,
    seed: SeedOption = 0,
    model: Annotated[
        str | None,
        typer.Option("--model", help="The cache's model: for the writer and the angles to it."),
    ] = None,
    adapter: AdapterOption = None,
    device: DeviceOption = "auto",
    model_hint: Annotated[
        str | None,
        typer.Option("--model-hint", help="Model type in a .gguf file; default: of --model."),
    ] = None,
    probe: Annotated[
        Path | None, typer.Option("--probe", help="Probe folder whose folds --without-fold names.")
    ] = None,
    without_fold: Annotated[
        int | None, typer.Option("--without-fold", help="Leave the items of this fold out.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write the True − False direction of a layer, and compare all kinds by their cosines.

    For evaluation leave out the fold that it is applied to: --probe DIR --without-fold K (not of a
    probe that ignored groups). With --model the table holds the detection–control angle: between
    what reads truth and what writes the answer.
    """
    from activations import ActivationCache
    from experiments.console import note, print_json
    from experiments.directions import compared, writer_at
    from interp.direction import write_directions
    from interp.files import require_writable
    from probes import probe_direction
    from steering import fold_direction

    if (probe is None) != (without_fold is None):
        raise InterpError("--probe and --without-fold go together: give both or neither.")
    if shrinkage is not None and kind not in ("whitened", "leace"):
        raise InterpError("--shrinkage goes with --kind whitened or leace.")
    if kind == "writer" and model is None:
        raise InterpError("--kind writer reads the model's unembedding: give --model.")
    layers = layer_numbers(layer, "--layer")
    usable_device(device, InterpError)
    require_writable(out, folder=False)
    found: list[Direction] = []
    tables: list[CosineTable] = []
    with ActivationCache.open(file) as cache, ExitStack() as stack:
        for each in layers:
            cache.require_layer(each)
        training, sweep = None, None
        if probe is not None and without_fold is not None:
            sweep = read_probe_of(cache, probe)
            if without_fold not in sweep.fold:
                raise InterpError(f"{probe} has folds 0 to {sweep.fold.max()}; got {without_fold}.")
            training = sweep.fold != without_fold
        backend = None
        if model is not None:
            backend = stack.enter_context(_running(cache, model, adapter, device))
            model_hint = model_hint or str(backend.model.config.model_type)
        for each in layers:
            strength = 0.01
            if C is not None:
                strength = C
            elif sweep is not None:
                strength = float(sweep.C[each, without_fold])
            writer = None if backend is None else writer_at(cache, each, backend)
            if kind == "probe" or kind == "mass_mean" or kind == "ridge" or kind == "lda":
                fitted: ProbeKind = "logistic" if sweep is None else sweep.probe
                made = probe_direction(
                    cache,
                    each,
                    C=strength,
                    training=training,
                    kind=fitted if kind == "probe" else kind,
                )
            elif kind == "writer":
                assert writer is not None
                made = writer
            else:
                made = fold_direction(
                    cache, each, training=training, kind=kind, shrinkage=shrinkage, seed=seed
                )
            if sweep is not None and sweep.grouping == "none":
                made = replace(made, details={**made.details, "grouping": sweep.grouping})
            found.append(made)
            tables.append(
                compared(
                    cache,
                    each,
                    C=strength,
                    training=training,
                    shrinkage=shrinkage,
                    also=made,
                    writer=writer,
                )
            )
    write_directions(out, found, model_hint=model_hint)
    if json:
        records = [_record(*pair) for pair in zip(found, tables, strict=True)]
        print_json(records[0] if len(records) == 1 else records)
        return
    for made, table in zip(found, tables, strict=True):
        _print_table(table)
        note(f"{out}: {_described(made)}")


def _running(
    cache: ActivationCache, model: str, adapter: Path | None, device: str
) -> AbstractContextManager[HFBackend]:
    from activations import ModelSpec
    from experiments.console import note

    manifest = cache.manifest["model"]
    spec = ModelSpec.parse(
        model,
        dtype=manifest["dtype"],
        device=device,
        attn=manifest["attn_implementation"],
        template_args=manifest.get("template_args"),
    )
    note(f"Loading {spec.model_id} ({spec.dtype})")
    return running(spec, adapter)


def _record(made: Direction, table: CosineTable) -> dict[str, Any]:
    fields = {name: getattr(made, name) for name in made.__slots__ if name != "vector"}
    return fields | {"details": dict(made.details), "cosines": table.record()}


def _described(made: Direction) -> str:
    apart = "" if made.class_gap is None else f"the class means lie {made.class_gap:.4g} apart, "
    items = f" from {made.n_true} True and {made.n_false} False items" if made.n_true else ""
    return (
        f"{made.method.replace('_', '-')} direction at layer {made.layer}{items}; {apart}the "
        f"median residual norm is {made.median_norm:.4g}"
    )


def _print_table(table: CosineTable) -> None:
    from experiments.console import print_table

    angles = "writer" in table.names
    rows = [
        (
            name.replace("_", " "),
            *(f"{table.cosine(name, other):+.2f}" for other in table.names),
            *((f"{table.angle(name, 'writer'):.0f}°",) if angles else ()),
        )
        for name in table.names
    ]
    columns = ("", *(name.replace("_", " ") for name in table.names))
    print_table(
        f"Cosines at layer {table.layer}",
        (*columns, "angle to writer") if angles else columns,
        rows,
        caption=f"Two random directions have a cosine of about ±{table.chance:.3f}.",
    )
