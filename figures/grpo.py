"""Figures of a `grpo-audit` run, drawn from its files alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from figures.style import COLOURS, new_figure, save, styled
from interp.adapters.thresholds import NEGLIGIBLE_DELTA, NEGLIGIBLE_RHO, WEAK_DELTA, WEAK_RHO
from interp.errors import ResultError
from interp.files import read_json

__all__ = ["draw_grpo_audit"]

_PALETTE: Final = (COLOURS["probe"], COLOURS["nested"], COLOURS["calibrated"], COLOURS["negated"])
_POOLS: Final = {"train": "training items", "held_out": "held-out items"}


def draw_grpo_audit(folder: str | Path) -> tuple[Path, ...]:
    """Draw `figures/trajectories.png` (a PDF lies beside it) of a run folder.

    Left and middle: ρ of the most changed module, and max|ΔW|, over the optimiser steps, with the
    thresholds of the verdict. Right: mean reward of each step, and below it how many greedy replies
    are those of the base.

    Raises:
        ResultError: a file of the run is missing, or is not what it should be.
    """
    folder = Path(folder)
    result = read_json(folder / "grpo_audit.json", "the result of a grpo-audit run")
    runs = result.get("runs")
    if not isinstance(runs, list) or not runs:
        raise ResultError(f"{folder / 'grpo_audit.json'} holds no runs; run it again.")
    rows = {run["name"]: _lines(folder / run["name"] / "adapter_audit.jsonl") for run in runs}
    with styled():
        figure = new_figure(9.6, 4.4)
        grid = figure.add_gridspec(2, 3)
        _trajectory(
            figure.add_subplot(grid[:, 0]), rows, "largest_relative",
            r"$\rho = \|\Delta W\|_F/\|W\|_F$, most changed module",
            (NEGLIGIBLE_RHO, WEAK_RHO),
        )  # fmt: skip
        _trajectory(
            figure.add_subplot(grid[:, 1]), rows, "max_abs_delta", r"$\max |\Delta W|$",
            (NEGLIGIBLE_DELTA, WEAK_DELTA),
        )  # fmt: skip
        _rewards(figure.add_subplot(grid[0, 2]), runs)
        _identical(figure.add_subplot(grid[1, 2]), runs)
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
        return (save(figure, folder / "figures" / "trajectories")[0],)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise ResultError(f"There is no {path}; expected the trajectory of a run.")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def _trajectory(
    axes: Axes,
    rows: Mapping[str, Sequence[Mapping[str, Any]]],
    measure: str,
    label: str,
    limits: tuple[float, float],
) -> None:
    for place, (name, points) in enumerate(rows.items()):
        # Before the first step nothing has moved, and 0 has no place on this axis.
        known = [(row["step"], row[measure]) for row in points if row[measure]]
        axes.plot(
            [step for step, _ in known],
            [size for _, size in known],
            marker="o",
            markersize=3,
            color=_PALETTE[place % len(_PALETTE)],
            label=name,
        )
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
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("optimiser step")
    axes.set_title(label, fontsize=8, loc="left")


def _rewards(axes: Axes, runs: Sequence[Mapping[str, Any]]) -> None:
    for place, run in enumerate(runs):
        by_step = run["rewards"]["by_step"]
        axes.plot(
            [int(step) for step in by_step],
            list(by_step.values()),
            color=_PALETTE[place % len(_PALETTE)],
            linewidth=1,
        )
    axes.set_ylim(-0.03, 1.03)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("optimiser step")
    axes.set_title("mean reward of the step's completions", fontsize=8, loc="left")


def _identical(axes: Axes, runs: Sequence[Mapping[str, Any]]) -> None:
    height = 0.8 / len(runs)
    for place, run in enumerate(runs):
        shares = [run["pools"][pool]["same_as_base_share"] for pool in _POOLS]
        where = [index + (place - (len(runs) - 1) / 2) * height for index in range(len(_POOLS))]
        axes.barh(where, shares, height=height * 0.9, color=_PALETTE[place % len(_PALETTE)])
        for y, share, pool in zip(where, shares, _POOLS, strict=True):
            found = run["pools"][pool]
            axes.annotate(
                f" {found['same_as_base']}/{found['n_items']}", (share, y), fontsize=7, va="center"
            )
    axes.set_yticks(range(len(_POOLS)), list(_POOLS.values()))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.15)
    axes.set_xlabel("share")
    axes.set_title("greedy replies equal to the base's", fontsize=8, loc="left")
