"""The sentence that a probe sweep ends with: what its numbers allow to be said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.statistics import score_decisions
from interp.vocabulary import GROUPS_IGNORED
from probes.results import ProbeSweep

__all__ = ["always_commoner", "auroc", "verdict"]

SIGNIFICANT: Final = 0.05

_UNEQUAL: Final = 0.4
"""Below this share of the rarer class, verdicts that are all one label are a matter of it."""

_LEVEL: Final = 0.05
"""Leads below this many points are printed as nought, and are none."""


def verdict(
    sweep: ProbeSweep,
    p_familywise: float | None,
    wording: Mapping[str, Any],
    untrained: Mapping[str, Any] | None,
) -> str:
    """What follows from the numbers, and first of all whether they cannot be trusted.

    Args:
        sweep: what was found.
        p_familywise: of the permutation test; None without one.
        wording: the fields of the text baselines in the summary.
        untrained: the summary's part on random weights; None where they were not run.
    """
    found = _one_sided(sweep, p_familywise, wording)
    if found is None:
        found = _answer(sweep, p_familywise, wording)
        if untrained is not None:
            found += f" {_beyond_random(untrained)}"
    return found if sweep.grouping == "group" else f"{GROUPS_IGNORED}: {found}"


def _one_sided(
    sweep: ProbeSweep, p_familywise: float | None, wording: Mapping[str, Any]
) -> str | None:
    """What to say where probes of unequal classes hardly ever say the rarer one: not `no`."""
    known = [p for p in (p_familywise, wording["p_beyond_wording"]) if p is not None]
    if not known or max(known) <= SIGNIFICANT or not always_commoner(sweep):
        return None
    layer = max(range(sweep.n_layers), key=lambda k: _auroc_of(sweep, k))
    return (
        f"Not decided: the probes hardly ever say {sweep.label.mean() < 0.5!s}, the label of "
        f"{min(sweep.label.mean(), 1 - sweep.label.mean()):.0%} of the items, so their accuracy is "
        f"that of always saying the other and tells nothing (p = {max(known):.2g}; AUROC up to "
        f"{_auroc_of(sweep, layer):.2f}, at layer {layer}). Use a larger --C or --C auto, or items "
        f"with as many True as False."
    )


def auroc(labels: NDArray[np.bool_], decisions: NDArray[np.float64]) -> float | None:
    """AUROC of decision values; None without one of the classes."""
    if labels.all() or not labels.any():
        return None
    return score_decisions(labels, decisions > 0, decisions).auroc


def _auroc_of(sweep: ProbeSweep, layer: int) -> float:
    return auroc(sweep.label, sweep.decision_values[:, layer]) or 0.0


def always_commoner(sweep: ProbeSweep) -> bool:
    """Whether nested verdicts of clearly unequal classes are nearly all for the commoner one."""
    share = float(sweep.label.mean())
    rarer = sweep.decision_values_nested > 0
    if share > 0.5:
        share, rarer = 1 - share, ~rarer
    return share < _UNEQUAL and float(rarer.mean()) < share / 2


def _answer(sweep: ProbeSweep, p_familywise: float | None, wording: Mapping[str, Any]) -> str:
    """The verdict of the numbers: both tests must be passed where both were run."""
    beyond = wording["p_beyond_wording"]
    known = [p for p in (p_familywise, beyond) if p is not None]
    if beyond is None:
        if p_familywise is None:
            return "Not tested: neither permutations nor text baselines were run."
        answer = "yes" if p_familywise <= SIGNIFICANT else "no"
        return (
            f"Decodable at some layer: {answer}, p = {p_familywise:.2g} (family-wise); text "
            f"baselines were not run."
        )
    # Both nulls must fall, so the larger p is the p of the claim.
    p = max(known)
    answer = "yes" if p <= SIGNIFICANT else "no"
    tests = (
        "family-wise and over the text baseline"
        if p_familywise is not None
        else "over the text baseline; run --permutations for the test against chance"
    )
    return f"Decodable beyond wording: {answer}, p = {p:.2g} ({tests}); {_lead(sweep, wording)}."


def _lead(sweep: ProbeSweep, wording: Mapping[str, Any]) -> str:
    """The nested probe beside the best text baseline, all in balanced accuracy.

    Which is the accuracy where the classes are equal, and is named where they are not.
    """
    gain = wording["gain_over_text"]
    equal = 2 * int(sweep.label.sum()) == sweep.n_items
    own = ""
    measure = ""
    if not equal:
        right = sweep.correct_nested
        balanced = (right[sweep.label].mean() + right[~sweep.label].mean()) / 2
        own, measure = f" ({100 * balanced:.1f}%)", "in balanced accuracy "
    text = f"({wording['text_baseline']}, {100 * wording['text_baseline_balanced_accuracy']:.1f}%)"
    if abs(100 * gain["value"]) < _LEVEL:
        how, between = "is level with", ":"
    elif gain["value"] > 0:
        how, between = "leads", " by"
    else:
        how, between = "trails", ":"
    return (
        f"{measure}the nested probe{own} {how} the best text baseline {text}{between} "
        f"{_points(gain)}"
    )


def _beyond_random(untrained: Mapping[str, Any]) -> str:
    answer = "yes" if untrained["p"] <= SIGNIFICANT else "no"
    return (
        f"Beyond random weights: {answer}, p = {untrained['p']:.2g}; training adds "
        f"{_points(untrained['gain'])}."
    )


def _points(estimate: Mapping[str, float]) -> str:
    """In percentage points, with the interval."""
    # Added to 0, a rounded −0 loses its sign.
    value, low, high = (round(100 * estimate[k], 1) + 0.0 for k in ("value", "low", "high"))
    return f"{value:+.1f} points [{low:+.1f}, {high:+.1f}]"
