"""Beliefs from human games, on a game written here and on the dataset where it is at hand."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from interp import load_items, open_source
from interp.errors import SourceError

ROLES = ["assassin", "servant-1", "merlin", "percival", "morgana", "servant-2"]


def game():
    users = {
        str(n): {"name": f"player-{n}", "role": role, "index": n}
        for n, role in enumerate(ROLES, start=1)
    }
    messages = {
        str(n): {"player": f"player-{n}", "msg": f"word {n}", "mid": "x", "quest": 1, "turn": n}
        for n in range(1, 7)
    }
    beliefs = [
        ("player-4", "player-1", "assassin"),
        ("player-4", "player-2", "merlin"),
        ("player-3", "player-6", "servant"),
        ("player-3", "player-5", "minion"),
        ("player-2", "player-1", "good"),
        ("player-2", "player-1", "undecided"),
    ]
    return {
        "users": users,
        "messages": messages,
        "persuasion": {},
        "beliefs": {
            str(n): {"player": who, "about_player": whom, "belief": what, "quest": 1, "turn": n}
            for n, (who, whom, what) in enumerate(beliefs, start=1)
        },
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "abc.json").write_text(json.dumps(game()))
    bare = game()
    del bare["beliefs"]
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    return tmp_path


def draw(folder: Path, view: str | None = None):
    return load_items(open_source(f"avalon-nlu:{folder}"), view=view)


def test_beliefs_become_items_at_both_levels(folder: Path) -> None:
    labels = {item.item_id: item.label for item in draw(folder)}
    assert labels == {
        "abc-1-role": True,
        "abc-1-faction": True,
        "abc-2-role": False,
        "abc-2-faction": True,
        "abc-3-role": True,
        "abc-3-faction": True,
        "abc-4-faction": True,
        "abc-5-faction": False,
    }
    assert {item.group_id for item in draw(folder)} == {"abc"}


def test_nothing_is_told_from_after_the_belief(folder: Path) -> None:
    for item in draw(folder):
        text, turn = item.messages[-1].content, item.metadata["turn"]
        assert [f"word {n}\n" in text for n in range(1, 7)] == [n <= turn for n in range(1, 7)]


def test_results_of_the_same_turn_are_not_told(tmp_path: Path) -> None:
    played = game()
    for turn in (1, 2):
        for text in ("quest failed!", "player-1 proposed a party: player-1"):
            key = str(len(played["messages"]) + 1)
            message = {"player": "system", "msg": text, "mid": "x", "quest": 1, "turn": turn}
            played["messages"][key] = message
    (tmp_path / "abc.json").write_text(json.dumps(played))
    texts = {item.item_id: item.messages[-1].content for item in draw(tmp_path)}
    told = [text.count("quest failed!") for text in texts.values()]
    assert told == [0, 0, 1, 1, 2, 2, 2, 2]
    assert texts["abc-1-role"].count("proposed a party") == 1


def test_views(folder: Path) -> None:
    views = ("pov", "public", "full")
    by_view = {view: draw(folder, view)[0].messages[-1].content for view in views}
    night = "whose role is Percival. At night player-4 was shown player-3 and player-5."
    assert night in by_view["pov"]
    assert "Percival" not in by_view["public"]
    assert "player-1 is Assassin" in by_view["full"]
    assert "player-1 is Assassin" not in by_view["pov"]


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("users", "1", "role"), "jester", r"users\.1\.role is 'jester'"),
        (("beliefs", "2", "belief"), "oberon", r"beliefs\.2\.belief is 'oberon'"),
        (("beliefs", "2", "about_player"), "player-9", r"beliefs\.2\.about_player is 'player-9'"),
        (("beliefs", "2"), {}, r"beliefs\.2: the field 'player' is missing"),
        (("beliefs", "2", "player"), ["player-1"], r"beliefs\.2\.player is \['player-1'\]"),
        (("beliefs", "2", "quest"), "1", r"beliefs\.2\.quest is '1'; expected a whole number"),
        (("messages", "1", "turn"), None, r"messages\.1\.turn is None; expected a whole number"),
        (("messages",), [], r"messages: expected an object"),
        (("users",), 3, r"users: expected an object; got 3"),
    ],
)
def test_bad_games_are_refused_with_file_and_field(tmp_path: Path, path, value, words) -> None:
    broken = game()
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (tmp_path / "abc.json").write_text(json.dumps(broken))
    with pytest.raises(SourceError, match=rf"abc\.json, {words}"):
        draw(tmp_path)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="holds no game"):
        open_source(f"avalon-nlu:{tmp_path}")


def test_the_dataset_has_the_published_counts() -> None:
    data = Path(os.environ.get("INTERP_TEST_DATA", "data")) / "avalon_nlu"
    if not data.is_dir():
        pytest.skip(f"{data} is absent; set INTERP_TEST_DATA to a folder that holds avalon_nlu")
    items = draw(data)
    assert Counter(item.category for item in items) == {"role": 366, "faction": 463}
    assert sum(item.label for item in items if item.category == "role") == 189
    assert len({item.group_id for item in items}) == 19
    assert not any("good won for now" in item.messages[-1].content for item in items)
