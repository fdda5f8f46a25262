"""Items and answer files as arrays, with every mismatch named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from interp.behaviour.roster import ModelEntry
from interp.behaviour.sidecars import read_sidecar
from interp.behaviour.taxonomy import ABILITIES, RULES
from interp.errors import ItemError, ResultError, did_you_mean
from interp.grading import Answer, read_answers
from interp.items import Item, read_items
from interp.vocabulary import ANSWER_CONDITIONS, AnswerCondition

__all__ = ["AnswerSet", "ItemTable", "Readout", "read_answer_sets", "read_item_table"]

Readout = Literal["auto", "forced", "greedy"]
"""Which verdicts of the answer files count; `auto`: greedy where all files have them."""

Booleans = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class ItemTable:
    """What a report needs of the items.

    Attributes:
        item_id: (n_items,).
        label: (n_items,) of bool.
        group_id: (n_items,), the scenario; intervals and permutations move whole groups.
        category: (n_items,), the ability.
    """

    item_id: tuple[str, ...]
    label: Booleans
    group_id: tuple[str, ...]
    category: tuple[str, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """The paper's abilities in its order, else order of first occurrence; the rules last."""
        found = dict.fromkeys(self.category)
        order: list[str] = [name for name in ABILITIES if name in found]
        order += [name for name in found if name not in order and name != RULES]
        return (*order, RULES) if RULES in found else tuple(order)

    @property
    def abilities(self) -> tuple[str, ...]:
        """The categories that an average is taken over: all but the rules exam."""
        return tuple(name for name in self.categories if name != RULES)

    def mask(self, category: str) -> Booleans:
        """(n_items,) whether an item is of the category."""
        return np.array([name == category for name in self.category])


@dataclass(frozen=True, slots=True)
class AnswerSet:
    """The verdicts of one model under one condition, along the items of an `ItemTable`.

    Attributes:
        entry: model and condition.
        readout: how the verdicts were read.
        model_ids: ids in the answer files' manifests, to match a probe's.
        present: (n_items,) whether the item was asked.
        answered: (n_items,) whether there is a verdict.
        verdict: (n_items,) the verdict; False where there is none.
        correct: (n_items,) whether the verdict is the label; no verdict is not correct.
        n_tokens: (n_items,) generated tokens.
    """

    entry: ModelEntry
    readout: AnswerCondition
    model_ids: frozenset[str]
    present: Booleans
    answered: Booleans
    verdict: Booleans
    correct: Booleans
    n_tokens: NDArray[np.int64]


def read_item_table(paths: Sequence[str | Path]) -> ItemTable:
    """Read one or several item files.

    An item may stand in several files (another view, or with the answer injected) if label, group
    and category agree.

    Raises:
        ItemError: an item is not True/False, contradicts another file, or has a category that is
            no ability while others are.
    """
    found: dict[str, Item] = {}
    for path in map(Path, paths):
        for number, item in enumerate(read_items(path), start=1):
            where = f"{path}, item {number} ({item.item_id!r})"
            if item.label is None:
                raise ItemError(f"{where}, field 'label': none; a report needs True/False items.")
            known = found.setdefault(item.item_id, item)
            for name in ("label", "group_id", "category"):
                if getattr(known, name) != getattr(item, name):
                    raise ItemError(
                        f"{where}, field '{name}': {getattr(item, name)!r}, but another file says "
                        f"{getattr(known, name)!r} for the same id."
                    )
        _require_known_abilities(path, found)
    if not found:
        raise ItemError(f"{', '.join(map(str, paths))}: no items. Make some with `interp items`.")
    items = tuple(found.values())
    return ItemTable(
        item_id=tuple(item.item_id for item in items),
        label=np.array([item.label for item in items], dtype=bool),
        group_id=tuple(item.group_id for item in items),
        category=tuple(item.category for item in items),
    )


def _require_known_abilities(path: Path, found: Mapping[str, Item]) -> None:
    # Other benchmarks have categories of their own; a stray one among the four is a mistake.
    if not any(item.category in ABILITIES for item in found.values()):
        return
    known = (*ABILITIES, RULES)
    for item in found.values():
        if item.category not in known:
            raise ItemError(
                f"{path}, item {item.item_id!r}, field 'category': unknown ability "
                f"{item.category!r}. {did_you_mean(item.category, known)}"
            )


def read_answer_sets(
    paths: Sequence[str | Path],
    items: ItemTable,
    roster: Sequence[ModelEntry] | None = None,
    readout: Readout = "auto",
) -> tuple[AnswerSet, ...]:
    """Read answer files and join those of the same model and condition.

    Args:
        paths: answer files; empty takes every file of the roster.
        items: what was asked.
        roster: the models table; without it the model's id and the condition are read from the
            manifest beside each file (`base` where it says nothing).
        readout: which verdicts count.

    Raises:
        ResultError: a file does not fit the items or the roster; file, line and field are named.
    """
    entries = _entries([Path(path) for path in paths], roster)
    contents = {path: read_answers(path) for path in entries}
    for path, answers in contents.items():
        if not answers:
            raise ResultError(f"{path} holds no answers. Make some with `interp answer`.")
    chosen = _choose_readout(contents, readout)
    index = {item_id: i for i, item_id in enumerate(items.item_id)}
    sets: dict[tuple[str, str], AnswerSet] = {}
    for path, entry in entries.items():
        new = _answer_set(path, contents[path], entry, items, index, chosen)
        key = (entry.model, entry.condition)
        sets[key] = _join(sets[key], new, items, path) if key in sets else new
    for found in sets.values():
        _require_whole_categories(found, items)
    return tuple(sets.values())


