"""The steering sweep: layers × alphas × conditions, read out by forced choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from activations import ActivationCache, HFBackend, ModelBackend, Prompt
from activations.answers import forced_logits
from activations.batches import BATCH_TOKENS
from activations.cache import manifest_differences
from activations.head import VerdictHead, verdict_head
from interp.errors import SteeringError, require_choice
from interp.items import Item, Message
from interp.vocabulary import TokenRule
from steering.grid import run_cells
from steering.interventions import AlphaUnit, InterventionKind
from steering.plan import INNER, SignedItems, make_plan
from steering.positions import require_positions
from steering.results import BASELINE, Cell, SteeringSweep
from steering.settings import (
    NESTED,
    Settings,
    SteeredDirection,
    nonzero_alphas,
    require_conditions,
    require_meaning,
)
from steering.unfinished import Unfinished, digest, identity

__all__ = [
    "DEFAULT_CONDITIONS",
    "make_settings",
    "sweep_steering",
    "verdict_head_of",
    "with_verdict",
]

DEFAULT_CONDITIONS = ("signed", "negated", "random")
_STEERED_RULE: TokenRule = "last_prompt"


def sweep_steering(
    cache: ActivationCache,
    signed: SignedItems,
    backend: ModelBackend,
    *,
    alphas: Sequence[float],
    layers: Sequence[int] | None = None,
    conditions: Sequence[str] = DEFAULT_CONDITIONS,
    positions: str = "last_prompt",
    alpha_unit: AlphaUnit = "median",
    intervention: InterventionKind = "add",
    direction: SteeredDirection | None = None,
    n_random: int = 10,
    n_control: int = 10,
    seed: int = 0,
    plain: bool = False,
    batch_tokens: int = BATCH_TOKENS,
    prefix_sharing: bool = True,
    unfinished: str | Path | None = None,
    progress: Callable[[int], None] = lambda _: None,
) -> SteeringSweep:
    """Steer every item and read its forced choice.

    Direction, layer and sign of an item all come from folds without it, and without its group
    unless the probe sweep ignored groups; so does what is quoted where `signed.inner` lets it be
    chosen.

    Args:
        cache: activations of the items, at `last_prompt`.
        signed: folds, layers and decisions of a probe sweep over that cache.
        backend: the model that the cache was made with.
        alphas: sizes; 0 is the baseline and always run. Where nothing is chosen, the last one that
            is not 0 is quoted.
        layers: fixed layers for all items; None steers each item at its nested layer.
        conditions: see `steering.settings.Condition`.
        positions: which tokens are steered; see `steering.positions`.
        alpha_unit: whether sizes count median residual norms of the layer, or are norms.
        intervention: what is done along the directions: `add`; `clamp`, which sets the projection
            to the signed size; or `project_out`, where sizes are shares and nothing is signed.
        direction: what stands for the class mean; None is the class mean.
        n_random: random directions, in ± pairs: an odd number is rounded up.
        n_control: draws of `shuffled` and of `orthogonal`.
        seed: of all draws.
        plain: run every cell from the first token; the numbers are the same up to rounding.
        batch_tokens: padded tokens a batch.
        prefix_sharing: run first tokens that prompts have in common once, as `extract` does.
        unfinished: file that finished batches are kept in, and that a killed sweep goes on from;
            None keeps nothing. It is left there: remove it once the sweep is written.
        progress: called with the number of items finished since the last call.

    Raises:
        CacheError: `unfinished` is of another sweep.
        SteeringError: other model, items or token rule, no alpha, or a layer out of range.
    """
    _require_match(cache, signed, backend)
    policy = require_positions(positions)
    settings = make_settings(
        cache,
        alphas=alphas,
        layers=layers,
        conditions=conditions,
        alpha_unit=alpha_unit,
        n_random=n_random,
        n_control=n_control,
        seed=seed,
        intervention=intervention,
        direction=direction,
    )
    places, sizes = settings.places, settings.sizes
    items = cache.items()
    prompts = backend.tokenize(items)
    if min(len(prompt.ids) for prompt in prompts) < 2:
        raise SteeringError("A prompt has one token only; steering needs at least two.")
    n_tokens = np.array([len(prompt.ids) for prompt in prompts])
    if (n_tokens != cache.n_tokens).any():
        first = int(np.flatnonzero(n_tokens != cache.n_tokens)[0])
        raise SteeringError(
            f"Item {items[first].item_id!r} has {n_tokens[first]} prompt tokens now and had "
            f"{cache.n_tokens[first]} when {cache.path} was made: the activations are not those of "
            f"the items to steer. Extract again."
        )
    verdicts = backend.verdict_ids(prompts)
    logit_ids = (verdicts.true_id, verdicts.false_id)
    head = None
    if "writer" in settings.conditions:
        head = verdict_head_of(backend, *logit_ids)
    cells, plans, push, absolute = make_plan(cache, signed, settings, head)
    kept = None
    if unfinished is not None:
        given = direction is not None and not direction.fitted
        kept = Unfinished(
            Path(unfinished),
            identity(
                signed,
                settings,
                model=dict(backend.fingerprint()),
                vectors=digest(*(plan.vectors for plan in plans)) if given else None,
                positions=policy,
                plain=plain,
            ),
        )
    baseline, logits, path = run_cells(
        backend,
        prompts,
        plans,
        len(cells),
        logit_ids,
        positions=policy,
        plain=plain,
        batch_tokens=batch_tokens,
        prefix_sharing=prefix_sharing,
        kept=kept,
        progress=progress,
    )
    units = _mean_units(cache, signed, places)
    alpha = np.array([size / units[cell.layer] for cell, size in zip(cells, absolute, strict=True)])
    if alpha_unit == "median":
        alpha = np.array([cell.size for cell in cells])
    texts, text_logits, text_push = (
        _text(backend, items, signed, places, batch_tokens, prefix_sharing and not plain)
        if "text" in settings.conditions
        else ((), np.empty((0, len(items), 2), np.float32), np.empty((0, len(items)), np.int8))
    )
    before, after = np.zeros(1), np.zeros(len(texts))
    sweep = SteeringSweep(
        cells=(Cell(BASELINE, 0.0, BASELINE), *cells, *texts),
        logits=np.concatenate([baseline[None], logits, text_logits]),
        push=np.concatenate([np.zeros((1, len(items)), np.int8), push, text_push]),
        alpha=np.concatenate([before, alpha, after]),
        alpha_absolute=np.concatenate([before, absolute, after]),
        sign=_signs(signed, signed.layer_nested),
        fold=signed.fold,
        item_id=cache.item_id,
        label=cache.label.astype(bool),
        group_id=cache.group_id,
        chosen=tuple((places[0], sizes[-1]) for _ in plans),
        chosen_on_inner_folds=False,
        n_without_effect=0,
        settings={
            "grouping": signed.grouping,
            "positions": policy,
            "alpha_unit": alpha_unit,
            "intervention": intervention,
            "direction": "class_mean" if direction is None else direction.name,
            "direction_fitted_by_fold": direction is None or direction.fitted,
            "fast_path": asdict(path),
        },
        seed=seed,
        manifest=cache.manifest,
    )
    if signed.inner is not None and "signed" in settings.conditions:
        sweep = replace(sweep, chosen=_choose(sweep), chosen_on_inner_folds=True)
    return replace(sweep, n_without_effect=_without_effect(cache, signed, sweep))


def make_settings(
    cache: ActivationCache,
    *,
    alphas: Sequence[float],
    layers: Sequence[int] | None,
    conditions: Sequence[str],
    alpha_unit: AlphaUnit,
    n_random: int,
    n_control: int,
    seed: int,
    intervention: InterventionKind = "add",
    direction: SteeredDirection | None = None,
) -> Settings:
    """Check what is to be crossed; arguments as in `sweep_steering`."""
    require_choice("alpha_unit", alpha_unit, get_args(AlphaUnit), SteeringError)
    require_choice("intervention", intervention, get_args(InterventionKind), SteeringError)
    chosen = require_conditions(conditions)
    sizes = nonzero_alphas(alphas, n_random)
    if n_control < 1:
        raise SteeringError(f"There are {n_control} draws of the controls; expected at least 1.")
    for layer in layers or ():
        cache.require_layer(layer)
    places = [NESTED] if layers is None else [str(layer) for layer in dict.fromkeys(layers)]
    settings = Settings(
        places=tuple(places),
        sizes=tuple(sizes),
        alpha_unit=alpha_unit,
        conditions=chosen,
        n_random=n_random + n_random % 2,
        n_control=n_control,
        seed=seed,
        intervention=intervention,
        direction=direction,
    )
    require_meaning(settings)
    return settings


def _choose(sweep: SteeringSweep) -> tuple[tuple[str, float], ...]:
    """For each fold the layer and size at which `signed` is most accurate on the other folds.

    Neither directions nor signs behind that accuracy saw the fold. Of equals the smallest size is
    taken, then the first layer.
    """
    chosen = []
    for fold in range(int(sweep.fold.max()) + 1):
        others = sweep.fold != fold
        best: tuple[float, float, int] | None = None
        pick = (sweep.places[0], sweep.sizes[0])
        for size in sweep.sizes:
            for order, place in enumerate(sweep.places):
                (cell,) = (
                    number
                    for number in sweep.cells_of(place, size, INNER)
                    if sweep.cells[number].draw == str(fold)
                )
                score = (float(sweep.correct[cell, others].mean()), -size, -order)
                if best is None or score > best:
                    best, pick = score, (place, size)
        chosen.append(pick)
    return tuple(chosen)


def _without_effect(cache: ActivationCache, signed: SignedItems, sweep: SteeringSweep) -> int:
    if sweep.settings["positions"] != "last_prompt":
        return 0
    layers = [
        int(signed.layer_nested[item]) if (place := sweep.chosen[fold][0]) == NESTED else int(place)
        for item, fold in enumerate(signed.fold)
    ]
    return sum(layer == cache.n_layers - 1 for layer in layers)


def with_verdict(item: Item, verdict: bool) -> Item:
    """The item with a verdict in words at the end of its prompt."""
    last = item.messages[-1]
    words = f"{last.content}\n\nA hint: the statement is {'true' if verdict else 'false'}."
    return replace(item, messages=(*item.messages[:-1], Message(last.role, words)))


def _text(
    backend: ModelBackend,
    items: Sequence[Item],
    signed: SignedItems,
    places: Sequence[str],
    batch_tokens: int,
    prefix_sharing: bool,
) -> tuple[tuple[Cell, ...], NDArray[np.float32], NDArray[np.int8]]:
    """Forced choices after prompts that end with the probe's verdict; each prompt is run once."""
    signs = np.stack([_signs(signed, _layers(signed, place)) for place in places])
    wanted = sorted({(item, int(row[item])) for row in signs for item in range(len(items))})
    told: tuple[Prompt, ...] = backend.tokenize(
        [with_verdict(items[item], sign > 0) for item, sign in wanted]
    )
    said = forced_logits(
        *(backend, told),
        batch_tokens=batch_tokens,
        prefix_sharing=prefix_sharing,
    )
    found = dict(zip(wanted, said, strict=True))
    logits = np.array([[found[item, int(s)] for item, s in enumerate(row)] for row in signs])
    return tuple(Cell(place, 0.0, "text") for place in places), logits, signs.astype(np.int8)


