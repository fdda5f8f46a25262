"""Steering: interventions, hooks and coefficient sweeps."""

from pathlib import Path as _Path
from runpy import run_path as _run_path

# Loaded by path, so that a foreign `interp` cannot hide the check itself.
_run_path(str(_Path(__file__).parents[1] / "interp" / "guard.py"))["require_siblings"](
    __file__, "interp", "activations"
)

from steering.directions import fold_direction  # noqa: E402
from steering.hooks import steer  # noqa: E402
from steering.interventions import Intervention, add, clamp, erase, project_out  # noqa: E402
from steering.plan import SignedItems  # noqa: E402
from steering.positions import POSITIONS, Positions  # noqa: E402
from steering.projections import clamped, erased, projected_out  # noqa: E402
from steering.results import SteeringSweep  # noqa: E402
from steering.settings import CONDITIONS, Condition, SteeredDirection  # noqa: E402
from steering.summary import write_steering  # noqa: E402
from steering.sweep import sweep_steering  # noqa: E402

__all__ = [
    "CONDITIONS",
    "POSITIONS",
    "Condition",
    "Intervention",
    "Positions",
    "SignedItems",
    "SteeredDirection",
    "SteeringSweep",
    "add",
    "clamp",
    "clamped",
    "erase",
    "erased",
    "fold_direction",
    "project_out",
    "projected_out",
    "steer",
    "sweep_steering",
    "write_steering",
]
