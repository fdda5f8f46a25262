"""Manifests: what the numbers in a file depend on, compared field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from interp.errors import CacheError

__all__ = ["flat", "manifest_differences", "refuse_mismatch", "self_check_fault", "tolerance_of"]

_TOLERANCE: Final = {"float32": 1e-4, "float64": 1e-4}
_ROUGH: Final = 0.1
_STORED: Final = {"float16": 2.0**-11}
"""Half a unit in the last place, of what a file rounds to."""


def flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings with dotted names."""
    for name, entry in value.items():
        if isinstance(entry, Mapping):
            yield from flat(entry, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", entry


def manifest_differences(
    found: Mapping[str, Any], expected: Mapping[str, Any], ignore: Sequence[str] = ()
) -> list[str]:
    """One line a field that differs: `name: file has …, this run has …`.

    Args:
        found: the file's manifest.
        expected: this run's manifest.
        ignore: top-level fields that may differ.
    """
    first, second = dict(flat(found)), dict(flat(expected))
    return [
        f"{name}: the file has {first.get(name)!r}, this run has {second.get(name)!r}"
        for name in sorted({*first, *second})
        if name.split(".")[0] not in ignore and first.get(name) != second.get(name)
    ]


def refuse_mismatch(path: Path, differences: Sequence[str]) -> None:
    """Raise `CacheError` naming the differing fields, if there are any."""
    if differences:
        raise CacheError(
            f"{path} holds the results of another model, source or setting and is left as it is. "
            f"Fields that differ: {'; '.join(differences)}. Choose another --out, or remove it."
        )


def tolerance_of(dtype: str, store: str = "float32") -> float:
    """Largest relative difference that counts as rounding.

    Args:
        dtype: number type of the model.
        store: number type of the file.
    """
    return _TOLERANCE.get(dtype, _ROUGH) + _STORED.get(store, 0.0)


def self_check_fault(difference: float, dtype: str, store: str = "float32") -> str | None:
    """What is wrong if rerun items differ by more than rounding explains; None if nothing is."""
    allowed = tolerance_of(dtype, store)
    if difference <= allowed:
        return None
    return (
        f"the self-check is {difference:.2g}, beyond what rounding explains in {dtype} "
        f"({allowed:.2g}): an item's activations depend on the batch that it is run in"
    )
