"""Does a longer reply mean a better one? Quartiles and correlation (Figure 7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.behaviour.loading import AnswerSet, ItemTable
from interp.behaviour.resampling import Draws, Resampler, estimate_fields, ratio
from interp.behaviour.taxonomy import POLICIES, RULES, Condition, Policy

__all__ = ["LENGTH_CONDITIONS", "correlation_rows", "quartile_rows", "quartiles"]

LENGTH_CONDITIONS: Final[tuple[Condition, ...]] = ("base", "cot", "thinking")
"""Conditions in which a model may write as much as it likes."""

POOLED: Final = "pooled"


def quartiles(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) quartile 0 to 3 of each length; equal lengths are never split.

    The edges are the quantiles 25, 50 and 75%; a length equal to an edge belongs below it. With
    many equal lengths (replies cut at a limit) the bins are uneven, so their sizes are reported.
    """
    edges = np.quantile(lengths, [0.25, 0.5, 0.75])
    return np.searchsorted(edges, lengths, side="left").astype(np.int64)


def _usable(items: ItemTable, sets: Sequence[AnswerSet], condition: Condition) -> list[AnswerSet]:
    rules = items.mask(RULES)
    return [
        s
        for s in sets
        if s.entry.condition == condition and len(set(s.n_tokens[s.present & ~rules])) > 1
    ]


def _mask(items: ItemTable, answers: AnswerSet, policy: Policy) -> NDArray[np.bool_]:
    asked = answers.present & ~items.mask(RULES)
    return asked & answers.answered if policy == "left_out" else asked


def quartile_rows(
    items: ItemTable, sets: Sequence[AnswerSet], resampler: Resampler
) -> list[dict[str, Any]]:
    """Accuracy by length quartile, of each model and pooled over all replies.

    Quartiles are taken within each model, on the replies that the policy keeps.

    Source: Avalon-ToM-Bench, section 5.2 and figure 7.
    """
    rows = []
    for condition in LENGTH_CONDITIONS:
        usable = _usable(items, sets, condition)
        for policy in POLICIES:
            pooled = np.zeros((4, 2, len(resampler.counts)))
            sizes = np.zeros(4, dtype=np.int64)
            for s in usable:
                mask = _mask(items, s, policy)
                if not mask.any():
                    continue
                bins = np.full(len(mask), -1)
                bins[mask] = quartiles(s.n_tokens[mask])
                for q in range(4):
                    inside = bins == q
                    sums = resampler.sums(np.stack([inside & s.correct, inside], axis=1)).T
                    pooled[q] += sums
                    sizes[q] += inside.sum()
                    rows.append(
                        _quartile_row(condition, s.entry.model, policy, q, s.n_tokens[inside], sums)
                    )
            if usable:
                rows += [
                    _quartile_row(condition, POOLED, policy, q, None, pooled[q]) for q in range(4)
                ]
    return rows


def _quartile_row(
    condition: str,
    model: str,
    policy: Policy,
    quartile: int,
    lengths: NDArray[np.int64] | None,
    sums: NDArray[np.float64],
) -> dict[str, Any]:
    some = lengths is not None and lengths.size > 0
    return {
        "condition": condition,
        "model": model,
        "policy": policy,
        "quartile": quartile + 1,
        "n": int(sums[1, 0]),
        "shortest": int(lengths.min()) if some and lengths is not None else None,
        "longest": int(lengths.max()) if some and lengths is not None else None,
        **estimate_fields("accuracy", ratio(sums[0], sums[1])),
    }


def correlation_rows(
    items: ItemTable, sets: Sequence[AnswerSet], resampler: Resampler
) -> list[dict[str, Any]]:
    """Pearson correlation of length and correctness over all replies of a condition.

    `pooled` takes lengths as they are, so differences between models and abilities count.
    `within` first subtracts from both the mean of the reply's model and ability, so they do not;
    harder items of an ability may still get longer replies.

    Source: Avalon-ToM-Bench, section 5.2 and figure 7.
    """
    rows = []
    for condition in LENGTH_CONDITIONS:
        usable = _usable(items, sets, condition)
        for policy in POLICIES:
            masks = [_mask(items, s, policy) for s in usable]
            n = int(sum(mask.sum() for mask in masks))
            if n < 3:
                continue
            pairs = [(s.n_tokens.astype(float), s.correct.astype(float)) for s in usable]
            within = [
                (_centred(items, x, mask), _centred(items, y, mask))
                for (x, y), mask in zip(pairs, masks, strict=True)
            ]
            for kind, values in ((POOLED, pairs), ("within", within)):
                rows.append(
                    {
                        "condition": condition,
                        "policy": policy,
                        "kind": kind,
                        "n_models": len(usable),
                        "n": n,
                        **estimate_fields("r", _correlation(values, masks, resampler)),
                    }
                )
    return rows


def _centred(
    items: ItemTable, values: NDArray[np.float64], mask: NDArray[np.bool_]
) -> NDArray[np.float64]:
    result = values.copy()
    for ability in items.abilities:
        inside = mask & items.mask(ability)
        if inside.any():
            result[inside] -= values[inside].mean()
    return result


def _correlation(
    values: Sequence[tuple[NDArray[np.float64], NDArray[np.float64]]],
    masks: Sequence[NDArray[np.bool_]],
    resampler: Resampler,
) -> Draws:
    # Moments about the observed mean: raw ones would lose digits to cancellation.
    kept = [np.concatenate([v[k][m] for v, m in zip(values, masks, strict=True)]) for k in (0, 1)]
    total = np.zeros((len(resampler.counts), 6))
    for (x, y), mask in zip(values, masks, strict=True):
        a, b = np.where(mask, x - kept[0].mean(), 0.0), np.where(mask, y - kept[1].mean(), 0.0)
        total += resampler.sums(np.stack([mask, a, b, a * a, b * b, a * b], axis=1))
    n, a, b, aa, bb, ab = total.T
    spread = np.maximum(n * aa - a * a, 0.0) * np.maximum(n * bb - b * b, 0.0)
    # What is left of a constant by rounding is no spread.
    spread[spread <= 1e-18 * np.maximum(spread[0], 1.0)] = 0.0
    return ratio(n * ab - a * b, np.sqrt(spread))
