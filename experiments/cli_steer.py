"""`interp steer`: steering as evidence, with the controls in the same run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from experiments.options import (
    AdapterOption,
    AlphasOption,
    BatchOption,
    CacheArgument,
    DeviceOption,
    JsonOption,
    ModelOption,
    NewTokensOption,
    OutFolder,
    RandomOption,
    SeedOption,
    SharingOption,
    layer_numbers,
    numbers,
    read_probe_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from activations import ActivationCache, ModelBackend
    from probes import ProbeSweep
    from steering import SignedItems, SteeringSweep

__all__ = ["steer"]


def steer(
    file: CacheArgument,
    probe: Annotated[Path, typer.Option("--probe", help="Probe folder made from the same file.")],
    out: OutFolder,
    model: ModelOption = "smollm2",
    layers: Annotated[
        str | None,
        typer.Option(
            "--layers",
            help="Layers of the grid, comma-separated; default: each fold's nested layer.",
        ),
    ] = None,
    alphas: AlphasOption = "1",
    alpha_unit: Annotated[
        Literal["median", "absolute"],
        typer.Option(
            "--alpha-unit", help="median residual norms of the layer, or the norm that is added."
        ),
    ] = "median",
    conditions: Annotated[
        str | None,
        typer.Option(
            "--conditions",
            help="Any of signed,oracle,fixed,negated,random,shuffled,orthogonal,writer,text; "
            "default: signed,fixed,negated,random,writer (project_out: fixed,random,writer).",
        ),
    ] = None,
    random_directions: RandomOption = 20,
    control_draws: Annotated[
        int,
        typer.Option("--control-draws", min=1, help="Draws of shuffled and of orthogonal."),
    ] = 10,
    intervention: Annotated[
        Literal["add", "project_out", "clamp"],
        typer.Option(
            "--intervention",
            help="add the direction; clamp the projection on it to the signed size; project_out: "
            "take a share of it out (--alphas are shares, and nothing is signed).",
        ),
    ] = "add",
    direction: Annotated[
        str,
        typer.Option(
            "--direction",
            help="class_mean, whitened, pca, leace, probe, mass_mean, ridge or lda, fitted without "
            "each fold; or a FILE of directions, which may have seen the items' labels.",
        ),
    ] = "class_mean",
    positions: Annotated[
        str,
        typer.Option("--positions", help="last_prompt, prompt, generated or all."),
    ] = "last_prompt",
    generate: Annotated[
        int,
        typer.Option(
            "--generate",
            min=0,
            help="Items that are also answered in words at the quoted cells, with KL and the "
            "perplexity of neutral texts; 0 leaves it out.",
        ),
    ] = 0,
    max_new_tokens: NewTokensOption = 48,
    plain: Annotated[
        bool, typer.Option("--plain", help="Run every cell from the first token.")
    ] = False,
    seed: SeedOption = 0,
    device: DeviceOption = "auto",
    batch_tokens: BatchOption = 2048,
    prefix_sharing: SharingOption = True,
    adapter: AdapterOption = None,
    json: JsonOption = False,
) -> None:
    """Steer the model towards what the probe reads, with controls, and read its forced choice.

    Direction, layer, sign and the quoted size of an item come from folds without its group (after
    interp probe --group none without the item alone, which leaks).
    """
    from activations import ActivationCache, ModelSpec
    from experiments.cli_model import running
    from experiments.console import note, print_json, progress, say
    from experiments.steer_inputs import inner_decisions, signed_items, steered_direction
    from experiments.tables import print_steering
    from figures import draw_steering_sweep
    from interp.adapters.device import usable_device
    from interp.errors import InterpError
    from interp.files import partial_path, require_writable, write_json
    from steering import sweep_steering, write_steering
    from steering.positions import require_positions
    from steering.settings import nonzero_alphas, require_conditions

    sizes = numbers(alphas, "--alphas")
    fixed = None if layers is None else layer_numbers(layers)
    if conditions is None:
        unsigned = intervention == "project_out"
        conditions = "fixed,random,writer" if unsigned else "signed,fixed,negated,random,writer"
    names = require_conditions([name.strip() for name in conditions.split(",") if name.strip()])
    require_positions(positions)
    nonzero_alphas(sizes, random_directions)
    usable_device(device, InterpError)
    require_writable(out, folder=True)
    if 0 not in sizes:
        note("--alphas has no 0; it is added: the unsteered model is what all cells are read by.")
    with ActivationCache.open(file) as cache:
        sweep = read_probe_of(cache, probe)
        for layer in fixed or ():
            cache.require_layer(layer)
        manifest = cache.manifest["model"]
        spec = ModelSpec.parse(
            model,
            dtype=manifest["dtype"],
            device=device,
            attn=manifest["attn_implementation"],
            template_args=manifest.get("template_args"),
        )
        note(f"Loading {spec.model_id} ({spec.dtype})")
        along, places = steered_direction(cache, sweep, direction, fixed)
        if along is not None and not along.fitted:
            note(
                f"The direction of {direction} is the same for all folds. If these items' labels "
                f"went into it, what follows is no evidence."
            )
        signed = signed_items(sweep, inner_decisions(cache, sweep, places))
        with running(spec, adapter) as backend:
            grid: dict[str, Any] = {
                "alphas": sizes,
                "layers": places,
                "conditions": names,
                "intervention": intervention,
                "direction": along,
                "alpha_unit": alpha_unit,
                "n_random": random_directions,
                "n_control": control_draws,
                "seed": seed,
            }
            note(_cost(cache, grid, sweep.layers_nested))
            unfinished = partial_path(out / "steer.h5")
            if unfinished.exists():
                note(f"Going on from {unfinished}")
            with progress("steering", cache.n_items) as advance:
                steered = sweep_steering(
                    cache,
                    signed,
                    backend,
                    **grid,
                    positions=positions,
                    plain=plain,
                    batch_tokens=batch_tokens,
                    prefix_sharing=prefix_sharing,
                    unfinished=unfinished,
                    progress=advance,
                )
            fast = steered.settings["fast_path"]
            if not fast["used"]:
                note(f"Every cell was run from the first token: {fast['off']}.")
            summary = write_steering(
                out, steered, {"cosines": _cosines(cache, backend, steered, sweep)}
            )
            unfinished.unlink(missing_ok=True)
            drawn = draw_steering_sweep(out)
            if generate:
                # The grid is on disk by now: what is cut short here costs the side effects alone.
                note(f"Grid written to {out}; side effects follow")
                summary["generated"] = _effects(
                    *(cache, signed, backend, steered, grid),
                    n_items=generate,
                    max_new_tokens=max_new_tokens,
                    batch_tokens=batch_tokens,
                )
                write_json(out / "steer.json", summary)
    if json:
        print_json(summary)
    else:
        print_steering(summary)
        for path in drawn:
            say(f"Figure:  {path}")
        note(f"Written to {out}")


def _cost(cache: ActivationCache, grid: dict[str, Any], nested: Sequence[int]) -> str:
    """What the run will do, before it starts."""
    draws = {"random": grid["n_random"] + grid["n_random"] % 2}
    draws |= {"shuffled": grid["n_control"], "orthogonal": grid["n_control"], "text": 0}
    # `signed` is also run without each other fold, to choose layer and size.
    draws["signed"] = len(nested)
    per = sum(draws.get(name, 1) for name in grid["conditions"])
    layers = grid["layers"] or sorted(set(nested))
    places = len(grid["layers"]) if grid["layers"] else 1
    sizes = len([size for size in dict.fromkeys(grid["alphas"]) if size])
    above = sum(cache.n_layers - 1 - layer for layer in layers) / len(layers)
    return (
        f"{per} directions and signs × {places} layers × {sizes} sizes = {per * places * sizes:,} "
        f"cells for each of {cache.n_items} items; a cell runs {above:.0f} of {cache.n_layers} "
        f"blocks on average, for the last prompt token and the stub alone where the model allows it"
    )


def _cosines(
    cache: ActivationCache, backend: ModelBackend, steered: SteeringSweep, sweep: ProbeSweep
) -> list[dict[str, Any]]:
    """The angles between directions at every layer that is quoted."""
    import numpy as np

    from activations import HFBackend
    from experiments.directions import compared, writer_at

    quoted = {place for place, _ in steered.chosen}
    layers = set(sweep.layers_nested) if quoted == {"nested"} else {int(place) for place in quoted}
    tables = []
    for layer in sorted(layers):
        writer = writer_at(cache, layer, backend) if isinstance(backend, HFBackend) else None
        strength = float(np.median(sweep.C[layer]))
        tables.append(compared(cache, layer, C=strength, writer=writer).record())
    return tables


def _effects(
    cache: ActivationCache,
    signed: SignedItems,
    backend: ModelBackend,
    steered: SteeringSweep,
    grid: dict[str, Any],
    *,
    n_items: int,
    max_new_tokens: int,
    batch_tokens: int,
) -> dict[str, Any]:
    from activations import HFBackend
    from experiments.console import progress
    from interp.errors import SteeringError
    from steering.effects import side_effects
    from steering.sweep import make_settings, verdict_head_of

    if not isinstance(backend, HFBackend) or backend.library != "hf":
        raise SteeringError("--generate needs the backend hf. Use --generate 0 or another backend.")
    ids = backend.verdict_ids(backend.tokenize(cache.items()[:1]))
    head = verdict_head_of(backend, ids.true_id, ids.false_id)
    n_runs = min(n_items, cache.n_items) * (1 + len([c for c in steered.conditions if c != "text"]))
    with progress("side effects", n_runs) as advance:
        return side_effects(
            cache,
            signed,
            backend,
            steered,
            make_settings(cache, **grid),
            head,
            n_items=n_items,
            max_new_tokens=max_new_tokens,
            batch_tokens=batch_tokens,
            progress=advance,
        )
