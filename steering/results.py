"""`SteeringSweep`: what steering did to the model's verdicts, and its folder on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from interp.errors import SteeringError
from interp.files import atomic_path, write_csv, write_json
from interp.statistics import Estimate, bootstrap_mean, mcnemar_exact, score_decisions

__all__ = ["BASELINE", "Cell", "SteeringSweep", "summarise", "write_steering"]

BASELINE: Final = "baseline"
_FORMAT: Final = "interp steering sweep"


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the grid.

    Attributes:
        layer: 0-based block index, or `nested`: each item at the layer chosen without its fold.
        alpha: size in multiples of the median residual norm at the layer.
        condition: `baseline`, `signed`, `negated` or `random`.
        draw: number of the random direction; positive and negative draws of one direction are
            two cells (`+3`, `-3`). Empty for other conditions.
    """

    layer: str
    alpha: float
    condition: str
    draw: str = ""


@dataclass(frozen=True, slots=True)
class SteeringSweep:
    """Forced-choice logits of every cell.

    Attributes:
        cells: (n_cells,), the baseline first.
        logits: (n_cells, n_items, 2) logits of True and False after the answer stub.
        alpha_absolute: (n_cells,) mean size of the added vector over items.
        sign: (n_items,) +1 or -1, the sign of the item's out-of-fold probe decision at the nested
            layer (cells at a fixed layer use the decision at that layer).
        item_id: (n_items,).
        label: (n_items,) of bool.
        group_id: (n_items,).
        n_without_effect: items whose quoted layer is the last one. The verdict is read at a later
            token, which sees the steered one only through the blocks above: there are none.
        quoted_alpha: the alpha that headline numbers are given for.
        quoted_layer: likewise, the layer.
        seed: of the random directions and intervals.
        manifest: of the cache.
    """

    cells: tuple[Cell, ...]
    logits: NDArray[np.float32]
    alpha_absolute: NDArray[np.float64]
    sign: NDArray[np.int64]
    item_id: tuple[str, ...]
    label: NDArray[np.bool_]
    group_id: tuple[str, ...]
    n_without_effect: int
    quoted_alpha: float
    quoted_layer: str
    seed: int
    manifest: Mapping[str, Any]

    @property
    def verdicts(self) -> NDArray[np.bool_]:
        """(n_cells, n_items) forced choices."""
        return np.asarray(self.logits[:, :, 0] > self.logits[:, :, 1])

    @property
    def correct(self) -> NDArray[np.bool_]:
        """(n_cells, n_items)."""
        return np.equal(self.verdicts, self.label)

    def quoted(self, condition: str) -> list[int]:
        """Indices of the cells of a condition that headline numbers are given for."""
        return [
            index
            for index, cell in enumerate(self.cells)
            if cell.condition == condition
            and (
                condition == BASELINE
                or (cell.alpha, cell.layer) == (self.quoted_alpha, self.quoted_layer)
            )
        ]


def _row(sweep: SteeringSweep, index: int) -> dict[str, Any]:
    cell, verdicts = sweep.cells[index], sweep.verdicts
    difference = sweep.logits[index, :, 0] - sweep.logits[index, :, 1]
    scores = score_decisions(sweep.label, verdicts[index], difference)
    before, after = sweep.correct[0], sweep.correct[index]
    return {
        "layer": cell.layer,
        "alpha": cell.alpha,
        "alpha_absolute": float(sweep.alpha_absolute[index]),
        "condition": cell.condition,
        "draw": cell.draw,
        "accuracy": scores.accuracy,
        "true_recall": scores.true_recall,
        "false_recall": scores.false_recall,
        "macro_f1": scores.macro_f1,
        "auroc": scores.auroc,
        "non_answers": 0,  # a forced choice always answers
        "flips_to_right": int((~before & after).sum()),
        "flips_to_wrong": int((before & ~after).sum()),
    }


