"""Accuracy and macro-F1 by category, macro-averages and class means (Table 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from interp.behaviour.loading import AnswerSet, ItemTable
from interp.behaviour.resampling import Draws, Resampler, estimate_fields, ratio
from interp.behaviour.taxonomy import MAIN_ORDER, POLICIES, Policy

__all__ = [
    "AVERAGE",
    "SetScores",
    "average_rows",
    "class_rows",
    "main_sets",
    "score_rows",
    "score_set",
]

AVERAGE: Final = "average"
"""Row of the unweighted mean over the abilities."""

METRICS: Final = ("accuracy", "f1")


@dataclass(frozen=True, slots=True)
class SetScores:
    """Scores of one answer set.

    Attributes:
        draws: by (metric, policy, category); `average` is among the categories where every
            ability was asked.
        n: items asked, by category.
        non_answers: replies without a verdict, by category.
    """

    draws: Mapping[tuple[str, Policy, str], Draws]
    n: Mapping[str, int]
    non_answers: Mapping[str, int]


def main_sets(sets: Sequence[AnswerSet]) -> tuple[AnswerSet, ...]:
    """One set a model: its main condition, by `MAIN_ORDER`."""
    chosen = []
    for model in dict.fromkeys(s.entry.model for s in sets):
        own = {s.entry.condition: s for s in sets if s.entry.model == model}
        chosen += [own[c] for c in MAIN_ORDER if c in own][:1]
    return tuple(chosen)


def score_set(items: ItemTable, answers: AnswerSet, resampler: Resampler) -> SetScores:
    """Accuracy and macro-F1 of a set, by category and policy.

    With labels and verdicts as indicators, the F1 of a class is 2·TP / (said + labelled). Counted
    wrong, a non-answer is in `labelled` and in no `said`: a third verdict that is never right.
    Left out, it is in neither. A class that is neither labelled nor said has an F1 of 0.

    Source: Avalon-ToM-Bench, section 3.2 and table 1.
    """
    draws: dict[tuple[str, Policy, str], Draws] = {}
    n: dict[str, int] = {}
    non_answers: dict[str, int] = {}
    said = answers.answered & answers.verdict, answers.answered & ~answers.verdict
    label = items.label, ~items.label
    for category in items.categories:
        mask = items.mask(category) & answers.present
        if not mask.any():
            continue
        n[category] = int(mask.sum())
        non_answers[category] = int((mask & ~answers.answered).sum())
        columns = [np.ones_like(mask), answers.answered, answers.correct]
        for c in (0, 1):
            columns += [said[c] & label[c], said[c], label[c], label[c] & answers.answered]
        sums = resampler.sums(np.stack(columns, axis=1) & mask[:, None])
        for policy, total, offset in (("wrong", 0, 2), ("left_out", 1, 3)):
            draws["accuracy", policy, category] = ratio(sums[:, 2], sums[:, total])  # type: ignore[index]
            f1 = [
                np.nan_to_num(ratio(2 * sums[:, k], sums[:, k + 1] + sums[:, k + offset]))
                for k in (3, 7)
            ]
            # Without any answer there is nothing to take an F1 of.
            draws["f1", policy, category] = np.where(  # type: ignore[index]
                sums[:, total] > 0, (f1[0] + f1[1]) / 2, np.nan
            )
    # The rules exam alone has no average.
    if items.abilities and all(ability in n for ability in items.abilities):
        n[AVERAGE] = sum(n[a] for a in items.abilities)
        non_answers[AVERAGE] = sum(non_answers[a] for a in items.abilities)
        for metric in METRICS:
            for policy in POLICIES:
                draws[metric, policy, AVERAGE] = np.mean(
                    [draws[metric, policy, ability] for ability in items.abilities], axis=0
                )
    return SetScores(draws, n, non_answers)


def _fields(draws: Mapping[tuple[str, Policy], Draws]) -> dict[str, float | None]:
    fields: dict[str, float | None] = {}
    for (metric, policy), values in draws.items():
        fields |= estimate_fields(f"{metric}_{policy}", values)
    return fields


def score_rows(
    sets: Sequence[AnswerSet], scores: Sequence[SetScores], main: Sequence[AnswerSet]
) -> list[dict[str, Any]]:
    """One row a set and category (Table 1, and the same for every other condition)."""
    return [
        {
            "model": s.entry.model,
            "condition": s.entry.condition,
            "main": any(s is m for m in main),
            "model_class": s.entry.model_class,
            "family": s.entry.family,
            "category": category,
            "n": scored.n[category],
            "non_answers": scored.non_answers[category],
            **_fields({(m, p): scored.draws[m, p, category] for m in METRICS for p in POLICIES}),
        }
        for s, scored in zip(sets, scores, strict=True)
        for category in scored.n
    ]


def _mean_fields(scores: Sequence[SetScores], category: str) -> dict[str, float | None]:
    return _fields(
        {
            (m, p): np.mean([s.draws[m, p, category] for s in scores], axis=0)
            for m in METRICS
            for p in POLICIES
        }
    )


def average_rows(items: ItemTable, scores: Sequence[SetScores]) -> list[dict[str, Any]]:
    """Mean over models by category; the interval is over items, for these models."""
    rows = []
    for category in (*items.categories, AVERAGE):
        having = [s for s in scores if category in s.n]
        if having:
            rows.append(
                {"category": category, "n_models": len(having), **_mean_fields(having, category)}
            )
    return rows


def class_rows(sets: Sequence[AnswerSet], scores: Sequence[SetScores]) -> list[dict[str, Any]]:
    """Mean macro-average of each class of models.

    Source: Avalon-ToM-Bench, section 4.1.
    """
    rows = []
    for name in ("proprietary", "open reasoning", "open non-reasoning"):
        having = [
            scored
            for s, scored in zip(sets, scores, strict=True)
            if s.entry.model_class == name and AVERAGE in scored.n
        ]
        if having:
            rows.append(
                {"model_class": name, "n_models": len(having), **_mean_fields(having, AVERAGE)}
            )
    return rows
