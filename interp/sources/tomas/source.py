"""The `tomas` source: a ToMAS item file as open-ended items, or as True/False ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from interp.errors import ItemError, SourceError
from interp.files import require_file, sha256_file, sha256_json
from interp.items import Item, Message
from interp.open_grading import ANSWER_CLOSE, ANSWER_OPEN
from interp.registry import register_source, split_options
from interp.sources.tabular import sample_groups
from interp.sources.tomas.schema import TomasItem, framework_of, read_tomas
from interp.sources.tomas.truth import true_false_items

__all__ = ["ANSWER_FORMAT", "TomasSource", "as_item", "as_tomas"]

ANSWER_FORMAT: Final = (
    f"Write nothing but your answer, in one or two sentences, between {ANSWER_OPEN} and "
    f"{ANSWER_CLOSE}."
)
_OPTIONS: Final = ("true-false",)


def as_item(tomas: TomasItem, *, category: str | None = None, group_id: str | None = None) -> Item:
    """The question as a prompt: context, question, answer format.

    Only `prompt` and `question` reach the model; everything else stays in the metadata.

    Args:
        tomas: the item.
        category: default: the framework that `source` starts with.
        group_id: default: `source`.
    """
    return Item(
        item_id=tomas.id,
        messages=(
            Message(
                "user",
                f"CONTEXT: {tomas.prompt.strip()}\n\nQUESTION: {tomas.question.strip()}\n\n"
                f"{ANSWER_FORMAT}",
            ),
        ),
        label=None,
        gold=tomas.gold,
        group_id=group_id or tomas.source,
        category=category or framework_of(tomas.source),
        metadata={
            "source": tomas.source,
            "prompt": tomas.prompt,
            "question": tomas.question,
            "supporting_quote": tomas.supporting_quote,
            "line": tomas.line,
            "extra": dict(tomas.extra),
        },
    )


def as_tomas(item: Item) -> TomasItem:
    """The inverse of `as_item`.

    Raises:
        ItemError: the item was not made from a partner-state question.
    """
    names = ("source", "prompt", "question", "supporting_quote")
    texts = {name: value for name in names if isinstance(value := item.metadata.get(name), str)}
    if item.gold is None or len(texts) < len(names):
        raise ItemError(
            f"Item {item.item_id!r} is no open-ended partner-state question, so it cannot be "
            f"written in the ToMAS schema. Sources that can: tomas:PATH, coordqa:DIR."
        )
    extra = item.metadata.get("extra")
    return TomasItem(
        id=item.item_id,
        source=texts["source"],
        prompt=texts["prompt"],
        question=texts["question"],
        gold=item.gold,
        supporting_quote=texts["supporting_quote"],
        extra=dict(extra) if isinstance(extra, Mapping) else {},
    )


@register_source(
    "tomas",
    usage="tomas:PATH[,true-false]",
    summary="partner-state questions made from failure traces (JSONL): open-ended, or True/False",
    license="the file's own",
    options=_OPTIONS,
)
class TomasSource:
    """A ToMAS item file; category is the framework, group the source trace."""

    version = "1"
    license = "the file's own"

    def __init__(self, argument: str | None = None, field_map: Mapping[str, str] | None = None):
        path, options = split_options(argument, _OPTIONS)
        if path is None:
            raise SourceError("`tomas` needs a file: tomas:PATH.")
        if field_map:
            raise SourceError(
                "`tomas` has a fixed schema and no columns to map; leave --map out, or use jsonl:."
            )
        self.path = require_file(Path(path).expanduser(), "a ToMAS item file", SourceError)
        self.true_false = "true-false" in options
        self.views = ("full", "no-facts") if self.true_false else ("full",)
        self.name = f"tomas:{argument}"

    def fingerprint(self) -> str:
        """Digest of version, file content and kind of item."""
        return sha256_json([self.version, sha256_file(self.path), self.true_false])

    def items(self, *, view: str, n: int | None, seed: int) -> tuple[Item, ...]:
        """All items in file order, or `n` of them in whole traces drawn with `seed`."""
        read = read_tomas(self.path)
        found = (
            true_false_items(read, seed=seed, view=view)
            if self.true_false
            else tuple(as_item(each) for each in read)
        )
        return sample_groups(found, n, seed, self.name)
