"""What the probe has right and what the model says right, item by item."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from interp.grading import Answer, bare_verdict
from interp.items import Item
from interp.statistics import Estimate, bootstrap_mean, out_of_fold_threshold, score_decisions
from interp.vocabulary import GROUPS_IGNORED
from probes import ProbeSweep
from probes.intervals import balanced_estimates

__all__ = ["gap_verdict", "readouts_of"]


def readouts_of(
    sweep: ProbeSweep, items: tuple[Item, ...], answers: tuple[Answer, ...], *, seed: int
) -> dict[str, Any]:
    """Compare, item by item, what the probe has right with what the model says right.

    Args:
        sweep: probe sweep over the items.
        items: in the order of the sweep.
        answers: forced and greedy answers on the same items.
        seed: of the intervals.

    Returns:
        the content of `readouts.json`: each readout with interval, the better of forced and
        greedy as `answer`, paired gaps of the nested probe over each readout, the four-way table,
        and a verdict in words.
    """
    by = {(entry.item_id, entry.condition): entry for entry in answers}
    forced = [by[item.item_id, "forced"] for item in items]
    greedy = [by[item.item_id, "greedy"] for item in items]
    bare = [entry.verdict if entry.answered else bare_verdict(entry.raw) for entry in greedy]
    difference = np.array([entry.logit_difference for entry in forced], dtype=np.float64)
    calibrated = out_of_fold_threshold(difference, sweep.label, sweep.fold)
    correct: dict[str, NDArray[np.bool_]] = {
        "forced": np.array([entry.correct for entry in forced]),
        "greedy": np.array([entry.correct for entry in greedy]),
        "greedy_bare": np.array(
            [
                said is not None and said == gold
                for said, gold in zip(bare, sweep.label, strict=True)
            ]
        ),
        "calibrated": calibrated == sweep.label,
    }
    answer_readout = max(("forced", "greedy"), key=lambda name: correct[name].mean())
    correct["answer"] = correct[answer_readout]
    probe = sweep.correct_nested

    def estimate(values: NDArray[Any], spread: float = 1.0) -> dict[str, float]:
        e = bootstrap_mean(values, sweep.group_id, seed=seed, spread=spread)
        (balanced,) = balanced_estimates(
            sweep.label, values[:, None], sweep.group_id, seed=seed, spread=spread
        )
        return {
            "accuracy": e.value,
            "low": e.low,
            "high": e.high,
            "balanced_accuracy": balanced.value,
            "balanced_low": balanced.low,
            "balanced_high": balanced.high,
        }

    gaps = {
        name: asdict(
            bootstrap_mean(
                probe.astype(float) - right,
                sweep.group_id,
                seed=seed,
                spread=sweep.spread_nested,
            )
        )
        for name, right in correct.items()
    }
    said = correct["answer"]
    answered = np.array([entry.answered for entry in greedy])
    return {
        "n_items": sweep.n_items,
        "grouping": sweep.grouping,
        "answer_readout": answer_readout,
        "readouts": {"probe_nested": estimate(probe, sweep.spread_nested)}
        | {name: estimate(right) for name, right in correct.items()},
        "gaps": gaps,
        "forced_scores": asdict(
            score_decisions(sweep.label, [bool(entry.verdict) for entry in forced], difference)
        ),
        "non_answers": int((~answered).sum()),
        "bare_verdicts": sum(
            entry.verdict is None and said is not None
            for entry, said in zip(greedy, bare, strict=True)
        ),
        "answer_accuracy_among_answered": float(correct["greedy"][answered].mean())
        if answered.any()
        else None,
        "four_way": {
            "represented_expressed": int((probe & said).sum()),
            "represented_not_expressed": int((probe & ~said).sum()),
            "not_represented_expressed": int((~probe & said).sum()),
            "not_represented_not_expressed": int((~probe & ~said).sum()),
        },
        "verdict": (f"{GROUPS_IGNORED}: " if sweep.grouping == "none" else "")
        + gap_verdict({name: Estimate(**gap) for name, gap in gaps.items()}),
        "manifest": dict(sweep.manifest),
    }


def gap_verdict(gaps: Mapping[str, Estimate]) -> str:
    """One sentence that follows from the paired gaps of the probe over every readout."""
    words = {
        "forced": "forced choice",
        "greedy": "greedy answer",
        "greedy_bare": "greedy answer with bare verdicts accepted",
        "calibrated": "forced choice with a fitted threshold",
    }
    closest = min(words, key=lambda name: gaps[name].low)
    gap = gaps[closest]
    size = f"{100 * gap.value:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
    if gap.low > 0:
        return (
            f"Represented and not said: the nested probe beats every readout of the model's own "
            f"answer beyond the interval. The closest is the {words[closest]}: {size}."
        )
    return (
        f"No expression gap is shown: over the model's {words[closest]} the nested probe's lead "
        f"is {size}."
    )
