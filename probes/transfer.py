"""Does a probe carry over? Trained without a category or a template, tested on it.

Whatever shares a group with the tested part is left out of the training too, so that a part is
never judged by a probe that has seen its scenario. The layer (and C, where it is chosen) is taken
by cross-validation over the sweep's folds inside the training part alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from interp.errors import ProbeError
from interp.statistics import class_weights
from interp.vocabulary import TransferKind
from probes.batched import Split
from probes.layer import Decide

__all__ = ["MOST_PARTS", "Transfer", "TransferPlan", "plan_transfer", "run_transfer"]

MOST_PARTS: Final = 8
"""With more values than this, whole values are dealt into as many parts."""


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """Which items are held out together.

    Attributes:
        kind: what is held out.
        value: (n_items,) the category or template of each item.
        part: (n_items,) from 0; items of one value are in one part.
        training: (n_parts, n_items) of bool, the items that a part's probes are fitted to.
    """

    kind: TransferKind
    value: tuple[str, ...]
    part: NDArray[np.int64]
    training: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Transfer:
    """What probes decide about parts that they were not trained on.

    Attributes:
        plan: the parts.
        decision_values: (n_items, n_layers) log odds of True.
        inner_accuracy: (n_parts, n_layers) accuracy inside the training part.
    """

    plan: TransferPlan
    decision_values: NDArray[np.float64]
    inner_accuracy: NDArray[np.float64]

    @property
    def layers(self) -> NDArray[np.int64]:
        """(n_parts,) layer chosen inside the training part."""
        return np.asarray(self.inner_accuracy.argmax(axis=1))

    @property
    def decision_values_nested(self) -> NDArray[np.float64]:
        """(n_items,) decision of each item at the layer of its part."""
        return self.decision_values[np.arange(len(self.plan.part)), self.layers[self.plan.part]]


def plan_transfer(
    kind: TransferKind,
    values: Sequence[str | None],
    labels: NDArray[np.bool_],
    group_ids: Sequence[str],
    folds: NDArray[np.int64],
    *,
    seed: int,
) -> TransferPlan:
    """Deal values into parts and say what each is trained on.

    Args:
        kind: what the values are, for errors.
        values: (n_items,).
        labels: (n_items,) of bool.
        group_ids: (n_items,).
        folds: (n_items,) of the sweep, for the choice of the layer.
        seed: of the dealing, where there are many values.

    Raises:
        ProbeError: an item without a value, one value only, or a training part that cannot be
            cross-validated.
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        raise ProbeError(
            f"--transfer {kind}: {len(values) - len(known)} of {len(values)} items have no {kind}. "
            f"Leave it out, or use a source that gives one."
        )
    names = list(dict.fromkeys(known))
    if len(names) < 2:
        raise ProbeError(
            f"--transfer {kind}: all items have the {kind} {names[0]!r}; there is nothing to carry "
            f"over from. Use items of several, or leave it out."
        )
    part_of = _deal(names, known, seed)
    part = np.array([part_of[name] for name in known], dtype=np.int64)
    groups = np.asarray(group_ids)
    training = np.stack(
        [~np.isin(groups, groups[part == index]) for index in range(int(part.max()) + 1)]
    )
    for index, kept in enumerate(training):
        for fold in range(int(folds.max()) + 1):
            inside = labels[kept & (folds != fold)]
            if not (kept & (folds == fold)).any() or inside.all() or not inside.any():
                held = ", ".join(name for name in names if part_of[name] == index)
                raise ProbeError(
                    f"--transfer {kind}: without {held} and what shares a group with it, "
                    f"{int(kept.sum())} items are left, too few to train and choose a layer on. "
                    f"Use more items, or leave it out."
                )
    return TransferPlan(kind, tuple(known), part, training)


def _deal(names: Sequence[str], values: Sequence[str], seed: int) -> dict[str, int]:
    """Part of each value: one each, or into `MOST_PARTS` of about equal size."""
    if len(names) <= MOST_PARTS:
        return {name: index for index, name in enumerate(names)}
    order = np.random.default_rng(seed).permutation(len(names))
    counts = dict.fromkeys(names, 0)
    for value in values:
        counts[value] += 1
    sizes = [0] * MOST_PARTS
    part_of: dict[str, int] = {}
    for name in sorted((names[index] for index in order), key=lambda name: -counts[name]):
        smallest = sizes.index(min(sizes))
        part_of[name] = smallest
        sizes[smallest] += counts[name]
    return part_of


def run_transfer(
    plan: TransferPlan,
    features: NDArray[np.float32],
    labels: NDArray[np.bool_],
    folds: NDArray[np.int64],
    strengths: Sequence[float],
    decide: Decide,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """One layer: (n_items,) decisions, (n_parts,) balanced accuracy inside the training parts."""
    n_folds = int(folds.max()) + 1
    splits = []
    for index, kept in enumerate(plan.training):
        inner = [Split(kept & (folds != fold), kept & (folds == fold)) for fold in range(n_folds)]
        splits += [*inner, Split(kept, plan.part == index)]
    decided = (
        values[:, :, 0] for values, _ in decide(features, splits, labels[:, None], strengths)
    )
    decisions = np.empty(len(labels))
    accuracy = np.empty(len(plan.training))
    for index, kept in enumerate(plan.training):
        right = np.zeros(len(strengths))
        weights = np.zeros(len(labels))
        weights[kept] = class_weights(labels[kept])
        for fold in range(n_folds):
            judged = kept & (folds == fold)
            said = next(decided) > 0
            right += (weights[judged, None] * (said == labels[judged, None])).sum(axis=0)
        best = int(right.argmax())
        accuracy[index] = right[best] / kept.sum()
        decisions[plan.part == index] = next(decided)[:, best]
    return decisions, accuracy
