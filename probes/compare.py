"""Two probe sweeps over the same items, compared item by item."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import numpy as np

from interp.errors import ProbeError
from interp.statistics import bootstrap_mean, mcnemar_exact, sign_flip_p
from interp.vocabulary import GROUPS_IGNORED
from probes.results import ProbeSweep

__all__ = ["compare_sweeps"]

SIGNIFICANT: Final = 0.05


def compare_sweeps(first: ProbeSweep, second: ProbeSweep, *, seed: int = 0) -> dict[str, Any]:
    """Compare the nested accuracies of two sweeps on the same items, paired.

    Args:
        first: a sweep.
        second: one over the same items (of another model, view, checkpoint or token), in any order.
        seed: of the group bootstrap.

    Returns:
        both accuracies with intervals, their difference (first minus second) with its group
        bootstrap interval, the p of flipping the sign of whole groups' differences, the exact
        McNemar p (which takes items as independent), the counts of items only one has right, and
        the grouping of each; the verdict first says which ignored groups.

    Raises:
        ProbeError: the items or their labels differ.
    """
    if set(first.item_id) != set(second.item_id):
        only = len(set(first.item_id) - set(second.item_id))
        other = len(set(second.item_id) - set(first.item_id))
        raise ProbeError(
            f"The sweeps are over different items: {only} are only in the first, {other} only in "
            f"the second. A paired comparison needs the same items: probe caches of one source, "
            f"n and seed."
        )
    place = {item_id: index for index, item_id in enumerate(second.item_id)}
    order = np.array([place[item_id] for item_id in first.item_id])
    moved = np.flatnonzero(second.label[order] != first.label)
    if len(moved):
        raise ProbeError(
            f"{len(moved)} items have another label in the second sweep (first: "
            f"{first.item_id[moved[0]]!r}). Compare sweeps over the same labels."
        )
    a, b = first.correct_nested, second.correct_nested[order]
    groups = first.group_id
    spread = max(first.spread_nested, second.spread_nested)
    gap = bootstrap_mean(a.astype(float) - b, groups, seed=seed, spread=spread)
    low, high = 100 * gap.low, 100 * gap.high
    n_groups = len(set(groups))
    p = sign_flip_p(a.astype(float) - b, groups, seed=seed, spread=spread, two_sided=True)
    mcnemar = mcnemar_exact(a, b)
    apart = gap.low > 0 or gap.high < 0
    differ = "differ" if apart and p <= SIGNIFICANT else "are not shown to differ"
    caution = ", items as independent" if n_groups < first.n_items else ""
    return {
        "n_items": first.n_items,
        "n_groups": n_groups,
        "first": asdict(bootstrap_mean(a, groups, seed=seed, spread=first.spread_nested)),
        "second": asdict(bootstrap_mean(b, groups, seed=seed, spread=second.spread_nested)),
        "difference": asdict(gap),
        "only_first_right": int((a & ~b).sum()),
        "only_second_right": int((~a & b).sum()),
        "p_groups": p,
        "p_mcnemar": mcnemar,
        "same_folds": bool((first.fold == second.fold[order]).all()),
        "grouping": {"first": first.grouping, "second": second.grouping},
        "verdict": f"{_ignored(first, second)}The nested accuracies {differ}: "
        f"{100 * gap.value:+.1f} points [{low:+.1f}, {high:+.1f}], p = {p:.2g} by groups "
        f"(McNemar p = {mcnemar:.2g}{caution}).",
    }


def _ignored(first: ProbeSweep, second: ProbeSweep) -> str:
    """What comes first where one of the accuracies leaks; two that do are no better."""
    names = [n for n, s in (("first", first), ("second", second)) if s.grouping == "none"]
    if not names:
        return ""
    which = "both sweeps" if len(names) == 2 else f"the {names[0]} sweep"
    return f"{GROUPS_IGNORED} (in {which}): "
