"""Folds that keep groups whole and stratify labels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from interp.errors import ProbeError
from interp.vocabulary import Grouping

__all__ = ["make_folds"]


def make_folds(
    labels: NDArray[np.bool_],
    group_ids: Sequence[str],
    *,
    n_folds: int,
    seed: int,
    grouping: Grouping = "group",
) -> NDArray[np.int64]:
    """(n_items,) fold of each item.

    Args:
        labels: (n_items,) of bool.
        group_ids: (n_items,).
        n_folds: at least 3, because layers are chosen on folds of the training part.
        seed: of the shuffling.
        grouping: whether groups are kept whole.

    Raises:
        ProbeError: one class only, fewer groups than folds, or a fold without one of the classes.
    """
    if n_folds < 3:
        raise ProbeError(
            f"--folds is {n_folds}; expected at least 3, since the layer is chosen by "
            f"cross-validation inside each training part."
        )
    n_true, n_false = int(labels.sum()), int((~labels).sum())
    if not n_true or not n_false:
        raise ProbeError(
            f"All {len(labels)} labels are {bool(n_true)}; a probe needs items of both classes."
        )
    n_groups = len(set(group_ids))
    if grouping == "group" and n_groups < n_folds:
        raise ProbeError(
            f"There are {n_groups} groups and {n_folds} folds; groups are kept whole, so there "
            f"must be at least as many groups as folds. Use fewer --folds, more items, or "
            f"--group none (which lets items of one group stand on both sides)."
        )
    if min(n_true, n_false) < n_folds:
        raise ProbeError(
            f"There are {n_true} True and {n_false} False items and {n_folds} folds; every fold "
            f"needs both classes. Use fewer --folds or more items."
        )
    if grouping == "group":
        splitter = StratifiedGroupKFold(n_splits=n_folds, shuffle=True, random_state=seed)
        splits = splitter.split(labels, labels, groups=np.asarray(group_ids))
    else:
        splitter = StratifiedKFold(n_splits=n_folds, shuffle=True, random_state=seed)
        splits = splitter.split(labels, labels)
    folds = np.full(len(labels), -1, dtype=np.int64)
    for fold, (_, held_out) in enumerate(splits):
        folds[held_out] = fold
    for fold in range(n_folds):
        inside = labels[folds == fold]
        if inside.all() or not inside.any():
            raise ProbeError(
                f"Fold {fold} holds {len(inside)} items of one class only: some groups are too "
                f"large or too uneven. Use fewer --folds, more groups, or another --seed."
            )
    return folds
