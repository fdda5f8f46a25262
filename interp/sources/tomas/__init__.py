"""ToMAS: partner-state items made from failure traces, and what is checked about them.

`schema` reads and writes the item file, `source` hands items to the rest of the toolkit. The format
is documented in `docs/tomas.md`. Importing the package loads nothing heavy.
"""

from interp.sources.tomas.schema import TomasItem, read_tomas, tomas_to_record, write_tomas
from interp.sources.tomas.source import TomasSource, as_item, as_tomas

__all__ = [
    "TomasItem",
    "TomasSource",
    "as_item",
    "as_tomas",
    "read_tomas",
    "tomas_to_record",
    "write_tomas",
]
