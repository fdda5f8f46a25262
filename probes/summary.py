"""What a probe sweep says: scores with intervals, tests against chance and wording, a verdict."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.files import drawn_files, replaced_together, write_csv, write_json
from interp.statistics import (
    Estimate,
    bootstrap_mean,
    calibrate,
    class_weights,
    cross_validation_spread,
    score_decisions,
    sign_flip_p,
)
from probes.control import recurring
from probes.intervals import balanced_estimates, score_intervals
from probes.permutation import NullTest, label_agreement, null_test
from probes.results import ProbeSweep, write_arrays
from probes.transfer import Transfer
from probes.verdict import always_commoner, auroc, verdict

__all__ = ["summarise", "write_sweep"]

FIGURES: Final = (*drawn_files("accuracy_by_layer", below=""), "report.html")
"""Drawn from a summary, into its folder: they go when it goes."""

FALSE_DISCOVERIES: Final = 0.05
"""Rate at which layers are counted after Benjamini and Hochberg."""

_MUCH_EXCESS: Final = 0.2
"""Above this excess agreement of permuted with real labels the test is called weak."""


def summarise(sweep: ProbeSweep, untrained: ProbeSweep | None = None) -> dict[str, Any]:
    """The content of `probe.json`; accuracies are fractions, intervals are 95%.

    Args:
        sweep: what to summarise.
        untrained: the same items under the same folds through the model with random weights.
    """

    def estimate(correct: NDArray[np.bool_], spread: float) -> Estimate:
        return bootstrap_mean(correct, sweep.group_id, seed=sweep.seed, spread=spread)

    def scores(decisions: NDArray[np.float64]) -> dict[str, float]:
        calibration = calibrate(sweep.label, decisions)
        return asdict(score_decisions(sweep.label, decisions > 0, decisions)) | {
            "log_loss": calibration.log_loss,
            "ece": calibration.ece,
        }

    per_layer = [estimate(sweep.correct[:, k], s) for k, s in enumerate(sweep.spread)]
    balanced = balanced_estimates(
        sweep.label, sweep.correct, sweep.group_id, seed=sweep.seed, spread=sweep.spread
    )
    nested = sweep.estimate_nested(sweep.correct_nested)
    right_pre0 = (sweep.decision_values_pre0 > 0) == sweep.label
    # How stable it is was not measured there: then the widest one.
    pre0 = estimate(right_pre0, cross_validation_spread(1.0, len(sweep.layers_nested)))
    best = sweep.best_layer
    null, by_layer = _null(sweep)
    controls, selectivity = _controls(sweep)
    wording = _wording(sweep)
    random = None if untrained is None else _untrained(sweep, untrained)
    score_ends, category_ends = score_intervals(
        sweep.label,
        sweep.decision_values_nested,
        sweep.category,
        sweep.group_id,
        seed=sweep.seed,
        spread=sweep.spread_nested,
    )
    return {
        "n_items": sweep.n_items,
        "n_groups": len(set(sweep.group_id)),
        "n_layers": sweep.n_layers,
        "n_folds": len(sweep.layers_nested),
        "grouping": sweep.grouping,
        "seed": sweep.seed,
        # The median where it was chosen by layer and fold; LDA has none.
        "C": float(np.median(sweep.C)) if sweep.C_grid else None,
        "C_grid": list(sweep.C_grid),
        "probe": sweep.probe,
        "one_standard_error": sweep.one_standard_error,
        "solver": sweep.solver,
        "relative_gradient": sweep.relative_gradient,
        "accuracy_nested": nested.value,
        "accuracy_nested_interval": [nested.low, nested.high],
        "interval_widened_by": sweep.spread_nested,
        "scores_nested": scores(sweep.decision_values_nested),
        "scores_nested_intervals": score_ends,
        "reliability_nested": [
            asdict(part) for part in calibrate(sweep.label, sweep.decision_values_nested).bins
        ],
        "layers_nested": list(sweep.layers_nested),
        "best_layer": best,
        "accuracy_best_layer": per_layer[best].value,
        "accuracy_best_layer_note": "optimistic: the layer was chosen on the reported folds",
        "accuracy_embedding": pre0.value,
        "accuracy_embedding_interval": [pre0.low, pre0.high],
        "balanced_accuracy_embedding": _balanced(sweep, right_pre0),
        **_own_answer(sweep),
        "majority_class": float(max(sweep.label.mean(), 1 - sweep.label.mean())),
        "accuracy_is_majority_class": always_commoner(sweep),
        **null,
        **wording,
        "control_tasks": controls,
        "transfer": {t.plan.kind: _transfer(sweep, t) for t in sweep.transfers},
        "untrained": random,
        "verdict": verdict(sweep, null["p_familywise"], wording, random),
        "by_category": {
            category: float(sweep.correct_nested[[c == category for c in sweep.category]].mean())
            for category in dict.fromkeys(sweep.category)
        },
        "by_category_intervals": category_ends,
        "text_baselines_by_category": {
            category: {
                name: float(
                    ((odds > 0) == sweep.label)[[c == category for c in sweep.category]].mean()
                )
                for name, odds in sweep.baselines.items()
            }
            for category in dict.fromkeys(sweep.category)
        },
        "layers": [
            {
                "layer": layer,
                "accuracy": e.value,
                "low": e.low,
                "high": e.high,
                "balanced_low": balanced[layer].low,
                "balanced_high": balanced[layer].high,
                **{
                    name: value
                    for name, value in scores(sweep.decision_values[:, layer]).items()
                    if name != "accuracy"
                },
                **by_layer[layer],
                **selectivity[layer],
            }
            for layer, e in enumerate(per_layer)
        ],
        "manifest": dict(sweep.manifest),
    }


def _null(sweep: ProbeSweep) -> tuple[dict[str, Any], list[dict[str, float | None]]]:
    """The permutation test: fields of the summary, and of every layer's row."""
    n_permutations = sweep.null_scores.shape[1]
    head: dict[str, Any] = {"scheme": sweep.scheme, "n_permutations": n_permutations}
    head |= {"permuted_agreement": None, "permuted_agreement_free": None, "permuted_warning": None}
    head["false_discovery_warning"] = None
    if sweep.scheme is not None:
        found = label_agreement(sweep.scheme, sweep.label, sweep.group_id, sweep.fold)
        head["permuted_agreement"] = found.expected
        head["permuted_agreement_free"] = found.free
        if found.excess > _MUCH_EXCESS:
            head["permuted_warning"] = (
                f"Permuted labels agree with the real ones on {found.expected:.0%} of the items "
                f"({found.free:.0%} if all could change places): the test is valid but weak, so a "
                f"large p says little."
            )
    names = ("p", "p_adjusted", "null_low", "null_high")
    if not n_permutations:
        empty: dict[str, float | None] = dict.fromkeys(names)
        return head | {"p_familywise": None}, [empty for _ in range(sweep.n_layers)]
    test = null_test(sweep.scores, sweep.null_scores)
    head["false_discovery_warning"] = _too_coarse(test, n_permutations)
    columns = (test.p, test.p_adjusted, *test.quantiles.T)
    rows: list[dict[str, float | None]] = [
        dict(zip(names, map(float, row), strict=True)) for row in zip(*columns, strict=True)
    ]
    return head | {"p_familywise": test.p_familywise}, rows


