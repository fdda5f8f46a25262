"""The `avalon` source: generated Theory-of-Mind statements, and the rules exam."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Final

from interp.errors import SourceError, did_you_mean
from interp.files import sha256_json
from interp.items import Item
from interp.prompts import true_false_messages
from interp.registry import register_source, split_options

if TYPE_CHECKING:
    from interp.sources.avalon.scenario import Scenario
    from interp.sources.avalon.twins import Statement

__all__ = ["PROPORTIONS", "AvalonSource", "shares"]

PROPORTIONS: Final = {
    "perspective_taking": 68,
    "strategic_signaling": 140,
    "intention_attribution": 60,
    "tacit_coordination": 140,
}
"""Items of each ability in the paper's set of 408 (appendix on statistics)."""

_OPTIONS: Final = ("abilities", "inject-truth", "rules-exam")


def shares(n: int, abilities: Sequence[str]) -> dict[str, int]:
    """`n` split over abilities in the paper's proportions, by largest remainder."""
    total = sum(PROPORTIONS[name] for name in abilities)
    exact = {name: n * PROPORTIONS[name] / total for name in abilities}
    result = {name: int(value) for name, value in exact.items()}
    by_rest = sorted(abilities, key=lambda name: (result[name] - exact[name], name))
    for name in by_rest[: n - sum(result.values())]:
        result[name] += 1
    return result


@register_source(
    "avalon",
    usage="avalon[:abilities=A+B,inject-truth,rules-exam]",
    summary=f"generated Avalon Theory-of-Mind statements ({', '.join(PROPORTIONS)}); any n, seed",
    license="MIT (generated; rules after Avalon-ToM-Bench)",
    options=_OPTIONS,
)
class AvalonSource:
    """Statements in twins, one true and one false, labelled by a possible-worlds engine."""

    version = "1"
    license = "MIT"
    views = ("full", "pov", "no-facts")

    def __init__(self, argument: str | None = None, field_map: Mapping[str, str] | None = None):
        if field_map:
            raise SourceError("`avalon` has no columns to map; leave --map out.")
        rest, options = split_options(argument, _OPTIONS)
        if rest:
            raise SourceError(
                f"`avalon` does not take {rest!r}. {did_you_mean(rest, _OPTIONS)} "
                f"Options are separated by commas: avalon:inject-truth,abilities=A+B."
            )
        self.inject_truth = "inject-truth" in options
        self.rules_exam = "rules-exam" in options
        named = options.get("abilities")
        self.abilities = tuple(PROPORTIONS) if named is None else _abilities(named)
        if self.rules_exam and (named is not None or self.inject_truth):
            raise SourceError("The rules exam has no abilities and injects nothing: give it alone.")
        self.name = f"avalon:{argument}" if argument else "avalon"

    def fingerprint(self) -> str:
        """Digest of version and options; the items follow from these, n and the seed."""
        return sha256_json([self.version, list(self.abilities), self.inject_truth, self.rules_exam])

    def items(self, *, view: str, n: int | None, seed: int) -> tuple[Item, ...]:
        """Whole twins from one scenario after another; the last twin is cut where n is odd.

        Raises:
            SourceError: more questions than the rules exam has.
        """
        if self.rules_exam:
            return tuple(_exam(n, seed))
        counts = shares(sum(PROPORTIONS.values()) if n is None else n, self.abilities)
        return tuple(
            item
            for ability, count in counts.items()
            for item in self._ability_items(ability, count, view, seed)
        )

    def _ability_items(self, ability: str, count: int, view: str, seed: int) -> Iterator[Item]:
        from interp.sources.avalon.abilities import statements

        within: Counter[str] = Counter()
        rng = Random(f"avalon/{self.version}/{ability}/{seed}")
        for index, scenario, statement in statements(ability, count, rng):
            group_id = f"{ability}-{seed}-{index:05d}"
            item_id = f"{group_id}-{within[group_id]}"
            within[group_id] += 1
            yield _item(item_id, group_id, ability, scenario, statement, view, self.inject_truth)


def _abilities(text: str) -> tuple[str, ...]:
    names = [name.strip() for name in text.replace(",", "+").split("+") if name.strip()]
    for name in names:
        if name not in PROPORTIONS:
            raise SourceError(
                f"`avalon` has no ability {name!r}. {did_you_mean(name, PROPORTIONS)}"
            )
    if not names:
        raise SourceError(f"No ability is named; expected some of {', '.join(PROPORTIONS)}.")
    return tuple(name for name in PROPORTIONS if name in names)


def _item(
    item_id: str,
    group_id: str,
    ability: str,
    scenario: Scenario,
    statement: Statement,
    view: str,
    inject_truth: bool,
) -> Item:
    from interp.sources.avalon.prompt import QUESTION, history_text, setup_text
    from interp.sources.avalon.ruleset import RULESET
    from interp.sources.avalon.scenario import scenario_to_json

    seen = scenario.from_seat(statement.pov)
    return Item(
        item_id=item_id,
        messages=true_false_messages(
            statement.text,
            system=RULESET,
            setup=None if view == "no-facts" else setup_text(seen, complete=view == "full"),
            history=history_text(seen) or None,
            question=QUESTION,
            ground_truth=statement.label if inject_truth else None,
        ),
        label=statement.label,
        gold=None,
        group_id=group_id,
        category=ability,
        metadata={
            "statement": statement.text,
            "template": statement.template,
            "claim": dict(statement.claim),
            "scenario": scenario_to_json(seen),
        },
    )


def _exam(n: int | None, seed: int) -> Iterator[Item]:
    from interp.sources.avalon.exam import EXAM_SIZE, exam_questions
    from interp.sources.avalon.ruleset import RULESET

    questions = exam_questions(Random(f"avalon/rules-exam/{seed}"))
    count = EXAM_SIZE if n is None else n
    if count > len(questions):
        raise SourceError(
            f"The rules exam has {len(questions)} questions; got n = {count}. Ask for at most that."
        )
    for number, (text, claim, label) in enumerate(questions[:count]):
        yield Item(
            item_id=f"rules-{seed}-{number:03d}",
            messages=true_false_messages(text, system=RULESET),
            label=label,
            gold=None,
            group_id=f"rules-{seed}-{number // 2:03d}",
            category="rules",
            metadata={
                "statement": text,
                "template": str(claim["rule"]),
                "claim": dict(claim),
                "scenario": None,
            },
        )
