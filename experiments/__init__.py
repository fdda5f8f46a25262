"""The command line, and one module an experiment."""

from pathlib import Path as _Path
from runpy import run_path as _run_path

# Loaded by path, so that a foreign `interp` cannot hide the check itself.
_run_path(str(_Path(__file__).parents[1] / "interp" / "guard.py"))["require_siblings"](
    __file__, "interp", "activations", "probes", "steering", "figures"
)