def _verdict(change: Estimate, beyond: Estimate) -> str:
    """Two sentences that follow from the paired differences of signed steering."""

    def points(e: Estimate) -> str:
        return f"{100 * e.value:+.1f} points [{100 * e.low:+.1f}, {100 * e.high:+.1f}]"

    def direction(e: Estimate, up: str, down: str, neither: str) -> str:
        return up if e.low > 0 else down if e.high < 0 else neither

    moved = direction(change, "raises", "lowers", "neither raises nor lowers")
    than = direction(beyond, "more than", "less than", "no more and no less than")
    return (
        f"Steering along the class mean, signed by the probe, {moved} the accuracy of the forced "
        f"choice ({points(change)}). That is {than} signing random directions gives "
        f"({points(beyond)}); the signs alone hand over the probe's answer, so only a lead over "
        f"random directions is evidence."
    )


def summarise(sweep: SteeringSweep) -> dict[str, Any]:
    """The content of `steer.json`: the quoted layer and alpha, all conditions, paired intervals."""

    def mean_correct(condition: str) -> NDArray[np.float64]:
        cells = sweep.quoted(condition)
        if not cells:
            raise SteeringError(f"No cell of the condition {condition!r} at the quoted alpha.")
        return np.asarray(sweep.correct[cells].mean(axis=0), dtype=float)

    def paired(first: NDArray[np.float64], second: NDArray[np.float64]) -> Estimate:
        return bootstrap_mean(first - second, sweep.group_id, seed=sweep.seed)

    rows = {name: mean_correct(name) for name in (BASELINE, "signed", "negated", "random")}
    change, beyond = (paired(rows["signed"], rows[other]) for other in (BASELINE, "random"))
    signed = sweep.quoted("signed")[0]
    random_rows = [_row(sweep, index) for index in sweep.quoted("random")]
    random_accuracies = [row["accuracy"] for row in random_rows]
    conditions = {}
    for name, correct in rows.items():
        estimate = bootstrap_mean(correct, sweep.group_id, seed=sweep.seed)
        table = [_row(sweep, index) for index in sweep.quoted(name)]
        conditions[name] = {
            "accuracy": estimate.value,
            "low": estimate.low,
            "high": estimate.high,
            "true_recall": float(np.mean([row["true_recall"] for row in table])),
            "false_recall": float(np.mean([row["false_recall"] for row in table])),
            "macro_f1": float(np.mean([row["macro_f1"] for row in table])),
            "auroc": float(np.mean([row["auroc"] for row in table])),
        }
    return {
        "n_items": len(sweep.item_id),
        "seed": sweep.seed,
        "quoted_layer": sweep.quoted_layer,
        "n_without_effect": sweep.n_without_effect,
        "quoted_alpha": sweep.quoted_alpha,
        "quoted_alpha_absolute": float(sweep.alpha_absolute[signed]),
        "conditions": conditions,
        "random_directions": len(random_accuracies),
        "random_accuracy_range": [min(random_accuracies), max(random_accuracies)],
        "signed_minus_baseline": asdict(change),
        "signed_minus_random": asdict(beyond),
        "mcnemar_signed_baseline_p": mcnemar_exact(sweep.correct[signed], sweep.correct[0]),
        "verdict": _verdict(change, beyond),
        "manifest": dict(sweep.manifest),
    }


def write_steering(folder: Path, sweep: SteeringSweep) -> dict[str, Any]:
    """Write `steer.h5`, `cells.csv` and, last, `steer.json`; returns the latter's content."""
    summary = summarise(sweep)
    folder.mkdir(parents=True, exist_ok=True)
    # The summary is the sign that a folder is finished, so an old one goes first.
    (folder / "steer.json").unlink(missing_ok=True)
    text = h5py.string_dtype("utf-8")
    with atomic_path(folder / "steer.h5") as aside, h5py.File(aside, "w") as file:
        file.attrs["format"] = _FORMAT
        file["logits"] = sweep.logits
        file["sign"] = sweep.sign
        file["label"] = sweep.label.astype(np.int8)
        file["item_id"] = np.array(sweep.item_id, dtype=text)
        file["group_id"] = np.array(sweep.group_id, dtype=text)
    write_csv(folder / "cells.csv", [_row(sweep, index) for index in range(len(sweep.cells))])
    write_json(folder / "steer.json", summary)
    return summary
