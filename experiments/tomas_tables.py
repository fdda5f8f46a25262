"""Tables of `interp tomas`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.console import print_table, say

__all__ = [
    "print_accounting",
    "print_agreement",
    "print_faults",
    "print_provenance",
    "print_rewards",
]

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
    for warning in found["warnings"]:
        say(f"Warning: {warning}")


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


def print_faults(found: Mapping[str, Any]) -> None:
    """Every fault, or that there is none; and what could not be checked."""
    sizes = " and ".join(str(n) for n in found["n_items"])
    if found["faults"]:
        rows = [(f["kind"], ", ".join(f["items"]), f["detail"]) for f in found["faults"]]
        print_table(f"Faults of {sizes} items", ("fault", "items", "what"), rows)
    else:
        say(f"No fault in {sizes} items.")
    for note in found["notes"]:
        say(f"Note: {', '.join(note['items'])}: {note['detail']}")
    if not found["later_turns_checked"]:
        say("Later turns were not looked for: that needs --traces.")
    elif found["items_without_cut"]:
        say(
            f"{len(found['items_without_cut'])} items have no `cut`; of them only the trace's last "
            f"turn was looked for."
        )


def print_provenance(found: Mapping[str, Any]) -> None:
    """Both mixes, the classifier, and the warnings."""
    names = list(dict.fromkeys([*found["train"], *found["held_out"]]))
    print_table(
        "Where the items come from",
        ("framework", "train", "held out"),
        [(n, str(found["train"].get(n, 0)), str(found["held_out"].get(n, 0))) for n in names],
    )
    say(f"Shared mix: {found['overlap']:.0%}")
    if found["auroc"] is not None:
        say(f"Domain classifier: AUROC {found['auroc']:.2f}, p = {found['p_value']:.2f}")
        for side, words in found["telling"].items():
            say(f"  {side.replace('_', ' ')}: {', '.join(words)}")
    for warning in found["warnings"]:
        say(f"Warning: {warning}")


def print_rewards(found: Mapping[str, Any]) -> None:
    """One row a logged step, the figures of the run, and the warnings."""

    def text(value: float | None, form: str = ".3f") -> str:
        return "" if value is None else format(value, form)

    print_table(
        f"Rewards, {found['n_logged']} entries of {found['n_steps']} steps",
        ("step", "reward", "ratio", "std", "no variance", "learning rate"),
        [
            (
                str(row["step"]),
                text(row["reward"]),
                row["ratio"] or "",
                text(row["std"]),
                text(row["zero_variance_share"], ".0%"),
                text(row["learning_rate"], ".2e"),
            )
            for row in found["steps"]
        ],
    )
    share, idle = found["zero_variance_share"], found["idle_entries"]
    say(
        f"Groups without reward variance: {'not logged' if share is None else format(share, '.1%')}"
    )
    if idle is not None:
        say(f"Entries in which no group had any: {idle:.1%}")
    if found["learning_rate_sum"] is not None:
        say(f"Sum of the learning rate: {found['learning_rate_sum']:.3g}")
    for warning in found["warnings"]:
        say(f"Warning: {warning}")
