"""Generated partner-state items: the gold follows from the order of the lines, and only from it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from interp import load_items, open_source
from interp.errors import SourceError
from interp.sources.partners import POOLS, believed, partner_items
from interp.sources.tomas import read_tomas, write_tomas
from interp.sources.tomas.schema import framework_of


def reread(prompt: str, question: str) -> str:
    """The gold, worked out again from the text alone: the last statement before the peer left."""
    peer = re.search(r"(?:does|do) (\w+) believe", question)
    assert peer is not None
    said = ""
    for line in prompt.splitlines():
        speaker, _, words = line.partition(": ")
        if speaker == peer[1] and "leaving" in words:
            break
        match = re.fullmatch(r"(?:Change: )?(.+? (?:is due on|is in|is stored on|is|takes place in|"
                             r"was cut from|will be|must be saved as) .+)\.", words)  # fmt: skip
        if match is not None:
            said = match[1]
    return f"{peer[1]} believes {said[0].lower()}{said[1:]}."


@pytest.mark.parametrize("pool", POOLS)
def test_every_gold_follows_from_the_text(pool: str) -> None:
    items = partner_items(200, seed=3, pool=pool)
    for item in items:
        assert reread(item.prompt, item.question) == item.gold
        assert item.supporting_quote in item.prompt
        claim = item.extra["claim"]
        assert believed(claim["events"], claim["peer"]) in item.gold
    assert len({item.id for item in items}) == 200


def test_twins_have_the_same_lines_and_other_golds() -> None:
    items = partner_items(40, seed=1)
    for before, after in zip(items[::2], items[1::2], strict=True):
        assert before.source == after.source
        assert before.question == after.question
        # No counting of words can tell them apart.
        assert Counter(before.prompt.splitlines()) == Counter(after.prompt.splitlines())
        assert before.prompt != after.prompt
        assert before.gold != after.gold


def test_the_pools_share_no_dialogue_and_the_seed_decides() -> None:
    train, held_out = partner_items(80), partner_items(80, pool="held-out")
    assert not {i.source for i in train} & {i.source for i in held_out}
    assert not {i.question for i in train} & {i.question for i in held_out}
    assert train == partner_items(80)
    assert train[:10] == partner_items(10)
    assert train != partner_items(80, seed=1)
    assert {framework_of(item.source) for item in train} == {"Generated"}


def test_it_is_a_source_and_a_tomas_file(tmp_path: Path) -> None:
    path = tmp_path / "train.jsonl"
    write_tomas(path, partner_items(12, seed=2))
    assert read_tomas(path) == partner_items(12, seed=2)
    written = load_items(open_source(f"tomas:{path}"))
    drawn = load_items(open_source("partners:train"), n=12, seed=2)
    for one, other in zip(written, drawn, strict=True):
        assert (one.messages, one.gold, one.group_id) == (
            other.messages,
            other.gold,
            other.group_id,
        )
    assert len(load_items(open_source("partners"))) == 24
    with pytest.raises(SourceError, match="Did you mean train"):
        open_source("partners:trian")
    with pytest.raises(SourceError, match="no columns to map"):
        open_source("partners", {"label": "x"})
    with pytest.raises(SourceError, match="n = 10000000"):
        load_items(open_source("partners"), n=10_000_000)
    with pytest.raises(ValueError, match="Nothing was said"):
        believed([("leave", "Ann"), ("say", "x")], "Ann")
