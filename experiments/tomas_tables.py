"""Tables of `interp tomas`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.console import print_table, say

__all__ = ["print_accounting", "print_agreement"]

_NAMES = {
    "clean": "clean",
    "ambiguous": "ambiguous",
    "not_convertible": "not conv.",
    "structural_mismatch": "struct. mism.",
}


def print_accounting(found: Mapping[str, Any]) -> None:
    """One row a framework and model, and the total."""
    rows = [
        (row["framework"], row["model"], *(str(row[name]) for name in ("coded", *_NAMES)))
        for row in found["rows"]
    ]
    totals = found["totals"]
    rows.append(("Total", "", *(str(totals[name]) for name in ("coded", *_NAMES))))
    print_table("Coded traces", ("framework", "model", "coded", *_NAMES.values()), rows)


def print_agreement(found: Mapping[str, Any]) -> None:
    """The two figures, the confusion matrix, and where the coders differ."""
    say(f"{found['n']} traces in both logs, raw agreement {found['raw_agreement']:.1%}")
    if found["kappa"] is None:
        say("Cohen's kappa is not defined: both coders used one code throughout.")
    else:
        low, high = found["kappa_interval"]
        say(f"Cohen's kappa {found['kappa']:.2f}, 95% interval {low:.2f} to {high:.2f}")
    if found["only_a"] or found["only_b"]:
        say(f"Left out: {found['only_a']} traces in LOG_A alone, {found['only_b']} in LOG_B alone.")
    print_table(
        "Confusion: LOG_A in rows, LOG_B in columns",
        ("", *_NAMES.values()),
        [
            (_NAMES[first], *(str(row[second]) for second in _NAMES))
            for first, row in found["confusion"].items()
        ],
    )
    for pair in found["disagreements"]:
        say(f"{pair['trace_key']}/{pair['trace_id']}: {pair['a']} against {pair['b']}")
        for name in ("rationale_a", "rationale_b"):
            if pair[name]:
                say(f"  {name[-1].upper()}: {pair[name]}")
