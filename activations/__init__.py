"""Everything that runs a model: specs, backends, extraction, the activation cache.

Names are imported when they are first used: a cache can be read without torch.
"""

from importlib import import_module as _import_module
from pathlib import Path as _Path
from runpy import run_path as _run_path
from typing import TYPE_CHECKING, Any, Final

# Loaded by path, so that a foreign `interp` cannot hide the check itself.
_run_path(str(_Path(__file__).parents[1] / "interp" / "guard.py"))["require_siblings"](
    __file__, "interp"
)

if TYPE_CHECKING:
    from activations.answers import answer, forced_answers, forced_logits
    from activations.backend import Capture, Edit, ModelBackend, Prompt, VerdictIds
    from activations.cache import ActivationCache
    from activations.extraction import describe_source, extract
    from activations.hf import HFBackend
    from activations.libraries import in_library
    from activations.load import load_backend
    from activations.spec import ModelSpec

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

_MODULES: Final = {
    "ActivationCache": "cache",
    "Capture": "backend",
    "Edit": "backend",
    "HFBackend": "hf",
    "ModelBackend": "backend",
    "ModelSpec": "spec",
    "Prompt": "backend",
    "VerdictIds": "backend",
    "answer": "answers",
    "describe_source": "extraction",
    "extract": "extraction",
    "forced_answers": "answers",
    "forced_logits": "answers",
    "in_library": "libraries",
    "load_backend": "load",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(_import_module(f"activations.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
