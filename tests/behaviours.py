"""Items and verdicts made up by hand, for the tests of behaviour reports."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from interp.behaviour import (
    AnswerSet,
    ItemTable,
    ModelEntry,
)
from interp.behaviour.taxonomy import ABILITIES

PT, SS, IA, TC = ABILITIES


def table(sizes: dict[str, int], *, per_group: int = 2) -> ItemTable:
    """Items whose labels alternate, `per_group` to a scenario."""
    names = [(category, i) for category, n in sizes.items() for i in range(n)]
    return ItemTable(
        item_id=tuple(f"{category}-{i}" for category, i in names),
        label=np.array([i % 2 == 0 for _, i in names]),
        group_id=tuple(f"{category}-g{i // per_group}" for category, i in names),
        category=tuple(category for category, _ in names),
    )


def answer_set(
    items: ItemTable,
    verdicts: Sequence[bool | None],
    *,
    entry: ModelEntry | None = None,
    lengths: Sequence[int] | None = None,
) -> AnswerSet:
    answered = np.array([verdict is not None for verdict in verdicts])
    verdict = np.array([bool(verdict) for verdict in verdicts])
    return AnswerSet(
        entry=entry or ModelEntry("m"),
        readout="greedy",
        model_ids=frozenset({"org/m"}),
        present=np.ones(len(verdicts), dtype=bool),
        answered=answered,
        verdict=verdict,
        correct=answered & (verdict == items.label),
        n_tokens=np.array(lengths if lengths is not None else [1] * len(verdicts)),
    )


def right(items: ItemTable, *wrong: int, silent: Sequence[int] = ()) -> list[bool | None]:
    """Verdicts that are right but for some items."""
    verdicts: list[bool | None] = [bool(label) for label in items.label]
    for i in wrong:
        verdicts[i] = not verdicts[i]
    for i in silent:
        verdicts[i] = None
    return verdicts


def find(rows: Sequence[dict[str, Any]], **wanted: Any) -> dict[str, Any]:
    (row,) = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    return row
