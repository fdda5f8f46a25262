"""The steering sweep: layers × alphas × conditions, read out by forced choice.

Only the last prompt token is steered, and the model is causal: so keys and values of everything
before it are the same in every cell. They are computed once a batch, and a cell costs the last
prompt token and the answer stub alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from activations import ActivationCache, Edit, ModelBackend
from activations.backend import SharedPrefix
from activations.batches import BATCH_TOKENS
from activations.cache import manifest_differences
from activations.passes import Reading, plan_sharing, run_plan
from interp.direction import Direction, random_direction
from interp.errors import SteeringError
from steering.directions import fold_direction
from steering.hooks import change_at
from steering.interventions import added
from steering.results import BASELINE, Cell, SteeringSweep

__all__ = ["NESTED", "SignedItems", "nonzero_alphas", "sweep_steering"]

NESTED: Final = "nested"
_STEERED_RULE: Final = "last_prompt"


@dataclass(frozen=True, slots=True)
class SignedItems:
    """What steering takes from a probe sweep, item by item.

    Attributes:
        fold: (n_items,) outer fold.
        layer_nested: (n_items,) layer chosen without the item's fold.
        decision_values: (n_items, n_layers) out-of-fold decisions.
        manifest: of the cache that was probed; steering refuses any other cache.
    """

    fold: NDArray[np.int64]
    layer_nested: NDArray[np.int64]
    decision_values: NDArray[np.float64]
    manifest: Mapping[str, Any]


def sweep_steering(
    cache: ActivationCache,
    signed: SignedItems,
    backend: ModelBackend,
    *,
    alphas: Sequence[float],
    layers: Sequence[int] | None = None,
    n_random: int = 5,
    seed: int = 0,
    batch_tokens: int = BATCH_TOKENS,
    prefix_sharing: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> SteeringSweep:
    """Steer every item and read its forced choice.

    Direction, layer and sign of an item all come from folds without it. `negated` and `random`
    use the same signs as `signed`; each random direction is used as drawn and mirrored.

    Args:
        cache: activations of the items, at `last_prompt`.
        signed: folds, layers and decisions of a probe sweep over that cache.
        backend: the model that the cache was made with.
        alphas: sizes in multiples of the median residual norm; 0 is the baseline and always run.
            The last one that is not 0 is the one that headline numbers are given for.
        layers: fixed layers for all items; None steers each item at its nested layer.
        n_random: random directions, each in a ± pair.
        seed: of the random directions.
        batch_tokens: padded tokens a batch.
        prefix_sharing: run first tokens that prompts have in common once, as `extract` does.
        progress: called with the number of items finished since the last call.

    Raises:
        SteeringError: other model, other token rule, no alpha, or a layer out of range.
    """
    _require_match(cache, signed, backend)
    sizes = nonzero_alphas(alphas, n_random)
    for layer in layers or ():
        cache.require_layer(layer)
    places = [NESTED] if layers is None else [str(layer) for layer in dict.fromkeys(layers)]

    items = cache.items()
    prompts = backend.tokenize(items)
    if min(len(prompt.ids) for prompt in prompts) < 2:
        raise SteeringError("A prompt has one token only; steering needs at least two.")
    verdicts = backend.verdict_ids(prompts)
    logit_ids = (verdicts.true_id, verdicts.false_id)
    plan = _plan(cache, signed, places, sizes, n_random, seed)
    logits = np.full((len(plan) + 1, len(items), 2), np.nan, dtype=np.float32)

    def run(index: Sequence[int], shared: SharedPrefix | None) -> NDArray[np.float32]:
        prefix = backend.prefill([prompts[i].ids[:-1] for i in index], shared)
        suffixes = [prompts[i].ids[-1:] + prompts[i].stub_ids for i in index]
        cells = [backend.logits_after(prefix, suffixes, logit_ids)]
        for step in plan:
            with _steered(backend, step, index):
                cells.append(backend.logits_after(prefix, suffixes, logit_ids))
        return torch.stack(cells).numpy()

    # A shared prefix ends before the last token that `prefill` runs.
    reading = Reading(prompts, [len(prompt.ids) - 2 for prompt in prompts], logit_ids)
    sharing = plan_sharing(backend, reading, range(len(prompts)), prefix_sharing=prefix_sharing)
    batches = run_plan(backend, reading, sharing, run, batch_tokens=batch_tokens, aligned=True)
    for index, values in batches:
        if not np.isfinite(values).all():
            raise SteeringError(
                f"The model's logits are not finite under steering (alphas {list(alphas)}). Use "
                f"smaller --alphas."
            )
        logits[:, index] = values
        progress(len(index))
    return SteeringSweep(
        cells=(Cell(BASELINE, 0.0, BASELINE), *(step.cell for step in plan)),
        logits=logits,
        alpha_absolute=np.array([0.0, *(np.abs(step.coefficients).mean() for step in plan)]),
        sign=_signs(signed, signed.layer_nested),
        item_id=cache.item_id,
        label=cache.label.astype(bool),
        group_id=cache.group_id,
        n_without_effect=int((_layers(cache, signed, places[0]) == cache.n_layers - 1).sum()),
        quoted_alpha=sizes[-1],
        quoted_layer=places[0],
        seed=seed,
        manifest=cache.manifest,
    )


def nonzero_alphas(alphas: Sequence[float], n_random: int) -> list[float]:
    """The sizes to run beside the baseline, each once; refuses settings that cannot work.

    Raises:
        SteeringError: a size is negative or not finite, none is left, or `n_random` is below 1.
    """
    sizes = [alpha for alpha in dict.fromkeys(alphas) if alpha != 0]
    if not sizes or not all(np.isfinite(sizes)) or min(sizes) < 0:
        raise SteeringError(f"--alphas is {list(alphas)}; expected positive numbers (0 is added).")
    if n_random < 1:
        raise SteeringError(f"--random-directions is {n_random}; expected at least 1.")
    return sizes


@dataclass(frozen=True, slots=True)
class _Step:
    """One cell, ready to run: a direction and a signed absolute coefficient for every item."""

    cell: Cell
    directions: Sequence[Direction]
    coefficients: NDArray[np.float64]


def _steered(
    backend: ModelBackend, step: _Step, index: Sequence[int]
) -> AbstractContextManager[None]:
    """Every sequence of a batch steered at its first column, each at its own layer."""
    edits = []
    for layer in sorted({step.directions[i].layer for i in index}):
        rows = [row for row, i in enumerate(index) if step.directions[i].layer == layer]
        chosen = [index[row] for row in rows]
        vectors = torch.from_numpy(np.stack([step.directions[i].vector for i in chosen]))
        sizes = torch.tensor(step.coefficients[chosen], dtype=torch.float32)

        def apply(
            hidden: torch.Tensor,
            rows: list[int] = rows,
            vectors: torch.Tensor = vectors,
            sizes: torch.Tensor = sizes,
        ) -> torch.Tensor:
            at = torch.zeros(hidden.shape[:2], dtype=torch.bool)
            at[rows, 0] = True
            device = hidden.device
            return change_at(
                hidden, at, lambda h, _rows: added(h, vectors.to(device), sizes.to(device))
            )

        edits.append(Edit(layer, "resid_post", apply))
    return backend.intervene(edits)


def _signs(signed: SignedItems, layer: NDArray[np.int64]) -> NDArray[np.int64]:
    decisions = signed.decision_values[np.arange(len(layer)), layer]
    return np.where(decisions > 0, 1, -1).astype(np.int64)


def _layers(cache: ActivationCache, signed: SignedItems, place: str) -> NDArray[np.int64]:
    """(n_items,) layer at which each item is steered."""
    return signed.layer_nested if place == NESTED else np.full(cache.n_items, int(place))


def _plan(
    cache: ActivationCache,
    signed: SignedItems,
    places: Sequence[str],
    sizes: Sequence[float],
    n_random: int,
    seed: int,
) -> list[_Step]:
    rng = np.random.default_rng(seed)
    plan: list[_Step] = []
    for place in places:
        layer = _layers(cache, signed, place)
        sign = _signs(signed, layer)
        by_fold: dict[tuple[int, int], Direction] = {}
        for fold, at in sorted({(int(f), int(a)) for f, a in zip(signed.fold, layer, strict=True)}):
            by_fold[fold, at] = fold_direction(cache, at, training=signed.fold != fold)
        own = [by_fold[int(f), int(a)] for f, a in zip(signed.fold, layer, strict=True)]
        unit = np.array([direction.median_norm for direction in own])
        draws = []
        for _ in range(n_random):
            # One draw for all items, so that it differs from `signed` in the direction alone.
            vector = random_direction(own[0], rng)
            draws.append([_moved(vector, direction) for direction in own])
        for alpha in sizes:
            amount = sign * alpha * unit
            plan.append(_Step(Cell(place, alpha, "signed"), own, amount))
            plan.append(_Step(Cell(place, alpha, "negated"), own, -amount))
            for number, directions in enumerate(draws):
                for mark, factor in (("+", 1), ("-", -1)):
                    cell = Cell(place, alpha, "random", f"{mark}{number}")
                    plan.append(_Step(cell, directions, factor * amount))
    return plan


def _moved(vector: Direction, place: Direction) -> Direction:
    """A random direction's vector at the layer and norm of another direction."""
    return replace(
        place, vector=vector.vector, method=vector.method, class_gap=None, n_true=0, n_false=0
    )


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
    differences = manifest_differences(signed.manifest, cache.manifest)
    if differences:
        raise SteeringError(
            f"The probe was made from another cache than {cache.path}. Fields that differ (file: "
            f"the probe, run: the cache): {'; '.join(differences)}. Probe this cache first."
        )
