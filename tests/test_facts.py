import re
from collections import Counter
from itertools import groupby

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_predict

from interp import load_items, open_source
from interp.errors import SourceError
from interp.sources.facts import TOPICS
from interp.sources.facts.tables import CAPITALS, ELEMENTS
from interp.sources.facts.topics import in_words

CAPITAL_OF = {country: capital for country, capital, _ in CAPITALS}
SYMBOL_OF = {element: symbol for element, symbol, _ in ELEMENTS}
NUMBER_OF = {in_words(number): number for number in range(1000)}


def holds(claim) -> bool:
    """The label that a formal claim has, worked out from tables and arithmetic."""
    match claim["relation"]:
        case "capital":
            return CAPITAL_OF[claim["subject"]] == claim["value"]
        case "symbol":
            return SYMBOL_OF[claim["subject"]] == claim["value"]
        case "larger":
            return claim["left"] > claim["right"]
        case "smaller":
            return claim["left"] < claim["right"]
        case "equals":
            left, operation, right = claim["subject"].split()
            sign = {"plus": 1, "minus": -1}[operation]
            return int(left) + sign * int(right) == int(claim["value"])
    raise AssertionError(claim)


def draw(spec: str, n: int, seed: int = 0):
    return load_items(open_source(spec), n=n, seed=seed)


def by_group(items):
    return [list(group) for _, group in groupby(items, key=lambda item: item.group_id)]


def test_tables_are_large_enough_and_one_to_one() -> None:
    assert len(CAPITALS) >= 150
    assert len(set(CAPITAL_OF.values())) == len(CAPITAL_OF) == len(CAPITALS)
    assert len(ELEMENTS) >= 90
    assert len(set(SYMBOL_OF.values())) == len(SYMBOL_OF) == len(ELEMENTS)


def test_tables_agree_with_facts_looked_up_elsewhere() -> None:
    known = {
        "Australia": "Canberra",
        "Kazakhstan": "Astana",
        "Nigeria": "Abuja",
        "Palau": "Ngerulmud",
    }
    assert known.items() <= CAPITAL_OF.items()
    assert [(s, n) for e, s, n in ELEMENTS if e in ("tungsten", "gold", "nobelium")] == [
        ("W", 74),
        ("Au", 79),
        ("No", 102),
    ]


def test_no_capital_repeats_its_country() -> None:
    # Otherwise the overlap of words would mark the true statement.
    for country, capital in CAPITAL_OF.items():
        words = set(re.findall(r"\w{4,}", country.casefold()))
        assert not any(word[:4] in capital.casefold() for word in words), (country, capital)


@pytest.mark.parametrize("topic", TOPICS)
@pytest.mark.parametrize("seed", [0, 7])
def test_every_label_follows_from_the_claim(topic: str, seed: int) -> None:
    items = draw(f"facts:{topic}", 200, seed)
    assert all(item.label is holds(item.metadata["claim"]) for item in items)
    assert sum(item.label for item in items) == 100


@pytest.mark.parametrize("topic", TOPICS)
def test_the_statement_says_what_the_claim_says(topic: str) -> None:
    for item in draw(f"facts:{topic}", 200):
        claim, text = item.metadata["claim"], item.statement
        if "left" in claim:
            left, relation, right = re.fullmatch(r"(.+) is (\w+) than (.+)\.", text).groups()
            numbers = [NUMBER_OF.get(side.lower()) or int(side) for side in (left, right)]
            assert [numbers[0], relation, numbers[1]] == [
                claim["left"],
                claim["relation"],
                claim["right"],
            ]
        else:
            assert claim["subject"].casefold() in text.casefold()
            assert claim["value"] in text
        assert item.messages[-1].content.count(text) == 1


@pytest.mark.parametrize("topic", TOPICS)
def test_words_of_a_group_occur_equally_often_in_true_and_false(topic: str) -> None:
    for group in by_group(draw(f"facts:{topic}", 200)):
        words = {
            label: Counter(
                word
                for item in group
                if item.label is label
                for word in re.findall(r"[\w'-]+", item.statement.casefold())
            )
            for label in (True, False)
        }
        assert len(group) == 4
        assert words[True] == words[False]


def test_wording_alone_gives_nothing_away_but_would_if_unpaired() -> None:
    items = draw("facts:capitals", 200)

    def accuracy(chosen) -> float:
        features = CountVectorizer(ngram_range=(1, 2)).fit_transform([i.statement for i in chosen])
        labels = np.array([item.label for item in chosen])
        groups = [item.group_id for item in chosen]
        said = cross_val_predict(
            LogisticRegression(), features, labels, groups=groups, cv=GroupKFold(5)
        )
        return float((said == labels).mean())

    assert accuracy(items) <= 0.55

    # The control: the same baseline finds a cue that is there.
    leaky = [
        type(item)(
            item.item_id,
            item.messages,
            item.label,
            None,
            item.group_id,
            item.category,
            {"statement": item.statement + (" indeed" if item.label else "")},
        )
        for item in items
    ]
    assert accuracy(leaky) > 0.95


@pytest.mark.parametrize("topic", TOPICS)
def test_no_fact_crosses_groups(topic: str) -> None:
    seen: set[str] = set()
    for group in by_group(draw(f"facts:{topic}", 200)):
        claims = [item.metadata["claim"] for item in group]
        if "left" in claims[0]:
            facts = {str(sorted((claims[0]["left"], claims[0]["right"])))}
        else:
            facts = {claim["subject"] for claim in claims}
            if topic in ("capitals", "elements"):
                facts |= {claim["value"] for claim in claims}
        assert not facts & seen
        seen |= facts


@given(n=st.integers(1, 320), seed=st.integers(0, 2**40))
def test_any_n_and_seed_give_n_distinct_items(n: int, seed: int) -> None:
    items = draw("facts", n, seed)
    assert len(items) == n
    assert len({item.item_id for item in items}) == n
    assert len({item.statement for item in items}) == n
    sizes = Counter(Counter(item.category for item in items).values())
    assert max(sizes) - min(sizes) <= 4


def test_the_seed_decides_the_items() -> None:
    assert draw("facts", 40, 3) == draw("facts", 40, 3)
    assert draw("facts", 40, 3) != draw("facts", 40, 4)


@pytest.mark.parametrize("topic", ["capitals", "elements", "arithmetic"])
def test_a_topic_gives_its_whole_capacity_and_no_more(topic: str) -> None:
    capacity = TOPICS[topic].capacity
    assert len({item.statement for item in draw(f"facts:{topic}", capacity)}) == capacity
    with pytest.raises(SourceError, match=rf"can give {capacity} statements.*n = {capacity + 1}"):
        draw(f"facts:{topic}", capacity + 1)


def test_four_hundred_capitals_are_refused_with_a_way_out() -> None:
    with pytest.raises(SourceError, match=r"320 statements.*at most 320, or add topics"):
        draw("facts:capitals", 400)


def test_topics_are_checked() -> None:
    with pytest.raises(SourceError, match="Did you mean capitals"):
        open_source("facts:capital")


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (10, "ten"),
        (21, "twenty-one"),
        (80, "eighty"),
        (100, "one hundred"),
        (342, "three hundred forty-two"),
        (915, "nine hundred fifteen"),
    ],
)
def test_numbers_in_words(number: int, words: str) -> None:
    assert in_words(number) == words
    assert len(NUMBER_OF) == 1000
