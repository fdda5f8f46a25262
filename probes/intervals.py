"""Intervals of scores that are no means over items, from the resamples of the accuracy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from interp.statistics import (
    Estimate,
    few_groups,
    group_codes,
    resampled_groups,
    score_decisions,
)

__all__ = ["balanced_estimates", "score_intervals"]

_CELLS_AT_ONCE: Final = 2_000_000


def balanced_estimates(
    labels: NDArray[np.bool_],
    columns: NDArray[np.bool_ | np.floating],
    group_ids: Sequence[str],
    *,
    seed: int,
    spread: float | NDArray[np.float64],
    possible: tuple[float, float] = (0.0, 1.0),
) -> list[Estimate]:
    """Mean of the means of the two classes, with 95% group-bootstrap intervals.

    Of whether decisions are right, this is the balanced accuracy. Whole groups are drawn as for
    `bootstrap_mean` (the same seed draws the same groups), and in every resample the class means
    are taken anew: how many items of a class are drawn says nothing about them. Resamples without
    one of the classes are left out. One group says nothing about others.

    Args:
        labels: (n_items,) of bool, both classes.
        columns: (n_items, n_columns) scores of items.
        group_ids: (n_items,).
        seed: of the resampling.
        spread: factor on the distances (`cross_validation_spread`), one or one a column.
        possible: least and largest score that an item can have; no interval leaves it.
    """
    codes = group_codes(group_ids)
    n_groups = int(codes.max()) + 1
    values = columns.astype(float)
    mean = (values[labels].mean(axis=0) + values[~labels].mean(axis=0)) / 2
    if n_groups == 1:
        return [Estimate(float(at), *possible) for at in mean]
    halves = []
    for own in (labels, ~labels):
        sums = np.zeros((n_groups, values.shape[1]))
        np.add.at(sums, codes[own], values[own])
        halves.append((sums, np.bincount(codes[own], minlength=n_groups)))
    found = []
    for weights in resampled_groups(n_groups, seed=seed):
        with np.errstate(invalid="ignore"):
            found.append(
                sum((weights @ sums) / (weights @ sizes)[:, None] for sums, sizes in halves) / 2
            )
    draws = np.concatenate(found)
    ends = np.quantile(draws[np.isfinite(draws[:, 0])], [0.025, 0.975], axis=0)
    low, high = (mean + spread * few_groups(n_groups) * (ends - mean)).clip(*possible)
    return [Estimate(*map(float, row)) for row in zip(mean, low, high, strict=True)]


def score_intervals(
    labels: NDArray[np.bool_],
    decisions: NDArray[np.float64],
    categories: Sequence[str],
    group_ids: Sequence[str],
    *,
    seed: int,
    spread: float,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """95% group-bootstrap intervals of nested scores, and of the accuracy in every category.

    Whole groups are drawn as for the accuracy (the same seed draws the same groups), and the ends
    are moved out like those of the accuracy. Resamples without one of the classes, or without the
    category, are left out. One group says nothing about others: its interval is 0 to 1.

    Args:
        labels: (n_items,) of bool, both classes.
        decisions: (n_items,), log odds of True.
        categories: (n_items,).
        group_ids: (n_items,).
        seed: of the resampling.
        spread: factor on the distances (`cross_validation_spread`).

    Returns:
        [low, high] by score (`balanced_accuracy`, `macro_f1`, `auroc`), and by category.
    """
    codes = group_codes(group_ids)
    n_groups = int(codes.max()) + 1
    said = decisions > 0
    names = list(dict.fromkeys(categories))
    inside = np.array([[category == name for name in names] for category in categories])
    cells = [labels & said, labels & ~said, ~labels & said, ~labels & ~said]
    right = (said == labels)[:, None]
    columns = np.concatenate([np.stack(cells, axis=1), inside, inside & right], axis=1)
    sums = np.zeros((n_groups, columns.shape[1]))
    np.add.at(sums, codes, columns.astype(float))
    counts, areas = [], []
    for weights in resampled_groups(n_groups, seed=seed):
        counts.append(weights @ sums)
        areas.append(_areas(weights, labels, decisions, codes))
    drawn = np.concatenate(counts)
    cross, present, hits = np.split(drawn, [4, 4 + len(names)], axis=1)
    balanced, f1 = _from_counts(cross)
    observed = score_decisions(labels, said, decisions)
    draws = {
        "balanced_accuracy": (observed.balanced_accuracy, balanced),
        "macro_f1": (observed.macro_f1, f1),
        "auroc": (observed.auroc, np.concatenate(areas)),
    }
    scores = {name: _ends(at, d, n_groups, spread) for name, (at, d) in draws.items()}
    with np.errstate(invalid="ignore"):
        shares = hits / present
    by_category = {}
    for column, name in enumerate(names):
        own = inside[:, column]
        at = float((said == labels)[own].mean())
        by_category[name] = _ends(at, shares[:, column], len(np.unique(codes[own])), spread)
    return scores, by_category


def _ends(at: float, draws: NDArray[np.float64], n_groups: int, spread: float) -> list[float]:
    if n_groups == 1:
        return [0.0, 1.0]
    ends = np.nanquantile(draws, [0.025, 0.975])
    moved = at + spread * few_groups(n_groups) * (ends - at)
    return [float(end) for end in moved.clip(0, 1)]


def _from_counts(cross: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Balanced accuracy and macro-F1 from (n, 4) counts: True said so or not, False said so or not.

    NaN without one of the classes.
    """
    hit, missed, false_alarm, rejected = cross.T
    with np.errstate(invalid="ignore", divide="ignore"):
        balanced = (hit / (hit + missed) + rejected / (rejected + false_alarm)) / 2
        wrong = missed + false_alarm
        f1 = (2 * hit / (2 * hit + wrong) + 2 * rejected / (2 * rejected + wrong)) / 2
    return balanced, np.where(np.isnan(balanced), np.nan, f1)


def _areas(
    weights: NDArray[np.float64],
    labels: NDArray[np.bool_],
    decisions: NDArray[np.float64],
    codes: NDArray[np.int64],
) -> NDArray[np.float64]:
    """(n_resamples,) AUROC with every item counted as often as its group; ties count half."""
    order = np.argsort(decisions, kind="stable")
    gold, groups, ordered = labels[order], codes[order], decisions[order]
    starts = np.flatnonzero(np.concatenate([[True], ordered[1:] > ordered[:-1]]))
    found = np.empty(len(weights))
    piece = max(1, _CELLS_AT_ONCE // len(labels))
    for first in range(0, len(weights), piece):
        counts = weights[first : first + piece][:, groups]
        true = np.add.reduceat(counts * gold, starts, axis=1)
        false = np.add.reduceat(counts * ~gold, starts, axis=1)
        below = np.cumsum(false, axis=1) - false / 2
        with np.errstate(invalid="ignore"):
            won = (true * below).sum(axis=1)
            found[first : first + piece] = won / (true.sum(axis=1) * false.sum(axis=1))
    return found
