"""Figures of a behaviour report, drawn from its `behaviour.json` or `published.json` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from figures.style import COLOURS, new_figure, save, styled
from interp.errors import ResultError
from interp.files import read_json

__all__ = ["draw_behaviour"]

_Rows = Sequence[Mapping[str, Any]]

FIGURES: Final = (
    *("scores", "injection", "toggle", "training", "probe", "lengths", "axes", "published"),
)
_WRONG: Final = COLOURS["probe"]
_LEFT_OUT: Final = COLOURS["nested"]
_POLICIES: Final = (
    ("wrong", "non-answers counted wrong", _WRONG),
    ("left_out", "non-answers left out", _LEFT_OUT),
)


_ONE_MODEL: Final = "one model, non-answers counted wrong"


def draw_behaviour(folder: str | Path) -> tuple[Path, ...]:
    """Draw what the report in a folder allows, into `figures/` below it.

    Args:
        folder: with `behaviour.json` or `published.json`.

    Returns:
        the PNG files (a PDF lies beside each).

    Raises:
        ResultError: neither file is there.
    """
    folder = Path(folder)
    drawn: dict[str, Figure] = {}
    with styled():
        if (folder / "behaviour.json").is_file():
            report = read_json(folder / "behaviour.json", "a behaviour report")
            drawn["scores"] = _scores(report)
            if report["injection"]:
                drawn["injection"] = _before_after(
                    report["injection"], "as the model comes", "correct answer in the prompt"
                )
            if report["toggle"]:
                single = [row for row in report["toggle_by_model"] if row["category"] == "all"]
                several = len({row["model"] for row in single}) > 1
                drawn["toggle"] = _fixes_breaks([*report["toggle"], *(single if several else ())])
            if report["training"]:
                drawn["training"] = _before_after(
                    report["training"], "base model", "trained to reason"
                )
            if report["probe"]:
                drawn["probe"] = _before_after(
                    report["probe"], "the model's own answer", "probe, nested layers"
                )
            if report["length_quartiles"]:
                drawn["lengths"] = _lengths(report)
            if report["axes"]:
                drawn["axes"] = _axes(report["axes"])
        if (folder / "published.json").is_file():
            published = read_json(folder / "published.json", "a report on a published table")
            drawn["published"] = _published(published)
        if not drawn:
            raise ResultError(
                f"{folder} has neither behaviour.json nor published.json. Make one with "
                f"`interp behave report --out {folder}`."
            )
        for name in FIGURES:
            if name not in drawn:
                # Left over from an earlier report into this folder.
                for suffix in (".png", ".pdf"):
                    (folder / "figures" / f"{name}{suffix}").unlink(missing_ok=True)
        return tuple(save(figure, folder / "figures" / name)[0] for name, figure in drawn.items())


def _words(category: str) -> str:
    return category.replace("_", "\n", 1).replace("_", " ")


def _bars(
    axes: Axes,
    rows: _Rows,
    name: str,
    offset: float,
    *,
    height: float,
    colour: str,
    label: str,
) -> None:
    """Horizontal points with intervals, one a row; an undefined value leaves its place empty."""
    for place, row in enumerate(rows):
        value, low, high = (row.get(key) for key in (name, f"{name}_low", f"{name}_high"))
        if value is None:
            continue
        if low is not None and high is not None:
            axes.plot([low, high], [place + offset] * 2, color=colour, linewidth=1.2)
        axes.plot(
            [value],
            [place + offset],
            marker="o",
            markersize=height,
            color=colour,
            linestyle="none",
            label=label if place == 0 else None,
        )


def _percent(axes: Axes) -> None:
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _scores(report: Mapping[str, Any]) -> Figure:
    """Accuracy of each model's main condition by category, under both policies."""
    # Where models were only asked with the answer in the prompt, these are all there is.
    rows = [row for row in report["scores"] if row["main"]] or report["scores"]
    categories = list(dict.fromkeys(row["category"] for row in rows))
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure = new_figure(1.4 + 1.7 * len(categories), 1.6 + 0.28 * len(models))
    for column, category in enumerate(categories):
        axes = figure.add_subplot(1, len(categories), column + 1)
        found = {row["model"]: row for row in rows if row["category"] == category}
        ordered = [found.get(model, {}) for model in models]
        for k, (policy, label, colour) in enumerate(_POLICIES):
            _bars(
                axes,
                ordered,
                f"accuracy_{policy}",
                0.24 * k - 0.12,
                height=3,
                colour=colour,
                label=label,
            )
        axes.axvline(0.5, color=COLOURS["control"], linestyle=":", linewidth=1)
        axes.set_xlim(0, 1.02)
        axes.set_ylim(len(models) - 0.5, -0.5)
        axes.set_yticks(range(len(models)), models if column == 0 else [""] * len(models))
        axes.set_title(_words(category), fontsize=8)
        _percent(axes)
    _legend(figure, ncols=2)
    figure.suptitle(
        f"Accuracy, {report['readout']} verdicts (95% group bootstrap; dotted: chance)",
        fontsize=9,
        x=0.01,
        ha="left",
    )
    return figure


