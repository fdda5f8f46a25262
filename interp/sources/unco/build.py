"""Task groups by the thousand, with a ledger of what each stage refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Final

from interp.errors import SourceError
from interp.sources.unco.author import Author, cells, write_specification
from interp.sources.unco.defects import Defect, draw_defects, settings
from interp.sources.unco.instantiate import Instance, instantiate
from interp.sources.unco.render import render_prompt
from interp.sources.unco.replies import recovery_violation
from interp.sources.unco.spec import Specification
from interp.sources.unco.tasks import Task
from interp.sources.unco.validate import violations

__all__ = ["VERSION", "Ledger", "Renderer", "build_groups"]

VERSION: Final = "1"
"""Raise it whenever a seed gives other tasks."""
_ATTEMPTS: Final = 500

Renderer = Callable[[Instance, Random], str | None]
"""Words for an instance; None where its own validation refuses them."""


@dataclass(slots=True)
class Ledger:
    """How many candidate groups each stage refused.

    Attributes:
        candidates: groups begun.
        retained: groups kept.
        rejected: stage (`specification`, `logic`, `defects`, `recovery`, `rendering`) to count.
        reasons: code of a broken structural rule to count.
    """

    candidates: int = 0
    retained: int = 0
    rejected: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)


def build_groups(
    n: int,
    seed: int,
    *,
    ledger: Ledger | None = None,
    author: Author = write_specification,
    renderer: Renderer | None = None,
) -> Iterator[tuple[Task, ...]]:
    """Yield `n` groups of five tasks, one a setting.

    Domains and operations take turns: every run of 112 groups holds each pair once, in an order
    that the seed decides. A group depends on the seed and its number alone, so that a longer
    build begins with a shorter one.

    Args:
        n: number of groups.
        seed: every choice follows from it.
        ledger: filled with what was refused on the way.
        author: writes the specifications; by default the program.
        renderer: words the task; None takes the program's own templates.

    Raises:
        SourceError: a pair gave no sound group in many attempts (with a renderer that refuses).
    """
    book = Ledger() if ledger is None else ledger
    for index in range(n):
        pairs = cells()
        turn, place = divmod(index, len(pairs))
        order = Random(f"unco/{VERSION}/{seed}/order/{turn}").sample(pairs, len(pairs))
        domain, operation = order[place]
        group_id = f"unco-{seed}-{index:05d}"
        for attempt in range(_ATTEMPTS):
            rng = Random(f"unco/{VERSION}/{seed}/{index}/{attempt}")
            book.candidates += 1
            made = _attempt(author(rng, domain, operation), rng, book, renderer)
            if made is None:
                continue
            instance, defects, prompt = made
            tasks = tuple(
                Task(group_id, setting, instance, chosen, prompt)
                for setting, chosen in settings(defects).items()
            )
            if any(recovery_violation(task) for task in tasks):
                book.rejected["recovery"] += 1
                continue
            book.retained += 1
            yield tasks
            break
        else:
            raise SourceError(
                f"No sound task of {domain.key} with {operation} in {_ATTEMPTS} attempts; refused "
                f"were {dict(book.rejected)}. Use another seed or renderer."
            )


def _attempt(
    spec: Specification | None, rng: Random, book: Ledger, renderer: Renderer | None
) -> tuple[Instance, tuple[Defect, Defect, Defect], str] | None:
    if spec is None:
        book.rejected["specification"] += 1
        return None
    broken = violations(spec)
    if broken:
        book.rejected["specification"] += 1
        book.reasons.update(violation.code for violation in broken)
        return None
    instance = instantiate(spec, rng)
    if instance is None:
        book.rejected["logic"] += 1
        return None
    defects = draw_defects(instance, rng)
    if defects is None:
        book.rejected["defects"] += 1
        return None
    prompt = render_prompt(spec, rng) if renderer is None else renderer(instance, rng)
    if prompt is None:
        book.rejected["rendering"] += 1
        return None
    return instance, defects, prompt
