"""Label permutations that respect groups, and the p-values that follow from them.

A permutation must be one that the null hypothesis allows: items of a group are not exchangeable
with items of another, but the label patterns of whole groups of one size are, and so are True and
False inside a group that holds as many of one as of the other. Shuffling labels within groups
whose items all have one label would change nothing, and is never done.

Each scheme draws uniformly from a group of transformations, so its p is exact however little they
change. What little change costs is power: where permuted labels are still mostly the real ones, the
null distribution holds most of the signal. So the scheme is chosen, and refused, by the agreement
of permuted with real labels that it leads to (`Agreement`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, lgamma, log
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from interp.errors import ProbeError
from interp.statistics import group_codes

__all__ = [
    "Agreement",
    "NullTest",
    "Scheme",
    "choose_scheme",
    "draw_labels",
    "label_agreement",
    "null_test",
]

Scheme = Literal[
    "group_flip", "group_exchange", "group_exchange_flip", "group_exchange_within", "item_exchange"
]
"""`group_flip`: all labels of a group are negated, or none, where every group is balanced.
`group_exchange`: label patterns change places between groups of one size in one fold.
`group_exchange_flip`: the same, then every group that is balanced is negated, or not.
`group_exchange_within`: the same, and in groups that are neither balanced nor of one label the
labels change places between the items.
`item_exchange`: labels change places between items of one fold (groups were ignored)."""

_FEWEST: Final = 20
"""With fewer distinct labellings, p could not reach 0.05."""

_LITTLE_EXCESS: Final = 0.1
"""Up to this excess agreement a scheme is taken without permuting more."""

_MOST_EXCESS: Final = 0.5
"""Above this excess agreement no test is made: it could hardly be significant."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """How much of the real labels permuted ones keep.

    Attributes:
        expected: mean share of items whose permuted label is the real one.
        free: the same if all labels of a fold could change places.
    """

    expected: float
    free: float

    @property
    def excess(self) -> float:
        """0 where permuted labels say nothing of the real ones, 1 where they are the real ones."""
        return (self.expected - self.free) / (1 - self.free) if self.free < 1 else 1.0


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

    Flips alone where every group is balanced; else exchanges, with flips of the balanced groups if
    there are any. Labels change places inside the groups that are neither balanced nor of one label
    only if permuted labels would otherwise keep too much of the real ones, since that takes the
    items of such a group as exchangeable.

    Args:
        labels: (n_items,) of bool.
        group_ids: (n_items,).
        folds: (n_items,); exchanges stay inside a fold, so that folds keep their class counts.
        grouped: False where the folds ignore groups.

    Raises:
        ProbeError: permuted labels would be mostly the real ones, or of fewer than 20 kinds.
    """
    if not grouped:
        return "item_exchange"
    codes = group_codes(group_ids)
    n_true, sizes = np.bincount(codes, weights=labels), np.bincount(codes)
    balanced = 2 * n_true == sizes
    constant = (n_true == 0) | (n_true == sizes)
    scheme: Scheme = "group_flip"
    if not balanced.all():
        scheme = "group_exchange_flip" if balanced.any() else "group_exchange"
        found = label_agreement(scheme, labels, group_ids, folds)
        if found.excess > _LITTLE_EXCESS and not (balanced | constant).all():
            scheme = "group_exchange_within"
    found = label_agreement(scheme, labels, group_ids, folds)
    if found.excess > _MOST_EXCESS:
        raise ProbeError(
            f"Labels that are permuted as these {len(sizes)} groups allow ({scheme}) agree with "
            f"the real ones on {found.expected:.0%} of the {len(labels)} items ({found.free:.0%} "
            f"if all could change places), so no permutation test can be significant. Use "
            f"--permutations 0, more groups of equal size, or groups of both labels."
        )
    if _log_labellings(scheme, labels, codes, folds) < log(_FEWEST):
        raise ProbeError(
            f"These {len(labels)} items in {len(sizes)} groups have fewer than {_FEWEST} distinct "
            f"labellings ({scheme}), so no permutation test can be significant. Use "
            f"--permutations 0, or more groups of equal size."
        )
    return scheme


def label_agreement(
    scheme: Scheme, labels: NDArray[np.bool_], group_ids: Sequence[str], folds: NDArray[np.int64]
) -> Agreement:
    """The agreement of permuted with real labels, in closed form.

    Args:
        scheme: how labels are permuted.
        labels: (n_items,) of bool.
        group_ids: (n_items,).
        folds: (n_items,).
    """
    shares = np.bincount(folds, weights=labels) / np.maximum(np.bincount(folds), 1)
    free = shares[folds]
    # Mean permuted label of every item.
    expected = np.full(len(labels), 0.5)
    if scheme == "item_exchange":
        expected = free
    elif scheme != "group_flip":
        for members in _members(group_codes(group_ids), folds):
            patterns = labels[members].astype(float)
            share = patterns.mean(axis=1, keepdims=True)
            mixed = _averaged(scheme, share)
            expected[members] = np.where(mixed, share, patterns).mean(axis=0)
    return Agreement(_agreeing(labels, expected), _agreeing(labels, free))


def _agreeing(labels: NDArray[np.bool_], expected: NDArray[np.float64]) -> float:
    return float(np.where(labels, expected, 1 - expected).mean())


def _averaged(scheme: Scheme, share: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether a group with this share of True changes inside, so that its mean label is that."""
    if scheme == "group_exchange":
        return np.zeros(share.shape, dtype=bool)
    return np.ones(share.shape, bool) if scheme == "group_exchange_within" else share == 0.5


def _members(codes: NDArray[np.int64], folds: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Exchangeable groups: one (n_groups, size) array of item indices a fold and size."""
    by_kind: dict[tuple[int, int], list[NDArray[np.int64]]] = {}
    order = np.argsort(codes, kind="stable")
    for rows in np.split(order, np.flatnonzero(np.diff(codes[order])) + 1):
        by_kind.setdefault((int(folds[rows[0]]), len(rows)), []).append(rows)
    return [np.stack(groups) for groups in by_kind.values()]


def _log_labellings(
    scheme: Scheme, labels: NDArray[np.bool_], codes: NDArray[np.int64], folds: NDArray[np.int64]
) -> float:
    """Logarithm of the number of distinct labellings that the scheme reaches."""
    total = 0.0
    for members in _members(codes, folds):
        kinds: Counter[bytes] = Counter()
        size = members.shape[1]
        for rows in members:
            pattern, n_true = labels[rows], int(labels[rows].sum())
            kind = pattern.tobytes()
            if 2 * n_true == size and scheme not in ("group_exchange", "item_exchange"):
                total += log(2)
                # A pattern and its negation are the same up to a flip.
                kind = (pattern ^ pattern[0]).tobytes()
            elif scheme == "group_exchange_within":
                total += log(comb(size, n_true))
                kind = np.sort(pattern).tobytes()
            kinds[kind] += 1
        if scheme != "group_flip":
            total += lgamma(len(members) + 1) - sum(lgamma(k + 1) for k in kinds.values())
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
            patterns = labels[members[rng.permutation(len(members))]]
            if scheme in ("group_exchange_flip", "group_exchange_within"):
                balanced = 2 * patterns.sum(axis=1, keepdims=True) == patterns.shape[1]
                flips = rng.random((len(members), 1)) < 0.5
                inside = patterns
                if scheme == "group_exchange_within":
                    inside = rng.permuted(patterns, axis=1)
                patterns = np.where(balanced, patterns ^ flips, inside)
            drawn[members, column] = patterns
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
