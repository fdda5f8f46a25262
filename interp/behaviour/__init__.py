"""Behaviour: what models say on a benchmark, from answer files or from a published table.

Everything here is a pure function of items, answers and a seed; no model runs and torch is never
imported. `docs/behaviour.md` defines each figure.
"""

from interp.behaviour.loading import AnswerSet, ItemTable, read_answer_sets, read_item_table
from interp.behaviour.published import published_report, read_published
from interp.behaviour.report import ProbeOutcome, behaviour_report
from interp.behaviour.roster import ModelEntry, read_roster

__all__ = [
    "AnswerSet",
    "ItemTable",
    "ModelEntry",
    "ProbeOutcome",
    "behaviour_report",
    "published_report",
    "read_answer_sets",
    "read_item_table",
    "read_published",
    "read_roster",
]
