"""What an episode leaves behind: one JSON line, from which every metric follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.errors import ResultError
from interp.files import numbered_lines, parse_json, sha256_json
from interp.sources.unco.environment import (
    State,
    action_to_json,
    correct,
    followed_up,
    recovered,
)
from interp.sources.unco.replies import after_defect
from interp.sources.unco.tasks import Task, task_to_json

__all__ = ["EPISODE_FIELDS", "Recovery", "episode_record", "read_episodes", "recoveries"]

EPISODE_FIELDS = (
    "group_id",
    "setting",
    "domain",
    "operation",
    "agent",
    "arm",
    "seed",
    "max_rounds",
    "opening",
    "group_sha256",
    "rounds",
    "ended",
    "answer",
    "gold",
    "correct",
    "counts",
    "defects",
    "trace",
)
"""Fields of an episode's JSON line."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of one defect in one episode.

    Attributes:
        kind: of the defect.
        role: whose reply it was.
        met: whether the defective reply, or the silence, has occurred.
        follow_up: `none`; `unclassified`, asked again without the corrective action; `targeted`,
            with it. Any contact after a missed reply is targeted.
        recovered: whether the facts concerned have arrived, exact and in the context asked about.
        contacts: how often the role was asked.
        redundant: contacts beyond the two that a recovery needs.
    """

    kind: str
    role: str
    met: bool
    follow_up: str
    recovered: bool
    contacts: int
    redundant: int


def recoveries(state: State) -> tuple[Recovery, ...]:
    """What became of each defect of the episode's task (sections 4.2 and 5.2 of the paper)."""
    found = []
    for defect in state.task.defects:
        contacts = len(state.asked(defect.role))
        found.append(
            Recovery(
                defect.kind,
                defect.role,
                after_defect(state.task.instance, defect, state.asked(defect.role)) is not None,
                followed_up(state, defect.role),
                recovered(state, defect),
                contacts,
                max(0, contacts - 2),
            )
        )
    return tuple(found)


def episode_record(state: State, agent: str, seed: int, *, opening: bool = False) -> dict[str, Any]:
    """The JSON object of an ended episode; `opening`: its first round was made for the agent."""
    task, spec = state.task, state.task.instance.spec
    counts = {name: int(count) for name, count in sorted(state.counts.items())}
    return {
        "group_id": task.group_id,
        "setting": task.setting,
        "domain": spec.domain,
        "operation": spec.rule.operation,
        "agent": agent,
        "arm": state.arm,
        "seed": seed,
        "max_rounds": state.max_rounds,
        "opening": opening,
        "group_sha256": _group_sha256(task),
        "rounds": len(state.rounds),
        "ended": state.ended,
        "answer": None if state.answer is None else state.answer.to_json(),
        "gold": task.instance.gold.to_json(),
        "correct": correct(task, state.answer),
        "counts": counts,
        "defects": [
            {name: getattr(entry, name) for name in Recovery.__dataclass_fields__}
            for entry in recoveries(state)
        ],
        "trace": [
            {
                "action": action_to_json(made.action),
                "replies": [[answer.role, answer.text] for answer in made.replies],
                "silent": list(made.silent),
                "unknown": list(made.unknown),
                "note": made.note,
            }
            for made in state.rounds
        ],
    }


def read_episodes(path: Path) -> list[Mapping[str, Any]]:
    """The episodes of a JSONL log.

    Raises:
        ResultError: the file is missing or empty, or a line is no episode; the line is named.
    """
    found: list[Mapping[str, Any]] = []
    what = "a log of episodes (interp unco play)"
    for number, line in numbered_lines(path, what, ResultError):
        try:
            record = parse_json(line)
        except ValueError as error:
            raise ResultError(f"{path}, line {number} is not JSON: {error}.") from error
        wrong = _wrong_fields(record)
        if wrong:
            raise ResultError(f"{path}, line {number} is no episode: {wrong}.")
        found.append(record)
    if not found:
        raise ResultError(f"{path} holds no episode; expected one JSON object a line.")
    return found


def _wrong_fields(record: object) -> str | None:
    """What keeps a JSON value from being an episode; None if nothing does."""
    if not isinstance(record, dict):
        return f"it is {record!r:.60}, expected a JSON object"
    if missing := [name for name in EPISODE_FIELDS if name not in record]:
        return f"it lacks {', '.join(missing)}"
    kinds: tuple[tuple[str, type], ...] = (
        *((name, str) for name in ("group_id", "setting", "agent", "arm", "group_sha256")),
        *((name, bool) for name in ("correct", "opening")),
        *((name, int) for name in ("rounds", "max_rounds")),
        ("counts", dict),
        ("defects", list),
    )
    for name, kind in kinds:
        if not isinstance(record[name], kind):
            return f"{name} is {record[name]!r:.60}, expected {kind.__name__}"
    if not all(isinstance(count, int) for count in record["counts"].values()):
        return "counts holds something that is no number"
    for defect in record["defects"]:
        if not isinstance(defect, dict) or set(defect) != set(Recovery.__dataclass_fields__):
            return (
                f"a defect is {defect!r:.60}, expected {', '.join(Recovery.__dataclass_fields__)}"
            )
    return None


def _group_sha256(task: Task) -> str:
    """Digest of what the settings of a group share: episodes are paired only where it is equal."""
    record = task_to_json(task)
    return sha256_json({k: v for k, v in record.items() if k not in ("setting", "defects")})
