"""`SteeringSweep`: what steering did to the model's verdicts, and its folder on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from interp.files import drawn_files, replaced_together, write_csv, write_json
from interp.hdf5 import new_hdf5
from interp.statistics import score_decisions

__all__ = [
    "BASELINE",
    "Cell",
    "SteeringSweep",
    "cell_rows",
    "draw_rows",
    "scores",
    "write_sweep_files",
]

BASELINE: Final = "baseline"
FIGURES: Final = (
    *drawn_files("dose_response", "recalls", "grid", "item_shifts"),
    "report.html",
)
"""Drawn from a summary, below its folder: they go when it goes."""

_FORMAT: Final = "interp steering sweep"
_COLUMNS: Final = (
    "layer",
    "alpha",
    "alpha_absolute",
    "condition",
    "accuracy",
    "true_recall",
    "false_recall",
    "macro_f1",
    "non_answers",
    "flips_to_right",
    "flips_to_wrong",
)
"""Of `cells.csv`; scripts rely on them."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of the grid.

    Attributes:
        layer: 0-based block index, or `nested`: each item at the layer chosen without its fold.
        size: as given: multiples of the median residual norm at the layer, or a norm; 0 for
            `baseline` and `text`.
        condition: `baseline`, a condition, or `inner`.
        draw: number of the draw, with + or - for the members of a ± pair; of `inner`, the fold
            that is left out. Empty for other conditions.
    """

    layer: str
    size: float
    condition: str
    draw: str = ""


@dataclass(frozen=True, slots=True)
class SteeringSweep:
    """Forced-choice logits of every cell.

    Attributes:
        cells: (n_cells,), the baseline first.
        logits: (n_cells, n_items, 2) logits of True and False after the answer stub; NaN where a
            cell of `inner` does not run an item.
        push: (n_cells, n_items) where an item is meant to go, +1 to True and -1 to False: the sign
            that its direction is added with; 0 without steering.
        alpha: (n_cells,) mean size over items in multiples of the median residual norm.
        alpha_absolute: (n_cells,) mean norm of what is added.
        sign: (n_items,) +1 or -1, the sign of the item's out-of-fold probe decision at the nested
            layer (cells at a fixed layer use the decision at that layer).
        fold: (n_items,) outer fold.
        item_id: (n_items,).
        label: (n_items,) of bool.
        group_id: (n_items,).
        chosen: one (layer, size) a fold: what numbers are quoted for its items.
        chosen_on_inner_folds: whether `chosen` was chosen without the fold, or was given.
        n_without_effect: items whose quoted layer is the last one, steered at the last prompt token
            alone. The verdict is read at a later token, which sees the steered one only through the
            blocks above: there are none.
        settings: positions, unit of the sizes, and which way the cells were run.
        seed: of the draws and intervals.
        manifest: of the cache.
    """

    cells: tuple[Cell, ...]
    logits: NDArray[np.float32]
    push: NDArray[np.int8]
    alpha: NDArray[np.float64]
    alpha_absolute: NDArray[np.float64]
    sign: NDArray[np.int64]
    fold: NDArray[np.int64]
    item_id: tuple[str, ...]
    label: NDArray[np.bool_]
    group_id: tuple[str, ...]
    chosen: tuple[tuple[str, float], ...]
    chosen_on_inner_folds: bool
    n_without_effect: int
    settings: Mapping[str, Any]
    seed: int
    manifest: Mapping[str, Any]
    _index: dict[tuple[str, float, str], list[int]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index: dict[tuple[str, float, str], list[int]] = {}
        for number, cell in enumerate(self.cells):
            index.setdefault((cell.layer, cell.size, cell.condition), []).append(number)
        object.__setattr__(self, "_index", index)

    @property
    def verdicts(self) -> NDArray[np.bool_]:
        """(n_cells, n_items) forced choices."""
        return np.asarray(self.logits[:, :, 0] > self.logits[:, :, 1])

    @property
    def correct(self) -> NDArray[np.bool_]:
        """(n_cells, n_items)."""
        return np.equal(self.verdicts, self.label)

    @property
    def places(self) -> tuple[str, ...]:
        """Layers of the grid."""
        return tuple(dict.fromkeys(cell.layer for cell in self.cells[1:]))

    @property
    def sizes(self) -> tuple[float, ...]:
        """Sizes of the grid, ascending, without 0."""
        return tuple(sorted({cell.size for cell in self.cells if cell.size > 0}))

    @property
    def conditions(self) -> tuple[str, ...]:
        """Conditions of the grid, without the baseline and what only chooses."""
        found = dict.fromkeys(cell.condition for cell in self.cells[1:])
        return tuple(name for name in found if name != "inner")

    def cells_of(self, place: str, size: float, condition: str) -> list[int]:
        """Numbers of the draws of a condition at one layer and size."""
        return self._index.get((place, 0.0 if condition == "text" else size, condition), [])

    def quoted(self, condition: str) -> NDArray[np.int64]:
        """(n_draws, n_items): the cell that each item is quoted from."""
        if condition == BASELINE:
            return np.zeros((1, len(self.item_id)), dtype=np.int64)
        by_fold = np.array([self.cells_of(*chosen, condition) for chosen in self.chosen])
        return np.asarray(by_fold[self.fold].T, dtype=np.int64)

    def quoted_logits(self, condition: str) -> NDArray[np.float32]:
        """(n_draws, n_items, 2)."""
        cells = self.quoted(condition)
        return np.asarray(self.logits[cells, np.arange(cells.shape[1])])

    def quoted_push(self, condition: str) -> NDArray[np.int8]:
        """(n_draws, n_items)."""
        cells = self.quoted(condition)
        return np.asarray(self.push[cells, np.arange(cells.shape[1])])


def scores(
    sweep: SteeringSweep, logits: NDArray[np.float32], push: NDArray[np.int8]
) -> dict[str, float]:
    """Scores of forced choices (n_items, 2) beside the unsteered ones."""
    difference = logits[:, 0].astype(float) - logits[:, 1]
    found = score_decisions(sweep.label, difference > 0, difference)
    before, after = sweep.correct[0], np.equal(difference > 0, sweep.label)
    moved = difference - (sweep.logits[0, :, 0].astype(float) - sweep.logits[0, :, 1])
    return {
        "accuracy": found.accuracy,
        "true_recall": found.true_recall,
        "false_recall": found.false_recall,
        "macro_f1": found.macro_f1,
        "auroc": found.auroc,
        "non_answers": 0,  # a forced choice always answers
        "flips_to_right": int((~before & after).sum()),
        "flips_to_wrong": int((before & ~after).sum()),
        "moved_wrong_way": float((moved * push < 0).mean()),
        "mean_shift": float((moved * push).mean()),
    }


def draw_rows(sweep: SteeringSweep) -> list[dict[str, Any]]:
    """One row a cell and draw, the baseline first; what only chooses is left out."""
    rows = []
    for number, cell in enumerate(sweep.cells):
        if cell.condition == "inner":
            continue
        row: dict[str, Any] = {
            "layer": cell.layer,
            "alpha": _alpha(sweep, number),
            "alpha_absolute": _absolute(sweep, number),
            "condition": cell.condition,
            "draw": cell.draw,
        }
        rows.append(row | scores(sweep, sweep.logits[number], sweep.push[number]))
    return rows


def item_rows(sweep: SteeringSweep, layer: str, alpha: float) -> list[dict[str, Any]]:
    """One row an item and condition at the quoted cells, of several draws the first.

    Args:
        sweep: what was found.
        layer: what the quoted layer is called.
        alpha: likewise.
    """
    rows = []
    before = sweep.logits[0, :, 0].astype(float) - sweep.logits[0, :, 1]
    for condition in sweep.conditions:
        logits = sweep.quoted_logits(condition)[0]
        shifts = logits[:, 0].astype(float) - logits[:, 1] - before
        push = sweep.quoted_push(condition)[0]
        for item, shift in enumerate(shifts):
            rows.append(
                {
                    "layer": layer,
                    "alpha": alpha,
                    "condition": condition,
                    "item_id": sweep.item_id[item],
                    "label": int(sweep.label[item]),
                    "push": int(push[item]),
                    "shift": float(shift),
                }
            )
    return rows


def _alpha(sweep: SteeringSweep, number: int) -> float | None:
    return None if sweep.cells[number].condition == "text" else float(sweep.alpha[number])


def _absolute(sweep: SteeringSweep, number: int) -> float | None:
    return None if sweep.cells[number].condition == "text" else float(sweep.alpha_absolute[number])


def cell_rows(sweep: SteeringSweep) -> list[dict[str, Any]]:
    """One row a layer × alpha × condition, means over draws; alpha 0 is the unsteered model.

    Beyond the columns of `cells.csv` each row has `auroc`, `moved_wrong_way`, `mean_shift`,
    `n_draws`, and the `cells` that it is the mean of.
    """
    baseline = scores(sweep, sweep.logits[0], sweep.push[0])
    rows = []
    for place in sweep.places:
        for condition in sweep.conditions:
            common = {"layer": place, "condition": condition}
            if condition != "text":
                zero = {"alpha": 0.0, "alpha_absolute": 0.0, "n_draws": 1, "cells": [0]}
                rows.append(common | zero | baseline)
            for size in (0.0,) if condition == "text" else sweep.sizes:
                cells = sweep.cells_of(place, size, condition)
                draws = [scores(sweep, sweep.logits[i], sweep.push[i]) for i in cells]
                means = {name: float(np.mean([d[name] for d in draws])) for name in baseline}
                rows.append(
                    common
                    | {"alpha": _alpha(sweep, cells[0])}
                    | {"alpha_absolute": _absolute(sweep, cells[0])}
                    | {"n_draws": len(cells), "cells": cells}
                    | means
                )
    return rows


def write_sweep_files(
    folder: Path,
    sweep: SteeringSweep,
    rows: Sequence[Mapping[str, Any]],
    summary: Mapping[str, Any],
) -> None:
    """Write `steer.h5`, `cells.csv`, `draws.csv`, `items.csv` and, last, `steer.json`."""
    with replaced_together(folder, last="steer.json", gone=FIGURES) as aside:
        _write_arrays(aside / "steer.h5", sweep)
        write_csv(aside / "cells.csv", [{name: row[name] for name in _COLUMNS} for row in rows])
        write_csv(aside / "draws.csv", draw_rows(sweep))
        quoted = str(summary["quoted_layer"]), float(summary["quoted_alpha"])
        write_csv(aside / "items.csv", item_rows(sweep, *quoted))
        write_json(aside / "steer.json", summary)


def _write_arrays(path: Path, sweep: SteeringSweep) -> None:
    text = h5py.string_dtype("utf-8")
    with new_hdf5(path) as file:
        file.attrs["format"] = _FORMAT
        file["logits"] = sweep.logits
        file["push"] = sweep.push
        file["sign"] = sweep.sign
        file["fold"] = sweep.fold
        file["label"] = sweep.label.astype(np.int8)
        file["item_id"] = np.array(sweep.item_id, dtype=text)
        file["group_id"] = np.array(sweep.group_id, dtype=text)
        file["cell"] = np.array([json.dumps(asdict(cell)) for cell in sweep.cells], dtype=text)
