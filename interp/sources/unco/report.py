"""Metrics over episodes: accuracy, rounds, drops, retention, recovery, by setting and arm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from interp.errors import ResultError
from interp.sources.unco.defects import SETTINGS
from interp.sources.unco.interventions import ARMS
from interp.statistics import Estimate, bootstrap_mean

__all__ = ["RecoveryRow", "SettingRow", "recovery_rows", "setting_rows"]

Episode = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SettingRow:
    """One agent under one arm and setting.

    Attributes:
        agent: name.
        arm: intervention.
        setting: of the colleagues.
        n: episodes.
        accuracy: decision and number both right; interval over task groups.
        mean_rounds: rounds of asking or waiting an episode.
        drop: accuracy under `reliable` minus this one, paired by group; None without pairs.
        n_pairs: groups played under both.
        kept: share of the groups right under `reliable` that are right here too; None without.
        no_answer: episodes that ended without an answer.
        malformed: actions that could not be read, an episode.
        unknown_roles: names that are no role, an episode.
        double_answers: episodes whose deciding turn held several answers.
        waits: waiting rounds an episode.
    """

    agent: str
    arm: str
    setting: str
    n: int
    accuracy: Estimate
    mean_rounds: float
    drop: Estimate | None
    n_pairs: int
    kept: Estimate | None
    no_answer: int
    malformed: float
    unknown_roles: float
    double_answers: int
    waits: float


@dataclass(frozen=True, slots=True)
class RecoveryRow:
    """What became of one kind of defect; counts of defects in episodes.

    Attributes:
        agent: name.
        arm: intervention.
        setting: of the colleagues.
        kind: of the defect.
        n: defects.
        met: the role was asked, so that the defect could be seen.
        noticed: met and followed up at all.
        targeted: followed up with the corrective action.
        unclassified: followed up without it.
        none: met and not followed up.
        recovered: the facts concerned arrived.
        correct_after_recovery: recovered, and the answer was right.
        redundant: contacts with the role beyond two, in total.
        waits: waiting rounds of these episodes, in total.
    """

    agent: str
    arm: str
    setting: str
    kind: str
    n: int
    met: int
    noticed: int
    targeted: int
    unclassified: int
    none: int
    recovered: int
    correct_after_recovery: int
    redundant: int
    waits: int


def setting_rows(episodes: Sequence[Episode], *, seed: int) -> list[SettingRow]:
    """One row an agent, arm and setting, in the paper's order (section 4.2).

    Raises:
        ResultError: an agent played a task twice under one arm.
    """
    cells = _cells(episodes)
    rows = []
    for (agent, arm, setting), found in cells.items():
        reliable = cells.get((agent, arm, "reliable"), cells.get((agent, "none", "reliable"), {}))
        groups = list(found)
        right = [bool(found[group]["correct"]) for group in groups]
        pairs = [] if setting == "reliable" else [g for g in groups if g in reliable]
        differences = [float(reliable[g]["correct"]) - float(found[g]["correct"]) for g in pairs]
        base = [g for g in pairs if reliable[g]["correct"]]
        counts = _sum(episode["counts"] for episode in found.values())
        n = len(groups)
        rows.append(
            SettingRow(
                agent,
                arm,
                setting,
                n,
                bootstrap_mean(right, groups, seed=seed),
                sum(episode["rounds"] for episode in found.values()) / n,
                bootstrap_mean(differences, pairs, seed=seed) if pairs else None,
                len(pairs),
                bootstrap_mean([bool(found[g]["correct"]) for g in base], base, seed=seed)
                if base
                else None,
                sum(episode["ended"] == "no_answer" for episode in found.values()),
                counts.get("malformed", 0) / n,
                counts.get("unknown_roles", 0) / n,
                counts.get("double_answers", 0),
                counts.get("waits", 0) / n,
            )
        )
    return rows


def recovery_rows(episodes: Sequence[Episode]) -> list[RecoveryRow]:
    """One row an agent, arm, setting and kind of defect."""
    rows = []
    for (agent, arm, setting), found in _cells(episodes).items():
        by_kind: dict[str, list[tuple[Mapping[str, Any], Episode]]] = defaultdict(list)
        for episode in found.values():
            for defect in episode["defects"]:
                by_kind[defect["kind"]].append((defect, episode))
        for kind, entries in by_kind.items():
            met = [defect for defect, _ in entries if defect["met"]]
            follow_ups = [defect["follow_up"] for defect in met]
            rows.append(
                RecoveryRow(
                    agent,
                    arm,
                    setting,
                    kind,
                    len(entries),
                    len(met),
                    sum(name != "none" for name in follow_ups),
                    follow_ups.count("targeted"),
                    follow_ups.count("unclassified"),
                    follow_ups.count("none"),
                    sum(bool(defect["recovered"]) for defect, _ in entries),
                    sum(bool(d["recovered"] and episode["correct"]) for d, episode in entries),
                    sum(int(defect["redundant"]) for defect, _ in entries),
                    sum(int(episode["counts"].get("waits", 0)) for _, episode in entries),
                )
            )
    return rows


def _cells(episodes: Sequence[Episode]) -> dict[tuple[str, str, str], dict[str, Episode]]:
    cells: dict[tuple[str, str, str], dict[str, Episode]] = {}
    same: dict[tuple[str, str], object] = {}
    for episode in episodes:
        key = (str(episode["agent"]), str(episode["arm"]), str(episode["setting"]))
        if key[1] not in ARMS or key[2] not in SETTINGS:
            raise ResultError(
                f"An episode has the arm {key[1]!r} and the setting {key[2]!r}; expected one of "
                f"{', '.join(ARMS)} and one of {', '.join(SETTINGS)}."
            )
        cell = cells.setdefault(key, {})
        group = str(episode["group_id"])
        if group in cell:
            raise ResultError(
                f"{key[0]} played {group}/{key[2]} twice under the arm {key[1]}; give a log once."
            )
        cell[group] = episode
        for name, of in (("group_sha256", group), ("max_rounds", key[0]), ("opening", key[0])):
            known = same.setdefault((name, of), episode[name])
            if known != episode[name]:
                raise ResultError(
                    f"Episodes of {of} differ in {name} ({known!r} and {episode[name]!r}), so they "
                    f"cannot be compared. Report on them one after the other."
                )
    order: dict[str, int] = {name: i for i, name in enumerate((*ARMS, *SETTINGS))}
    return dict(sorted(cells.items(), key=lambda e: (e[0][0], order[e[0][1]], order[e[0][2]])))


def _sum(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    total: dict[str, int] = defaultdict(int)
    for entry in counts:
        for name, count in entry.items():
            total[name] += count
    return total
