"""Tables of a steering sweep, made up: for tests of figures and reports."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["write_sweep_tables", "write_table"]

CONDITIONS = {
    "signed": 4.0,
    "oracle": 7.0,
    "fixed": -0.5,
    "negated": -4.0,
    "writer": 3.0,
    "shuffled": 0.5,
    "orthogonal": 0.3,
    "text": 2.0,
}
COLUMNS = (
    *("layer", "alpha", "alpha_absolute", "condition", "draw", "accuracy", "true_recall"),
    *("false_recall", "macro_f1", "non_answers", "flips_to_right", "flips_to_wrong"),
)


def cell(layer: object, alpha: float, condition: str, accuracy: float, **more: Any) -> dict:
    row = dict.fromkeys(COLUMNS, "0") | {
        "layer": layer,
        "alpha": alpha,
        "condition": condition,
        "accuracy": accuracy,
        "true_recall": accuracy + 0.2,
        "false_recall": accuracy - 0.2,
    }
    return row | more


def write_table(path: Path, rows: Sequence[dict]) -> Path:
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_sweep_tables(folder: Path) -> None:
    """A sweep over three layers, four sizes and all conditions, with fifty random draws."""
    rng = np.random.default_rng(0)
    rows = [cell("baseline", 0, "baseline", 0.5)]
    for layer in (2, 10, 15):
        for alpha in (0.5, 1.0, 2.0, 4.0):
            for name, gain in CONDITIONS.items():
                accuracy = 0.5 + 0.01 * gain * alpha * (layer == 10)
                rows.append(cell(layer, alpha, name, accuracy))
            for draw in range(50):
                accuracy = 0.5 + 0.01 * alpha * rng.normal()
                rows.append(cell(layer, alpha, "random", accuracy, draw=f"+{draw}"))
            rows.append(cell(layer, alpha, "inner", 0.9, draw="1"))  # not a condition
    write_table(folder / "draws.csv", rows)
    manifest = {"model": {"model_id": "tiny"}, "source": {"name": "facts"}}
    summary = {"quoted_layer": "10", "quoted_alpha": 2.0, "n_items": 40, "manifest": manifest}
    (folder / "steer.json").write_text(json.dumps(summary))
    items = []
    for condition, gain in (("signed", 1.0), ("fixed", 0.0)):
        for index in range(40):
            label = index % 2 == 0
            shift = gain * (1 if label else -1) + rng.normal() * 0.3 + (1 - gain)
            place = {"layer": 10, "alpha": 2.0, "condition": condition}
            items.append(place | {"item_id": f"i{index}", "label": int(label), "shift": shift})
    write_table(folder / "items.csv", items)
