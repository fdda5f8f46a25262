"""Everything that runs a model: specs, backends, extraction, the activation cache."""

from pathlib import Path as _Path
from runpy import run_path as _run_path

# Loaded by path, so that a foreign `interp` cannot hide the check itself.
_run_path(str(_Path(__file__).parents[1] / "interp" / "guard.py"))["require_siblings"](
    __file__, "interp"
)

from activations.answers import answer, forced_answers, forced_logits  # noqa: E402
from activations.backend import Capture, Edit, ModelBackend, Prompt, VerdictIds  # noqa: E402
from activations.cache import ActivationCache  # noqa: E402
from activations.extraction import describe_source, extract  # noqa: E402
from activations.hf import HFBackend  # noqa: E402
from activations.libraries import in_library  # noqa: E402
from activations.load import load_backend  # noqa: E402
from activations.spec import ModelSpec  # noqa: E402

__all__ = [
    "ActivationCache",
    "Capture",
    "Edit",
    "HFBackend",
    "ModelBackend",
    "ModelSpec",
    "Prompt",
    "VerdictIds",
    "answer",
    "describe_source",
    "extract",
    "forced_answers",
    "forced_logits",
    "in_library",
    "load_backend",
]