def _too_coarse(test: NullTest, n_permutations: int) -> str | None:
    """What to say where no layer passes Benjamini and Hochberg, and no layer alone could.

    k layers pass at the smallest p that the permutations can give only if k / n_layers of the rate
    is at least that p.
    """
    n_layers, least = len(test.p), 1 / (n_permutations + 1)
    needed = math.ceil(n_layers * least / FALSE_DISCOVERIES - 1e-9)
    there = int((test.p <= least + 1e-12).sum())
    if (test.p_adjusted <= FALSE_DISCOVERIES).any() or needed == 1:
        return None
    # Else layers could have passed and none was near it: more permutations would not help.
    if not there and needed <= n_layers and test.p_familywise > FALSE_DISCOVERIES:
        return None
    enough = math.ceil(n_layers / FALSE_DISCOVERIES - 1e-9) - 1
    return (
        f"With {n_permutations} permutations no p is below {least:.2g}: at a false discovery rate "
        f"of {FALSE_DISCOVERIES:.0%} {needed} layers would have to be at it, and {there} of "
        f"{n_layers} are. From --permutations {enough} on a single layer can pass."
    )


def _controls(sweep: ProbeSweep) -> tuple[dict[str, Any], list[dict[str, float | None]]]:
    """The control tasks by kind of type, and their columns in every layer's row."""
    head: dict[str, Any] = {}
    rows: list[dict[str, float | None]] = [{} for _ in range(sweep.n_layers)]
    for kind, types in sweep.control_types.items():
        right = sweep.control_right[kind]
        judged = recurring(types, sweep.fold)
        share = float(judged.mean())
        columns = (f"control_{kind}", f"selectivity_{kind}")
        if not right.shape[2]:
            what = f"types that stand in several folds cover {share:.0%} of the items"
            head[kind] = {"applicable": False, "why": what if (types >= 0).any() else "not known"}
            for row in rows:
                row.update(dict.fromkeys(columns))
            continue
        folds = np.arange(right.shape[1])
        control = right.mean(axis=2) / judged.sum()
        at_nested = float(control[np.asarray(sweep.layers_nested), folds].sum())
        task = float(sweep.correct_nested[judged].mean())
        head[kind] = {
            "applicable": True,
            "n_types": len(set(types[judged].tolist())),
            "share_of_items": share,
            "draws": right.shape[2],
            "accuracy": at_nested,
            "task_accuracy": task,
            "selectivity": task - at_nested,
        }
        own = sweep.correct[judged].mean(axis=0)
        for row, task_here, control_here in zip(rows, own, control.sum(axis=1), strict=True):
            row.update(
                zip(columns, (float(control_here), float(task_here - control_here)), strict=True)
            )
    return head, rows


