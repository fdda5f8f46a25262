"""Tables, files and the figure of `interp unco report`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from experiments.console import print_table, say
from interp.files import drawn_files, replaced_together, write_csv, write_json
from interp.sources.unco.report import RecoveryRow, SettingRow

_HEADS = {"correct_after_recovery": "then right", "unclassified": "unclassif."}

__all__ = [
    "print_noticed",
    "print_recovery",
    "print_settings",
    "recovery_records",
    "setting_records",
    "write_report",
]


def setting_records(rows: Sequence[SettingRow]) -> list[dict[str, Any]]:
    """The rows as flat records; intervals are `NAME_low` and `NAME_high`."""
    records = []
    for row in rows:
        record = asdict(row)
        for name in ("accuracy", "drop", "kept"):
            estimate = record.pop(name)
            for suffix, field in (("", "value"), ("_low", "low"), ("_high", "high")):
                record[name + suffix] = None if estimate is None else estimate[field]
        records.append(record)
    return records


def recovery_records(rows: Sequence[RecoveryRow]) -> list[dict[str, Any]]:
    """The rows as flat records."""
    return [asdict(row) for row in rows]


def print_settings(rows: Sequence[SettingRow]) -> None:
    """Accuracy by agent, arm and setting."""
    print_table(
        "Accuracy (decision and number both right)",
        ("agent", "arm", "setting", "n", "accuracy", "drop", "kept", "rounds", "no answer"),
        [
            (
                row.agent,
                row.arm,
                row.setting,
                row.n,
                f"{row.accuracy.value:.1%} [{row.accuracy.low:.1%}, {row.accuracy.high:.1%}]",
                ""
                if row.drop is None
                else f"{row.drop.value:+.1%} [{row.drop.low:+.1%}, {row.drop.high:+.1%}]",
                "" if row.kept is None else f"{row.kept.value:.1%}",
                f"{row.mean_rounds:.2f}",
                row.no_answer,
            )
            for row in rows
        ],
        caption="drop: accuracy under reliable minus this one, same task groups; kept: share of "
        "the groups right under reliable that are right here. 95% intervals, groups resampled.",
    )
    odd = [row for row in rows if row.malformed or row.unknown_roles or row.double_answers]
    if odd:
        print_table(
            "What could not be read",
            ("agent", "arm", "setting", "malformed", "unknown roles", "double answers", "waits"),
            [
                (
                    row.agent,
                    row.arm,
                    row.setting,
                    f"{row.malformed:.2f}",
                    f"{row.unknown_roles:.2f}",
                    row.double_answers,
                    f"{row.waits:.2f}",
                )
                for row in odd
            ],
            caption="an episode, double answers in total",
        )


def print_recovery(rows: Sequence[RecoveryRow]) -> None:
    """What became of the defects, a table for each agent and arm."""
    names = (
        *("n", "met", "noticed", "targeted", "unclassified", "none"),
        *("recovered", "correct_after_recovery", "redundant", "waits"),
    )
    for agent, arm in dict.fromkeys((row.agent, row.arm) for row in rows):
        print_table(
            f"Defects and what {agent} (arm {arm}) did about them",
            ("defect", *(_HEADS.get(name, name) for name in names)),
            [
                (
                    row.kind if row.kind == row.setting else f"mixed: {row.kind}",
                    *(getattr(row, name) for name in names),
                )
                for row in rows
                if (row.agent, row.arm) == (agent, arm)
            ],
            caption="met: the role was asked. noticed: it was asked again, with the corrective "
            "action (targeted) or without (unclassified); none: not again. redundant: contacts "
            "beyond two.",
        )


def write_report(
    folder: Path, settings: Sequence[SettingRow], recovery: Sequence[RecoveryRow]
) -> None:
    """`settings.csv`, `recovery.csv`, `unco.json` and `figures/unco.png` (and PDF)."""
    from figures.unco import draw_unco

    first, second = setting_records(settings), recovery_records(recovery)
    gone = ("recovery.csv", *drawn_files("unco"))
    with replaced_together(folder, last="unco.json", gone=gone) as aside:
        write_csv(aside / "settings.csv", first)
        if second:
            write_csv(aside / "recovery.csv", second)
        write_json(aside / "unco.json", {"settings": first, "recovery": second})
    draw_unco(folder)


def print_noticed(folder: Path, metrics: Mapping[str, Any]) -> None:
    """What the probe read, what the model said, and what the agent did."""
    rows = (
        ("probe, nested layers: all statements", "probe_accuracy_nested"),
        ("forced choice: all statements", "said_accuracy"),
        ("probe noticed the useless reply", "probe_noticed"),
        ("forced choice says so", "said_so"),
        ("asked again at all", "followed_up"),
        ("wrote an action that could be read", "acted"),
        ("took the corrective action", "targeted"),
        ("noticed, but silent", "noticed_but_silent"),
        ("right answer in the end", "correct"),
    )
    print_table(
        f"{metrics['n_items']} statements of {metrics['n_groups']} task groups, "
        f"{metrics['n_episodes']} episodes",
        ("", "share", "95% interval"),
        [
            (
                label,
                f"{metrics[name]:.1%}",
                f"[{metrics[name + '_low']:.1%}, {metrics[name + '_high']:.1%}]",
            )
            for label, name in rows
        ],
        caption="The first two are over all statements (half are true), the rest over episodes.",
    )
    p, text = metrics["probe_p_familywise"], metrics["probe_text_baseline_accuracy"]
    if p is not None:
        say(f"Probe against permuted labels: p = {p:.3f} (family-wise). Wording alone: {text:.1%}.")
    say(
        f"Probe, by kind of statement: {metrics['probe_recall_useful']:.1%} of the useful replies, "
        f"{metrics['probe_recall_useless']:.1%} of the useless ones."
    )
    say(str(metrics["verdict"]))
    say(f"Figure: {folder / 'figures' / 'noticed.png'}")
