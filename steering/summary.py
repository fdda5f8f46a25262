"""What a steering sweep shows: paired intervals, the random null, one sentence of verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.statistics import Estimate, bootstrap_means, mcnemar_exact
from interp.vocabulary import GROUPS_IGNORED
from steering.results import (
    BASELINE,
    SteeringSweep,
    cell_rows,
    scores,
    write_sweep_files,
)

__all__ = ["LEAST_FOR_P", "summarise", "write_steering"]

LEAST_FOR_P: Final = 99
"""Random directions from which a p-value is given; with fewer it could not fall below 1%."""


def write_steering(
    folder: str | Path, sweep: SteeringSweep, extra: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write a sweep's folder; returns the content of `steer.json`.

    Args:
        folder: made if it is missing.
        sweep: what was found.
        extra: further entries of `steer.json`: cosines, side effects.
    """
    folder = Path(folder)
    rows = cell_rows(sweep)
    summary = summarise(sweep, rows) | dict(extra or {})
    write_sweep_files(folder, sweep, rows, summary)
    return summary


def summarise(sweep: SteeringSweep, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The content of `steer.json`.

    Args:
        sweep: what was found.
        rows: of `cell_rows`.
    """
    conditions = (BASELINE, *sweep.conditions)
    lead = _lead(sweep)
    right = {name: _quoted_right(sweep, name) for name in conditions}
    columns: dict[str, NDArray[np.float64]] = dict(right)
    for name in sweep.conditions:
        columns[f"{name}_minus_{BASELINE}"] = right[name] - right[BASELINE]
        if lead in right and name != lead:
            columns[f"{lead}_minus_{name}"] = right[lead] - right[name]
    found = dict(
        zip(
            columns,
            bootstrap_means(
                np.stack(list(columns.values()), axis=1), sweep.group_id, seed=sweep.seed
            ),
            strict=True,
        )
    )
    quoted = {name: _quoted_entry(sweep, name, found[name]) for name in conditions}
    differences = {name: asdict(found[name]) for name in columns if name not in conditions}
    null = _null(sweep)
    sizes = sorted(size for _, size in sweep.chosen)
    places = {place for place, _ in sweep.chosen}
    cells = [int(cell) for cell in np.unique(sweep.quoted(sweep.conditions[0]))]
    steered = [cell for cell in cells if sweep.cells[cell].size > 0]
    summary: dict[str, Any] = {
        "n_items": len(sweep.item_id),
        "seed": sweep.seed,
        **sweep.settings,
        "layers": list(sweep.places),
        "quoted_layer": places.pop() if len(places) == 1 else "by fold",
        "quoted_alpha": sizes[len(sizes) // 2],
        "quoted_by_fold": [
            {"fold": fold, "layer": place, "alpha": size}
            for fold, (place, size) in enumerate(sweep.chosen)
        ],
        "chosen_on_inner_folds": sweep.chosen_on_inner_folds,
        "quoted_alpha_absolute": float(sweep.alpha_absolute[steered].mean()) if steered else 0.0,
        "n_without_effect": sweep.n_without_effect,
        "conditions": quoted,
        **differences,
        "null": null,
        "grid": _grid(sweep, rows),
        "verdict": _verdict(sweep, found, null),
        "manifest": dict(sweep.manifest),
    }
    if "random" in right:
        accuracies = _accuracies(sweep, "random")
        summary["random_directions"] = len(accuracies)
        summary["random_accuracy_range"] = [float(accuracies.min()), float(accuracies.max())]
    if "signed" in right:
        signed = right["signed"] > 0.5
        summary["mcnemar_signed_baseline_p"] = mcnemar_exact(signed, sweep.correct[0])
    return summary


def _quoted_right(sweep: SteeringSweep, condition: str) -> NDArray[np.float64]:
    """(n_items,) share of a condition's draws in which the quoted verdict is right."""
    logits = sweep.quoted_logits(condition)
    right = np.equal(logits[..., 0] > logits[..., 1], sweep.label)
    return np.asarray(right.mean(axis=0), dtype=float)


def _accuracies(sweep: SteeringSweep, condition: str) -> NDArray[np.float64]:
    """(n_draws,) quoted accuracy of each draw."""
    logits = sweep.quoted_logits(condition)
    right = np.equal(logits[..., 0] > logits[..., 1], sweep.label)
    return np.asarray(right.mean(axis=1), dtype=float)


def _quoted_entry(sweep: SteeringSweep, condition: str, accuracy: Estimate) -> dict[str, Any]:
    draws = [
        scores(sweep, logits, push)
        for logits, push in zip(
            sweep.quoted_logits(condition), sweep.quoted_push(condition), strict=True
        )
    ]
    means = {name: float(np.mean([draw[name] for draw in draws])) for name in draws[0]}
    accuracies = [draw["accuracy"] for draw in draws]
    return {
        **means,
        "accuracy": accuracy.value,
        "low": accuracy.low,
        "high": accuracy.high,
        "n_draws": len(draws),
        "accuracy_range": [min(accuracies), max(accuracies)],
    }


def _lead(sweep: SteeringSweep) -> str:
    """The condition that all others are compared with."""
    return "fixed" if sweep.settings.get("intervention") == "project_out" else "signed"


def _null(sweep: SteeringSweep) -> dict[str, Any] | None:
    """The best cell of the direction in question against each random direction's best cell.

    A random direction and its mirror image are as exchangeable with the class mean and `negated`
    as any two pairs are; so all four stand in the same ranking. Taking the best cell of each makes
    up for choosing among cells. Where projections are taken out there are no signs and no pairs,
    and accuracy may move either way: the largest move counts.
    """
    lead = _lead(sweep)
    if "random" not in sweep.conditions or lead not in sweep.conditions:
        return None
    accuracy = np.where(np.isnan(sweep.logits[..., 0]), np.nan, sweep.correct).mean(axis=1)
    what = "largest accuracy over the grid"
    if lead != "signed":
        accuracy = np.abs(accuracy - accuracy[0])
        what = "largest change of accuracy over the grid, up or down"
    best: dict[str, float] = {}
    for number, cell in enumerate(sweep.cells):
        if cell.condition in (lead, "negated", "random"):
            name = f"{cell.condition}{cell.draw}"
            best[name] = max(best.get(name, 0.0), float(accuracy[number]))
    draws = np.array([value for name, value in best.items() if name.startswith("random")])
    found: dict[str, Any] = {
        "statistic": what,
        lead: best[lead],
        "n_directions": len(draws),
        "range": [float(draws.min()), float(draws.max())],
        "p_value": None,
    }
    if len(draws) >= LEAST_FOR_P:
        others = np.append(draws, best["negated"]) if "negated" in best else draws
        found["p_value"] = (1 + int((others >= best[lead]).sum())) / (len(others) + 1)
    return found


def _grid(sweep: SteeringSweep, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of `cells.csv` with paired intervals and the range of the draws."""
    right = sweep.correct.astype(float)
    random = {
        (place, size): right[cells].mean(axis=0)
        for place in sweep.places
        for size in sweep.sizes
        if (cells := sweep.cells_of(place, size, "random"))
    }
    columns, owners = [], []
    for number, row in enumerate(rows):
        cells = row["cells"]
        mean = right[cells].mean(axis=0)
        columns += [mean, mean - right[0]]
        owners += [(number, "accuracy"), (number, "minus_baseline")]
        null = random.get((row["layer"], sweep.cells[cells[0]].size))
        if null is not None and row["condition"] != "random":
            columns.append(mean - null)
            owners.append((number, "minus_random"))
    found = bootstrap_means(np.stack(columns, axis=1), sweep.group_id, seed=sweep.seed)
    grid = []
    intervals: dict[tuple[int, str], Estimate] = dict(zip(owners, found, strict=True))
    for number, row in enumerate(rows):
        accuracies = [float(right[cell].mean()) for cell in row["cells"]]
        entry = {name: value for name, value in row.items() if name != "cells"}
        own = intervals[number, "accuracy"]
        entry |= {"low": own.low, "high": own.high}
        entry["accuracy_range"] = [min(accuracies), max(accuracies)]
        for name in ("minus_baseline", "minus_random"):
            estimate = intervals.get((number, name))
            entry[name] = None if estimate is None else asdict(estimate)
        grid.append(entry)
    return grid


def _points(e: Estimate) -> str:
    # Added to 0, a rounded −0 loses its sign.
    value, low, high = (round(100 * number, 1) + 0.0 for number in (e.value, e.low, e.high))
    return f"{value:+.1f} points [{low:+.1f}, {high:+.1f}]"


def _always(verdicts: NDArray[np.bool_]) -> bool | None:
    """The verdict that every item is given; None where they differ."""
    return bool(verdicts[0]) if (verdicts == verdicts[0]).all() else None


_NAMES: Final = {
    "class_mean": "the class mean",
    "whitened": "the whitened class mean",
    "pca": "the first component of the twins' differences",
    "leace": "what the eraser reads",
    "probe": "the probe's weights",
}


def _verdict(
    sweep: SteeringSweep, found: Mapping[str, Estimate], null: Mapping[str, Any] | None
) -> str:
    """One sentence that follows from the paired differences."""
    parts = []
    lead, given = _lead(sweep), str(sweep.settings.get("direction", "class_mean"))
    along = _NAMES.get(given, f"`{given}`")
    signed = lead == "signed"
    if not signed:
        steering, others = f"taking the projection on {along} out", "taking out"
    elif sweep.settings.get("intervention") == "clamp":
        steering, others = f"setting the projection on {along}, signed by the probe,", "signing"
    else:
        steering, others = f"steering along {along}, signed by the probe,", "signing"

    def moved(e: Estimate, up: str, down: str, neither: str) -> str:
        return up if e.low > 0 else down if e.high < 0 else neither

    change = found.get(f"{lead}_minus_{BASELINE}")
    if change is not None:
        words = moved(change, "raises", "lowers", "neither raises nor lowers")
        parts.append(f"{steering} {words} the accuracy of the forced choice ({_points(change)})")
    for name, what in (
        ("random", f"{others} random directions"),
        ("writer", f"{others} the unembedding's own True − False difference"),
    ):
        beyond = found.get(f"{lead}_minus_{name}")
        if beyond is not None:
            than = moved(beyond, "more than", "less than", "no more and no less than")
            parts.append(f"that is {than} {what} gives ({_points(beyond)})")
    if null is not None and null["p_value"] is not None:
        parts.append(
            f"its best cell ranks at p = {null['p_value']:.2g} among the best cells of "
            f"{null['n_directions']} random directions"
        )
    fixed = found.get(f"fixed_minus_{BASELINE}")
    if fixed is not None and signed:
        words = moved(fixed, "raises", "lowers", "does not move")
        parts.append(
            f"the same direction with one sign for all items {words} it ({_points(fixed)})"
        )
    always = _always(sweep.verdicts[0])
    if parts and always is not None:
        # Half of the pushes then go where the verdict already is, and cannot be seen in it.
        parts.insert(0, f"unsteered, the model says {always} to every item")
    if not parts:
        missing = "Neither `signed` nor `fixed` was run" if signed else "`fixed` was not run"
        return f"{missing}, so there is nothing to conclude."
    if not sweep.settings.get("direction_fitted_by_fold", True):
        parts.insert(0, "the direction is given, and may have been fitted to these items' labels")
    sentence = "; ".join(parts)
    if change is not None and signed:
        sentence += "; the signs alone hand over the probe's answer"
        sentence += ", and `oracle` that of the label" if "oracle" in sweep.conditions else ""
        sentence += ", so only a lead over other signed directions is evidence"
    sentence = sentence[0].upper() + sentence[1:] + "."
    ignored = sweep.settings.get("grouping") == "none"
    return f"{GROUPS_IGNORED}: {sentence}" if ignored else sentence
