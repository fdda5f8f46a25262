"""Figures, drawn from result files alone; torch is never imported here."""

from pathlib import Path as _Path
from runpy import run_path as _run_path

# Loaded by path, so that a foreign `interp` cannot hide the check itself.
_run_path(str(_Path(__file__).parents[1] / "interp" / "guard.py"))["require_siblings"](
    __file__, "interp"
)

from figures.adapters import draw_adapters  # noqa: E402
from figures.behaviour import draw_behaviour  # noqa: E402
from figures.expression_gap import draw_expression_gap, draw_probe  # noqa: E402
from figures.grpo import draw_grpo_audit  # noqa: E402
from figures.report import write_report  # noqa: E402
from figures.steering import draw_steering_sweep  # noqa: E402

__all__ = [
    "draw_adapters",
    "draw_behaviour",
    "draw_expression_gap",
    "draw_grpo_audit",
    "draw_probe",
    "draw_steering_sweep",
    "write_report",
]
