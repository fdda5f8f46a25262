"""The three figures of an expression-gap run, drawn from its result files alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from figures.style import COLOURS, new_figure, save, styled
from interp.files import read_json
from interp.vocabulary import GROUPS_IGNORED

__all__ = [
    "draw_accuracy_by_layer",
    "draw_expression_gap",
    "draw_four_way",
    "draw_probe",
    "draw_steering",
]

_CHANCE = 0.5


def draw_expression_gap(run: str | Path) -> tuple[Path, ...]:
    """Draw all figures of a run folder into `figures/` below it.

    Args:
        run: folder with `probe/probe.json`, `steer/steer.json` and `readouts.json`.

    Returns:
        the PNG files (a PDF lies beside each).

    Raises:
        ResultError: a result file is missing.
    """
    run = Path(run)
    probe = read_json(run / "probe" / "probe.json", "the summary of a probe sweep")
    steering = read_json(run / "steer" / "steer.json", "the summary of a steering sweep")
    readouts = read_json(run / "readouts.json", "the readouts of an expression-gap run")
    with styled():
        drawn = {
            "accuracy_by_layer": draw_accuracy_by_layer(probe, readouts),
            "steering": draw_steering(steering),
            "represented_expressed": draw_four_way(readouts),
        }
    return tuple(save(figure, run / "figures" / name)[0] for name, figure in drawn.items())


def _title(data: Mapping[str, Any]) -> str:
    manifest = data["manifest"]
    # What must not be overlooked comes first.
    ignored = f"{GROUPS_IGNORED}\n" if data.get("grouping") == "none" else ""
    return (
        f"{ignored}{manifest['model']['model_id']} on {manifest['source']['name']} "
        f"(n = {data['n_items']}, read at {manifest['token_rule']})"
    )


def draw_probe(folder: str | Path) -> Path:
    """Draw `accuracy_by_layer` of a probe folder into it.

    Args:
        folder: with `probe.json`.

    Returns:
        the PNG file (a PDF lies beside it).

    Raises:
        ResultError: the summary is missing.
    """
    folder = Path(folder)
    probe = read_json(folder / "probe.json", "the summary of a probe sweep")
    with styled():
        figure = draw_accuracy_by_layer(probe)
    return save(figure, folder / "accuracy_by_layer")[0]


def draw_accuracy_by_layer(
    probe: Mapping[str, Any], readouts: Mapping[str, Any] | None = None
) -> Figure:
    """Probe accuracy by layer with its interval, the nested choice, chance, and what is said.

    Everything in it is of one measure: accuracy where the classes are equal, and balanced accuracy
    where they are not, since layers, C and permutations are compared by that.

    Args:
        probe: content of `probe.json`.
        readouts: content of `readouts.json`; without it the model's forced choice is drawn.
    """
    figure = new_figure(6.4, 4.4)
    axes = figure.add_subplot()
    layers = [row["layer"] for row in probe["layers"]]
    balanced = probe["majority_class"] > _CHANCE
    # Names of fields: `accuracy…` or `balanced_accuracy…`, `low` or `balanced_low`.
    measure = "balanced_accuracy" if balanced else "accuracy"
    ends = ("balanced_low", "balanced_high") if balanced else ("low", "high")
    axes.fill_between(
        layers,
        [row[ends[0]] for row in probe["layers"]],
        [row[ends[1]] for row in probe["layers"]],
        color=COLOURS["probe"],
        alpha=0.2,
        linewidth=0,
        label="95% interval (group bootstrap)",
    )
    axes.plot(
        layers,
        [row[measure] for row in probe["layers"]],
        color=COLOURS["probe"],
        marker="o",
        markersize=3,
        label="probe, out of fold",
    )
    axes.plot(
        -1,
        probe[f"{measure}_embedding"],
        color=COLOURS["embedding"],
        marker="s",
        markersize=5,
        linestyle="none",
        label="probe on the embedding stream",
    )
    if probe.get("n_permutations"):
        axes.fill_between(
            layers,
            [row["null_low"] for row in probe["layers"]],
            [row["null_high"] for row in probe["layers"]],
            color=COLOURS["control"],
            alpha=0.25,
            linewidth=0,
            label="labels permuted, 95% of draws",
        )
    if probe.get("text_baseline_accuracy") is not None:
        axes.axhline(
            probe[f"text_baseline_{measure}"],
            color=COLOURS["negated"],
            linestyle="-.",
            linewidth=1.2,
            label=f"text alone ({probe['text_baseline']})",
        )
    _nested(axes, probe, balanced=balanced)
    for name, style, colour, accuracy, (low, high) in _own_lines(probe, readouts, measure, ends):
        axes.axhspan(low, high, color=colour, alpha=0.08, linewidth=0)
        axes.axhline(accuracy, color=colour, linestyle=style, linewidth=1.2, label=name)
    if probe.get("untrained"):
        axes.plot(
            layers,
            probe["untrained"][f"{measure}_by_layer"],
            color=COLOURS["calibrated"],
            linestyle=":",
            linewidth=1.2,
            label="same architecture, random weights",
        )
    axes.axhline(_CHANCE, color=COLOURS["control"], linestyle=":", linewidth=1, label="chance")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("layer (−1: embedding stream)")
    axes.set_ylabel(measure.replace("_", " "))
    # Whole percents, so that no label is rounded.
    axes.yaxis.set_major_locator(MaxNLocator(steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title(_title(probe), fontsize=9, loc="left")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _nested(axes: Axes, probe: Mapping[str, Any], *, balanced: bool) -> None:
    """The nested choice: accuracy and interval, over the layers that were chosen."""
    value, (low, high) = probe["accuracy_nested"], probe["accuracy_nested_interval"]
    if balanced:
        value = probe["scores_nested"]["balanced_accuracy"]
        low, high = probe["scores_nested_intervals"]["balanced_accuracy"]
    nested = sorted(set(probe["layers_nested"]))
    middle = float(np.mean(probe["layers_nested"]))
    axes.errorbar(
        [middle],
        [value],
        yerr=[[value - low], [high - value]],
        xerr=[[middle - nested[0]], [nested[-1] - middle]],
        color=COLOURS["nested"],
        marker="D",
        markersize=5,
        capsize=3,
        linestyle="none",
        label="nested layer choice "
        + ("(leaks: not to quote)" if probe.get("grouping") == "none" else "(to quote)"),
    )


def _own_lines(
    probe: Mapping[str, Any],
    readouts: Mapping[str, Any] | None,
    measure: str,
    ends: tuple[str, str],
) -> list[tuple[str, str, str, float, tuple[float, float]]]:
    """Name, line style, colour, accuracy and interval of what the model says itself."""
    if readouts is None:
        own = probe.get(f"{measure}_own_answer")
        if own is None:
            return []
        low, high = probe[f"{measure}_own_answer_interval"]
        return [("the model's own forced choice", "-", COLOURS["model"], own, (low, high))]
    answer, fitted = (readouts["readouts"][key] for key in ("answer", "calibrated"))
    return [
        (name, style, COLOURS[colour], entry[measure], (entry[ends[0]], entry[ends[1]]))
        for name, style, colour, entry in (
            ("the model's own answer", "-", "model", answer),
            ("its logits, threshold fitted out of fold", "--", "calibrated", fitted),
        )
    ]


def draw_steering(steering: Mapping[str, Any]) -> Figure:
    """Accuracy, recalls and AUROC before and after, beside the controls."""
    figure = new_figure(6.4, 4.2)
    axes = figure.add_subplot()
    shown = (
        ("baseline", "not steered", COLOURS["model"]),
        ("signed", "signed (by the probe)", COLOURS["nested"]),
        ("negated", "negated", COLOURS["negated"]),
        ("random", f"random, mean of {steering['random_directions']}", COLOURS["control"]),
    )
    scores = ("accuracy", "true_recall", "false_recall", "auroc")
    width = 0.8 / len(shown)
    for index, (name, label, colour) in enumerate(shown):
        entry = steering["conditions"][name]
        heights = [entry[score] for score in scores]
        places = np.arange(len(scores)) + (index - (len(shown) - 1) / 2) * width
        axes.bar(places, heights, width * 0.92, color=colour, label=label)
        low, high = entry["low"], entry["high"]
        axes.errorbar(
            places[0],
            heights[0],
            yerr=[[heights[0] - low], [high - heights[0]]],
            color="#777777",
            capsize=2,
            linewidth=1,
        )
        if name == "random":
            least, most = steering["random_accuracy_range"]
            axes.plot([places[0]] * 2, [least, most], "_", color="#000000", markersize=8)
    axes.axhline(_CHANCE, color=COLOURS["control"], linestyle=":", linewidth=1)
    axes.set_xticks(
        range(len(scores)), ["accuracy", "True-recall", "False-recall", "AUROC of the logits"]
    )
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_title(
        f"{_title(steering)}\nforced choice; layer {steering['quoted_layer']}, alpha "
        f"{steering['quoted_alpha']:g} (adds a norm of {steering['quoted_alpha_absolute']:.3g})\n"
        f"bars: 95% interval; dashes: range over single random directions",
        fontsize=8,
        loc="left",
    )
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure


def draw_four_way(readouts: Mapping[str, Any]) -> Figure:
    """Items by whether the probe has them right and whether the model says them right."""
    figure = new_figure(4.4, 3.2)
    axes = figure.add_subplot()
    table = readouts["four_way"]
    counts = np.array(
        [
            [table["represented_expressed"], table["represented_not_expressed"]],
            [table["not_represented_expressed"], table["not_represented_not_expressed"]],
        ]
    )
    total = counts.sum()
    axes.imshow(counts / total, cmap="Blues", vmin=0, vmax=1)
    for row in range(2):
        for column in range(2):
            share = counts[row, column] / total
            axes.text(
                column,
                row,
                f"{counts[row, column]}\n{share:.1%}",
                ha="center",
                va="center",
                fontsize=12,
                color="white" if share > 0.5 else "black",
            )
    axes.set_xticks(range(2), ["said right", "not said right"])
    axes.set_yticks(range(2), ["probe right", "probe wrong"])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xlabel(
        f"items; the model's answer is its {readouts['answer_readout']} one", fontsize=8
    )
    axes.set_title(_title(readouts), fontsize=8, loc="left")
    return figure
