"""One look for all figures: colours that survive colour blindness, PNG and PDF of each."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import matplotlib as mpl
from matplotlib.figure import Figure

from interp.files import atomic_path

__all__ = ["COLOURS", "new_figure", "save", "styled"]

# Okabe and Ito's palette.
COLOURS: Final = {
    "probe": "#0072B2",
    "nested": "#D55E00",
    "model": "#000000",
    "calibrated": "#009E73",
    "control": "#999999",
    "negated": "#CC79A7",
    "embedding": "#E69F00",
}

_STYLE: Final[Mapping[str, object]] = {
    "figure.dpi": 150,
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "pdf.fonttype": 42,
    # Without these two, the same data would give another file each time.
    "svg.hashsalt": "interp",
}


def styled() -> AbstractContextManager[None]:
    """The common style, for as long as a figure is drawn."""
    return mpl.rc_context(dict(_STYLE))  # type: ignore[arg-type]  # keys are a huge Literal


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in the common style, size in inches; no display is needed."""
    with styled():
        return Figure(figsize=(width, height), layout="constrained")


def save(figure: Figure, path: Path) -> tuple[Path, Path]:
    """Write `path.png` and `path.pdf`, atomically; returns both paths."""
    written = []
    with styled():
        for suffix, metadata in ((".png", {"Software": None}), (".pdf", {"CreationDate": None})):
            target = path.with_suffix(suffix)
            with atomic_path(target) as aside:
                figure.savefig(aside, format=suffix[1:], metadata=metadata)
            written.append(target)
    return written[0], written[1]
