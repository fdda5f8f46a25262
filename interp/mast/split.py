"""The train and hold-out split as data: a TOML file of units."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, get_args

from interp.errors import SourceError, did_you_mean
from interp.files import require_file

__all__ = ["SHIPPED_SPLITS", "Side", "Split", "SplitUnit", "read_split", "split_text"]

Side = Literal["train", "hold_out"]

SHIPPED_SPLITS: Final = ("step1", "all-models")
"""Splits by name; `interp/mast/splits/NAME.toml`."""

_KEYS: Final = ("label", "side", "framework", "benchmarks", "models", "role")


@dataclass(frozen=True, slots=True)
class SplitUnit:
    """One row of an inventory table.

    Attributes:
        label: name of the row.
        side: `train` or `hold_out`.
        framework: `mas_name` of its traces.
        benchmarks: names of its benchmarks; empty takes all.
        models: names of its models; empty takes all.
        role: what the unit is for; free text.
    """

    label: str
    side: Side
    framework: str
    benchmarks: tuple[str, ...]
    models: tuple[str, ...]
    role: str

    def holds(self, framework: str, model: str, benchmark: str) -> bool:
        """Whether a trace belongs to this unit."""
        return (
            framework == self.framework
            and (not self.benchmarks or benchmark in self.benchmarks)
            and (not self.models or model in self.models)
        )


@dataclass(frozen=True, slots=True)
class Split:
    """Units that no trace belongs to two of.

    Attributes:
        name: of the split.
        units: in the order of the tables.
    """

    name: str
    units: tuple[SplitUnit, ...]

    def unit_of(self, framework: str, model: str, benchmark: str) -> SplitUnit | None:
        """The unit a trace belongs to, or None.

        Raises:
            SourceError: two units claim it.
        """
        found = [unit for unit in self.units if unit.holds(framework, model, benchmark)]
        if len(found) > 1:
            raise SourceError(
                f"The split {self.name!r} puts {framework}/{benchmark}/{model} into "
                f"{' and '.join(repr(unit.label) for unit in found)}; a trace belongs to one unit. "
                f"Name benchmarks or models in one of them."
            )
        return found[0] if found else None


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise SourceError(f"{where}: got {value!r}; expected a list of names.")
    return tuple(value)


def _unit(table: Any, where: str) -> SplitUnit:
    if not isinstance(table, dict):
        raise SourceError(f"{where}: got {table!r}; expected a table [[unit]].")
    for key in table:
        if key not in _KEYS:
            raise SourceError(f"{where}: {key!r} is no key. {did_you_mean(key, _KEYS)}")
    for key in ("label", "side", "framework"):
        if not isinstance(table.get(key), str) or not table[key].strip():
            raise SourceError(f"{where}: {key} is {table.get(key)!r}; expected text.")
    if table["side"] not in get_args(Side):
        raise SourceError(
            f"{where}: side is {table['side']!r}; expected {' or '.join(get_args(Side))}."
        )
    return SplitUnit(
        label=table["label"],
        side=table["side"],
        framework=table["framework"],
        benchmarks=_texts(table.get("benchmarks", []), f"{where}, benchmarks"),
        models=_texts(table.get("models", []), f"{where}, models"),
        role=str(table.get("role", "")),
    )


def split_text(split: str) -> str:
    """The TOML text of a shipped split, by its name, or of a file.

    Raises:
        SourceError: there is neither.
    """
    if split in SHIPPED_SPLITS:
        return (files("interp.mast") / "splits" / f"{split}.toml").read_text(encoding="utf-8")
    path = Path(split).expanduser()
    if path.suffix != ".toml" and not path.exists():
        raise SourceError(
            f"There is no split {split!r}. {did_you_mean(split, SHIPPED_SPLITS)} Or give a TOML "
            f"file."
        )
    require_file(path, "a split in TOML", SourceError)
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise SourceError(f"{path} is not UTF-8 ({error}); expected TOML.") from error


def read_split(split: str) -> Split:
    """A shipped split by its name, or a TOML file.

    Raises:
        SourceError: neither, or a file that breaks the format (the unit and key are named).
    """
    where = f"the split {split!r}"
    try:
        value = tomllib.loads(split_text(split))
    except tomllib.TOMLDecodeError as error:
        raise SourceError(f"{where} is not TOML ({error}).") from error
    unknown = sorted(set(value) - {"name", "unit"})
    if unknown or not isinstance(value.get("unit"), list) or not value["unit"]:
        raise SourceError(
            f"{where} must hold `name` and tables [[unit]]; it has {', '.join(value) or 'nothing'}."
        )
    units = tuple(
        _unit(table, f"{where}, unit {number}")
        for number, table in enumerate(value["unit"], start=1)
    )
    labels = [unit.label for unit in units]
    if len(set(labels)) < len(labels):
        raise SourceError(f"{where}: two units have one label ({', '.join(labels)}).")
    return Split(str(value.get("name", split)), units)
