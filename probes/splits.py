"""Folds that keep groups whole and stratify labels."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold

from interp.errors import ProbeError, require_choice
from interp.files import read_json
from interp.vocabulary import Grouping

__all__ = ["check_folds", "make_folds", "read_folds"]


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
    require_choice("grouping", grouping, get_args(Grouping), ProbeError)
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
    _require_both_classes(
        folds,
        labels,
        "some groups are too large or too uneven. Use fewer --folds, more groups, or another "
        "--seed.",
    )
    return folds


def read_folds(path: str | Path, item_ids: Sequence[str]) -> NDArray[np.int64]:
    """(n_items,) folds from a JSON object of item id → fold; ids of other items are ignored.

    Raises:
        ResultError: not a JSON object.
        ProbeError: an item has no fold, or a fold is not an integer from 0 below the number of
            items.
    """
    path = Path(path)
    found = read_json(path, "a fold file, a JSON object of item id to fold")
    missing = [item_id for item_id in item_ids if item_id not in found]
    if missing:
        raise ProbeError(
            f"{path} gives no fold for {len(missing)} of {len(item_ids)} items (first: "
            f"{missing[0]!r}). Give every item of the cache one."
        )
    for item_id in item_ids:
        fold = found[item_id]
        whole = isinstance(fold, int) and not isinstance(fold, bool)
        if not whole or not 0 <= fold < len(item_ids):
            raise ProbeError(
                f"{path}: the fold of {item_id!r} is {fold!r:.40}; expected an integer from 0 that "
                f"is smaller than the number of items ({len(item_ids)})."
            )
    return np.array([found[item_id] for item_id in item_ids], dtype=np.int64)


def check_folds(
    folds: Sequence[int] | NDArray[np.integer],
    labels: NDArray[np.bool_],
    group_ids: Sequence[str],
    *,
    grouping: Grouping = "group",
) -> NDArray[np.int64]:
    """Refuse folds that cut a group, leave a gap, or miss a class; return them as an array.

    Args:
        folds: (n_items,) from 0.
        labels: (n_items,) of bool.
        group_ids: (n_items,).
        grouping: whether groups must be whole.

    Raises:
        ProbeError: naming the group or the fold; or these are not one integer an item.
    """
    given = np.asarray(folds)
    if given.shape != (len(labels),):
        raise ProbeError(
            f"folds has the shape {given.shape}; expected ({len(labels)},), one fold an item."
        )
    if given.dtype.kind not in "iu":
        raise ProbeError(f"folds holds {given.dtype.name} values; expected integers from 0.")
    whole = given.astype(np.int64)
    require_choice("grouping", grouping, get_args(Grouping), ProbeError)
    found = np.unique(whole).tolist()
    if found != list(range(len(found))) or len(found) < 3:
        raise ProbeError(
            f"The folds are {found}; expected at least 3, numbered from 0 without a gap."
        )
    if grouping == "group":
        fold_of: dict[str, int] = {}
        for group, fold in zip(group_ids, whole.tolist(), strict=True):
            if fold_of.setdefault(group, fold) != fold:
                raise ProbeError(
                    f"The folds cut group {group!r}: it has items in folds {fold_of[group]} and "
                    f"{fold}. Keep its items together, or use --group none (which leaks)."
                )
    _require_both_classes(whole, labels, "Move groups of the other class into it.")
    return whole


def _require_both_classes(folds: NDArray[np.int64], labels: NDArray[np.bool_], what: str) -> None:
    for fold in range(int(folds.max()) + 1):
        inside = labels[folds == fold]
        if inside.all() or not inside.any():
            raise ProbeError(f"Fold {fold} holds {len(inside)} items of one class only: {what}")
