"""Figures of a steering sweep, drawn from `draws.csv`, `steer.json` and `items.csv` alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from figures.steering_tables import BASELINE, CellRow, ItemShift, read_cells, read_shifts
from figures.style import new_figure, save, styled
from interp.files import read_json
from interp.vocabulary import GROUPS_IGNORED

__all__ = [
    "draw_dose_response",
    "draw_grid",
    "draw_item_shifts",
    "draw_recalls",
    "draw_steering_sweep",
]

NULL: Final = "random"
TEXT: Final = "text"

# Okabe and Ito's palette; marker and line differ too, so that colour never stands alone.
_LOOK: Final[Mapping[str, tuple[str, str, str, str]]] = {
    "signed": ("#D55E00", "o", "-", "signed (by the probe)"),
    "oracle": ("#009E73", "^", "--", "oracle (signed by the label)"),
    "fixed": ("#0072B2", "s", "-", "fixed (towards True)"),
    "negated": ("#CC79A7", "v", "-", "negated"),
    "writer": ("#000000", "D", "-.", "writer (unembedding)"),
    "shuffled": ("#E69F00", "P", ":", "shuffled labels"),
    "orthogonal": ("#56B4E9", "X", ":", "orthogonal"),
    "random": ("#777777", "", "-", "random"),
    "text": ("#7F6000", "*", "--", "text (verdict in words)"),
}
_MAX_PANELS: Final = 6
_LEAST_SPAN: Final = 0.2
"""Of the accuracy axis."""


def draw_steering_sweep(folder: str | Path) -> tuple[Path, ...]:
    """Draw all figures of a steering sweep into `figures/` below its folder.

    Args:
        folder: with `steer.json` and `draws.csv`; the item plot needs `items.csv` too.

    Returns:
        the PNG files (a PDF lies beside each).

    Raises:
        ResultError: a file is missing or is not of a steering sweep.
    """
    folder = Path(folder)
    summary = read_json(folder / "steer.json", "the summary of a steering sweep")
    cells = read_cells(folder / "draws.csv")
    with styled():
        drawn: dict[str, Figure] = {
            "dose_response": draw_dose_response(cells, summary),
            "recalls": draw_recalls(cells, summary),
            "grid": draw_grid(cells, summary),
        }
        if (folder / "items.csv").exists():
            drawn["item_shifts"] = draw_item_shifts(read_shifts(folder / "items.csv"), summary)
        return tuple(save(figure, folder / "figures" / name)[0] for name, figure in drawn.items())


def _baseline(cells: Sequence[CellRow]) -> CellRow:
    return next(cell for cell in cells if cell.condition == BASELINE)


def _title(summary: Mapping[str, Any]) -> str:
    manifest = summary.get("manifest") or {}
    model = manifest.get("model", {}).get("model_id", "a model")
    source = manifest.get("source", {}).get("name", "items")
    ignored = f"{GROUPS_IGNORED}\n" if summary.get("grouping") == "none" else ""
    return f"{ignored}{model} on {source} (n = {summary.get('n_items', '?')}), forced choice"


def _places(cells: Sequence[CellRow]) -> list[str]:
    found = dict.fromkeys(cell.layer for cell in cells if cell.condition in _LOOK)
    return sorted(
        found,
        key=lambda layer: (not layer.isdecimal(), int(layer or 0) if layer.isdecimal() else 0),
    )


def _quoted_layer(cells: Sequence[CellRow], summary: Mapping[str, Any]) -> str:
    places = _places(cells)
    quoted = str(summary.get("quoted_layer", ""))
    return quoted if quoted in places else places[0]


def _of(cells: Sequence[CellRow], layer: str, condition: str) -> dict[float, list[CellRow]]:
    """Cells of a layer and condition by alpha, all draws of it."""
    found: dict[float, list[CellRow]] = {}
    for cell in cells:
        if (cell.layer, cell.condition) == (layer, condition):
            found.setdefault(cell.alpha, []).append(cell)
    return dict(sorted(found.items()))


def _conditions(cells: Sequence[CellRow]) -> list[str]:
    present = {cell.condition for cell in cells}
    return [name for name in _LOOK if name in present]


def draw_dose_response(cells: Sequence[CellRow], summary: Mapping[str, Any]) -> Figure:
    """Accuracy against alpha, one line a condition, over the band of the random directions.

    Draws of one condition are shown by their mean; those of `random` as a band, from the 2.5th to
    the 97.5th percentile (their whole range if there are fewer than 40).

    Args:
        cells: of the sweep.
        summary: of the sweep.
    """
    places = _places(cells)
    if len(places) > _MAX_PANELS:
        places = [_quoted_layer(cells, summary)]
    columns = min(len(places), 3)
    rows = math.ceil(len(places) / columns)
    figure = new_figure(1.6 + 2.6 * columns, 1.4 + 2.5 * rows)
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    base = _baseline(cells).accuracy
    n_null = 0
    for axes, place in zip(grid.flat, places, strict=False):
        for name in reversed(_conditions(cells)):
            by_alpha = _of(cells, place, name)
            if not by_alpha:
                continue
            colour, marker, line, label = _LOOK[name]
            if name == TEXT:  # adds no vector, so it has no size
                accuracy = next(iter(by_alpha.values()))[0].accuracy
                axes.axhline(accuracy, color=colour, linestyle=line, linewidth=1.2, label=label)
                continue
            alphas = [0.0, *by_alpha]
            means = [
                base,
                *(float(np.mean([c.accuracy for c in row])) for row in by_alpha.values()),
            ]
            if name == NULL:
                n_null = max(len(row) for row in by_alpha.values())
                tails = (2.5, 97.5) if n_null >= 40 else (0, 100)
                band = [
                    np.percentile([c.accuracy for c in row], tails) for row in by_alpha.values()
                ]
                axes.fill_between(
                    alphas,
                    [base, *(low for low, _ in band)],
                    [base, *(high for _, high in band)],
                    color=colour,
                    alpha=0.3,
                    linewidth=0,
                    label=f"random: {'95%' if n_null >= 40 else 'range'} of {n_null} draws",
                )
                label = "random, mean"
            axes.plot(
                alphas,
                means,
                color=colour,
                marker=marker,
                linestyle=line,
                markersize=4.5,
                linewidth=1.4,
                label=label,
            )
        axes.axhline(base, color="#000000", linewidth=0.8, linestyle=(0, (1, 3)))
        axes.set_title(f"layer {place}", fontsize=8, loc="left")
        axes.yaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    low, high = grid[0, 0].get_ylim()
    # A scale of a point or two would make one item look like an effect.
    grid[0, 0].set_ylim(min(low, base - _LEAST_SPAN / 2), max(high, base + _LEAST_SPAN / 2))
    for axes in list(grid.flat)[len(places) :]:
        axes.set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("alpha")
    for axes in grid[:, 0]:
        axes.set_ylabel("accuracy")
    figure.suptitle(f"{_title(summary)}\ndotted: not steered", fontsize=8, x=0.02, ha="left")
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(
        handles[::-1],
        labels[::-1],
        loc="outside lower center",
        ncols=min(3, columns + 1),
        fontsize=7,
    )
    return figure


def draw_recalls(cells: Sequence[CellRow], summary: Mapping[str, Any]) -> Figure:
    """True-recall and False-recall before and after, a row a condition, at the quoted cell.

    A push towards one answer moves both recalls apart; a push towards the truth raises both.

    Args:
        cells: of the sweep.
        summary: of the sweep; without `quoted_alpha` the largest alpha is taken.
    """
    layer = _quoted_layer(cells, summary)
    alphas = sorted({cell.alpha for cell in cells if cell.layer == layer and cell.alpha >= 0})
    quoted = summary.get("quoted_alpha")
    alpha = float(quoted) if quoted in alphas else alphas[-1]
    base = _baseline(cells)
    shown = [
        (name, drawn.get(alpha) or (next(iter(drawn.values())) if name == TEXT else None))
        for name in _conditions(cells)
        if (drawn := _of(cells, layer, name))
    ]
    rows = [(name, found) for name, found in shown if found]
    figure = new_figure(6.2, 1.6 + 0.42 * len(rows))
    axes = figure.add_subplot()
    for place, (_, found) in enumerate(rows):
        for field, colour, marker, up in (
            ("true_recall", "#0072B2", "^", -0.13),
            ("false_recall", "#D55E00", "v", 0.13),
        ):
            before = getattr(base, field)
            draws = [getattr(cell, field) for cell in found]
            after = float(np.mean(draws))
            axes.plot([before, after], [place + up] * 2, color=colour, linewidth=2, alpha=0.5)
            axes.plot(before, place + up, marker="|", color=colour, markersize=9, linestyle="none")
            axes.plot(
                after, place + up, marker=marker, color=colour, markersize=7, linestyle="none"
            )
            if len(draws) > 1:
                axes.plot([min(draws), max(draws)], [place + up] * 2, color=colour, linewidth=0.8)
    for field, colour, marker, label in (
        ("true_recall", "#0072B2", "^", "True-recall"),
        ("false_recall", "#D55E00", "v", "False-recall"),
    ):
        axes.plot([], [], marker=marker, color=colour, linestyle="none", label=f"{label}, steered")
        axes.plot([], [], marker="|", color=colour, linestyle="none", label=f"{label}, before")
        axes.axvline(getattr(base, field), color=colour, linewidth=0.8, linestyle=(0, (1, 3)))
    names = [
        _LOOK[name][3] + (f", mean of {len(found)}" if len(found) > 1 else "")
        for name, found in rows
    ]
    axes.set_yticks(range(len(rows)), names)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(-0.03, 1.03)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title(
        f"{_title(summary)}\nlayer {layer}, alpha {alpha:g}; thin lines: range over draws",
        fontsize=8,
        loc="left",
    )
    figure.legend(loc="outside lower center", ncols=4, fontsize=7)
    return figure


def draw_grid(cells: Sequence[CellRow], summary: Mapping[str, Any]) -> Figure:
    """Layer × alpha: what signed steering does to the accuracy, and its lead over random.

    Args:
        cells: of the sweep.
        summary: of the sweep.
    """
    base = _baseline(cells).accuracy
    conditions = _conditions(cells)
    first = "signed" if "signed" in conditions else conditions[0]
    places = _places(cells)
    alphas = sorted({cell.alpha for cell in cells if cell.condition == first})

    def means(condition: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        table = np.full((len(places), len(alphas)), np.nan)
        for row, place in enumerate(places):
            for alpha, found in _of(cells, place, condition).items():
                if alpha in alphas:
                    table[row, alphas.index(alpha)] = np.mean([c.accuracy for c in found])
        return table

    panels = [(f"{first} − not steered", 100 * (means(first) - base))]
    if NULL in conditions and first != NULL:
        panels.append((f"{first} − mean of random", 100 * (means(first) - means(NULL))))
    limit = max(5.0, max(float(np.nanmax(np.abs(table), initial=0)) for _, table in panels))
    figure = new_figure(
        1.6 + (1.2 + 0.55 * len(alphas)) * len(panels), 1.5 + max(1.2, 0.26 * len(places))
    )
    grid = figure.subplots(1, len(panels), squeeze=False, sharey=True)
    for axes, (title, table) in zip(grid.flat, panels, strict=True):
        image = axes.imshow(table, cmap="PuOr_r", vmin=-limit, vmax=limit, aspect="auto")
        axes.set_xticks(range(len(alphas)), [f"{alpha:g}" for alpha in alphas])
        axes.set_xlabel("alpha")
        axes.set_title(title, fontsize=8, loc="left")
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
        if len(places) * len(alphas) <= 160:
            _write_values(axes, table, limit)
    grid[0, 0].set_yticks(range(len(places)), places)
    grid[0, 0].set_ylabel("layer")
    figure.colorbar(image, ax=list(grid.flat), label="points of accuracy", shrink=0.9)
    figure.suptitle(_title(summary), fontsize=8, x=0.02, ha="left")
    return figure


def _write_values(axes: Axes, table: np.ndarray[Any, np.dtype[np.float64]], limit: float) -> None:
    for (row, column), value in np.ndenumerate(table):
        if np.isfinite(value):
            dark = abs(value) > 0.6 * limit
            axes.text(
                column,
                row,
                f"{round(value, 1) + 0.0:+.1f}",  # no −0.0
                ha="center",
                va="center",
                fontsize=6,
                color="white" if dark else "black",
            )


def draw_item_shifts(shifts: Sequence[ItemShift], summary: Mapping[str, Any]) -> Figure:
    """How far each item's logit difference moves, sorted, True and False items apart.

    Args:
        shifts: of one cell or several; of those at the quoted layer and alpha, else of the first
            cell's layer and alpha, one panel a condition.
        summary: of the sweep.
    """
    places = {(each.layer, each.alpha) for each in shifts}
    quoted = (str(summary.get("quoted_layer")), summary.get("quoted_alpha"))
    place = quoted if quoted in places else (shifts[0].layer, shifts[0].alpha)
    inside = [each for each in shifts if (each.layer, each.alpha) == place]
    conditions = list(dict.fromkeys(each.condition for each in inside))
    columns = min(3, len(conditions))
    rows = math.ceil(len(conditions) / columns)
    figure = new_figure(1.2 + 2.6 * columns, 1.3 + 2.4 * rows)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True)
    for axes, condition in zip(grid.flat, conditions, strict=False):
        chosen = [each for each in inside if each.condition == condition]
        wrong = np.mean([each.shift < 0 if each.label else each.shift > 0 for each in chosen])
        for label, colour, marker in ((True, "#0072B2", "^"), (False, "#D55E00", "v")):
            values = np.sort([each.shift for each in chosen if each.label is label])
            axes.plot(
                (np.arange(len(values)) + 0.5) / max(len(values), 1),
                values,
                color=colour,
                marker=marker,
                markersize=2.5,
                linewidth=0.6,
                label=f"{label} items",
            )
        axes.axhline(0, color="#000000", linewidth=0.8, linestyle=(0, (1, 3)))
        axes.set_title(
            f"{_LOOK[condition][3] if condition in _LOOK else condition}\n"
            f"{wrong:.0%} moved the wrong way",
            fontsize=8,
            loc="left",
        )
        axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    for axes in list(grid.flat)[len(conditions) :]:
        axes.set_visible(False)
    for axes in grid[-1]:
        axes.set_xlabel("items, sorted by shift")
    for axes in grid[:, 0]:
        axes.set_ylabel("shift of logit True − False")
    figure.suptitle(
        f"{_title(summary)}; layer {place[0]}, alpha {place[1]:g}", fontsize=8, x=0.02, ha="left"
    )
    handles, labels = grid.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=7)
    return figure