def _transfer(sweep: ProbeSweep, transfer: Transfer) -> list[dict[str, Any]]:
    """One row a held-out value: accuracy on it, beside that of probes that saw others of it."""
    decisions = transfer.decision_values_nested
    right = (decisions > 0) == sweep.label
    values, rows = np.asarray(transfer.plan.value), []
    for value in dict.fromkeys(transfer.plan.value):
        inside = values == value
        part = int(transfer.plan.part[inside][0])
        groups = [group for group, own in zip(sweep.group_id, inside, strict=True) if own]
        estimate = bootstrap_mean(right[inside], groups, seed=sweep.seed)
        rows.append(
            {
                "value": value,
                "n_items": int(inside.sum()),
                "n_training": int(transfer.plan.training[part].sum()),
                "layer": int(transfer.layers[part]),
                "accuracy": estimate.value,
                "low": estimate.low,
                "high": estimate.high,
                "auroc": auroc(sweep.label[inside], decisions[inside]),
                "accuracy_within": float(sweep.correct_nested[inside].mean()),
                "share_true": float(sweep.label[inside].mean()),
            }
        )
    return rows


def _untrained(sweep: ProbeSweep, untrained: ProbeSweep) -> dict[str, Any]:
    """Nested accuracy with random weights, and what training adds, in balanced accuracy."""
    own = untrained.estimate_nested(untrained.correct_nested)
    # Either side may be noise whose groups depend on each other.
    spread = max(sweep.spread_nested, untrained.spread_nested)
    gain, p = _gain(sweep, untrained.correct_nested, spread)
    return {
        "accuracy_nested": own.value,
        "accuracy_nested_interval": [own.low, own.high],
        "accuracy_by_layer": untrained.correct.mean(axis=0).tolist(),
        "balanced_accuracy_by_layer": untrained.scores.tolist(),
        "gain": gain,
        "p": p,
        "model_id": untrained.manifest["model"]["model_id"],
    }