def _legend(figure: Figure, ncols: int) -> None:
    handles: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        list(handles.values()), list(handles), loc="outside lower center", ncols=ncols, fontsize=8
    )


def _label(row: Mapping[str, Any]) -> str:
    category = str(row["category"]).replace("_", " ")
    return f"{row['before_is']}: {category}" if "before_is" in row else category


def _models(rows: _Rows) -> str:
    """Over how many models a row is a mean, where it is one."""
    counts = sorted({row["n_models"] for row in rows if "n_models" in row})
    if not counts:
        return ""
    some = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f" (mean of {some} model" + ("" if counts == [1] else "s") + " where none is named)"


def _before_after(rows: _Rows, before: str, after: str) -> Figure:
    """Accuracy before and after on the same items, one panel a policy."""
    per_policy = len(rows) // 2
    figure = new_figure(8.4, 1.6 + 0.32 * per_policy)
    for panel, (policy, title, _) in enumerate(_POLICIES):
        axes = figure.add_subplot(1, 2, panel + 1)
        chosen = [row for row in rows if row["policy"] == policy]
        for name, offset, colour, label in (
            ("before", -0.12, COLOURS["model"], before),
            ("after", 0.12, COLOURS["nested"], after),
        ):
            _bars(axes, chosen, name, offset, height=4, colour=colour, label=label)
        axes.axvline(0.5, color=COLOURS["control"], linestyle=":", linewidth=1)
        axes.set_ylim(len(chosen) - 0.5, -0.5)
        axes.set_yticks(
            range(len(chosen)),
            [_label(row) for row in chosen] if panel == 0 else [""] * len(chosen),
        )
        axes.set_title(title, fontsize=8, loc="left")
        axes.set_xlabel(f"accuracy{_models(chosen)}", fontsize=8)
        if all(row["before"] is None for row in chosen):
            axes.set_xlim(0, 1)
            axes.text(0.5, 0.5, "no verdicts", transform=axes.transAxes, ha="center", fontsize=8)
        _percent(axes)
    _legend(figure, ncols=2)
    return figure


