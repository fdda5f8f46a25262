"""Tables of `interp mast`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.console import print_table, say

__all__ = ["print_human", "print_inventory"]

_TITLES = {"train": "Train", "hold_out": "Hold-out"}


def print_inventory(found: Mapping[str, Any]) -> None:
    """Cells, the two split tables, and the warnings."""
    print_table(
        f"{found['n_fc2']} FC2-positive of {found['n_traces']} traces of {found['file']}",
        ("framework", "model", "benchmark", "traces", "FC2+", "FC2 open"),
        [
            (
                cell["framework"],
                cell["model"],
                cell["benchmark"],
                str(cell["n"]),
                str(cell["fc2"]),
                str(cell["unlabelled"] or ""),
            )
            for cell in found["cells"]
        ],
    )
    split = found["split"]
    for side, title in _TITLES.items():
        table = split[side]
        rows = [(u["label"], str(u["n"]), str(u["fc2"]), u["role"]) for u in table["units"]]
        rows.append(("Total", "", str(table["fc2"]), ""))
        print_table(
            f"{title} FC2+ inventory, split {split['name']}",
            ("unit", "traces", "FC2+", "role"),
            rows,
        )
    _say_warnings(found)


def print_human(found: Mapping[str, Any]) -> None:
    """Traces of the human-labelled file, and what cannot be compared."""
    open_text = {True: "yes", False: "no", None: "not defined"}
    print_table(
        f"{found['n_traces']} human-labelled traces of {found['file']}",
        ("trace", "round", "framework", "benchmark", "modes", "FC2 by majority"),
        [
            (
                str(trace["trace_id"]),
                trace["round"],
                trace["framework"],
                trace["benchmark"],
                str(trace["n_modes"]),
                open_text[trace["fc2"]],
            )
            for trace in found["traces"]
        ],
    )
    _say_warnings(found)


def _say_warnings(found: Mapping[str, Any]) -> None:
    for warning in found["warnings"]:
        say(f"Warning: {warning}")
