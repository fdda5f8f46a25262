"""A seeded stratified sample of traces for a reliability pilot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from random import Random

from interp.errors import ResultError
from interp.mast.inventory import TraceEntry

__all__ = ["allocate", "pilot_sample"]


def allocate(sizes: Mapping[str, int], n: int) -> dict[str, int]:
    """How many of each stratum: in proportion to size, at least one each, largest remainders first.

    Raises:
        ResultError: fewer than one a stratum, or more than there are.
    """
    if not len(sizes) <= n <= sum(sizes.values()):
        raise ResultError(
            f"A sample of {n} from {len(sizes)} strata with {sum(sizes.values())} traces is not "
            f"possible; ask for {len(sizes)} to {sum(sizes.values())}."
        )
    rest, total = n - len(sizes), sum(sizes.values()) - len(sizes)
    shares = {name: rest * (size - 1) / total if total else 0.0 for name, size in sizes.items()}
    counts = {name: 1 + int(share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: (int(shares[name]) - shares[name], name))
    for name in by_remainder[: n - sum(counts.values())]:
        counts[name] += 1
    return counts


def pilot_sample(
    entries: Sequence[TraceEntry], n: int, seed: int, take: Mapping[str, int] | None = None
) -> tuple[TraceEntry, ...]:
    """FC2-positive train traces, drawn within the units of the split.

    Args:
        entries: of an inventory.
        n: sample size; not used with `take`.
        seed: of the draw; each unit has a generator of its own, so that another unit's size or
            share does not move its sample.
        take: unit to number, instead of shares in proportion; units left out give none.

    Returns:
        by unit in the order of the file, then by trace.

    Raises:
        ResultError: an unknown unit, or more than it holds.
    """
    strata: dict[str, list[TraceEntry]] = defaultdict(list)
    for entry in entries:
        if entry.fc2 and entry.side == "train" and entry.unit is not None:
            strata[entry.unit].append(entry)
    if not strata:
        raise ResultError("There is no FC2-positive train trace to sample; check the split.")
    counts = dict(take) if take else allocate({k: len(v) for k, v in strata.items()}, n)
    for unit, count in counts.items():
        if not 0 <= count <= len(strata.get(unit, ())):
            raise ResultError(
                f"{count} traces of the unit {unit!r} were asked for; it has "
                f"{len(strata.get(unit, ()))}. Units: {', '.join(strata)}."
            )
    drawn: list[TraceEntry] = []
    for unit, members in strata.items():
        ordered = sorted(members, key=lambda entry: entry.key)
        chosen = Random(f"pilot/{seed}/{unit}").sample(ordered, counts.get(unit, 0))
        drawn += sorted(chosen, key=lambda entry: entry.key)
    return tuple(drawn)
