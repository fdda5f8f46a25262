"""MAST-Data: annotated failure traces, streamed, counted and split.

`records` reads the full file, `human` the human-labelled one, `split` the train/hold-out units,
`inventory` counts. Documented in `docs/tomas.md`.
"""

from interp.mast.inventory import Inventory, take_inventory
from interp.mast.records import MastRecord, iterate_records
from interp.mast.split import Split, read_split

__all__ = [
    "Inventory",
    "MastRecord",
    "Split",
    "iterate_records",
    "read_split",
    "take_inventory",
]