def _entries(paths: Sequence[Path], roster: Sequence[ModelEntry] | None) -> dict[Path, ModelEntry]:
    if roster is None:
        found = {path: read_sidecar(path) for path in paths}
        return {
            path: ModelEntry(side.model_id or path.stem, condition=side.condition or "base")
            for path, side in found.items()
        }
    by_file = {entry.file.resolve(): entry for entry in roster if entry.file is not None}
    wanted = list(paths) or [entry.file for entry in roster if entry.file is not None]
    for path in wanted:
        if path.resolve() not in by_file:
            raise ResultError(
                f"{path} is in no row of the models table, field 'file'. "
                f"{did_you_mean(path.name, [known.name for known in by_file])}"
            )
    return {path: by_file[path.resolve()] for path in wanted}


def _choose_readout(contents: Mapping[Path, Sequence[Answer]], readout: Readout) -> AnswerCondition:
    """One readout for all files: mixing them would compare formats, not models."""
    names: tuple[AnswerCondition, ...] = ("greedy", "forced") if readout == "auto" else (readout,)
    for name in names:
        lacking = [p for p, a in contents.items() if not any(e.condition == name for e in a)]
        if not lacking:
            return name
    raise ResultError(
        f"{lacking[0]}, field 'condition': no answers read as {name!r}, which the other files have "
        f"or --readout asks for. Ask for it with `interp answer --condition`, or choose another "
        f"--readout."
    )


def _answer_set(
    path: Path,
    answers: Sequence[Answer],
    entry: ModelEntry,
    items: ItemTable,
    index: Mapping[str, int],
    readout: AnswerCondition,
) -> AnswerSet:
    n = len(items.item_id)
    present, answered = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
    verdict, n_tokens = np.zeros(n, dtype=bool), np.zeros(n, dtype=np.int64)
    for number, answer in enumerate(answers, start=1):
        where = f"{path}, line {number}"
        _require_fields(where, answer)
        if answer.item_id not in index:
            raise ResultError(
                f"{where}, field 'item_id': {answer.item_id!r} is none of the {n} items. Give the "
                f"item file that was asked (--items)."
            )
        i = index[answer.item_id]
        if answer.correct != (answer.verdict is not None and answer.verdict == items.label[i]):
            raise ResultError(
                f"{where}, field 'correct': {answer.correct} does not follow from the verdict "
                f"{answer.verdict} and the label {bool(items.label[i])} of {answer.item_id!r}: "
                f"these are not the items that were asked."
            )
        if answer.condition != readout:
            continue
        if present[i]:
            raise ResultError(f"{where}, field 'item_id': {answer.item_id!r} is answered twice.")
        present[i], answered[i] = True, answer.verdict is not None
        verdict[i], n_tokens[i] = bool(answer.verdict), answer.n_tokens
    model_id = read_sidecar(path).model_id
    return AnswerSet(
        entry=entry,
        readout=readout,
        model_ids=frozenset({model_id} if model_id else ()),
        present=present,
        answered=answered,
        verdict=verdict,
        correct=answered & (verdict == items.label),
        n_tokens=n_tokens,
    )


def _require_fields(where: str, answer: Answer) -> None:
    def wrong(name: str, expected: str) -> ResultError:
        return ResultError(
            f"{where}, field '{name}': got {getattr(answer, name)!r}; expected {expected}."
        )

    if not isinstance(answer.item_id, str):
        raise wrong("item_id", "a string")
    if answer.condition not in ANSWER_CONDITIONS:
        raise wrong("condition", " or ".join(ANSWER_CONDITIONS))
    if answer.verdict is not None and not isinstance(answer.verdict, bool):
        raise wrong("verdict", "true, false or null")
    if not isinstance(answer.correct, bool):
        raise wrong("correct", "true or false")
    if answer.answered is not (answer.verdict is not None):
        raise wrong("answered", "whether there is a verdict")
    if isinstance(answer.n_tokens, bool) or not isinstance(answer.n_tokens, int):
        raise wrong("n_tokens", "a whole number")
    if answer.n_tokens < 0:
        raise wrong("n_tokens", "at least 0")


def _join(first: AnswerSet, second: AnswerSet, items: ItemTable, path: Path) -> AnswerSet:
    twice = np.flatnonzero(first.present & second.present)
    if twice.size:
        raise ResultError(
            f"{path}, field 'item_id': {items.item_id[twice[0]]!r} is answered in another file of "
            f"{first.entry.model!r} under the condition {first.entry.condition!r} too. Tell the "
            f"files apart in a models table (--models)."
        )
    return replace(
        first,
        model_ids=first.model_ids | second.model_ids,
        present=first.present | second.present,
        answered=first.answered | second.answered,
        verdict=first.verdict | second.verdict,
        correct=first.correct | second.correct,
        n_tokens=first.n_tokens + second.n_tokens,
    )


def _require_whole_categories(found: AnswerSet, items: ItemTable) -> None:
    """Models are compared on the same items: a category is answered whole or not at all."""
    for category in items.categories:
        mask = items.mask(category)
        missing = np.flatnonzero(mask & ~found.present)
        if missing.size and (mask & found.present).any():
            raise ResultError(
                f"{found.entry.model!r}, condition {found.entry.condition!r}: {missing.size} of "
                f"{mask.sum()} {category} items have no line in its answer files (first: "
                f"{items.item_id[missing[0]]!r}). Finish `interp answer`, or give the items that "
                f"were asked."
            )
