"""Control tasks: random labels by the type of a statement (Hewitt and Liang 2019).

Every type (the template of a statement, or the answer entity, which is what the statement says of
its subject) gets one random label for all its items. A probe can score on the items of a held-out
fold only if it has learned from the other folds which type has which label, so the accuracy tells
how much a probe of this strength can memorise, and the selectivity is what the real task has above
it. A type that stands in one fold only cannot be learned; where no types recur the control says
nothing and is not applicable.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np
from numpy.typing import NDArray

from interp.items import Item

__all__ = ["CONTROL_DRAWS", "ControlTask", "control_tasks", "count_right", "recurring"]

CONTROL_DRAWS: Final = 5
"""Random labellings of the types; their accuracies are averaged."""

_FEWEST_SHARE: Final = 0.5
_ATTEMPTS: Final = 200


@dataclass(frozen=True, slots=True)
class ControlTask:
    """Random labels by type.

    Attributes:
        types: (n_items,) type of each item, an integer from 0; −1 where it is not known.
        judged: (n_items,) whether the item's type also stands in another fold.
        labels: (n_items, draws) of bool; no draws where the control is not applicable.
    """

    types: NDArray[np.int64]
    judged: NDArray[np.bool_]
    labels: NDArray[np.bool_]


def control_tasks(
    items: Sequence[Item], folds: NDArray[np.int64], *, seed: int
) -> dict[str, ControlTask]:
    """The control tasks of these items by the name of the type, `template` and `entity`.

    A kind of type is applicable if at least two types recur across folds, at least half of the
    items are of such types, and labels can be drawn that leave both classes outside any two folds.

    Args:
        items: in the order of the folds.
        folds: (n_items,) from 0.
        seed: of the labels.
    """
    rng = np.random.default_rng(seed)
    kinds = {
        "template": [item.template for item in items],
        "entity": [item.entity for item in items],
    }
    return {name: _task(types, folds, rng) for name, types in kinds.items()}


def _task(
    names: Sequence[str | None], folds: NDArray[np.int64], rng: np.random.Generator
) -> ControlTask:
    known = [name for name in dict.fromkeys(names) if name is not None]
    codes = {name: code for code, name in enumerate(known)}
    types = np.array([-1 if name is None else codes[name] for name in names], dtype=np.int64)
    judged = recurring(types, folds)
    columns: list[NDArray[np.bool_]] = []
    if judged.mean() >= _FEWEST_SHARE and len(set(types[judged].tolist())) > 1:
        for _ in range(_ATTEMPTS):
            # Half of the types are True, so that no probe scores by one verdict for all.
            labels = (rng.permutation(len(known)) % 2 == 0)[types]
            labels[types < 0] = rng.random(int((types < 0).sum())) < 0.5
            if _possible(labels, folds):
                columns.append(labels)
            if len(columns) == CONTROL_DRAWS:
                return ControlTask(types, judged, np.stack(columns, axis=1))
    return ControlTask(types, judged, np.empty((len(names), 0), dtype=bool))


def recurring(types: NDArray[np.int64], folds: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(n_items,) whether an item of the same type stands in another fold; False for −1."""
    stands = np.zeros((int(types.max()) + 2, int(folds.max()) + 1), dtype=bool)
    stands[types, folds] = True
    return np.asarray((stands.sum(axis=1) > 1)[types] & (types >= 0))


def _possible(labels: NDArray[np.bool_], folds: NDArray[np.int64]) -> bool:
    for pair in combinations(range(int(folds.max()) + 1), 2):
        outside = labels[~np.isin(folds, pair)]
        if outside.all() or not outside.any():
            return False
    return True


def count_right(
    task: ControlTask, verdicts: NDArray[np.bool_], folds: NDArray[np.int64]
) -> NDArray[np.int64]:
    """(n_folds, draws) number of right verdicts on the judged items of each fold.

    Args:
        task: the control.
        verdicts: (n_items, draws).
        folds: (n_items,).
    """
    found = np.zeros((int(folds.max()) + 1, verdicts.shape[1]), dtype=np.int64)
    np.add.at(found, folds, (verdicts == task.labels) & task.judged[:, None])
    return found
