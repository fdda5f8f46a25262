"""Ground floor of the toolkit: items, sources, grading, statistics, records, directions.

Importing it is cheap: neither torch nor numpy is loaded. What needs them lives in the submodules
`interp.statistics` and `interp.direction`.
"""

from interp.errors import InterpError
from interp.grading import Answer, parse_verdict, read_answers, write_answers
from interp.items import Item, Message, read_items, write_items
from interp.prompts import ANSWER_STUB, true_false_messages
from interp.records import RunRecord, read_run
from interp.registry import ItemSource, list_sources, load_items, open_source, register_source

__version__ = "0.1.0"

__all__ = [
    "ANSWER_STUB",
    "Answer",
    "InterpError",
    "Item",
    "ItemSource",
    "Message",
    "RunRecord",
    "__version__",
    "list_sources",
    "load_items",
    "open_source",
    "parse_verdict",
    "read_answers",
    "read_items",
    "read_run",
    "register_source",
    "true_false_messages",
    "write_answers",
    "write_items",
]
