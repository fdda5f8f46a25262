"""Unreliable colleagues: generated tasks, their environment, and statements about the evidence.

Task family after UNCOBENCH (`docs/unco.md`). Importing this registers the source `unco`.
"""

from interp.sources.unco.source import UncoSource

__all__ = ["UncoSource"]
