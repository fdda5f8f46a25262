"""The application domains: who decides about what, read from `vocabulary.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final

__all__ = ["MONTHS", "Domain", "domains"]

MONTHS: Final = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)


@dataclass(frozen=True, slots=True)
class Domain:
    """One application domain; the fields are explained at the top of `vocabulary.toml`."""

    key: str
    title: str
    candidate_noun: str
    adopt: str
    currency: str
    names: tuple[str, ...]
    places: tuple[str, ...]
    purposes: tuple[str, ...]
    roles: tuple[str, ...]
    conditions: tuple[tuple[Any, ...], ...]
    amounts: tuple[tuple[Any, ...], ...]
    count: tuple[Any, ...]
    rate: tuple[Any, ...]


@cache
def domains() -> tuple[Domain, ...]:
    """All domains, in the order of the file."""
    text = files("interp.sources.unco").joinpath("vocabulary.toml").read_text(encoding="utf-8")
    return tuple(Domain(**_tuples(entry)) for entry in tomllib.loads(text)["domain"])


def _tuples(entry: dict[str, Any]) -> dict[str, Any]:
    return {
        name: tuple(tuple(v) if isinstance(v, list) else v for v in value)
        if isinstance(value, list)
        else value
        for name, value in entry.items()
    }
