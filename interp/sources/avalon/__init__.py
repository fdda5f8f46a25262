"""Avalon: an exact possible-worlds engine, items generated from it, and two files of items.

`rules` holds the tables, `scenario` one state of a game, `worlds` and `claims` decide what holds
in it, `twins` and one module an ability phrase true and false claims, `source` hands them out.
The JSON forms are documented in `docs/avalon.md`. Importing the package loads nothing heavy.
"""

from interp.sources.avalon.bench import AvalonBenchSource
from interp.sources.avalon.nlu import AvalonNluSource
from interp.sources.avalon.source import AvalonSource

__all__ = ["AvalonBenchSource", "AvalonNluSource", "AvalonSource"]
