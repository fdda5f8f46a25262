"""Figures of a steering sweep: they show what the tables say, and are drawn from them alone."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import PolyCollection
from sweep_tables import write_sweep_tables, write_table

from figures import draw_steering_sweep
from figures.steering import draw_dose_response, draw_grid, draw_item_shifts, draw_recalls
from figures.steering_tables import read_cells, read_shifts
from interp.errors import ResultError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep over three layers, four sizes and all conditions, with fifty random draws."""
    write_sweep_tables(tmp_path)
    return tmp_path


def parts(folder: Path) -> tuple[Any, dict]:
    return read_cells(folder / "draws.csv"), json.loads((folder / "steer.json").read_text())


def test_every_figure_is_drawn_and_the_same_each_time(folder: Path) -> None:
    drawn = draw_steering_sweep(folder)
    names = {path.stem for path in drawn}
    assert names == {"dose_response", "recalls", "grid", "item_shifts"}
    first = {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    assert set(first) == {f"{name}.{suffix}" for name in names for suffix in ("png", "pdf")}
    draw_steering_sweep(folder)
    assert first == {path.name: path.read_bytes() for path in (folder / "figures").iterdir()}
    (folder / "items.csv").unlink()
    assert len(draw_steering_sweep(folder)) == 3


def test_lines_are_the_means_and_the_band_holds_95_percent_of_the_draws(folder: Path) -> None:
    cells, summary = parts(folder)
    figure = draw_dose_response(cells, summary)
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "layer 2",
        "layer 10",
        "layer 15",
    ]
    axes = figure.axes[1]
    lines = {line.get_label(): line for line in axes.lines}
    x, y = lines["signed (by the probe)"].get_data()
    np.testing.assert_allclose(x, [0, 0.5, 1, 2, 4])
    np.testing.assert_allclose(y, [0.5, 0.52, 0.54, 0.58, 0.66])
    draws = [c.accuracy for c in cells if (c.layer, c.condition, c.alpha) == ("10", "random", 4)]
    np.testing.assert_allclose(lines["random, mean"].get_ydata()[-1], np.mean(draws))
    (band,) = [part for part in axes.collections if isinstance(part, PolyCollection)]
    assert band.get_label() == "random: 95% of 50 draws"
    at_4 = [v[1] for v in band.get_paths()[0].vertices if v[0] == 4]
    np.testing.assert_allclose(sorted({min(at_4), max(at_4)}), np.percentile(draws, [2.5, 97.5]))
    assert not any("inner" in label for label in lines)
    # A few draws have a range and no percentiles.
    few = [c for c in cells if c.condition != "random"] + [
        c for c in cells if c.condition == "random"
    ][::10]
    labels = draw_dose_response(few, summary).axes[1].get_legend_handles_labels()[1]
    assert "random: range of 5 draws" in labels
    # Colours never stand alone.
    looks = {
        (line.get_marker(), line.get_linestyle())
        for label, line in lines.items()
        if not label.startswith("_")
    }
    assert len(looks) == 9


def test_many_layers_show_the_quoted_one(folder: Path) -> None:
    cells, summary = parts(folder)
    many = [*cells]
    for layer in range(20, 28):
        many += [type(c)(**{**as_dict(c), "layer": str(layer)}) for c in cells if c.layer == "2"]
    figure = draw_dose_response(many, summary)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["layer 10"]
    ticks = draw_grid(many, summary).axes[0].get_yticklabels()
    assert [tick.get_text() for tick in ticks] == ["2", "10", "15", *map(str, range(20, 28))]


def as_dict(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def test_recalls_before_and_after_at_the_quoted_cell(folder: Path) -> None:
    cells, summary = parts(folder)
    axes = draw_recalls(cells, summary).axes[0]
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names[0] == "signed (by the probe)"
    assert "random, mean of 50" in names
    row = names.index("signed (by the probe)")
    found = {
        (round(float(line.get_xdata()[0]), 6), line.get_marker())
        for line in axes.lines
        if len(line.get_xdata()) == 1 and abs(line.get_ydata()[0] - row) < 0.3
    }
    # Layer 10, alpha 2: accuracy 0.58, recalls 0.2 above and below; 0.7 and 0.3 before.
    assert found == {(0.78, "^"), (0.38, "v"), (0.7, "|"), (0.3, "|")}


def test_the_heat_map_shows_points_and_the_lead_over_random(folder: Path) -> None:
    cells, summary = parts(folder)
    figure = draw_grid(cells, summary)
    change, lead = (axes.images[0].get_array() for axes in figure.axes[:2])
    np.testing.assert_allclose(change, [[0] * 4, [2, 4, 8, 16], [0] * 4], atol=1e-9)
    assert figure.axes[1].get_title(loc="left") == "signed − mean of random"
    draws = [c.accuracy for c in cells if (c.layer, c.condition, c.alpha) == ("10", "random", 2)]
    np.testing.assert_allclose(lead[1, 2], 100 * (0.58 - np.mean(draws)))
    low, high = figure.axes[0].images[0].get_clim()
    assert low == -high  # white is no change
    assert figure.axes[1].images[0].get_clim() == (low, high)


def test_item_shifts_are_sorted_and_the_wrong_way_is_counted(folder: Path) -> None:
    shifts = read_shifts(folder / "items.csv")
    axes = draw_item_shifts(shifts, parts(folder)[1]).axes
    assert [a.get_title(loc="left").split("\n")[0] for a in axes] == [
        "signed (by the probe)",
        "fixed (towards True)",
    ]
    values = axes[0].lines[0].get_ydata()
    assert len(values) == 20
    assert (np.diff(values) >= 0).all()
    wrong = np.mean([s.shift < 0 if s.label else s.shift > 0 for s in shifts[40:]])
    assert axes[1].get_title(loc="left").split("\n")[1] == f"{wrong:.0%} moved the wrong way"
    assert 0.4 < wrong < 0.6  # a push to True is wrong for the False half


def test_what_is_no_sweep_is_refused(folder: Path, tmp_path: Path) -> None:
    with (folder / "draws.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    for changed, words in (
        (rows[1:], "no row of the condition `baseline`"),
        ([{k: v for k, v in row.items() if k != "accuracy"} for row in rows], "columns accuracy"),
        ([rows[0] | {"alpha": "big"}], "not a table of steering cells"),
    ):
        write_table(folder / "draws.csv", changed)
        with pytest.raises(ResultError, match=words):
            draw_steering_sweep(folder)
    (folder / "draws.csv").unlink()
    with pytest.raises(ResultError, match="no file"):
        draw_steering_sweep(folder)
    write_table(folder / "items.csv", [{"layer": 1, "alpha": 1, "condition": "signed"}])
    with pytest.raises(ResultError, match="item_id, label, shift"):
        read_shifts(folder / "items.csv")


def test_drawing_imports_no_torch() -> None:
    code = "import sys, figures.steering; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"
