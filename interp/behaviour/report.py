"""All behavioural figures of a set of answer files, as rows of plain values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.behaviour.axes import N_PERMUTATIONS, decompose
from interp.behaviour.lengths import correlation_rows, quartile_rows
from interp.behaviour.loading import AnswerSet, ItemTable
from interp.behaviour.paired import (
    Comparison,
    Outcome,
    compare,
    comparison_rows,
    outcome,
    pooled_rows,
)
from interp.behaviour.resampling import Resampler, draw_groups
from interp.behaviour.scores import average_rows, class_rows, main_sets, score_rows, score_set
from interp.behaviour.taxonomy import ABILITIES, POLICIES, Condition, Policy
from interp.errors import ResultError
from interp.statistics import N_RESAMPLES
from interp.vocabulary import GROUPS_IGNORED, Grouping

__all__ = ["SECTIONS", "ProbeOutcome", "behaviour_report"]

SECTIONS: Final = (
    "scores",
    "averages",
    "classes",
    "injection",
    "injection_by_model",
    "toggle",
    "toggle_by_model",
    "training",
    "probe",
    "length_quartiles",
    "length_correlation",
    "axes",
)
"""Tables of a report; each is a list of rows, empty where the answers do not allow it."""

_Pairs = list[tuple[str, Comparison]]


@dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """Out-of-fold decisions of a probe at its nested layers.

    Attributes:
        where: the probe folder, for messages.
        model_id: of the probed model.
        item_id: (n,).
        label: (n,) of bool.
        correct: (n,) whether the decision is the label.
        grouping: of the folds; `none` leaks.
    """

    where: str
    model_id: str
    item_id: tuple[str, ...]
    label: NDArray[np.bool_]
    correct: NDArray[np.bool_]
    grouping: Grouping = "group"


_SILENT: Final = 0.1
"""Share of replies without a verdict from which on a report warns."""


def behaviour_report(
    items: ItemTable,
    sets: Sequence[AnswerSet],
    probes: Sequence[ProbeOutcome] = (),
    *,
    seed: int = 0,
    n_resamples: int = N_RESAMPLES,
    n_permutations: int = N_PERMUTATIONS,
) -> dict[str, Any]:
    """Compute every table; shares are fractions, differences of shares too.

    Args:
        items: what was asked.
        sets: one a model and condition, from `read_answer_sets`.
        probes: for the comparison of what is represented and what is said.
        seed: of resamples and permutations.
        n_resamples: bootstrap resamples of whole groups.
        n_permutations: of the cell labels.

    Returns:
        `items`, `seed`, `readout`, `warnings`, `notes` and the tables named in `SECTIONS`.

    Raises:
        ResultError: a probe belongs to other items or to a model that is not among the sets.
    """
    resampler = draw_groups(items.group_id, seed=seed, n_resamples=n_resamples)
    main = main_sets(sets)
    scores = [score_set(items, s, resampler) for s in sets]
    main_scores = [score for s, score in zip(sets, scores, strict=True) if _among(s, main)]
    main_in_order = [s for s in sets if _among(s, main)]
    injection = _against_main(items, resampler, sets, main)
    toggle, toggled = _toggle(items, resampler, sets)
    report: dict[str, Any] = {
        "items": {
            "n": len(items.item_id),
            "n_groups": len(set(items.group_id)),
            "by_category": {name: int(items.mask(name).sum()) for name in items.categories},
        },
        "seed": seed,
        "n_resamples": n_resamples,
        "n_permutations": n_permutations,
        "readout": sets[0].readout,
        "scores": score_rows(sets, scores, main),
        "averages": average_rows(items, main_scores),
        "classes": class_rows(main_in_order, main_scores),
        "injection": pooled_rows([c for _, c in injection]),
        "injection_by_model": comparison_rows(injection),
        "toggle": pooled_rows([c for _, c in toggle]),
        "toggle_by_model": comparison_rows(toggle),
        "training": comparison_rows(_training(items, resampler, main)),
        "probe": comparison_rows(_probe(items, resampler, sets, probes)),
        "length_quartiles": quartile_rows(items, sets, resampler),
        "length_correlation": correlation_rows(items, sets, resampler),
        "axes": _axes(items, resampler, main, toggled, seed, n_permutations),
    }
    return report | {
        "warnings": _leaks(probes) + _silence(sets),
        "notes": _notes(report, items, bool(probes)),
    }


def _among(answers: AnswerSet, others: Sequence[AnswerSet]) -> bool:
    return any(answers is other for other in others)


def _of(sets: Sequence[AnswerSet], model: str, condition: Condition) -> AnswerSet | None:
    for s in sets:
        if s.entry.model == model and s.entry.condition == condition:
            return s
    return None


def _against_main(
    items: ItemTable, resampler: Resampler, sets: Sequence[AnswerSet], main: Sequence[AnswerSet]
) -> _Pairs:
    """Each model's main condition against the same with the answer in the prompt."""
    return [
        (m.entry.model, compare(items, resampler, outcome(m), outcome(injected)))
        for m in main
        if (injected := _of(sets, m.entry.model, "injected")) is not None
    ]


def _toggle(
    items: ItemTable, resampler: Resampler, sets: Sequence[AnswerSet]
) -> tuple[_Pairs, list[tuple[AnswerSet, AnswerSet]]]:
    """Answers at once against reasoning first, same weights; `cot` before `thinking`."""
    pairs = []
    for model in dict.fromkeys(s.entry.model for s in sets):
        off = _of(sets, model, "no_cot")
        on = _of(sets, model, "cot") or _of(sets, model, "thinking")
        if off is not None and on is not None:
            pairs.append((off, on))
    compared = [
        (off.entry.model, compare(items, resampler, outcome(off), outcome(on))) for off, on in pairs
    ]
    return compared, pairs