def _fixes_breaks(rows: _Rows) -> Figure:
    """Share of items that reasoning first turns right, and wrong; the net is the difference."""
    figure = new_figure(8.4, 1.6 + 0.32 * (len(rows) // 2))
    for panel, (policy, title, _) in enumerate(_POLICIES):
        axes = figure.add_subplot(1, 2, panel + 1)
        chosen = [row for row in rows if row["policy"] == policy and row["fixes"] is not None]
        places = np.arange(len(chosen))
        axes.barh(
            places,
            [row["fixes"] for row in chosen],
            color=COLOURS["calibrated"],
            height=0.6,
            label="fixed",
        )
        axes.barh(
            places,
            [-row["breaks"] for row in chosen],
            color=COLOURS["negated"],
            height=0.6,
            label="broken",
        )
        _bars(
            axes,
            chosen,
            "delta",
            0.0,
            height=4,
            colour=COLOURS["model"],
            label="net (95% interval)",
        )
        axes.axvline(0, color=COLOURS["model"], linewidth=0.8)
        axes.set_ylim(max(len(chosen), 1) - 0.5, -0.5)  # a policy may leave no row
        axes.set_yticks(
            places, [_label(row) for row in chosen] if panel == 0 else [""] * len(places)
        )
        axes.set_title(title, fontsize=8, loc="left")
        unnamed = [row for row in chosen if "before_is" not in row]
        axes.set_xlabel(f"share of items{_models(unnamed)}", fontsize=8)
        _percent(axes)
    _legend(figure, ncols=3)
    return figure


def _lengths(report: Mapping[str, Any]) -> Figure:
    """Accuracy by length quartile, pooled over models; single models in grey."""
    rows: _Rows = report["length_quartiles"]
    conditions = list(dict.fromkeys(row["condition"] for row in rows))
    figure = new_figure(3.4 * len(conditions) + 0.6, 3.4)
    for column, condition in enumerate(conditions):
        axes = figure.add_subplot(1, len(conditions), column + 1)
        own = [row for row in rows if row["condition"] == condition]
        for model in dict.fromkeys(row["model"] for row in own if row["model"] != "pooled"):
            _line(
                axes, [r for r in own if r["model"] == model and r["policy"] == "wrong"], 0.0, None
            )
        for k, (policy, label, colour) in enumerate(_POLICIES):
            pooled = [r for r in own if r["model"] == "pooled" and r["policy"] == policy]
            _line(axes, pooled, 0.06 * k, (colour, label))
        axes.set_xticks([1, 2, 3, 4], ["shortest", "2", "3", "longest"])
        axes.set_xlabel("quartile of reply length, within model")
        axes.set_ylabel("accuracy")
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        axes.set_title(condition, fontsize=9, loc="left")
    _legend(figure, ncols=3)
    return figure


def _line(axes: Axes, rows: _Rows, shift: float, pooled: tuple[str, str] | None) -> None:
    shown = [row for row in rows if row["accuracy"] is not None]
    places = [row["quartile"] + shift for row in shown]
    values = [row["accuracy"] for row in shown]
    if pooled is None:
        colour = COLOURS["control"]
        axes.plot(places, values, color=colour, linewidth=0.6, alpha=0.6, label=_ONE_MODEL)
        return
    axes.plot(places, values, color=pooled[0], marker="o", markersize=4, label=pooled[1])
    for place, row in zip(places, shown, strict=True):
        if row["accuracy_low"] is not None:
            axes.plot(
                [place] * 2,
                [row["accuracy_low"], row["accuracy_high"]],
                color=pooled[0],
                linewidth=1,
            )


def _axes(rows: _Rows) -> Figure:
    """Effects of the two axes and their interaction, with intervals and permutation p-values."""
    quantities = list(dict.fromkeys(row["quantity"] for row in rows))
    figure = new_figure(4.4 * len(quantities) + 1, 3.2)
    for column, quantity in enumerate(quantities):
        axes = figure.add_subplot(1, len(quantities), column + 1)
        own = [row for row in rows if row["quantity"] == quantity]
        for k, (policy, label, colour) in enumerate(_POLICIES):
            chosen = [row for row in own if row["policy"] == policy]
            _bars(axes, chosen, "value", 0.24 * k - 0.12, height=4, colour=colour, label=label)
        names = [row for row in own if row["policy"] == "wrong"]
        axes.axvline(0, color=COLOURS["model"], linewidth=0.8)
        axes.set_ylim(len(names) - 0.5, -0.5)
        axes.set_yticks(
            range(len(names)),
            [
                f"{row['effect']}\n({row['weighting']} weigh the same)"
                + (
                    ""
                    if row["p_permutation"] is None
                    else f"\np = {row['p_permutation']:.4f}, counted wrong"
                )
                for row in names
            ],
            fontsize=7,
        )
        axes.set_title(
            {"difficulty": "accuracy", "cot_benefit": "benefit of reasoning first"}[quantity],
            fontsize=9,
            loc="left",
        )
        axes.set_xlabel("difference of accuracies", fontsize=8)
        _percent(axes)
    _legend(figure, ncols=2)
    return figure


def _published(report: Mapping[str, Any]) -> Figure:
    """Averages of a published leaderboard, as printed and with non-answers counted wrong."""
    rows: _Rows = report["models"]
    figure = new_figure(6.4, 1.6 + 0.2 * len(rows))
    axes = figure.add_subplot()
    for place, row in enumerate(rows):
        axes.plot(
            [row["average_wrong_at_most"], row["average_printed"]],
            [place] * 2,
            color=COLOURS["control"],
            linewidth=1,
        )
    _bars(
        axes,
        rows,
        "average_printed",
        0.0,
        height=4,
        colour=_LEFT_OUT,
        label="as printed",
    )
    _bars(
        axes,
        rows,
        "average_wrong_at_most",
        0.0,
        height=4,
        colour=_WRONG,
        label="non-answers counted wrong, at most",
    )
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), [row["model"] for row in rows], fontsize=7)
    axes.set_xlabel("average over abilities (no intervals: a table has no items)")
    _percent(axes)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return figure
