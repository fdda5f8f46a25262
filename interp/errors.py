"""The error tree: every mistake a user can make is an `InterpError`.

A message says what was got, what was expected and what to do. The command line prints it
without a traceback and exits with code 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "AdapterError",
    "CacheError",
    "DamagedCacheError",
    "InterpError",
    "ItemError",
    "ModelError",
    "ProbeError",
    "ResultError",
    "ShadowedPackageError",
    "SharingError",
    "SourceError",
    "SteeringError",
    "TrainingError",
    "did_you_mean",
    "require_choice",
]


class InterpError(Exception):
    """Root of the tree. Catch it to catch everything that is the input's fault."""


class ItemError(InterpError):
    """An item, or a file of items, breaks the item contract."""


class SourceError(InterpError):
    """An item source is unknown, cannot be read, or cannot give what was asked."""


class ModelError(InterpError):
    """A model cannot be found, loaded or used for what was asked."""


class SharingError(ModelError):
    """A model keeps a state that a batch cannot share."""


class CacheError(InterpError):
    """An activation cache is not ours, is damaged, or belongs to another extraction."""


class DamagedCacheError(CacheError):
    """A file that should be an activation cache cannot be read as one."""


class ProbeError(InterpError):
    """The data do not allow the probe that was asked for."""


class SteeringError(InterpError):
    """The steering that was asked for does not fit the model, the cache or the probe."""


class ResultError(InterpError):
    """A result folder or file is missing, incomplete or belongs to another run."""


class AdapterError(InterpError):
    """A path holds no adapter, or an adapter cannot be audited as asked."""


class TrainingError(InterpError):
    """A training run cannot be configured, started, resumed or evaluated as asked."""


class ShadowedPackageError(InterpError, ImportError):
    """Another module of the same name hides one of ours on `sys.path`."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """One sentence on what `name` may have meant: near matches first, else all known names."""
    names = sorted(known)
    near = get_close_matches(name, names, n=3, cutoff=0.5)
    if near:
        return f"Did you mean {' or '.join(near)}?"
    return f"Known: {', '.join(names)}."


def require_choice(
    what: str, value: object, choices: Iterable[str], error: type[InterpError]
) -> None:
    """Raise `error` unless the value is one of the choices; a misspelt one means nothing else.

    Args:
        what: name of the argument.
        value: what was given for it.
        choices: all that it may be, such as `get_args` of its type.
        error: to raise.
    """
    names = list(choices)
    if not isinstance(value, str) or value not in names:
        raise error(f"{what} is {value!r}; expected one of {', '.join(names)}.")
