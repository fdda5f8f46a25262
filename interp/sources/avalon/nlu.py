"""The `avalon-nlu` source: beliefs that people wrote down in real games, right or wrong.

Source: Stepputtis et al., Findings of EMNLP 2023, the Avalon-NLU dataset: six-player games with
Merlin, Percival, two servants, Morgana and the Assassin, played in a chat.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from interp.errors import SourceError
from interp.files import parse_json, sha256_file, sha256_json
from interp.items import Item
from interp.prompts import true_false_messages
from interp.registry import register_source
from interp.sources.avalon.rules import SEES, faction_of
from interp.sources.tabular import sample_groups

__all__ = ["AvalonNluSource"]

_ROLES: Final = {
    "merlin": "Merlin",
    "percival": "Percival",
    "servant": "Loyal Servant",
    "morgana": "Morgana",
    "assassin": "Assassin",
}
_SIDES: Final = {"good": "GOOD", "evil": "EVIL", "minion": "EVIL"}
_NO_BELIEF: Final = "undecided"

_RULES: Final = """\
You judge beliefs that players of Avalon held during a game with six players.
GOOD: Merlin, Percival and two Loyal Servants. EVIL: Morgana and the Assassin.
At night Merlin is shown the EVIL players, Percival is shown Merlin and Morgana without being told \
which is which, and Morgana and the Assassin are shown each other. Loyal Servants know only \
themselves. In each round a party is proposed, discussed and voted on; an approved party goes on \
the quest, where GOOD plays success and EVIL may play fail. Three successful quests win the game \
for GOOD unless the Assassin then names Merlin; three failed ones win it for EVIL. Players may \
lie in the chat."""


@register_source(
    "avalon-nlu",
    usage="avalon-nlu:DIR",
    summary="human Avalon games: is a player's belief about a seat right (role, faction)?",
    license="MIT (Avalon-NLU)",
)
class AvalonNluSource:
    """One item a belief that names a role, and one a belief that names or implies a side.

    Views: `pov` tells the believer's role and night, and the chat so far; `public` only the chat;
    `full` every role, so that the answer can be read off.
    """

    version = "1"
    license = "MIT"
    views = ("pov", "public", "full")

    def __init__(self, argument: str | None = None, field_map: Mapping[str, str] | None = None):
        if field_map:
            raise SourceError("`avalon-nlu` has no columns to map; leave --map out.")
        if not argument:
            raise SourceError("`avalon-nlu` needs a folder with games: avalon-nlu:DIR.")
        self.name = f"avalon-nlu:{argument}"
        folder = Path(argument).expanduser()
        self.files = tuple(sorted([*folder.glob("*.json"), *folder.glob("dataset/*.json")]))
        if not self.files:
            raise SourceError(
                f"{folder} holds no game; expected the dataset's folder with one JSON file a game."
            )

    def fingerprint(self) -> str:
        """Digest of version and games."""
        return sha256_json([self.version, [[file.name, sha256_file(file)] for file in self.files]])

    def items(self, *, view: str, n: int | None, seed: int) -> tuple[Item, ...]:
        """All beliefs in file order, or `n` items from whole games drawn with `seed`."""
        items = tuple(item for file in self.files for item in _game_items(file, view))
        return sample_groups(items, n, seed, self.name)


def _read(file: Path) -> dict[str, Any]:
    try:
        game = parse_json(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SourceError(f"{file} is not JSON ({error}); expected one game.") from error
    if not isinstance(game, dict) or not {"users", "messages"} <= set(game):
        raise SourceError(f"{file} is no game: expected an object with `users` and `messages`.")
    return game


def _field(record: Any, name: str, where: str) -> Any:
    if not isinstance(record, dict) or name not in record:
        raise SourceError(f"{where}: the field {name!r} is missing.")
    return record[name]


def _text(record: Any, name: str, where: str) -> str:
    value = _field(record, name, where)
    if not isinstance(value, str):
        raise SourceError(f"{where}.{name} is {value!r:.40}; expected text.")
    return value


def _whole(record: Any, name: str, where: str) -> int:
    value = _field(record, name, where)
    if isinstance(value, bool) or not isinstance(value, int):
        raise SourceError(f"{where}.{name} is {value!r:.40}; expected a whole number.")
    return value


def _records(game: Mapping[str, Any], name: str, file: Path) -> Mapping[str, Any]:
    records = game.get(name, {})
    if not isinstance(records, dict):
        raise SourceError(f"{file}, {name}: expected an object; got {records!r:.40}.")
    return records


def _game_items(file: Path, view: str) -> Iterator[Item]:
    game = _read(file)
    roles: dict[str, str] = {}
    for key, user in _records(game, "users", file).items():
        where = f"{file}, users.{key}"
        bare = _text(user, "role", where).split("-")[0]
        if bare not in _ROLES:
            raise SourceError(f"{where}.role is {bare!r}; expected {', '.join(_ROLES)}.")
        roles[_text(user, "name", where)] = _ROLES[bare]
    messages = _records(game, "messages", file)
    for key, belief in _records(game, "beliefs", file).items():
        where = f"{file}, beliefs.{key}"
        values = {name: _text(belief, name, where) for name in ("player", "about_player", "belief")}
        until = (_whole(belief, "quest", where), _whole(belief, "turn", where))
        for name in ("player", "about_player"):
            if values[name] not in roles:
                raise SourceError(
                    f"{where}.{name} is {values[name]!r}; the players are {', '.join(roles)}."
                )
        said = values["belief"]
        if said == _NO_BELIEF:
            continue
        if said not in {**_ROLES, **_SIDES}:
            raise SourceError(
                f"{where}.belief is {said!r}; expected {', '.join([*_ROLES, *_SIDES, _NO_BELIEF])}."
            )
        history = _chat(messages, until, file)
        for level in ("role", "faction"):
            if level == "faction" or said in _ROLES:
                yield _item(file.stem, key, values, until, level, roles, history, view)


def _chat(messages: Mapping[str, Any], until: tuple[int, int], file: Path) -> str:
    """All messages up to the round and turn in which the belief was written down.

    The data do not say when in a turn that was. Votes, results and the end of the game would give
    answers away, so those of the last turn, and those that nobody speaks after, are left out.
    """
    lines: list[tuple[bool, str]] = []
    for key, message in messages.items():
        where = f"{file}, messages.{key}"
        when = (_whole(message, "quest", where), _whole(message, "turn", where))
        player, text = _text(message, "player", where), _text(message, "msg", where)
        outcome = player == "system" and "proposed a party" not in text
        if when < until or (when == until and not outcome):
            lines.append((outcome, f"{player}: {text}"))
    while lines and lines[-1][0]:
        lines.pop()
    return "\n".join(line for _, line in lines)


def _item(
    game: str,
    number: str,
    belief: Mapping[str, str],
    when: tuple[int, int],
    level: str,
    roles: Mapping[str, str],
    history: str,
    view: str,
) -> Item:
    believer, about, said = belief["player"], belief["about_player"], belief["belief"]
    side = _SIDES[said] if said in _SIDES else faction_of(_ROLES[said])
    if level == "role":
        value, actual = _ROLES[said], roles[about]
    else:
        value, actual = side, faction_of(roles[about])
    shown = {"Loyal Servant": "a Loyal Servant", "Assassin": "the Assassin"}.get(value, value)
    statement = f"{about} is {shown}, as {believer} believes."
    return Item(
        item_id=f"{game}-{number}-{level}",
        messages=true_false_messages(
            statement,
            system=_RULES,
            setup=_setup(believer, roles, view),
            history=history or None,
            question="Is the following belief about the player right?",
        ),
        label=value == actual,
        gold=None,
        group_id=game,
        category=level,
        metadata={
            "statement": statement,
            "claim": {"op": level, "seat": about, level: value},
            "believer": believer,
            "roles": dict(roles),
            "quest": when[0],
            "turn": when[1],
        },
    )


def _setup(believer: str, roles: Mapping[str, str], view: str) -> str:
    players = f"Players: {', '.join(roles)}."
    if view == "public":
        return f"{players} The belief is {believer}'s."
    if view == "full":
        return f"{players} Roles: " + "; ".join(f"{n} is {r}" for n, r in roles.items()) + "."
    own = roles[believer]
    seen = [name for name, role in roles.items() if name != believer and role in SEES[own]]
    night = f"At night {believer} was shown {' and '.join(seen) or 'nobody'}."
    return f"{players} The belief is {believer}'s, whose role is {own}. {night}"
