"""Two outcomes on the same items: injection, chain of thought, training, probes (Tables 3, 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.behaviour.loading import AnswerSet, ItemTable
from interp.behaviour.resampling import Draws, Resampler, estimate_fields, ratio
from interp.behaviour.scores import AVERAGE
from interp.behaviour.taxonomy import POLICIES, Policy
from interp.statistics import mcnemar_exact

__all__ = ["ALL", "Comparison", "Outcome", "compare", "comparison_rows", "outcome", "pooled_rows"]

ALL: Final = "all"
"""Row over all items of the abilities, each item weighing the same."""

_FIGURES: Final = ("before", "after", "delta", "fixes", "breaks", "flips")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is compared, along the items of an `ItemTable`.

    Attributes:
        name: shown in the tables.
        present: (n_items,) whether the item was asked.
        answered: (n_items,) whether there is a verdict.
        correct: (n_items,) whether it is right.
    """

    name: str
    present: NDArray[np.bool_]
    answered: NDArray[np.bool_]
    correct: NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A paired comparison of two outcomes.

    Attributes:
        before: name of the first outcome.
        after: name of the second.
        draws: by (figure, policy, category), fractions of the items compared. `before` and
            `after` are accuracies, `delta` their difference, `fixes` wrong then right, `breaks`
            right then wrong, `flips` the sum of both.
        n: items compared, by (policy, category).
        p: exact McNemar p-value, by (policy, category); none for the macro-average.
    """

    before: str
    after: str
    draws: Mapping[tuple[str, Policy, str], Draws]
    n: Mapping[tuple[Policy, str], int]
    p: Mapping[tuple[Policy, str], float]


def outcome(answers: AnswerSet) -> Outcome:
    """The outcome of an answer set."""
    name = f"{answers.entry.model} ({answers.entry.condition})"
    return Outcome(name, answers.present, answers.answered, answers.correct)


def compare(items: ItemTable, resampler: Resampler, before: Outcome, after: Outcome) -> Comparison:
    """Compare two outcomes item by item.

    Left out means here: an item counts only if both have a verdict on it, so that the difference
    is between the same items.

    Source: Avalon-ToM-Bench, tables 3 and 4, figures 4 and 6.
    """
    draws: dict[tuple[str, Policy, str], Draws] = {}
    n: dict[tuple[Policy, str], int] = {}
    p: dict[tuple[Policy, str], float] = {}
    both = before.present & after.present
    abilities = [name for name in items.abilities if (both & items.mask(name)).any()]
    masks = {name: items.mask(name) for name in items.categories if (both & items.mask(name)).any()}
    if abilities:
        masks[ALL] = np.logical_or.reduce([items.mask(name) for name in abilities])
    for policy in POLICIES:
        kept = both & before.answered & after.answered if policy == "left_out" else both
        for category, of_category in masks.items():
            mask = kept & of_category
            columns = np.stack(
                [
                    mask,
                    mask & before.correct,
                    mask & after.correct,
                    mask & ~before.correct & after.correct,
                    mask & before.correct & ~after.correct,
                ],
                axis=1,
            )
            sums = resampler.sums(columns)
            first, second, fixes, breaks = (ratio(sums[:, k], sums[:, 0]) for k in (1, 2, 3, 4))
            values = (first, second, second - first, fixes, breaks, fixes + breaks)
            for figure, value in zip(_FIGURES, values, strict=True):
                draws[figure, policy, category] = value
            n[policy, category] = int(mask.sum())
            p[policy, category] = mcnemar_exact(before.correct[mask], after.correct[mask])
        if abilities and len(abilities) == len(items.abilities):
            for figure in _FIGURES:
                draws[figure, policy, AVERAGE] = np.mean(
                    [draws[figure, policy, name] for name in abilities], axis=0
                )
            n[policy, AVERAGE] = n[policy, ALL]
    return Comparison(before.name, after.name, draws, n, p)


def comparison_rows(
    comparisons: Mapping[str, Comparison] | Sequence[tuple[str, Comparison]],
) -> list[dict[str, Any]]:
    """One row a comparison, category and policy.

    Args:
        comparisons: with the model's name of each.
    """
    pairs = comparisons.items() if isinstance(comparisons, Mapping) else comparisons
    return [
        {
            "model": model,
            "before_is": c.before,
            "after_is": c.after,
            "category": category,
            "policy": policy,
            "n": n,
            **_fields({f: c.draws[f, policy, category] for f in _FIGURES}),
            "p_mcnemar": c.p.get((policy, category)),
        }
        for model, c in pairs
        for (policy, category), n in c.n.items()
    ]


def pooled_rows(comparisons: Sequence[Comparison]) -> list[dict[str, Any]]:
    """Mean over comparisons by category and policy, with how many models rose and did not fall.

    Both counts are given because they differ: a table that counts models "helped" may mean either.
    """
    rows = []
    keys = dict.fromkeys(key for c in comparisons for key in c.n)
    for policy, category in keys:
        having = [c for c in comparisons if (policy, category) in c.n]
        deltas = np.array([c.draws["delta", policy, category][0] for c in having])
        rows.append(
            {
                "category": category,
                "policy": policy,
                "n_models": len(having),
                **_fields(
                    {
                        f: np.mean([c.draws[f, policy, category] for c in having], axis=0)
                        for f in _FIGURES
                    }
                ),
                "n_improved": int((deltas > 0).sum()),
                "n_not_dropped": int((deltas >= 0).sum()),
            }
        )
    return rows


def _fields(draws: Mapping[str, Draws]) -> dict[str, float | None]:
    fields: dict[str, float | None] = {}
    for name, values in draws.items():
        fields |= estimate_fields(name, values)
    return fields
