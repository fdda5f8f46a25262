"""Detects a foreign module that hides one of the toolkit's packages.

`probes`, `figures` and the like are common names; a file `probes.py` earlier on `sys.path`
would be imported instead of ours and fail somewhere far away. Each package's `__init__` runs
this file by its path (so that a shadowed `interp` cannot hide the check itself).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

__all__ = ["require_siblings"]


def require_siblings(init_file: str, *siblings: str) -> None:
    """Raise if one of `siblings` would be imported from another place than `init_file`'s.

    Args:
        init_file: `__file__` of the package that is about to import its siblings.
        siblings: top-level package names that must come from the same installation.

    Raises:
        ShadowedPackageError: names the file that hides the package and how to get rid of it.
    """
    root = Path(init_file).resolve().parents[1]
    for name in siblings:
        spec = find_spec(name)
        found = Path(spec.origin).resolve() if spec and spec.origin else None
        if found == root / name / "__init__.py":
            continue
        message = (
            f"'{name}' would be imported from {found or 'nowhere'}, but '{Path(init_file).parent}' "
            f"needs the package in {root / name}. Rename or move that file, or take its folder "
            f"off PYTHONPATH (or reinstall, if the package is missing)."
        )
        # The error tree may live in the very package that is hidden.
        if name == "interp":
            raise ImportError(message)
        from interp.errors import ShadowedPackageError

        raise ShadowedPackageError(message)
