"""Label permutations that respect groups, and the p-values that follow from them.

A permutation must be one that the null hypothesis allows: items of a group are not exchangeable
with items of another, but the label patterns of whole groups of one size are, and so are True and
False inside a group that holds as many of one as of the other. Shuffling labels within groups
whose items all have one label would change nothing, and is never done.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import lgamma, log
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from interp.errors import ProbeError
from interp.statistics import group_codes

__all__ = ["NullTest", "Scheme", "choose_scheme", "draw_labels", "null_test"]

Scheme = Literal["group_flip", "group_exchange", "item_exchange"]
"""`group_flip`: all labels of a group are negated, or none, where every group is balanced.
`group_exchange`: label patterns change places between groups of one size in one fold.
`item_exchange`: labels change places between items of one fold (groups were ignored)."""

_FEWEST: Final = 20
"""With fewer distinct labellings, p could not reach 0.05."""


@dataclass(frozen=True, slots=True)
class NullTest:
    """p-values of accuracies against permuted labels.

    Attributes:
        p: (n_layers,) share of labellings, the observed one included, that do as well there.
        p_adjusted: (n_layers,) the same after Benjamini and Hochberg (false discovery rate).
        p_familywise: share of labellings whose best layer does as well as the observed best layer.
        quantiles: (n_layers, 2), 2.5% and 97.5% of the null scores.
    """

    p: NDArray[np.float64]
    p_adjusted: NDArray[np.float64]
    p_familywise: float
    quantiles: NDArray[np.float64]


def choose_scheme(
    labels: NDArray[np.bool_], group_ids: Sequence[str], folds: NDArray[np.int64], *, grouped: bool
) -> Scheme:
    """The scheme that these labels and groups allow.

    Args:
        labels: (n_items,) of bool.
        group_ids: (n_items,).
        folds: (n_items,); exchanges stay inside a fold, so that folds keep their class counts.
        grouped: False where the folds ignore groups.

    Raises:
        ProbeError: the groups allow fewer than 20 labellings.
    """
    if not grouped:
        return "item_exchange"
    codes = group_codes(group_ids)
    n_true, sizes = np.bincount(codes, weights=labels), np.bincount(codes)
    if (2 * n_true == sizes).all():
        scheme: Scheme = "group_flip"
        distinct = len(sizes) * log(2)
    else:
        scheme = "group_exchange"
        distinct = _log_exchanges(labels, codes, folds)
    if distinct < log(_FEWEST):
        raise ProbeError(
            f"Exchanging whole groups gives fewer than {_FEWEST} distinct labellings of these "
            f"{len(labels)} items ({len(sizes)} groups), so no permutation test can be "
            f"significant. Use --permutations 0, or more groups of equal size."
        )
    return scheme


def _members(codes: NDArray[np.int64], folds: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Exchangeable groups: one (n_groups, size) array of item indices a fold and size."""
    by_kind: dict[tuple[int, int], list[NDArray[np.int64]]] = {}
    order = np.argsort(codes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        by_kind.setdefault((int(folds[rows[0]]), len(rows)), []).append(rows)
    return [np.stack(groups) for groups in by_kind.values()]


def _log_exchanges(
    labels: NDArray[np.bool_], codes: NDArray[np.int64], folds: NDArray[np.int64]
) -> float:
    """Logarithm of the number of distinct labellings that exchanges reach."""
    total = 0.0
    for members in _members(codes, folds):
        patterns = Counter(labels[rows].tobytes() for rows in members)
        total += lgamma(len(members) + 1) - sum(lgamma(k + 1) for k in patterns.values())
    return total


def draw_labels(
    scheme: Scheme,
    labels: NDArray[np.bool_],
    group_ids: Sequence[str],
    folds: NDArray[np.int64],
    *,
    n_permutations: int,
    seed: int,
) -> NDArray[np.bool_]:
    """(n_items, n_permutations) permuted labels, independent draws under the scheme."""
    rng = np.random.default_rng(seed)
    codes = np.arange(len(labels)) if scheme == "item_exchange" else group_codes(group_ids)
    drawn = np.repeat(labels[:, None], n_permutations, axis=1)
    if scheme == "group_flip":
        flips = rng.random((int(codes.max()) + 1, n_permutations)) < 0.5
        return drawn ^ flips[codes]
    for members in _members(codes, folds):
        for column in range(n_permutations):
            drawn[members, column] = labels[members[rng.permutation(len(members))]]
    return drawn


def null_test(observed: NDArray[np.float64], null: NDArray[np.float64]) -> NullTest:
    """Compare observed scores with those of permuted labels.

    Args:
        observed: (n_layers,), larger is better.
        null: (n_layers, n_permutations), at least one permutation.
    """
    # Scores are counts over items: a tie must not depend on rounding.
    slack = 1e-9
    p = _share(observed[:, None], null, slack)
    family = _share(observed.max(keepdims=True)[:, None], null.max(axis=0)[None], slack)
    return NullTest(
        p=p,
        p_adjusted=benjamini_hochberg(p),
        p_familywise=float(family[0]),
        quantiles=np.quantile(null, [0.025, 0.975], axis=1).T,
    )


def _share(
    observed: NDArray[np.float64], null: NDArray[np.float64], slack: float
) -> NDArray[np.float64]:
    # The observed labelling is one of those that the null allows.
    return np.asarray((1 + (null >= observed - slack).sum(axis=1)) / (1 + null.shape[1]))


def benjamini_hochberg(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """Adjusted p-values that control the false discovery rate (Benjamini and Hochberg 1995)."""
    order = np.argsort(p)
    ranked = p[order] * len(p) / np.arange(1, len(p) + 1)
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum.accumulate(ranked[::-1])[::-1].clip(max=1)
    return adjusted
