"""The `unco` source: True/False statements about what unreliable colleagues have said."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from random import Random
from typing import TYPE_CHECKING, Final

from interp.errors import SourceError, did_you_mean
from interp.files import sha256_json
from interp.items import Item
from interp.prompts import true_false_messages
from interp.registry import register_source, split_options

if TYPE_CHECKING:
    from interp.sources.unco.statements import Statement, StatementType
    from interp.sources.unco.tasks import Task

__all__ = ["UncoSource", "statement_item"]

_TYPES: Final = ("settles", "answers", "missing")
_DEFAULT_N: Final = 600


@register_source(
    "unco",
    usage="unco[:types=A+B]",
    summary=f"statements about unreliable colleagues' replies ({', '.join(_TYPES)}); any n, seed",
    license="MIT (generated; task family after UNCOBENCH)",
    options=("types",),
)
class UncoSource:
    """Statements in twins, one true and one false, from one exchange; `group_id` is the task."""

    version = "1"
    license = "MIT"
    views = ("full",)

    def __init__(self, argument: str | None = None, field_map: Mapping[str, str] | None = None):
        if field_map:
            raise SourceError("`unco` has no columns to map; leave --map out.")
        rest, options = split_options(argument, ("types",))
        if rest:
            raise SourceError(f"`unco` does not take {rest!r}; write unco:types=settles+missing.")
        self.types = _chosen(options.get("types"))
        self.name = f"unco:{argument}" if argument else "unco"

    def fingerprint(self) -> str:
        """Digest of the version and the types; the items follow from these, n and the seed."""
        from interp.sources.unco.build import VERSION

        return sha256_json([self.version, VERSION, list(self.types)])

    def items(self, *, view: str, n: int | None, seed: int) -> tuple[Item, ...]:
        """Twins from one task group after another, as many of each type as of the others (±1)."""
        del view  # there is one
        total = _DEFAULT_N if n is None else n
        wanted: dict[str, int] = {
            kind: total // len(self.types) + (i < total % len(self.types))
            for i, kind in enumerate(self.types)
        }
        found: dict[str, list[Item]] = {kind: [] for kind in self.types}
        for item in self._stream(wanted, seed):
            if len(found[item.category]) < wanted[item.category]:
                found[item.category].append(item)
        return tuple(item for kind in self.types for item in found[kind])

    def _stream(self, wanted: Mapping[str, int], seed: int) -> Iterator[Item]:
        from interp.sources.unco.build import build_groups

        groups = (max(wanted.values()) + 1) // 2
        for number, tasks in enumerate(build_groups(groups, seed)):
            rng = Random(f"unco/statements/{self.version}/{seed}/{number}")
            by_setting: dict[str, Task] = {task.setting: task for task in tasks}
            for kind in self.types:
                task, pair = _pair(by_setting, kind, number, rng)
                for place, statement in enumerate(rng.sample(pair, 2)):
                    yield statement_item(task, statement, f"{task.group_id}-{kind}-{place}")


def _pair(
    tasks: Mapping[str, Task], kind: StatementType, number: int, rng: Random
) -> tuple[Task, tuple[Statement, Statement]]:
    from interp.sources.unco.statements import TURNS, about_reply, first_reply_prefix, missing_pair

    if kind == "missing":
        # Turn and state take turns, so that both states are equally frequent at every turn.
        turn, label = number // 2 % TURNS + 1, number % 2 == 0
        return tasks["reliable"], missing_pair(tasks, turn, label, rng)
    setting = "misaligned" if kind == "answers" or number % 2 else "incomplete"
    task = tasks[setting]
    rounds, replies = first_reply_prefix(task, rng)
    pair = about_reply(task, kind, rounds, replies, rng)
    assert pair is not None  # a defect spoils one candidate's fact and leaves the others' whole
    return task, pair


def statement_item(task: Task, statement: Statement, item_id: str) -> Item:
    """The item that asks for a verdict on a statement after its exchange."""
    from interp.sources.unco.protocol import SYSTEM, transcript_text
    from interp.sources.unco.statements import evidence_of

    spec = task.instance.spec
    return Item(
        item_id=item_id,
        messages=true_false_messages(
            statement.text,
            system=SYSTEM,
            setup=task.prompt,
            history=transcript_text(statement.rounds, replies=statement.replies),
        ),
        label=statement.label,
        gold=None,
        group_id=task.group_id,
        category=str(statement.claim["type"]),
        metadata={
            "statement": statement.text,
            "template": statement.template,
            "claim": dict(statement.claim),
            "scenario": {
                "candidates": list(spec.candidates),
                "facts": [asdict(fact) for fact in spec.facts],
                "conditions": [asdict(condition) for condition in spec.conditions],
                "rule": asdict(spec.rule),
                "evidence": [said.to_json() for said in evidence_of(statement)],
            },
        },
    )


def _chosen(text: str | None) -> tuple[StatementType, ...]:
    from interp.sources.unco.statements import TYPES

    if text is None:
        return TYPES
    names = [name.strip() for name in text.replace(",", "+").split("+") if name.strip()]
    for name in names:
        if name not in TYPES:
            raise SourceError(f"`unco` has no statement type {name!r}. {did_you_mean(name, TYPES)}")
    if not names:
        raise SourceError(f"No statement type is named; expected some of {', '.join(TYPES)}.")
    return tuple(kind for kind in TYPES if kind in names)
