"""The figure of an unreliable-colleagues report, drawn from its `unco.json` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from figures.style import COLOURS, new_figure, save, styled
from interp.files import read_json

__all__ = ["draw_noticed", "draw_unco"]

_SETTINGS: Final = ("reliable", "misaligned", "incomplete", "missed", "mixed")
_ARMS: Final = ("none", "existence", "location", "diagnosis", "action")
_COLOURS: Final = tuple(
    COLOURS[name] for name in ("probe", "nested", "calibrated", "negated", "embedding", "model")
)
_Rows = Sequence[Mapping[str, Any]]


def draw_unco(folder: Path) -> Path:
    """Accuracy by setting, and by arm where several were played; returns the PNG.

    Raises:
        ResultError: `unco.json` is missing.
    """
    rows: _Rows = read_json(folder / "unco.json", "a report of `interp unco report`")["settings"]
    plain = [row for row in rows if row["arm"] == "none"]
    with_arms = any(row["arm"] != "none" for row in rows)
    with styled():
        n_panels = bool(plain) + with_arms
        figure = new_figure(3.75 * n_panels + 0.4, 3.2)
        axes = figure.subplots(1, n_panels, squeeze=False)[0]
        if plain:
            _by(axes[0], plain, "setting", _SETTINGS, "agent")
            axes[0].set_title("without help", loc="left")
        if with_arms:
            defective = [row for row in rows if row["setting"] != "reliable"] or rows
            _by(axes[-1], defective, "arm", _ARMS, "setting")
            axes[-1].set_title("with more and more help", loc="left")
        return save(figure, folder / "figures" / "unco")[0]


def _by(axis: Axes, rows: _Rows, along: str, order: Sequence[str], line: str) -> None:
    """One line a value of `line` (and agent), accuracy with its interval along `along`."""
    series: dict[str, dict[str, Mapping[str, Any]]] = {}
    agents = {row["agent"] for row in rows}
    for row in rows:
        name = row[line] if line == "agent" or len(agents) == 1 else f"{row['agent']}, {row[line]}"
        series.setdefault(str(name), {})[str(row[along])] = row
    present = [name for name in order if any(name in entry for entry in series.values())]
    for number, (name, entry) in enumerate(series.items()):
        shift = (number - (len(series) - 1) / 2) * 0.08
        places = [i for i, key in enumerate(present) if key in entry]
        found = [entry[present[i]] for i in places]
        values = [row["accuracy"] for row in found]
        axis.errorbar(
            [i + shift for i in places],
            values,
            yerr=[
                [max(0.0, row["accuracy"] - row["accuracy_low"]) for row in found],
                [max(0.0, row["accuracy_high"] - row["accuracy"]) for row in found],
            ],
            marker="o",
            markersize=4,
            capsize=2,
            color=_COLOURS[number % len(_COLOURS)],
            label=name,
        )
    axis.set_xticks(range(len(present)), present)
    axis.set_ylim(-0.03, 1.03)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.set_ylabel("accuracy")
    axis.legend(fontsize=7)


_BARS: Final = (
    ("probe_accuracy_nested", "probe: all statements", "probe"),
    ("said_accuracy", "forced choice: all statements", "model"),
    ("probe_noticed", "probe noticed the useless reply", "probe"),
    ("said_so", "forced choice says so", "model"),
    ("followed_up", "asked again at all", "embedding"),
    ("acted", "wrote a readable action", "control"),
    ("targeted", "took the corrective action", "calibrated"),
    ("noticed_but_silent", "noticed, but silent", "nested"),
    ("correct", "right answer in the end", "control"),
)


def draw_noticed(folder: Path) -> Path:
    """What was read, said and done, from `noticed.json`; returns the PNG.

    Raises:
        ResultError: the file is missing.
    """
    metrics = read_json(folder / "noticed.json", "the result of `interp run noticed-but-silent`")
    with styled():
        figure = new_figure(6.0, 3.2)
        axis = figure.subplots()
        for place, (name, _, colour) in enumerate(reversed(_BARS)):
            value, low, high = (metrics[name + end] for end in ("", "_low", "_high"))
            axis.barh(place, value, color=COLOURS[colour], height=0.6)
            axis.errorbar(
                value,
                place,
                xerr=[[max(0.0, value - low)], [max(0.0, high - value)]],
                color="#444444",
                capsize=2,
            )
            axis.text(1.02, place, f"{value:.0%}", va="center")

        axis.set_yticks(range(len(_BARS)), [label for _, label, _ in reversed(_BARS)])
        axis.axvline(0.5, color=COLOURS["control"], linestyle=":", linewidth=1)
        axis.set_xlim(0, 1)
        axis.xaxis.set_major_formatter(PercentFormatter(1.0))
        axis.set_xlabel(
            f"{metrics['n_items']} statements; {metrics['n_episodes']} episodes; 95% intervals"
        )
        return save(figure, folder / "figures" / "noticed")[0]
