"""Figures of an adapter audit, drawn from `audit.json` alone."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from figures.style import COLOURS, new_figure, save, styled
from interp.adapters.thresholds import NEGLIGIBLE_DELTA, NEGLIGIBLE_RHO, WEAK_DELTA, WEAK_RHO
from interp.errors import ResultError
from interp.files import read_json

__all__ = ["draw_adapters", "draw_heat_map", "draw_spectrum", "draw_trajectory"]

_WEIGHTS: Final = ("linear", "conv", "experts", "dora", "method", "embedding", "saved")
_LABELS: Final = {
    "relative": r"$\rho = \|\Delta W\|_F / \|W\|_F$",
    "max_abs_delta": r"$\max |\Delta W|$",
}


def draw_adapters(folder: str | Path) -> tuple[Path, ...]:
    """Draw the figures of an audit into `figures/` below its folder.

    The heat map and the spectrum are of the last adapter; the trajectory needs two or more.

    Args:
        folder: with `audit.json`.

    Returns:
        the PNG files (a PDF lies beside each); none where nothing was measured.

    Raises:
        ResultError: the file is missing or is no audit.
    """
    folder = Path(folder)
    result = read_json(folder / "audit.json", "an adapter audit")
    audits = result.get("audits")
    if not isinstance(audits, list) or not audits:
        raise ResultError(f"{folder / 'audit.json'} holds no audits; write it again.")
    with styled():
        drawn: dict[str, Figure | None] = {
            "heat_map": draw_heat_map(audits[-1]),
            "spectrum": draw_spectrum(audits[-1]),
            "trajectory": draw_trajectory(audits),
        }
        return tuple(
            save(figure, folder / "figures" / name)[0]
            for name, figure in drawn.items()
            if figure is not None
        )


def draw_heat_map(audit: Mapping[str, Any]) -> Figure | None:
    """Layer × projection: ρ where the base was given, max|ΔW| where not."""
    modules = [m for m in audit["modules"] if m["layer"] is not None and m["kind"] in _WEIGHTS]
    modules = [m for m in modules if m["shape"] is None or min(m["shape"]) > 1]
    measure = _measure(modules)
    if measure is None:
        return None
    names = list(dict.fromkeys(m["projection"] for m in modules))
    layers = range(max(m["layer"] for m in modules) + 1)
    values = np.full((len(names), len(layers)), np.nan)
    for module in modules:
        if module[measure]:
            values[names.index(module["projection"]), module["layer"]] = module[measure]
    figure = new_figure(max(4.0, 1.8 + 0.18 * len(layers)), max(1.8, 1.2 + 0.3 * len(names)))
    axes = figure.add_subplot()
    # Cells of modules that have not moved, or that there are not, stay grey.
    axes.set_facecolor("#dddddd")
    if np.isfinite(values).any():
        low, high = float(np.nanmin(values)), float(np.nanmax(values))
        image = axes.imshow(
            values, aspect="auto", cmap="cividis", norm=LogNorm(low, max(high, low * 1.01))
        )
        figure.colorbar(image, ax=axes, label=_LABELS[measure])
    axes.set_yticks(range(len(names)), names)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer")
    axes.set_title(f"{_short(audit)}: {audit['verdict']}", fontsize=8, loc="left")
    return figure


def draw_spectrum(audit: Mapping[str, Any]) -> Figure | None:
    """Singular values of ΔW, one line a module, over the largest one of that module."""
    modules = [m for m in audit["modules"] if len(m["singular_values"]) > 1]
    modules = [m for m in modules if m["singular_values"][0] > 0]
    if not modules:
        return None
    figure = new_figure(4.6, 3.0)
    axes = figure.add_subplot()
    names = list(dict.fromkeys(m["projection"] for m in modules))
    palette = list(COLOURS.values())
    for module in modules:
        values = np.array(module["singular_values"])
        values = values[values > values[0] * 1e-12] / values[0]
        which = names.index(module["projection"])
        axes.plot(
            np.arange(1, len(values) + 1),
            values,
            color=palette[which % len(palette)],
            linestyle=("-", "--", ":", "-.")[(which // len(palette)) % 4],
            linewidth=0.8,
            alpha=0.7,
            label=module["projection"] if module is _first(modules, module) else None,
        )
    axes.set_yscale("log")
    axes.set_xlabel("index")
    axes.set_ylabel("singular value / largest")
    axes.set_title(_short(audit), fontsize=8, loc="left")
    axes.legend(fontsize=7)
    return figure


def draw_trajectory(audits: Sequence[Mapping[str, Any]]) -> Figure | None:
    """Size of the change over the checkpoints of each run, with the thresholds of the verdict."""
    measure = _measure([audit["totals"] for audit in audits])
    runs: dict[str, list[tuple[int | None, float]]] = {}
    for audit in audits:
        run, step = _run_and_step(audit)
        size = audit["totals"][measure] if measure else None
        runs.setdefault(run, []).append((step, size or np.nan))
    runs = {
        run: points for run, points in runs.items() if sum(s is not None for s, _ in points) > 1
    }
    if measure is None or not runs:
        return None
    figure = new_figure(4.6, 3.0)
    axes = figure.add_subplot()
    palette = list(COLOURS.values())
    for place, (run, points) in enumerate(runs.items()):
        # A final adapter has no step: it is the last checkpoint, or close to it.
        known = [(step, size) for step, size in points if step is not None]
        axes.plot(
            [step for step, _ in known],
            [size for _, size in known],
            marker="o",
            markersize=3,
            color=palette[place % len(palette)],
            label=Path(run).name,
        )
    limits = (NEGLIGIBLE_RHO, WEAK_RHO) if measure == "relative" else (NEGLIGIBLE_DELTA, WEAK_DELTA)
    for limit, name in zip(limits, ("negligible", "weak"), strict=True):
        axes.axhline(limit, color=COLOURS["control"], linestyle=":", linewidth=1)
        axes.annotate(
            f"{name} ↓",
            (1, limit),
            xycoords=("axes fraction", "data"),
            fontsize=7,
            va="top",
            ha="right",
        )
    axes.set_yscale("log")
    axes.set_xlabel("optimiser step")
    axes.set_ylabel(_LABELS[measure])
    axes.set_title("Change of the weights over the run", fontsize=8, loc="left")
    if len(runs) > 1:
        axes.legend(fontsize=7)
    return figure


def _measure(rows: Sequence[Mapping[str, Any]]) -> str | None:
    for name in ("relative", "max_abs_delta"):
        if any(row[name] for row in rows):
            return name
    return None


def _first(modules: Sequence[Mapping[str, Any]], module: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(m for m in modules if m["projection"] == module["projection"])


def _run_and_step(audit: Mapping[str, Any]) -> tuple[str, int | None]:
    path = str(audit["path"])
    match = re.search(r"^(.*?)/?checkpoint-(\d+)", path)
    return (match[1], int(match[2])) if match else (path, None)


def _short(audit: Mapping[str, Any]) -> str:
    return "/".join(Path(str(audit["path"])).parts[-2:])
