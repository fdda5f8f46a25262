"""What a published table of accuracies tells without any item-level answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from interp.behaviour.axes import EFFECTS, axis_effects
from interp.behaviour.roster import ModelEntry, TableRow, read_rows
from interp.behaviour.taxonomy import ABILITIES, RULES
from interp.errors import ResultError, did_you_mean

__all__ = ["PUBLISHED_COLUMNS", "PublishedCell", "counts", "published_report", "read_published"]

PUBLISHED_COLUMNS: Final = ("model", "ability", "accuracy", "f1", "n")


@dataclass(frozen=True, slots=True)
class PublishedCell:
    """One accuracy as it was printed.

    Attributes:
        model: name.
        ability: one of `ABILITIES`, or `rules`.
        accuracy: percent.
        f1: macro-F1 in percent; None where none is printed.
        n: items of the ability.
        decimals: digits after the point of the printed accuracy.
    """

    model: str
    ability: str
    accuracy: float
    f1: float | None
    n: int
    decimals: int

    @property
    def candidates(self) -> tuple[tuple[int, int], ...]:
        """(right, answered) counts that print as this accuracy, most answers first."""
        return tuple(
            (right, answered)
            for answered in range(self.n, 0, -1)
            if (right := counts(self.accuracy, self.decimals, answered)) is not None
        )


def counts(percent: float, decimals: int, answered: int) -> int | None:
    """The number of right answers of `answered` that prints as `percent`, or None."""
    right = round(percent * answered / 100)
    # Half a unit of the last printed digit, and a hair for ties and binary fractions.
    close = abs(100 * right / answered - percent) <= 0.5 * 10**-decimals + 1e-9
    return right if close and 0 <= right <= answered else None


def read_published(path: str | Path) -> tuple[PublishedCell, ...]:
    """Read a table with the columns `PUBLISHED_COLUMNS`, accuracies and F1 in percent.

    Raises:
        ResultError: a column is missing, or a cell is not what it must be; row and field are named.
    """
    path = Path(path)
    rows = read_rows(path, "a table of published accuracies (CSV)", PUBLISHED_COLUMNS)
    cells: dict[tuple[str, str], PublishedCell] = {}
    n: dict[str, int] = {}
    for row in rows:
        model, ability = row.required("model"), row.required("ability")
        row.choice("ability", (*ABILITIES, RULES))
        if (model, ability) in cells:
            raise ResultError(f"{row.where}, field 'ability': {model!r} has {ability} twice.")
        accuracy, items = row.required("accuracy"), _items(row)
        if n.setdefault(ability, items) != items:
            raise ResultError(
                f"{row.where}, field 'n': {items} {ability} items, but {n[ability]} in an earlier "
                f"row; averages over models need the same items."
            )
        cells[model, ability] = PublishedCell(
            model=model,
            ability=ability,
            accuracy=_percent(row, "accuracy"),
            f1=_percent(row, "f1") if row.cells["f1"] else None,
            n=items,
            decimals=len(accuracy.partition(".")[2]),
        )
    if max(cell.accuracy for cell in cells.values()) <= 1:
        raise ResultError(
            f"{path}, field 'accuracy': no value is above 1; expected percent, not fractions."
        )
    _require_whole_models(tuple(cells.values()), path)
    return tuple(cells.values())


def _percent(row: TableRow, column: str) -> float:
    text = row.required(column)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    # An exponent would hide how many digits are printed.
    if not 0 <= value <= 100 or "e" in text.casefold():
        raise ResultError(
            f"{row.where}, field '{column}': got {text!r}; expected percent, a number "
            f"from 0 to 100."
        )
    return value


def _items(row: TableRow) -> int:
    text = row.required("n")
    if not text.isdecimal() or int(text) == 0:
        raise ResultError(f"{row.where}, field 'n': got {text!r}; expected a number of items.")
    return int(text)


def _require_whole_models(cells: Sequence[PublishedCell], path: Path) -> None:
    abilities = dict.fromkeys(cell.ability for cell in cells)
    models: dict[str, set[str]] = {}
    for cell in cells:
        models.setdefault(cell.model, set()).add(cell.ability)
    for model, having in models.items():
        if missing := [name for name in abilities if name not in having]:
            raise ResultError(
                f"{path}, field 'ability': {model!r} has no row for {', '.join(missing)}."
            )


def published_report(
    cells: Sequence[PublishedCell], roster: Sequence[ModelEntry] | None = None
) -> dict[str, Any]:
    """Everything that follows from a published table; no intervals, for lack of items.

    An accuracy over n items is a multiple of 1/n. One that is not must have a smaller denominator,
    so some replies were left out. The largest denominator that prints the same gives the fewest
    non-answers, and with them the highest accuracy that counting non-answers wrong can give.

    Args:
        cells: from `read_published`.
        roster: a models table with classes and base models; optional.

    Returns:
        `unit` (shares are fractions), `summary`, `cells`, `models`, `averages`, `classes`,
        `training`, `axes`, `notes`.

    Raises:
        ResultError: a model is missing from the roster.
    """
    entries = _by_model(cells, roster)
    by_key = {(cell.model, cell.ability): cell for cell in cells}
    models = tuple(dict.fromkeys(cell.model for cell in cells))
    having = {cell.ability for cell in cells}
    abilities = tuple(name for name in ABILITIES if name in having)
    if not abilities:
        raise ResultError(
            f"The table has no row for any ability, field 'ability'; expected some of "
            f"{', '.join(ABILITIES)} beside {RULES}."
        )
    n = {cell.ability: cell.n for cell in cells}

    def printed(model: str, ability: str) -> float:
        return by_key[model, ability].accuracy / 100

    def at_most(model: str, ability: str) -> float:
        cell = by_key[model, ability]
        # Where no count fits at all, the printed value is all there is.
        return cell.candidates[0][0] / cell.n if cell.candidates else cell.accuracy / 100

    cell_rows = [_cell_row(cell) for cell in cells]
    model_rows = _model_rows(models, abilities, n, by_key, printed, at_most, entries)
    averages = [
        {
            "ability": ability,
            "n_models": len(models),
            "accuracy_printed": _mean(printed(m, ability) for m in models),
            "f1_printed": _mean_f1([by_key[m, ability] for m in models]),
            "accuracy_wrong_at_most": _mean(at_most(m, ability) for m in models),
        }
        for ability in (*abilities, *((RULES,) if RULES in having else ()))
    ]
    odd = [row for row in cell_rows if not row["multiple_of_1_over_n"]]
    return {
        "unit": "fraction",
        "summary": {
            "n_models": len(models),
            "n_cells": len(cells),
            "models_not_multiples": sorted({row["model"] for row in odd}, key=models.index),
            "n_cells_not_multiples": len(odd),
            "cells_without_any_count": sum(row["answered_at_most"] is None for row in odd),
            "non_answers_at_least": sum(row["non_answers_at_least"] or 0 for row in odd),
            "ordering_printed": _ordering(averages, "accuracy_printed"),
            "ordering_wrong_at_most": _ordering(averages, "accuracy_wrong_at_most"),
        },
        "cells": cell_rows,
        "models": model_rows,
        "averages": averages,
        "classes": _class_rows(model_rows),
        "training": _training_rows(models, abilities, n, printed, at_most, entries),
        "axes": _axis_rows(averages, n) if len(abilities) == 4 else [],
        "notes": [
            "No intervals and no p-values: both need item-level answers.",
            "Cells that fit 1/n may still hide non-answers, and a smaller denominator may fit too: "
            "counts of non-answers are lower bounds, accuracies that count them wrong are upper.",
        ],
    }


def _by_model(
    cells: Sequence[PublishedCell], roster: Sequence[ModelEntry] | None
) -> dict[str, ModelEntry]:
    if roster is None:
        return {}
    entries = {entry.model: entry for entry in roster}
    for cell in cells:
        if cell.model not in entries:
            raise ResultError(
                f"The models table has no row for {cell.model!r}, field 'model'. "
                f"{did_you_mean(cell.model, entries)}"
            )
    return entries


def _mean(values: Any) -> float:
    return float(np.mean(list(values)))


def _mean_f1(cells: Sequence[PublishedCell]) -> float | None:
    values = [cell.f1 for cell in cells]
    return None if None in values else _mean(value / 100 for value in values if value is not None)


def _ordering(averages: Sequence[dict[str, Any]], key: str) -> list[str]:
    rows = [row for row in averages if row["ability"] != RULES]
    return [row["ability"] for row in sorted(rows, key=lambda row: -row[key])]


def _cell_row(cell: PublishedCell) -> dict[str, Any]:
    candidates = cell.candidates
    right, answered = candidates[0] if candidates else (None, None)
    return {
        "model": cell.model,
        "ability": cell.ability,
        "n": cell.n,
        "accuracy_printed": cell.accuracy / 100,
        "multiple_of_1_over_n": answered == cell.n,
        "right": right,
        "answered_at_most": answered,
        "non_answers_at_least": None if answered is None else cell.n - answered,
        "accuracy_wrong_at_most": None if right is None else right / cell.n,
        "counts_that_fit": " ".join(f"{k}/{m}" for k, m in candidates[:5]),
    }


_Score = Callable[[str, str], float]


def _model_rows(
    models: Sequence[str],
    abilities: Sequence[str],
    n: dict[str, int],
    by_key: dict[tuple[str, str], PublishedCell],
    printed: _Score,
    at_most: _Score,
    entries: dict[str, ModelEntry],
) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for model in models:
        candidates = [by_key[model, ability].candidates for ability in abilities]
        missing = [n[a] - c[0][1] for a, c in zip(abilities, candidates, strict=True) if c]
        rows.append(
            {
                "model": model,
                "model_class": entries[model].model_class if entries else None,
                "average_printed": _mean(printed(model, a) for a in abilities),
                "average_wrong_at_most": _mean(at_most(model, a) for a in abilities),
                "overall_wrong_at_most": _weighted(model, abilities, n, at_most),
                "non_answers_at_least": sum(missing),
            }
        )
    for key in ("printed", "wrong_at_most"):
        order = sorted(rows, key=lambda row: -row[f"average_{key}"])
        for rank, row in enumerate(order, start=1):
            row[f"rank_{key}"] = rank
    return rows


def _weighted(model: str, abilities: Sequence[str], n: dict[str, int], score: _Score) -> float:
    return sum(n[a] * score(model, a) for a in abilities) / sum(n[a] for a in abilities)


def _class_rows(model_rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for name in ("proprietary", "open reasoning", "open non-reasoning"):
        if having := [row for row in model_rows if row["model_class"] == name]:
            keys = ("average_printed", "average_wrong_at_most")
            rows.append(
                {"model_class": name, "n_models": len(having)}
                | {key: _mean(row[key] for row in having) for key in keys}
            )
    return rows


def _training_rows(
    models: Sequence[str],
    abilities: Sequence[str],
    n: dict[str, int],
    printed: _Score,
    at_most: _Score,
    entries: dict[str, ModelEntry],
) -> list[dict[str, Any]]:
    rows = []
    for model, entry in entries.items():
        base = entry.base
        if base is None or not {model, base} <= set(models):
            continue
        rows += [
            {
                "model": model,
                "base": base,
                "category": ability,
                "delta_printed": printed(model, ability) - printed(base, ability),
                "delta_wrong": at_most(model, ability) - at_most(base, ability),
            }
            for ability in abilities
        ]
        own = rows[-len(abilities) :]
        weights = {
            "average": [1.0] * len(abilities),
            "all": [float(n[a]) for a in abilities],
        }
        rows += [
            {"model": model, "base": base, "category": category}
            | {
                key: float(np.average([row[key] for row in own], weights=weight))
                for key in ("delta_printed", "delta_wrong")
            }
            for category, weight in weights.items()
        ]
    return rows


def _axis_rows(averages: Sequence[dict[str, Any]], n: dict[str, int]) -> list[dict[str, Any]]:
    weights = [n[ability] for ability in ABILITIES]
    by_ability = {row["ability"]: row for row in averages}
    columns = {
        name: axis_effects([by_ability[a][f"accuracy_{key}"] for a in ABILITIES], weights)
        for name, key in (("printed", "printed"), ("wrong_at_most", "wrong_at_most"))
    }
    return [
        {"effect": effect, "weighting": weighting}
        | {f"value_{name}": float(values[k]) for name, values in columns.items()}
        for k, (effect, weighting) in enumerate(EFFECTS)
    ]
