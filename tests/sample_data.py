"""Real sample files, where the machine has them; the repository holds none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["sample"]


def sample(name: str) -> Path:
    """A file or folder below INTERP_TEST_DATA; skips the test where it is absent."""
    path = Path(os.environ.get("INTERP_TEST_DATA", "data")) / name
    if not path.exists():
        pytest.skip(f"{path} is absent; set INTERP_TEST_DATA to a folder that holds {name}")
    return path