def _training(items: ItemTable, resampler: Resampler, main: Sequence[AnswerSet]) -> _Pairs:
    """The base model against the model that was trained from it."""
    by_model = {m.entry.model: m for m in main}
    return [
        (
            m.entry.model,
            compare(items, resampler, outcome(by_model[m.entry.base]), outcome(m)),
        )
        for m in main
        if m.entry.base is not None and m.entry.base in by_model
    ]


def _probe(
    items: ItemTable,
    resampler: Resampler,
    sets: Sequence[AnswerSet],
    probes: Sequence[ProbeOutcome],
) -> _Pairs:
    """What the model says against what the probe reads; injected prompts have no probe here."""
    index = {item_id: i for i, item_id in enumerate(items.item_id)}
    result: _Pairs = []
    for probe in probes:
        present = np.zeros(len(index), dtype=bool)
        correct = np.zeros(len(index), dtype=bool)
        for item_id, label, right in zip(probe.item_id, probe.label, probe.correct, strict=True):
            if item_id not in index:
                raise ResultError(
                    f"{probe.where}, field 'item_id': {item_id!r} is none of the "
                    f"{len(index)} items. Probe the items that were answered."
                )
            if items.label[index[item_id]] != label:
                raise ResultError(
                    f"{probe.where}, field 'label': {item_id!r} is {bool(label)} there and "
                    f"{not label} in the items. Probe the items that were answered."
                )
            present[index[item_id]], correct[index[item_id]] = True, right
        own = [s for s in sets if probe.model_id in {s.entry.model, *s.model_ids}]
        if not own:
            known = sorted({name for s in sets for name in (s.entry.model, *s.model_ids)})
            raise ResultError(
                f"{probe.where}: it probes {probe.model_id!r}, but the answers are of "
                f"{', '.join(known)}."
            )
        reads = Outcome(f"probe of {probe.model_id}", present, present, correct)
        result += [
            (s.entry.model, compare(items, resampler, outcome(s), reads))
            for s in own
            if s.entry.condition != "injected"
        ]
    return result


def _axes(
    items: ItemTable,
    resampler: Resampler,
    main: Sequence[AnswerSet],
    toggled: Sequence[tuple[AnswerSet, AnswerSet]],
    seed: int,
    n_permutations: int,
) -> list[dict[str, Any]]:
    if set(items.abilities) != set(ABILITIES):
        return []
    asked = np.logical_or.reduce([items.mask(name) for name in ABILITIES])
    main = [m for m in main if m.present[asked].all()]
    toggled = [pair for pair in toggled if all(s.present[asked].all() for s in pair)]
    rows = []
    for policy in POLICIES:
        parts = []
        if main:
            difficulty = [(m.correct.astype(float), _counts(policy, m)) for m in main]
            parts.append(("difficulty", difficulty))
        if toggled:
            benefit = [
                (
                    _counts(policy, off, on) * (on.correct.astype(float) - off.correct),
                    _counts(policy, off, on),
                )
                for off, on in toggled
            ]
            parts.append(("cot_benefit", benefit))
        for quantity, pairs in parts:
            found = decompose(
                items,
                resampler,
                np.stack([above for above, _ in pairs], axis=1),
                np.stack([below for _, below in pairs], axis=1),
                seed=seed,
                n_permutations=n_permutations,
            )
            rows += [
                {"quantity": quantity, "policy": policy, "n_models": len(pairs), **row}
                for row in found
            ]
    return rows


def _counts(policy: Policy, *sets: AnswerSet) -> NDArray[np.float64]:
    """(n_items,) 1 where an item counts under the policy."""
    kept = [s.present & s.answered if policy == "left_out" else s.present for s in sets]
    return np.asarray(np.stack(kept).all(axis=0), dtype=np.float64)


def _leaks(probes: Sequence[ProbeOutcome]) -> list[str]:
    return [
        f"{GROUPS_IGNORED}: {probe.where} was made with --group none, so what its probe has right "
        f"leaks between items of one group. Probe again with groups kept whole."
        for probe in probes
        if probe.grouping == "none"
    ]


def _silence(sets: Sequence[AnswerSet]) -> list[str]:
    """Where so many replies have no verdict that what is counted wrong is mostly format."""
    notes = []
    for s in sets:
        asked, silent = int(s.present.sum()), int((s.present & ~s.answered).sum())
        if silent > _SILENT * asked:
            notes.append(
                f"{s.entry.model} ({s.entry.condition}): {silent} of {asked} replies have no "
                f"verdict. Counted wrong, differences from it measure format as much as knowledge: "
                f"a probe is right on half of the items by guessing. Look at --readout forced."
            )
    return notes


def _notes(report: dict[str, Any], items: ItemTable, probed: bool) -> list[str]:
    """Which tables are empty, and what would fill them."""
    needed = {
        "classes": "the columns access and reasoning of a models table",
        "injection": "an answer file with the condition injected beside the model's own",
        "toggle": "answer files with the conditions no_cot and cot (or thinking) of one model",
        "training": "the column base of a models table",
        "length_quartiles": "greedy replies of different lengths",
        "axes": f"a model asked about all four abilities ({', '.join(ABILITIES)})",
    }
    notes = [f"No {key} table: it needs {what}." for key, what in needed.items() if not report[key]]
    if not probed:
        notes.append("No probe table: it needs a probe folder (--probe).")
    groups = len(set(items.group_id))
    if groups < 20:
        notes.append(f"{groups} groups: bootstrap intervals of so few groups are too narrow.")
    return notes