def _signs(signed: SignedItems, layer: NDArray[np.int64]) -> NDArray[np.int64]:
    decisions = signed.decision_values[np.arange(len(layer)), layer]
    return np.where(decisions > 0, 1, -1).astype(np.int64)


def _layers(signed: SignedItems, place: str) -> NDArray[np.int64]:
    """(n_items,) layer at which each item is steered."""
    return signed.layer_nested if place == NESTED else np.full(len(signed.fold), int(place))


def _mean_units(
    cache: ActivationCache, signed: SignedItems, places: Sequence[str]
) -> dict[str, float]:
    """Median residual norm at each place, mean over items of nested layers."""
    norms = np.nanmedian(cache.resid_norm, axis=0)
    return {place: float(norms[_layers(signed, place)].mean()) for place in places}


def verdict_head_of(backend: ModelBackend, true_id: int, false_id: int) -> VerdictHead:
    """The rows of the head that the condition `writer` needs.

    Raises:
        SteeringError: the backend wraps no model of transformers.
    """
    if not isinstance(backend, HFBackend):
        raise SteeringError(
            f"The condition `writer` reads the head of a transformers model; got a "
            f"{type(backend).__name__}. Leave it out of --conditions."
        )
    return verdict_head(backend.model, true_id, false_id)


def _require_match(cache: ActivationCache, signed: SignedItems, backend: ModelBackend) -> None:
    if cache.manifest["token_rule"] != _STEERED_RULE:
        raise SteeringError(
            f"The cache was read at {cache.manifest['token_rule']!r}, but steering writes at the "
            f"last prompt token. Extract with --token {_STEERED_RULE}."
        )
    differences = manifest_differences(cache.manifest["model"], backend.fingerprint())
    if differences:
        raise SteeringError(
            f"{cache.path} was made with another model than the one given. Fields that differ: "
            f"{'; '.join(differences)}."
        )
    if len(signed.fold) != cache.n_items:
        raise SteeringError(
            f"The probe has {len(signed.fold)} items, but {cache.path} has {cache.n_items}; "
            f"steering needs a decision on every item. Probe this cache first."
        )
    differences = manifest_differences(signed.manifest, cache.manifest)
    if differences:
        raise SteeringError(
            f"The probe was made from another cache than {cache.path}. Fields that differ (file: "
            f"the probe, run: the cache): {'; '.join(differences)}. Probe this cache first."
        )
