"""Manifests: what the numbers in a file depend on, compared field by field."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from interp.errors import CacheError

__all__ = ["flat", "manifest_differences", "refuse_mismatch", "self_check_fault", "tolerance_of"]

_TOLERANCE: Final = {"float32": 1e-4, "float64": 1e-4}
_ROUGH: Final = 0.1


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


def tolerance_of(dtype: str) -> float:
    """Largest relative difference that counts as rounding in a model of this number type."""
    return _TOLERANCE.get(dtype, _ROUGH)


def self_check_fault(difference: float, dtype: str) -> str | None:
    """What is wrong if rerun items differ by more than rounding explains; None if nothing is."""
    if difference <= tolerance_of(dtype):
        return None
    return (
        f"the self-check is {difference:.2g}, beyond what rounding explains in {dtype} "
        f"({tolerance_of(dtype):g}): an item's activations depend on the batch that it is run in"
    )
