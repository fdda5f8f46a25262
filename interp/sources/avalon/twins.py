"""Statements in twins: one true, one false, in the same words from the same scenario.

A template offers many fillings; the engine labels each, and one true and one false filling make a
twin. Where the two differ in names only, wording cannot give the label away, for names are dealt
afresh in every scenario. Where they differ in a word (`fail`, `success`), a ledger keeps every
wording as often true as false over the whole set.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from interp.sources.avalon.claims import Claim, View, holds, open_view
from interp.sources.avalon.prompt import history_text
from interp.sources.avalon.scenario import Quest, Scenario

__all__ = [
    "Ability",
    "Filling",
    "Kind",
    "Statement",
    "Twin",
    "card_blind_seats",
    "draw_twins",
    "from_some_seat",
    "make_twins",
    "over_all",
]

_MAX_TRIED: Final = 40


@dataclass(frozen=True, slots=True)
class Filling:
    """One way to fill a template.

    Attributes:
        names: slot to player name; names of different scenarios are unrelated.
        claim: the formal claim.
        pov: the seat from which the statement is judged; None for an observer of everything.
        words: slot to a word that is part of the wording.
    """

    names: Mapping[str, str]
    claim: Claim
    pov: str | None
    words: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Statement:
    """A labelled statement.

    Attributes:
        text: a full sentence.
        label: whether the claim holds, by the engine.
        kind: what is asked.
        template: kind and number of the template.
        wording: the text with the names taken out, but for which of them are the same.
        claim: the formal claim.
        pov: as in `Filling`.
    """

    text: str
    label: bool
    kind: str
    template: str
    wording: str
    claim: Claim
    pov: str | None


Twin = tuple[Statement, Statement]
"""A true and a false statement of one template and one scenario, in this order."""

Kind = Callable[[Random, View], list[Twin]]


@dataclass(frozen=True, slots=True)
class Ability:
    """Where an ability's statements come from.

    Attributes:
        deal: draws a scenario.
        kinds: builders of twins by name; each gives the twins it finds in a scenario, or none.
    """

    deal: Callable[[Random], Scenario]
    kinds: Mapping[str, Kind]


def card_blind_seats(scenario: Scenario) -> list[str]:
    """Seats whose own quest cards add nothing to what the engine counts as their evidence.

    These are all but the EVIL members of quests that showed fails (see `worlds`).
    """
    return [
        name
        for name in scenario.players
        if scenario.faction(name) == "GOOD"
        or not any(
            isinstance(event, Quest) and event.fails and name in event.team
            for event in scenario.history
        )
    ]


def make_twins(
    rng: Random, view: View, kind: str, templates: Sequence[str], fillings: Sequence[Filling]
) -> list[Twin]:
    """Twins of one template: a true and a false filling for every pair of wordings.

    Args:
        rng: picks the template and the fillings.
        view: the scenario that decides the labels.
        kind: what is asked.
        templates: format strings over the fillings' slots, one of which is used.
        fillings: candidates, tried in random order until both labels have been met.
    """
    number = rng.randrange(len(templates))
    found: dict[bool, dict[str, Statement]] = {True: {}, False: {}}
    for filling in rng.sample(fillings, min(len(fillings), _MAX_TRIED)):
        if not filling.words and found[True].keys() & found[False].keys():
            break
        label = holds(filling.claim, view)
        statement = Statement(
            templates[number].format_map({**filling.names, **filling.words}),
            label,
            kind,
            f"{kind}/{number}",
            templates[number].format_map({**_placeholders(filling.names), **filling.words}),
            filling.claim,
            filling.pov,
        )
        found[label].setdefault(statement.wording, statement)
    twins = [(true, false) for true in found[True].values() for false in found[False].values()]
    rng.shuffle(twins)
    # Twins that differ in names only come first: they need nothing from the ledger.
    return sorted(twins, key=lambda twin: twin[0].wording != twin[1].wording)


def _placeholders(names: Mapping[str, str]) -> dict[str, str]:
    """Slot to a number; slots with the same name share one, for a repeated name is a cue too."""
    order = list(dict.fromkeys(names.values()))
    return {slot: f"_{order.index(name)}" for slot, name in names.items()}


def from_some_seat(
    kind: str, templates: Sequence[str], fillings_of: Callable[[Random, View, str], list[Filling]]
) -> Kind:
    """A builder that looks for a seat from which the template is both true and false."""

    def build(rng: Random, view: View) -> list[Twin]:
        seats = card_blind_seats(view.scenario)
        for seat in rng.sample(seats, len(seats)):
            twins = make_twins(rng, view, kind, templates, fillings_of(rng, view, seat))
            if twins:
                return twins
        return []

    return build


def over_all(
    kind: str, templates: Sequence[str], fillings_of: Callable[[Random, View], list[Filling]]
) -> Kind:
    """A builder over fillings that do not share a seat."""

    def build(rng: Random, view: View) -> list[Twin]:
        return make_twins(rng, view, kind, templates, fillings_of(rng, view))

    return build


class _Ledger:
    """What has been taken: wordings by label, kinds, and prompts that must not come twice."""

    def __init__(self) -> None:
        self.balance: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.seen: set[tuple[str, str]] = set()

    def take(self, twin: Twin, history: str) -> bool:
        true, false = twin
        shift = Counter({true.wording: 1})
        shift[false.wording] -= 1
        keys = {(history, statement.text) for statement in twin}
        if len(keys) < 2 or keys & self.seen:
            return False
        if any(abs(self.balance[wording] + by) > 1 for wording, by in shift.items()):
            return False
        self.balance.update(shift)
        self.kinds[true.kind] += 1
        self.seen |= keys
        return True

    def give_back(self, twin: Twin) -> None:
        """Uncount a twin that is left out after all; its prompts stay taken."""
        true, false = twin
        self.balance[true.wording] -= 1
        self.balance[false.wording] += 1
        self.kinds[true.kind] -= 1


def draw_twins(ability: Ability, rng: Random) -> Iterator[tuple[Scenario, list[Twin]]]:
    """Scenarios with two or three twins each, of different kinds, rare kinds first; endless."""
    ledger = _Ledger()
    while True:
        scenario = ability.deal(rng)
        view, history = open_view(scenario), history_text(scenario)
        wanted = rng.choice((2, 2, 3))
        taken: list[Twin] = []
        order = sorted(ability.kinds, key=lambda kind: (ledger.kinds[kind], rng.random()))
        for kind in order:
            twins = ability.kinds[kind](rng, view)
            fitting = next((twin for twin in twins if ledger.take(twin, history)), None)
            if fitting is not None:
                taken.append(fitting)
            if len(taken) == wanted:
                break
        if len(taken) >= 2:
            yield scenario, taken
        else:
            # Otherwise the balance would hold over the drawn twins, and drift over the kept ones.
            for twin in taken:
                ledger.give_back(twin)
