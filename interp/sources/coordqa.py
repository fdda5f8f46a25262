"""The `coordqa` source: Theory-of-Mind questions of LLM-Coordination, from its CSV files."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from interp.errors import SourceError, did_you_mean
from interp.files import sha256_file, sha256_json
from interp.items import Item
from interp.registry import register_source
from interp.sources.tabular import sample_groups
from interp.sources.tomas.schema import TomasItem
from interp.sources.tomas.source import as_item

__all__ = ["CoordQaSource", "read_coordqa"]

_GAME: Final = "Game Description"
_STATE: Final = "State Description"
_QUESTION: Final = "TOM Question"
_ORDINAL: Final = "TOM Answer Ordinal"
_ANSWER: Final = "TOM Answer"
_COLUMNS: Final = (_GAME, _STATE, _QUESTION, _ORDINAL, _ANSWER)
_GAME_OF_FILE: Final = {"Overcooked": "Overcooked", "Hanabi": "Hanabi"}
_OPTION: Final = re.compile(r"^\s*([A-Z])\.\s*(.+?)\s*$", re.M)
_LICENSE: Final = "MIT (LLM-Coordination)"


def _game(path: Path, row: Mapping[str, str], where: str) -> str:
    """The column `Game` where there is one, else the start of the file's name."""
    named = row.get("Game", "").strip()
    if named:
        return named
    for start, game in _GAME_OF_FILE.items():
        if path.name.startswith(start) and "Game" not in row:
            return game
    raise SourceError(
        f"{where}: no game. Expected a column `Game`, or a file name that starts with "
        f"{' or '.join(_GAME_OF_FILE)}."
    )


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Numbered rows (the header is row 1), by exact column name.

    Names are compared by case: the Hanabi file has `TOM Question` and, with another text,
    `TOM QUestion`. Columns that are not asked for may be unnamed or repeated.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as handle:
            reader = csv.reader(handle, strict=True)
            header = next(reader, [])
            for name in _COLUMNS:
                if header.count(name) != 1:
                    what = "no column" if name not in header else "more than one column"
                    others = [other for other in header if other.strip() and other != name]
                    hint = did_you_mean(name, others) if others else "It is empty."
                    raise SourceError(f"{path}, row 1: {what} {name!r}. {hint}")
            wanted = [(i, name) for i, name in enumerate(header) if name in (*_COLUMNS, "Game")]
            for number, values in enumerate(reader, start=2):
                if not any(value.strip() for value in values):
                    continue
                if len(values) != len(header):
                    raise SourceError(
                        f"{path}, row {number}: {len(values)} values where the header has "
                        f"{len(header)} columns."
                    )
                yield number, {name: values[i] for i, name in wanted}
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path} cannot be read as a UTF-8 CSV ({error}).") from error


def _accepted(question: str, ordinals: str) -> tuple[list[str], list[str]]:
    """Option letters of the answer, and the texts of those that the question lists."""
    letters = [part.strip() for part in ordinals.split(",") if part.strip()]
    options = dict(_OPTION.findall(question))
    return letters, [options[letter] for letter in letters if letter in options]


def read_coordqa(folder: Path) -> tuple[TomasItem, ...]:
    """All rows with a Theory-of-Mind question, files by name, rows in file order, as ToMAS items.

    `prompt` is the game's and the state's description, `gold` the answer as it was published: all
    options in one text where there are several. Their letters and texts are in `extra`.

    Raises:
        SourceError: no folder, no CSV in it, a column is missing, or a row has a question without
            an answer or the other way round.
    """
    if not folder.is_dir():
        raise SourceError(
            f"There is no folder {folder}; expected the CSV files of LLM-Coordination."
        )
    paths = sorted(folder.glob("*.csv"), key=lambda path: path.name)
    if not paths:
        raise SourceError(f"{folder} holds no CSV file; expected those of LLM-Coordination.")
    found = []
    for path in paths:
        for number, row in _rows(path):
            where = f"{path}, row {number}"
            if not row[_QUESTION].strip() and not row[_ANSWER].strip():
                continue
            for name in (_GAME, _STATE, _QUESTION, _ANSWER):
                if not row[name].strip():
                    raise SourceError(f"{where}, column {name!r}: empty.")
            game = _game(path, row, where)
            letters, options = _accepted(row[_QUESTION], row[_ORDINAL])
            found.append(
                TomasItem(
                    id=f"{path.stem}-{number:03d}",
                    source=f"{game}/{path.name}/{number}",
                    prompt=f"{row[_GAME].strip()}\n\n{row[_STATE].strip()}",
                    question=row[_QUESTION].strip(),
                    gold=" ".join(row[_ANSWER].split()),
                    supporting_quote="",
                    extra={"game": game, "ordinals": letters, "options": options},
                    line=number,
                )
            )
    return tuple(found)


def _groups(items: Sequence[TomasItem]) -> dict[str, str]:
    """Item id to group: rows with one state belong together, named after the first of them."""
    first: dict[str, str] = {}
    return {item.id: first.setdefault(" ".join(item.prompt.split()), item.source) for item in items}


@register_source(
    "coordqa",
    usage="coordqa:DIR",
    summary="Theory-of-Mind questions of LLM-Coordination (its CSV files); open-ended",
    license=_LICENSE,
)
class CoordQaSource:
    """LLM-Coordination CoordQA, Theory-of-Mind columns; category is the game."""

    version = "1"
    license = _LICENSE
    views = ("full",)

    def __init__(self, argument: str | None = None, field_map: Mapping[str, str] | None = None):
        if not argument:
            raise SourceError("`coordqa` needs the folder of its CSV files: coordqa:DIR.")
        if field_map:
            raise SourceError("`coordqa` has fixed columns and none to map; leave --map out.")
        self.folder = Path(argument).expanduser()
        self.name = f"coordqa:{argument}"
        self._read = read_coordqa(self.folder)

    def fingerprint(self) -> str:
        """Digest of version and files."""
        paths = sorted(self.folder.glob("*.csv"), key=lambda path: path.name)
        return sha256_json([self.version, [[path.name, sha256_file(path)] for path in paths]])

    def items(self, *, view: str, n: int | None, seed: int) -> tuple[Item, ...]:  # noqa: ARG002 - one view
        """All rows in order, or `n` of them in whole groups drawn with `seed`."""
        groups = _groups(self._read)
        found = tuple(
            as_item(each, category=str(each.extra["game"]), group_id=groups[each.id])
            for each in self._read
        )
        return sample_groups(found, n, seed, self.name)
