"""The four abilities by name, and how many statements are drawn from each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from random import Random
from typing import Final

from interp.sources.avalon.intention import INTENTION
from interp.sources.avalon.perspective import PERSPECTIVE
from interp.sources.avalon.scenario import Scenario
from interp.sources.avalon.signaling import SIGNALING
from interp.sources.avalon.tacit import TACIT
from interp.sources.avalon.twins import Ability, Statement, draw_twins

__all__ = ["ABILITIES", "statements"]

ABILITIES: Final[Mapping[str, Ability]] = {
    "perspective_taking": PERSPECTIVE,
    "strategic_signaling": SIGNALING,
    "intention_attribution": INTENTION,
    "tacit_coordination": TACIT,
}


def statements(ability: str, count: int, rng: Random) -> Iterator[tuple[int, Scenario, Statement]]:
    """`count` statements of an ability with the number of their scenario; half of them true.

    Within a scenario the statements are shuffled, so that order does not tell the label.
    """
    left = count
    if not left:
        return
    for index, (scenario, twins) in enumerate(draw_twins(ABILITIES[ability], rng)):
        fitting = [statement for twin in twins for statement in twin][:left]
        rng.shuffle(fitting)
        for statement in fitting:
            yield index, scenario, statement
        left -= len(fitting)
        if not left:
            return
