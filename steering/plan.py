"""What a steering sweep runs: directions from folds without the item, signs, sizes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from activations import ActivationCache
from activations.head import VerdictHead
from interp.direction import random_direction, writer_direction
from interp.direction.vectors import class_mean_difference, orthogonal_draw, shuffle_labels
from interp.errors import SteeringError
from interp.vocabulary import Grouping
from steering.directions import fold_direction
from steering.interventions import InterventionKind
from steering.results import Cell
from steering.settings import NESTED, Settings

__all__ = [
    "INNER",
    "FoldPlan",
    "SignedItems",
    "distinct",
    "make_plan",
]

INNER: Final = "inner"
"""Cells of `signed` that choose layer and size for a fold: neither their directions nor their signs
come from items of that fold, whose number is the draw."""


@dataclass(frozen=True, slots=True)
class SignedItems:
    """What steering takes from a probe sweep, item by item.

    Attributes:
        fold: (n_items,) outer fold.
        layer_nested: (n_items,) layer chosen without the item's fold.
        decision_values: (n_items, n_layers) out-of-fold decisions.
        manifest: of the cache that was probed; steering refuses any other cache.
        inner: (n_folds, n_items, n_layers) decisions of probes that saw neither the fold nor the
            item's own; NaN where there is none. None: layer and size are not chosen, but given.
        grouping: `none` where other items of an item's group may have been in its training folds.
    """

    fold: NDArray[np.int64]
    layer_nested: NDArray[np.int64]
    decision_values: NDArray[np.float64]
    manifest: Mapping[str, object]
    inner: NDArray[np.float64] | None = None
    grouping: Grouping = "group"


@dataclass(frozen=True, slots=True)
class FoldPlan:
    """The cells that the items of one fold are run in.

    Attributes:
        rows: (k,) items of the fold.
        cells: (n,) number of each cell in the sweep.
        layers: (n,) where the fold is steered in it, ascending.
        vectors: (n_vectors, d_model) unit norm.
        which: (n,) row of `vectors`.
        coefficients: (n, k) with sign, in units of the residual stream; shares of `project_out`.
        kind: what is done along the vectors.
    """

    rows: NDArray[np.int64]
    cells: NDArray[np.int64]
    layers: NDArray[np.int64]
    vectors: NDArray[np.float32]
    which: NDArray[np.int64]
    coefficients: NDArray[np.float64]
    kind: InterventionKind = "add"


def make_plan(
    cache: ActivationCache,
    signed: SignedItems,
    settings: Settings,
    head: VerdictHead | None,
) -> tuple[tuple[Cell, ...], list[FoldPlan], NDArray[np.int8], NDArray[np.float64]]:
    """All cells that steer a residual stream, and how each fold is run in them.

    Args:
        cache: activations of the items, at the last prompt token.
        signed: folds, layers and decisions.
        settings: what is crossed.
        head: of the model, for `writer`.

    Returns:
        the cells; one plan a fold; (n_cells, n_items) the sign of every push, 0 where an item is
        not run; (n_cells,) mean size of what is added.
    """
    maker = _Maker(cache, signed, settings, head)
    number: dict[Cell, int] = {}
    plans = []
    pushes: dict[tuple[int, int], NDArray[np.float64]] = {}
    for fold in range(int(signed.fold.max()) + 1):
        rows = np.flatnonzero(signed.fold == fold)
        vectors: list[NDArray[np.float32]] = []
        entries: list[tuple[int, int, int, NDArray[np.float64]]] = []
        for place in settings.places:
            for condition, draw, layer, unit, vector, sign in maker.sources(fold, place):
                vectors.append(vector)
                for size in settings.sizes:
                    cell = number.setdefault(Cell(place, size, condition, draw), len(number))
                    amount = np.asarray(sign * size * unit, dtype=np.float64)
                    entries.append((layer, cell, len(vectors) - 1, amount))
                    pushes[cell, fold] = amount
        entries.sort(key=lambda entry: entry[0])
        plans.append(
            FoldPlan(
                rows=rows,
                cells=np.array([cell for _, cell, _, _ in entries]),
                layers=np.array([layer for layer, _, _, _ in entries]),
                vectors=np.stack(vectors),
                which=np.array([which for _, _, which, _ in entries]),
                coefficients=np.stack([amount for _, _, _, amount in entries]),
                kind=settings.intervention,
            )
        )
    intended = np.zeros((len(number), cache.n_items), dtype=np.int8)
    absolute = np.zeros((len(number), cache.n_items))
    for (cell, fold), amount in pushes.items():
        intended[cell, plans[fold].rows] = np.sign(amount)
        absolute[cell, plans[fold].rows] = np.abs(amount)
    run = np.maximum((intended != 0).sum(axis=1), 1)
    return tuple(number), plans, intended, absolute.sum(axis=1) / run


def distinct(plan: FoldPlan) -> tuple[FoldPlan, NDArray[np.int64]]:
    """What has to be run for a plan: cells that share a vector and a size differ by signs only.

    `signed`, `oracle`, `fixed` and `negated` are such cells: a run with either sign serves all.

    Returns:
        the plan of the runs, in which `cells` are those of the first of each kind; (n_cells, k) the
        run that an item's logits of a cell are taken from.
    """
    alike: dict[tuple[int, bytes, bytes], list[int]] = {}
    sizes = np.abs(plan.coefficients)
    for cell, layer in enumerate(plan.layers):
        key = int(layer), plan.vectors[plan.which[cell]].tobytes(), sizes[cell].tobytes()
        alike.setdefault(key, []).append(cell)
    runs: list[tuple[int, NDArray[np.float64]]] = []
    taken = np.empty(plan.coefficients.shape, dtype=np.int64)
    for cells in alike.values():
        if len(cells) > 2:
            taken[cells] = len(runs) + (plan.coefficients[cells] < 0)
            runs += [(cells[0], sizes[cells[0]]), (cells[1], -sizes[cells[0]])]
        else:
            for cell in cells:
                taken[cell] = len(runs)
                runs.append((cell, plan.coefficients[cell]))
    first = np.array([cell for cell, _ in runs])
    return (
        replace(
            plan,
            cells=plan.cells[first],
            layers=plan.layers[first],
            which=plan.which[first],
            coefficients=np.stack([amount for _, amount in runs]),
        ),
        taken,
    )


Source = tuple[str, str, int, float, NDArray[np.float32], NDArray[np.int64]]
"""Condition, draw, layer, size of one alpha, vector, sign of each item of the fold."""


class _Maker:
    """Directions and signs, fold by fold; draws are the same for all folds of a place."""

    def __init__(
        self,
        cache: ActivationCache,
        signed: SignedItems,
        settings: Settings,
        head: VerdictHead | None,
    ) -> None:
        if (cache.label < 0).any():
            raise SteeringError("Some items have no label; directions need True/False items.")
        self._cache, self._signed, self._settings, self._head = cache, signed, settings, head
        self._label = cache.label.astype(bool)
        self._norms = cache.resid_norm
        self._streams: dict[int, NDArray[np.float32]] = {}
        # One generator for the random directions, so that other conditions do not change them.
        rng = np.random.default_rng(settings.seed)
        like = fold_direction(cache, self._layer(0, settings.places[0]))
        self._random = {
            place: [
                random_direction(like, rng).vector
                for _ in range(settings.n_random if settings.signless else settings.n_random // 2)
            ]
            for place in settings.places
        }
        self._fitted: dict[tuple[int, bytes], NDArray[np.float32]] = {}
        controls = np.random.default_rng([settings.seed, 1])
        groups = cache.group_id
        self._shuffled = [
            shuffle_labels(self._label, controls, groups) for _ in range(settings.n_control)
        ]
        self._weights = [controls.standard_normal(cache.n_items) for _ in range(settings.n_control)]

    def _layer(self, fold: int, place: str) -> int:
        if place != NESTED:
            return int(place)
        found = np.unique(self._signed.layer_nested[self._signed.fold == fold])
        if len(found) != 1:
            raise SteeringError(
                f"Fold {fold} has the nested layers {found.tolist()}; expected one layer a fold."
            )
        return int(found[0])

    def _stream(self, layer: int) -> NDArray[np.float32]:
        if layer not in self._streams:
            self._streams[layer] = self._cache.resid_post(layer)
        return self._streams[layer]

    def _unit(self, layer: int, training: NDArray[np.bool_]) -> float:
        if self._settings.alpha_unit == "absolute" or self._settings.signless:
            return 1.0
        return float(np.nanmedian(self._norms[training, layer]))

    def _own(self, layer: int, training: NDArray[np.bool_]) -> NDArray[np.float32]:
        """What is steered along, fitted on some items. Two folds left out make one direction."""
        key = layer, training.tobytes()
        if key not in self._fitted:
            self._fitted[key] = self._fit(layer, training, self._label)
        return self._fitted[key]

    def _fit(
        self, layer: int, training: NDArray[np.bool_], labels: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        chosen = self._settings.direction
        # What is given cannot be fitted to permuted labels; class means can.
        if chosen is None or not (chosen.fitted or labels is self._label):
            difference = class_mean_difference(self._stream(layer)[training], labels[training])
            return _unit_norm(difference, f"Layer {layer}: the class means are equal")
        vector = chosen.fit(layer, training, labels).astype(np.float64)
        return _unit_norm(vector, f"Layer {layer}: {chosen.name} is zero")

    def sources(self, fold: int, place: str) -> Iterator[Source]:
        """Everything that the items of a fold are steered with at a place."""
        signed, settings, layer = self._signed, self._settings, self._layer(fold, place)
        training, inside = signed.fold != fold, signed.fold == fold
        unit = self._unit(layer, training)
        sign = np.where(signed.decision_values[inside, layer] > 0, 1, -1)
        own = self._own(layer, training)
        one = np.ones(int(inside.sum()), dtype=np.int64)
        if settings.signless:
            sign = one
        plain: dict[str, NDArray[np.int64]] = {
            "signed": sign,
            "oracle": np.where(self._label[inside], 1, -1),
            "fixed": one,
            "negated": -sign,
        }
        for condition in settings.conditions:
            if condition in plain:
                yield condition, "", layer, unit, own, plain[condition]
            elif condition == "random":
                for number, vector in enumerate(self._random[place]):
                    yield condition, f"+{number}", layer, unit, vector, sign
                    if not settings.signless:
                        yield condition, f"-{number}", layer, unit, -vector, sign
            elif condition == "shuffled":
                for number, labels in enumerate(self._shuffled):
                    vector = self._fit(layer, training, labels)
                    yield condition, str(number), layer, unit, vector, sign
            elif condition == "orthogonal":
                stream = self._stream(layer)[training]
                for number, weights in enumerate(self._weights):
                    drawn = orthogonal_draw(stream, own, weights[training])
                    vector = _unit_norm(drawn, f"Layer {layer}: nothing is orthogonal")
                    yield condition, str(number), layer, unit, vector, sign
            elif condition == "writer":
                yield condition, "", layer, unit, self._writer(layer, unit), sign
        if signed.inner is not None and "signed" in settings.conditions:
            yield from self._inner(fold, place)

    def _inner(self, fold: int, place: str) -> Iterator[Source]:
        signed = self._signed
        assert signed.inner is not None
        inside = signed.fold == fold
        for other in range(int(signed.fold.max()) + 1):
            if other == fold:
                continue
            layer = self._layer(other, place)
            training = (signed.fold != fold) & (signed.fold != other)
            decisions = signed.inner[other][inside, layer]
            if np.isnan(decisions).any():
                raise SteeringError(
                    f"There are no inner decisions of fold {other} at layer {layer}; probes "
                    f"without both folds are needed for every layer of the grid."
                )
            vector = self._own(layer, training)
            sign = np.where(decisions > 0, 1, -1)
            yield INNER, str(other), layer, self._unit(layer, training), vector, sign

    def _writer(self, layer: int, unit: float) -> NDArray[np.float32]:
        if self._head is None:
            raise SteeringError("The condition `writer` needs the model's output head.")
        head, manifest = self._head, self._cache.manifest
        return writer_direction(
            head.rows,
            0,
            1,
            layer=layer,
            median_norm=unit,
            model_id=manifest["model"]["model_id"],
            token_rule=manifest["token_rule"],
            norm_weight=head.norm_weight,
            centred=head.centred,
        ).vector


def _unit_norm(vector: NDArray[np.float64], what: str) -> NDArray[np.float32]:
    norm = float(np.linalg.norm(vector))
    if not np.isfinite(norm) or norm == 0:
        raise SteeringError(f"{what}, or not finite; there is no direction.")
    return np.asarray(vector / norm, dtype=np.float32)
