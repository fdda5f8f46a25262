"""A log against the traces it is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from interp.conversion.log import ConversionEntry
from interp.conversion.turns import quote_occurs
from interp.errors import ResultError
from interp.mast.records import MastRecord

__all__ = ["require_traces"]

_SHOWN: Final = 10


def require_traces(entries: Sequence[ConversionEntry], records: Iterable[MastRecord]) -> None:
    """Check every entry: its trace exists, is of that framework and model, and holds the quote.

    Raises:
        ResultError: up to ten faults with the lines of the log.
    """
    left = {entry.key: entry for entry in entries}
    faults: list[tuple[int, str]] = []
    for record in records:
        entry = left.pop((record.trace_key, str(record.trace_id)), None)
        if entry is None:
            continue
        if (entry.framework, entry.model) != (record.framework, record.model):
            faults.append(
                (
                    entry.line,
                    f"{entry.name} is of {record.framework}/{record.model}, not "
                    f"{entry.framework}/{entry.model}",
                )
            )
        if not entry.supporting_quote.strip():
            if entry.code == "clean":
                faults.append((entry.line, f"{entry.name} is clean and has no quote"))
        elif not quote_occurs(entry.supporting_quote, record.trajectory):
            quote = entry.supporting_quote[:60]
            faults.append((entry.line, f"the quote {quote!r} does not occur in {entry.name}"))
    faults += [(entry.line, f"there is no trace {entry.name}") for entry in left.values()]
    if faults:
        listed = [f"line {line}: {fault}" for line, fault in sorted(faults)]
        more = f" … and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
        raise ResultError(
            f"The log does not fit the traces, {len(listed)} fault{'s' * (len(listed) > 1)}: "
            f"{'; '.join(listed[:_SHOWN])}{more}."
        )
