"""The tables that a steering sweep leaves behind, as its figures read them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from interp.errors import ResultError
from interp.files import require_file

__all__ = ["BASELINE", "CellRow", "ItemShift", "read_cells", "read_shifts"]

BASELINE: Final = "baseline"


@dataclass(frozen=True, slots=True)
class CellRow:
    """One row of `draws.csv`: a cell, or one draw of it.

    Attributes:
        layer: block index as text, or `nested`; `baseline` for the row that is not steered.
        alpha: in median residual norms; NaN for `text`, which adds no vector.
        condition: see the sweep.
        accuracy: share of items answered right, 0 to 1.
        true_recall: among True items; NaN where there are none.
        false_recall: among False items.
        flips_to_right: items that were wrong without steering and are right with it.
        flips_to_wrong: the other way round.
    """

    layer: str
    alpha: float
    condition: str
    accuracy: float
    true_recall: float
    false_recall: float
    flips_to_right: int
    flips_to_wrong: int


@dataclass(frozen=True, slots=True)
class ItemShift:
    """One row of `items.csv`.

    Attributes:
        layer: as in `CellRow`.
        alpha: likewise.
        condition: likewise.
        item_id: of the item.
        label: gold verdict.
        shift: logit of True minus logit of False, steered minus not steered.
    """

    layer: str
    alpha: float
    condition: str
    item_id: str
    label: bool
    shift: float


def _rows(path: Path, columns: Sequence[str], what: str) -> list[dict[str, str]]:
    require_file(path, what, ResultError)
    with path.open(encoding="utf-8", newline="") as handle:
        reader = csv.DictReader(handle)
        rows = list(reader)
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing or not rows:
        raise ResultError(
            f"{path} has {len(rows)} rows and lacks the columns {', '.join(missing) or 'none'}; "
            f"expected {what}. Run `interp steer` again."
        )
    return rows


def read_cells(path: Path) -> tuple[CellRow, ...]:
    """Read `draws.csv`; further columns are passed over.

    Raises:
        ResultError: missing, without a column that is drawn, a number that is none, or no
            baseline.
    """
    columns = (
        *("layer", "alpha", "condition", "accuracy", "true_recall", "false_recall"),
        *("flips_to_right", "flips_to_wrong"),
    )

    def share(text: str) -> float:
        return float(text or "nan")

    try:
        cells = tuple(
            CellRow(
                layer=row["layer"],
                alpha=share(row["alpha"]),
                condition=row["condition"],
                accuracy=share(row["accuracy"]),
                true_recall=share(row["true_recall"]),
                false_recall=share(row["false_recall"]),
                flips_to_right=int(row["flips_to_right"]),
                flips_to_wrong=int(row["flips_to_wrong"]),
            )
            for row in _rows(path, columns, "the cells of a steering sweep")
        )
    except ValueError as error:
        raise ResultError(f"{path} is not a table of steering cells ({error}).") from error
    if not any(cell.condition == BASELINE for cell in cells):
        raise ResultError(f"{path} has no row of the condition `baseline`; nothing to compare to.")
    return cells


def read_shifts(path: Path) -> tuple[ItemShift, ...]:
    """Read `items.csv`.

    Raises:
        ResultError: missing, without a column that is drawn, or a value that is none.
    """
    names = ("layer", "alpha", "condition", "item_id", "label", "shift")
    words = {"1": True, "true": True, "0": False, "false": False}
    try:
        return tuple(
            ItemShift(
                layer=row["layer"],
                alpha=float(row["alpha"]),
                condition=row["condition"],
                item_id=row["item_id"],
                label=words[row["label"].lower()],
                shift=float(row["shift"]),
            )
            for row in _rows(path, names, "the items of a steering sweep")
        )
    except (ValueError, KeyError) as error:
        raise ResultError(f"{path} is not a table of item shifts ({error}).") from error
