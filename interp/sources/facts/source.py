"""The `facts` source: draws balanced statement groups from one or several topics."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Final

from interp.errors import SourceError, did_you_mean
from interp.files import sha256_json
from interp.items import Item, Message
from interp.prompts import true_false_messages
from interp.registry import register_source
from interp.sources.facts.topics import TOPICS, Statement, Topic

__all__ = ["FactsSource"]

_DEFAULT_N: Final = 200


@register_source(
    "facts",
    usage="facts[:TOPIC,…]",
    summary=f"generated true/false facts ({', '.join(TOPICS)}); any n and seed",
    license="MIT (tables of public facts, written for this project)",
)
class FactsSource:
    """True/False statements whose label is computed from a table or by arithmetic.

    Each fact stands once as true and once as false, with a plausible wrong partner; the four
    statements of a two-cycle form one group.
    """

    version = "1"
    license = "MIT"
    views = ("full", "statement")

    def __init__(self, argument: str | None = None, field_map: Mapping[str, str] | None = None):
        if field_map:
            raise SourceError("`facts` has no columns to map; leave --map out.")
        names = [name.strip() for name in argument.split(",")] if argument else list(TOPICS)
        for name in names:
            if name not in TOPICS:
                raise SourceError(f"`facts` has no topic {name!r}. {did_you_mean(name, TOPICS)}")
        self.topics: tuple[Topic, ...] = tuple(TOPICS[name] for name in dict.fromkeys(names))
        self.name = (
            f"facts:{','.join(topic.name for topic in self.topics)}" if argument else "facts"
        )

    def fingerprint(self) -> str:
        """Digest of version and topics; the statements follow from these and the seed."""
        return sha256_json([self.version, [topic.name for topic in self.topics]])

    def items(self, *, view: str, n: int | None, seed: int) -> tuple[Item, ...]:
        """Draw whole groups from the topics by turns until there are `n` statements.

        The last group is cut where `n` is not a multiple of four.

        Raises:
            SourceError: the topics cannot give `n` statements.
        """
        capacity = sum(topic.capacity for topic in self.topics)
        if n is None:
            n = min(_DEFAULT_N, capacity)
        if n > capacity:
            raise SourceError(
                f"{self.name!r} can give {capacity} statements ("
                + ", ".join(f"{topic.name} {topic.capacity}" for topic in self.topics)
                + f"; each fact once true and once false); got n = {n}. Ask for at most "
                f"{capacity}, or add topics: facts:{','.join(TOPICS)}."
            )
        streams = {
            topic.name: topic.groups(Random(f"facts/{self.version}/{topic.name}/{seed}"))
            for topic in self.topics
        }
        drawn: dict[str, list[Item]] = {name: [] for name in streams}
        missing = n
        while missing:
            for name, stream in streams.items():
                group = next(stream, None)
                if group is None or not missing:
                    continue
                index = len({item.group_id for item in drawn[name]})
                kept = group[:missing]
                drawn[name] += [
                    _item(statement, view, name, f"{name}-{seed}-{index:05d}", position)
                    for position, statement in enumerate(kept)
                ]
                missing -= len(kept)
        return tuple(item for items in drawn.values() for item in items)


def _item(statement: Statement, view: str, topic: str, group_id: str, position: int) -> Item:
    if view == "statement":
        messages: tuple[Message, ...] = (Message("user", statement.text),)
    else:
        messages = true_false_messages(statement.text)
    return Item(
        item_id=f"{group_id}-{position}",
        messages=messages,
        label=statement.label,
        gold=None,
        group_id=group_id,
        category=topic,
        metadata={
            "statement": statement.text,
            "template": statement.template,
            "claim": dict(statement.claim),
        },
    )
