"""True/False items from open-ended ones: an item's gold, and the gold of another item."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from interp.errors import SourceError
from interp.items import Item
from interp.prompts import true_false_messages
from interp.sources.tomas.schema import TomasItem, framework_of

__all__ = ["true_false_items"]


def true_false_items(
    items: Sequence[TomasItem], *, seed: int, view: str = "full"
) -> tuple[Item, ...]:
    """Two statements an item: its own gold (True), and the gold of another trace's item (False).

    The false answers of a framework are its golds moved around, so that every gold is asked about
    once as a True and once as a False statement: the wording alone says nothing. Items that are
    linked, by one trace or one gold or through other items, never answer each other. Items are left
    out where that is impossible: a framework in which all are linked, and at random some of those
    that make up more than half of their framework.

    Args:
        items: of one file.
        seed: of the assignment.
        view: `full`, or `no-facts` without the context.

    Returns:
        in file order, each item's True statement before its False one; group is the source trace.

    Raises:
        SourceError: in every framework all items are linked by traces and golds.
    """
    assigned: dict[str, TomasItem] = {}
    frameworks = dict.fromkeys(framework_of(item.source) for item in items)
    for framework in frameworks:
        members = [item for item in items if framework_of(item.source) == framework]
        assigned |= _assign(members, Random(f"tomas/{seed}/{framework}"))
    if not assigned:
        raise SourceError(
            "True/False items need items of one framework that are linked neither by their trace "
            "nor by their gold; there are none."
        )
    found: list[Item] = []
    for item in items:
        if item.id in assigned:
            found += [_item(item, other, view) for other in (item, assigned[item.id])]
    return tuple(found)


def _blocks(members: Sequence[TomasItem]) -> list[list[TomasItem]]:
    """Items that must not answer each other: of one trace, or with one gold, or linked by those."""
    blocks: list[list[TomasItem]] = []
    for item in members:
        marks = _marks(item)
        linked = [b for b in blocks if any(marks & _marks(other) for other in b)]
        blocks = [b for b in blocks if b not in linked]
        blocks.append([*(other for b in linked for other in b), item])
    return blocks


def _marks(item: TomasItem) -> set[tuple[str, str]]:
    return {("source", item.source), ("gold", " ".join(item.gold.casefold().split()))}


def _assign(members: Sequence[TomasItem], random: Random) -> dict[str, TomasItem]:
    """Item id to the item whose gold is its false answer."""
    blocks = _blocks(members)
    for block in blocks:
        random.shuffle(block)
    random.shuffle(blocks)
    blocks.sort(key=len)
    largest, rest = blocks[-1], sum(map(len, blocks[:-1]))
    del largest[rest:]
    ordered = [item for block in blocks for item in block]
    # Shifted by the longest block's length, no item meets its own block: each is contiguous.
    shift = max(map(len, blocks), default=0)
    if not ordered or shift == 0:
        return {}
    return {item.id: ordered[(place + shift) % len(ordered)] for place, item in enumerate(ordered)}


def _item(asked: TomasItem, answer: TomasItem, view: str) -> Item:
    label = asked.id == answer.id
    statement = answer.gold.strip()
    return Item(
        item_id=f"{asked.id}-{'gold' if label else 'other'}",
        messages=true_false_messages(
            statement,
            setup=asked.prompt.strip() if view == "full" else None,
            question=(
                f"QUESTION: {asked.question.strip()}\n\n"
                f"Is the following statement the right answer to the question?"
            ),
        ),
        label=label,
        gold=None,
        group_id=asked.source,
        category=framework_of(asked.source),
        metadata={
            "statement": statement,
            "claim": {"op": "gold_of", "asked": asked.id, "answer": answer.id},
        },
    )
