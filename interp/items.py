"""`Item`: one question to a model, with its gold label and where it comes from."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from interp.errors import ItemError
from interp.files import atomic_path, numbered_lines, parse_json, sha256_json

__all__ = [
    "ITEM_FIELDS",
    "Item",
    "Message",
    "item_from_record",
    "item_to_record",
    "items_sha256",
    "read_items",
    "require_unique_ids",
    "write_items",
]

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn.

    Attributes:
        role: `system`, `user` or `assistant`.
        content: the turn's text, not empty.
    """

    role: Role
    content: str

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise ItemError(
                f"A message has the role {self.role!r}; expected {', '.join(get_args(Role))}."
            )
        if not isinstance(self.content, str) or not self.content.strip():
            raise ItemError(
                f"A {self.role} message has the content {self.content!r}; expected text."
            )


@dataclass(frozen=True, slots=True)
class Item:
    """One question to a model.

    Attributes:
        item_id: unique within its source.
        messages: chat turns in order, the last one from the user.
        label: gold verdict of a True/False item; None for an open-ended one.
        gold: gold answer of an open-ended item; None for a True/False one.
        group_id: scenario, trace, game or fact pair; splits never cut a group.
        category: ability, framework, setting or topic; results are also given by category.
        metadata: JSON-serialisable. `statement` holds the bare statement of a True/False item,
            `template` what it was made from, `entity` what it says of its subject; for generated
            items `claim` holds the formal claim that the label follows from.
    """

    item_id: str
    messages: tuple[Message, ...]
    label: bool | None
    gold: str | None
    group_id: str
    category: str
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("item_id", "group_id", "category"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value.strip():
                raise ItemError(f"An item's {name} is {value!r}; expected a string with text.")
        if not self.messages or self.messages[-1].role != "user":
            raise ItemError(
                f"Item {self.item_id!r}: the last message must be the user's; got "
                f"{[message.role for message in self.messages]}."
            )
        if self.label is not None and not isinstance(self.label, bool):
            raise ItemError(
                f"Item {self.item_id!r}: the label is {self.label!r}; expected true, false or null."
            )

    @property
    def statement(self) -> str | None:
        """The bare statement of a True/False item, if its source gives one."""
        value = self.metadata.get("statement")
        return value if isinstance(value, str) else None

    @property
    def template(self) -> str | None:
        """The template that the statement was made from, if its source gives one."""
        value = self.metadata.get("template")
        return value if isinstance(value, str) else None

    @property
    def entity(self) -> str | None:
        """The answer entity: what the statement says of its subject.

        `metadata["entity"]` if the source gives one, else the last value of the formal claim (the
        capital, the number, the faction); None without either.
        """
        value = self.metadata.get("entity", self.metadata.get("claim"))
        while isinstance(value, Mapping | list) and value:
            value = value[-1] if isinstance(value, list) else list(value.values())[-1]
        return None if value is None or isinstance(value, Mapping | list) else str(value)


ITEM_FIELDS: Final = (
    "item_id",
    "messages",
    "label",
    "gold",
    "group_id",
    "category",
    "metadata",
)
"""Names and order of the fields of an item's JSON object."""


def item_to_record(item: Item) -> dict[str, Any]:
    """The item as a JSON object with the field names of `Item`."""
    return {
        "item_id": item.item_id,
        "messages": [{"role": m.role, "content": m.content} for m in item.messages],
        "label": item.label,
        "gold": item.gold,
        "group_id": item.group_id,
        "category": item.category,
        "metadata": dict(item.metadata),
    }


def item_from_record(record: object) -> Item:
    """The inverse of `item_to_record`.

    Raises:
        ItemError: a field is missing, unknown or has the wrong type; the message names it.
    """
    if not isinstance(record, dict):
        raise ItemError(f"Got a {type(record).__name__}; an item is a JSON object.")
    missing = [
        name for name in ("item_id", "messages", "group_id", "category") if name not in record
    ]
    unknown = sorted(set(record) - set(ITEM_FIELDS))
    if missing or unknown:
        raise ItemError(
            "An item's object "
            + " and ".join(
                [f"lacks {', '.join(missing)}"] * bool(missing)
                + [f"has the unknown fields {', '.join(unknown)}"] * bool(unknown)
            )
            + f"; expected {', '.join(ITEM_FIELDS)}."
        )
    turns = record["messages"]
    if not isinstance(turns, list) or not all(
        isinstance(turn, dict) and set(turn) == {"role", "content"} for turn in turns
    ):
        raise ItemError("`messages` must be a list of objects with `role` and `content`.")
    metadata = record.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise ItemError(f"`metadata` is a {type(metadata).__name__}; expected an object.")
    return Item(
        item_id=record["item_id"],
        messages=tuple(Message(**turn) for turn in turns),
        label=record.get("label"),
        gold=record.get("gold"),
        group_id=record["group_id"],
        category=record["category"],
        metadata=metadata,
    )


def require_unique_ids(items: Sequence[Item], where: str) -> None:
    """Raise `ItemError` if two items share an id."""
    repeated = [name for name, count in Counter(i.item_id for i in items).items() if count > 1]
    if repeated:
        raise ItemError(
            f"{where} gives {len(repeated)} item ids more than once (first: {repeated[0]!r}); "
            f"ids must be unique."
        )


def items_sha256(items: Iterable[Item]) -> str:
    """Fingerprint of the items' whole content, in order."""
    return sha256_json([item_to_record(item) for item in items])


def write_items(path: str | Path, items: Iterable[Item]) -> None:
    """Write one item a line, atomically."""
    path = Path(path)
    with atomic_path(path) as aside, aside.open("w", encoding="utf-8") as handle:
        for item in items:
            handle.write(
                json.dumps(item_to_record(item), ensure_ascii=False, allow_nan=False) + "\n"
            )


def read_items(path: str | Path) -> tuple[Item, ...]:
    """Read what `write_items` wrote.

    Raises:
        ItemError: names the file and the line that breaks the contract.
    """
    path = Path(path)
    items: list[Item] = []
    for number, line in numbered_lines(path, "a JSONL file with one item a line", ItemError):
        try:
            items.append(item_from_record(parse_json(line)))
        except (json.JSONDecodeError, ItemError) as error:
            raise ItemError(f"{path}, line {number}: {error}") from error
    require_unique_ids(items, str(path))
    return tuple(items)
