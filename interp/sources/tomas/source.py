"""The `tomas` source: a ToMAS item file as open-ended items."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from interp.errors import SourceError
from interp.files import require_file, sha256_file, sha256_json
from interp.items import Item, Message
from interp.open_grading import ANSWER_CLOSE, ANSWER_OPEN
from interp.registry import register_source
from interp.sources.tabular import sample_groups
from interp.sources.tomas.schema import TomasItem, framework_of, read_tomas

__all__ = ["ANSWER_FORMAT", "TomasSource", "as_item"]

ANSWER_FORMAT: Final = (
    f"Write nothing but your answer, in one or two sentences, between {ANSWER_OPEN} and "
    f"{ANSWER_CLOSE}."
)


def as_item(tomas: TomasItem) -> Item:
    """The question as a prompt: context, question, answer format.

    Only `prompt` and `question` reach the model; the quote and further keys stay in the metadata.
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
        group_id=tomas.source,
        category=framework_of(tomas.source),
        metadata={
            "question": tomas.question,
            "supporting_quote": tomas.supporting_quote,
            "line": tomas.line,
            "extra": dict(tomas.extra),
        },
    )


@register_source(
    "tomas",
    usage="tomas:PATH",
    summary="partner-state questions made from failure traces (JSONL); open-ended, group = trace",
    license="the file's own",
)
class TomasSource:
    """A ToMAS item file; category is the framework, group the source trace."""

    version = "1"
    license = "the file's own"
    views = ("full",)

    def __init__(self, argument: str | None = None, field_map: Mapping[str, str] | None = None):
        if not argument:
            raise SourceError("`tomas` needs a file: tomas:PATH.")
        if field_map:
            raise SourceError(
                "`tomas` has a fixed schema and no columns to map; leave --map out, or use jsonl:."
            )
        self.path = require_file(Path(argument).expanduser(), "a ToMAS item file", SourceError)
        self.name = f"tomas:{argument}"

    def fingerprint(self) -> str:
        """Digest of version and file content."""
        return sha256_json([self.version, sha256_file(self.path)])

    def items(self, *, view: str, n: int | None, seed: int) -> tuple[Item, ...]:  # noqa: ARG002 - one view
        """All items in file order, or `n` of them in whole traces drawn with `seed`."""
        found = tuple(as_item(each) for each in read_tomas(self.path))
        return sample_groups(found, n, seed, self.name)
