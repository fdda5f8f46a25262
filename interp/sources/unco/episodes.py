"""What an episode leaves behind: one JSON line, from which every metric follows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from interp.errors import ResultError
from interp.files import require_file
from interp.sources.unco.defects import Defect
from interp.sources.unco.environment import State, action_to_json, correct, followed_up
from interp.sources.unco.replies import Evidence

__all__ = ["EPISODE_FIELDS", "Recovery", "episode_record", "read_episodes", "recoveries"]

EPISODE_FIELDS = (
    "group_id",
    "setting",
    "domain",
    "operation",
    "agent",
    "arm",
    "seed",
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
        met: whether the role was asked at all, so that the defect could be seen.
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
                contacts > 0,
                followed_up(state, defect.role),
                _recovered(state, defect),
                contacts,
                max(0, contacts - 2),
            )
        )
    return tuple(found)


def _recovered(state: State, defect: Defect) -> bool:
    instance = state.task.instance
    concerned = {
        (name, fact.key)
        for name in instance.spec.candidates
        for fact in instance.spec.facts_of(defect.role)
        if defect.candidate in (None, name) and defect.fact in (None, fact.key)
    }
    arrived = {
        (said.candidate, said.fact)
        for made in state.rounds
        for answer in made.replies
        for said in answer.evidence
        if _exact(state, said)
    }
    return concerned <= arrived


def _exact(state: State, said: Evidence) -> bool:
    instance = state.task.instance
    return (
        said.context == instance.spec.fact(said.fact).context
        and said.value == instance.values[said.candidate][said.fact]
    )


def episode_record(state: State, agent: str, seed: int) -> dict[str, Any]:
    """The JSON object of an ended episode."""
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
    require_file(path, "a log of episodes (interp unco play)", ResultError)
    found: list[Mapping[str, Any]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ResultError(f"{path}, line {number} is not JSON: {error}.") from error
        missing = [name for name in EPISODE_FIELDS if name not in record] if isinstance(
            record, dict
        ) else list(EPISODE_FIELDS)  # fmt: skip
        if missing:
            raise ResultError(
                f"{path}, line {number} is no episode: it lacks {', '.join(missing)}."
            )
        found.append(record)
    if not found:
        raise ResultError(f"{path} holds no episode; expected one JSON object a line.")
    return found
