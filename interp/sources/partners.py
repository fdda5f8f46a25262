"""The `partners` source: generated questions of who knows what, in the ToMAS schema.

An agent states a fact and later changes it; a peer leaves the channel before or after the change.
The question is what that peer believes now. Each dialogue comes as twins that hold the same lines
in another order, so the words of a prompt do not give its answer away: only the order does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, get_args

from interp.errors import SourceError, did_you_mean
from interp.files import sha256_json
from interp.items import Item
from interp.registry import register_source
from interp.sources.tomas.schema import TomasItem
from interp.sources.tomas.source import as_item

__all__ = ["POOLS", "PartnersSource", "Pool", "Topic", "believed", "partner_items"]

Pool = Literal["train", "held-out"]
POOLS: Final[tuple[Pool, ...]] = get_args(Pool)
"""The pools share no topic, so that no text of one is close to a text of the other."""

_DEFAULT_N: Final = 24
_AGENTS: Final = (
    *("Planner", "Coder", "Tester", "Reviewer", "Analyst", "Writer", "Editor", "Architect"),
    *("Operator", "Librarian"),
)


@dataclass(frozen=True, slots=True)
class Topic:
    """A fact that can change.

    Attributes:
        name: of the topic.
        subject: what the fact is about, with its article.
        verb: between subject and value.
        values: what the fact can be.
        question: with `{peer}`.
    """

    name: str
    subject: str
    verb: str
    values: tuple[str, ...]
    question: str


_TRAIN: Final = (
    Topic(
        "report",
        "the report",
        "is due on",
        ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday"),
        "On which day does {peer} believe the report is due?",
    ),
    Topic(
        "key",
        "the key",
        "is in",
        ("the red box", "the blue box", "the green bag", "the top drawer", "the white envelope"),
        "Where does {peer} believe the key is?",
    ),
    Topic(
        "password",
        "the password",
        "is",
        ("apple", "lemon", "cherry", "banana", "melon"),
        "What does {peer} believe the password is?",
    ),
    Topic(
        "data",
        "the data",
        "is stored on",
        ("server one", "server two", "the old laptop", "the new disk", "the shared drive"),
        "Where does {peer} believe the data is stored?",
    ),
)

_HELD_OUT: Final = (
    Topic(
        "meeting",
        "the meeting",
        "takes place in",
        ("room four", "room nine", "the main hall", "the garden", "the library"),
        "Where does {peer} believe the meeting takes place?",
    ),
    Topic(
        "branch",
        "the release branch",
        "was cut from",
        ("main", "develop", "the hotfix line", "last week's tag", "the staging line"),
        "From what does {peer} believe the release branch was cut?",
    ),
    Topic(
        "reviewer",
        "our contact",
        "will be",
        ("Maria", "Hassan", "Olga", "Kwame", "Ingrid"),
        "Who does {peer} believe our contact will be?",
    ),
    Topic(
        "format",
        "every table",
        "must be saved as",
        ("plain text", "a spreadsheet", "a picture", "a web page", "a slide"),
        "In what form does {peer} believe every table must be saved?",
    ),
)

_TOPICS: Final[Mapping[Pool, tuple[Topic, ...]]] = {"train": _TRAIN, "held-out": _HELD_OUT}


def believed(events: Sequence[tuple[str, str]], peer: str) -> str:
    """The last value that was said before a peer left.

    Args:
        events: (`say`, value) and (`leave`, agent), in order.
        peer: whose belief is wanted.

    Raises:
        ValueError: nothing was said before.
    """
    value: str | None = None
    for kind, what in events:
        if kind == "leave" and what == peer:
            break
        if kind == "say":
            value = what
    if value is None:
        raise ValueError(f"Nothing was said before {peer} left.")
    return value


def partner_items(n: int, *, seed: int = 0, pool: Pool = "train") -> tuple[TomasItem, ...]:
    """Draw items, twins beside each other, the topics by turns.

    Args:
        n: how many; an odd number cuts the last pair.
        seed: of the draws.
        pool: which topics.

    Returns:
        items whose `source` names the dialogue (twins share it), and whose `extra["claim"]` holds
        the events that the gold follows from.

    Raises:
        SourceError: more items are wanted than there are different dialogues.
    """
    topics = _TOPICS[pool]
    capacity = sum(2 * _n_dialogues(topic) for topic in topics)
    if n < 1 or n > capacity:
        raise SourceError(f"`partners:{pool}` can give 1 to {capacity:,} items; got n = {n}.")
    random = Random(f"partners/{PartnersSource.version}/{pool}/{seed}")
    drawn: set[tuple[str, ...]] = set()
    items: list[TomasItem] = []
    place = 0
    while len(items) < n:
        topic = topics[place % len(topics)]
        place += 1
        teller, peer, third = random.sample(_AGENTS, 3)
        first, second = random.sample(topic.values, 2)
        dialogue = (topic.name, teller, peer, third, first, second)
        if dialogue in drawn:
            continue
        drawn.add(dialogue)
        source = f"Generated/{topic.name}/{pool}/{seed}/{len(items) // 2:04d}"
        items += _twins(topic, teller, peer, third, first, second, source)
    return tuple(items[:n])


def _n_dialogues(topic: Topic) -> int:
    n_agents, n_values = len(_AGENTS), len(topic.values)
    return n_agents * (n_agents - 1) * (n_agents - 2) * n_values * (n_values - 1)


def _twins(
    topic: Topic, teller: str, peer: str, third: str, first: str, second: str, source: str
) -> list[TomasItem]:
    subject = topic.subject
    said = f"{teller}: {subject[0].upper()}{subject[1:]} {topic.verb} {first}."
    changed = f"{teller}: Change: {subject} {topic.verb} {second}."
    left = f"{peer}: Thanks. I am leaving now."
    noted = f"{third}: Noted."
    items = []
    for name, lines, events in (
        ("before", (said, left, changed), (("say", first), ("leave", peer), ("say", second))),
        ("after", (said, changed, left), (("say", first), ("say", second), ("leave", peer))),
    ):
        value = believed(events, peer)
        items.append(
            TomasItem(
                id=f"{source}-{name}",
                source=source,
                prompt="\n".join((*lines, noted)),
                question=topic.question.format(peer=peer),
                gold=f"{peer} believes {subject} {topic.verb} {value}.",
                supporting_quote=said if value == first else changed,
                extra={"claim": {"peer": peer, "events": [list(event) for event in events]}},
            )
        )
    return items


@register_source(
    "partners",
    usage="partners[:train|held-out]",
    summary="generated questions of what an absent peer believes (ToMAS schema); open-ended",
    license="MIT (written for this project)",
)
class PartnersSource:
    """Generated partner-state questions; category is the topic's pool, group the dialogue."""

    version = "1"
    license = "MIT"
    views = ("full",)

    def __init__(self, argument: str | None = None, field_map: Mapping[str, str] | None = None):
        if field_map:
            raise SourceError("`partners` has no columns to map; leave --map out.")
        pool = next((known for known in POOLS if known == (argument or "train")), None)
        if pool is None:
            raise SourceError(
                f"`partners` has no pool {argument!r}. {did_you_mean(str(argument), POOLS)}"
            )
        self.pool: Pool = pool
        self.name = f"partners:{pool}"

    def fingerprint(self) -> str:
        """Digest of version and pool; the items follow from these and the seed."""
        return sha256_json([self.version, self.pool])

    def items(self, *, view: str, n: int | None, seed: int) -> tuple[Item, ...]:  # noqa: ARG002 - one view
        """Draw `n` items."""
        return tuple(
            as_item(each) for each in partner_items(n or _DEFAULT_N, seed=seed, pool=self.pool)
        )