def _own_answer(sweep: ProbeSweep) -> dict[str, Any]:
    """Accuracy of the model's own forced choice on the same items."""
    if not len(sweep.own_logits):
        names = ("accuracy_own_answer", "balanced_accuracy_own_answer")
        return dict.fromkeys(each for name in names for each in (name, f"{name}_interval"))
    right = (sweep.own_logits > 0) == sweep.label
    own = bootstrap_mean(right, sweep.group_id, seed=sweep.seed)
    (balanced,) = balanced_estimates(
        sweep.label, right[:, None], sweep.group_id, seed=sweep.seed, spread=1.0
    )
    return {
        "accuracy_own_answer": own.value,
        "accuracy_own_answer_interval": [own.low, own.high],
        "balanced_accuracy_own_answer": balanced.value,
        "balanced_accuracy_own_answer_interval": [balanced.low, balanced.high],
    }


def _balanced(sweep: ProbeSweep, right: NDArray[np.bool_]) -> float:
    return float((right[sweep.label].mean() + right[~sweep.label].mean()) / 2)


def _gain(
    sweep: ProbeSweep, other: NDArray[np.bool_], spread: float
) -> tuple[dict[str, float], float]:
    """Lead of the nested probe over other verdicts in balanced accuracy, and its p.

    Resampled groups hold other numbers of True and False items, so the interval takes the means of
    the classes anew in every resample. A flip of signs leaves labels and items where they are: with
    weights by class, the mean of the flipped differences is their balanced accuracy.

    Args:
        sweep: what leads.
        other: (n_items,) whether the other is right.
        spread: of interval and null.
    """
    difference = sweep.correct_nested.astype(float) - other
    (gain,) = balanced_estimates(
        sweep.label,
        difference[:, None],
        sweep.group_id,
        seed=sweep.seed,
        spread=spread,
        possible=(-1.0, 1.0),
    )
    weighted = class_weights(sweep.label) * difference
    return asdict(gain), sign_flip_p(weighted, sweep.group_id, seed=sweep.seed, spread=spread)


def _wording(sweep: ProbeSweep) -> dict[str, Any]:
    """The text baselines, and whether the nested probe beats the best of them."""
    correct = {name: (values > 0) == sweep.label for name, values in sweep.baselines.items()}
    accuracy = {name: float(right.mean()) for name, right in correct.items()}
    if not accuracy:
        return {
            "text_baselines": {},
            "text_baseline": None,
            "text_baseline_accuracy": None,
            "text_baseline_balanced_accuracy": None,
            "gain_over_text": None,
            "p_beyond_wording": None,
        }
    # In balanced accuracy, like every comparison with a null.
    balanced = {name: _balanced(sweep, right) for name, right in correct.items()}
    # Rounded, so that a tie goes to the first of them.
    best = max(balanced, key=lambda name: round(balanced[name], 9))
    gain, p = _gain(sweep, correct[best], sweep.spread_nested)
    return {
        "text_baselines": accuracy,
        "text_baseline": best,
        "text_baseline_accuracy": accuracy[best],
        "text_baseline_balanced_accuracy": balanced[best],
        "gain_over_text": gain,
        "p_beyond_wording": p,
    }


def write_sweep(
    folder: str | Path, sweep: ProbeSweep, untrained: ProbeSweep | None = None
) -> dict[str, Any]:
    """Write `probes.h5`, tables, `folds.json` and, last, `probe.json`; returns its content."""
    folder = Path(folder)
    summary = summarise(sweep, untrained)
    rows = [{"held_out": k, **row} for k, table in summary["transfer"].items() for row in table]
    with replaced_together(folder, last="probe.json", gone=("transfer.csv", *FIGURES)) as aside:
        write_arrays(aside / "probes.h5", sweep)
        # As `--fold-file` reads it, for sweeps that are to have the same folds.
        folds = dict(zip(sweep.item_id, sweep.fold.tolist(), strict=True))
        write_json(aside / "folds.json", folds)
        write_csv(aside / "layers.csv", summary["layers"])
        if rows:
            write_csv(aside / "transfer.csv", rows)
        write_json(aside / "probe.json", summary)
    return summary
