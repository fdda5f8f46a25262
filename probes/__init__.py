"""Probes: folds, logistic regression, sweeps over layers."""

from pathlib import Path as _Path
from runpy import run_path as _run_path

# Loaded by path, so that a foreign `interp` cannot hide the check itself.
_run_path(str(_Path(__file__).parents[1] / "interp" / "guard.py"))["require_siblings"](
    __file__, "interp", "activations"
)

from probes.compare import compare_sweeps  # noqa: E402
from probes.directions import probe_direction  # noqa: E402
from probes.layer import C_GRID  # noqa: E402
from probes.results import ProbeSweep, read_sweep  # noqa: E402
from probes.solver import Probe, fit_probe  # noqa: E402
from probes.splits import check_folds, make_folds, read_folds  # noqa: E402
from probes.summary import write_sweep  # noqa: E402
from probes.sweep import sweep_layers  # noqa: E402

__all__ = [
    "C_GRID",
    "Probe",
    "ProbeSweep",
    "check_folds",
    "compare_sweeps",
    "fit_probe",
    "make_folds",
    "probe_direction",
    "read_folds",
    "read_sweep",
    "sweep_layers",
    "write_sweep",
]
