"""Play unreliable-colleague tasks with a scripted agent or a local model, into a resumable log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from interp.errors import ModelError, ResultError
from interp.files import partial_path
from interp.items import Item
from interp.sources.unco.agents import REPORT, SCRIPTED
from interp.sources.unco.environment import (
    Action,
    Ask,
    Malformed,
    Observation,
    State,
    start,
    step,
)
from interp.sources.unco.episodes import episode_record, read_episodes
from interp.sources.unco.interventions import Arm
from interp.sources.unco.protocol import agent_messages, parse_action
from interp.sources.unco.tasks import Task

if TYPE_CHECKING:
    from activations.backend import ModelBackend

__all__ = ["BatchAgent", "model_agent", "play_tasks", "scripted_agent", "states_of"]

BatchAgent = Callable[[Sequence[Observation]], Sequence[Action]]
"""Acts in several episodes at once."""

_TOO_LONG: Final = Malformed("", "the exchange no longer fits into the model's context")
_CHUNK: Final = 16
"""Episodes that run side by side; a stopped run loses at most these."""


def scripted_agent(name: str, seed: int) -> BatchAgent:
    """One of the scripted agents; the random one is seeded anew for every run."""
    agent = SCRIPTED[name](seed)
    return lambda seen: [agent(observation) for observation in seen]


def model_agent(backend: ModelBackend, *, max_new_tokens: int, batch_tokens: int) -> BatchAgent:
    """A local model as main agent: greedy replies, read as one JSON object each.

    A turn for which the exchange has grown longer than the model can read counts as malformed; a
    task that does not fit before anything was said is the user's mistake, and raises.
    """
    from activations.batches import plan_batches, run_batches

    def act(seen: Sequence[Observation]) -> Sequence[Action]:
        items = [
            Item(f"turn-{i}", agent_messages(observation), None, "", "unco", "unco")
            for i, observation in enumerate(seen)
        ]
        actions: dict[int, Action] = {}
        fitting: list[int] = []
        prompts: list[tuple[int, ...]] = []
        for i, (item, observation) in enumerate(zip(items, seen, strict=True)):
            try:
                (prompt,) = backend.tokenize([item])
            except ModelError:
                if not observation.rounds:
                    raise
                actions[i] = _TOO_LONG
            else:
                fitting.append(i)
                prompts.append(prompt.ids)

        def run(index: Sequence[int]) -> Sequence[tuple[int, ...] | None]:
            try:
                return backend.generate([prompts[k] for k in index], max_new_tokens)
            except ModelError:
                if len(index) == 1:
                    return (None,)
                return [reply for k in index for reply in run([k])]

        lengths = [len(ids) + max_new_tokens for ids in prompts]
        for index, replies in run_batches(plan_batches(lengths, batch_tokens), run):
            for k, ids in zip(index, replies, strict=True):
                actions[fitting[k]] = (
                    _TOO_LONG if ids is None else parse_action(backend.decode(ids))
                )
        return [actions[i] for i in range(len(seen))]

    return act


def states_of(
    tasks: Sequence[Task], agent: BatchAgent, *, arm: Arm, max_rounds: int, opening: bool
) -> list[State]:
    """Ended episodes of the tasks, all played in lockstep.

    Args:
        tasks: what is played.
        agent: acts in all unfinished episodes at once.
        arm: intervention.
        max_rounds: budget.
        opening: whether the first round, a general question to every role, is made for the agent,
            so that each episode meets its defects.
    """
    states = [start(task, arm, max_rounds) for task in tasks]
    if opening:
        states = [
            step(s, Ask(tuple((role, REPORT) for role in s.task.instance.spec.roles)))
            for s in states
        ]
    while running := [i for i, state in enumerate(states) if not state.ended]:
        actions = agent([states[i].observation() for i in running])
        for i, action in zip(running, actions, strict=True):
            states[i] = step(states[i], action)
    return states


def play_tasks(
    tasks: Sequence[Task],
    agent: BatchAgent,
    out: Path,
    *,
    identity: Mapping[str, Any],
    name: str,
    seed: int,
    arm: Arm,
    max_rounds: int,
    opening: bool,
    progress: Callable[[int], None] = lambda _: None,
) -> list[Mapping[str, Any]]:
    """Play all tasks into a JSONL log; a run that was stopped goes on, a finished one is read.

    Args:
        tasks: what is played.
        agent: who plays.
        out: the log.
        identity: what the episodes depend on; kept beside the log, and compared on resume.
        name: of the agent, in the log.
        seed: of the agent, in the log.
        arm: intervention.
        max_rounds: budget of rounds.
        opening: whether the first round is made for the agent.
        progress: told the number of episodes done.

    Raises:
        ResultError: the log belongs to another run.
    """
    wanted = dict(identity) | {
        "agent": name, "seed": seed, "arm": arm, "max_rounds": max_rounds, "opening": opening
    }  # fmt: skip
    _require_same(out, wanted)
    if out.exists():
        return read_episodes(out)
    partial = partial_path(out)
    done = _whole_lines(partial)
    progress(len(done))
    played = {(record["group_id"], record["setting"]) for record in done}
    left = [task for task in tasks if (task.group_id, task.setting) not in played]
    with partial.open("a", encoding="utf-8") as handle:
        for at in range(0, len(left), _CHUNK):
            chunk = left[at : at + _CHUNK]
            for state in states_of(chunk, agent, arm=arm, max_rounds=max_rounds, opening=opening):
                record = episode_record(state, name, seed, opening=opening)
                # ASCII: a reply may hold characters that cannot be written, or that end lines.
                handle.write(json.dumps(record) + "\n")
                done.append(record)
            handle.flush()
            progress(len(chunk))
    partial.replace(out)
    return done


def _manifest(out: Path) -> Path:
    return out.with_name(out.name + ".manifest.json")


def _require_same(out: Path, wanted: Mapping[str, Any]) -> None:
    from interp.files import read_json, write_json

    path = _manifest(out)
    if not path.exists():
        if out.exists() or partial_path(out).exists():
            raise ResultError(f"{out} exists, but nothing says whose it is. Give another --out.")
        write_json(path, wanted)
        return
    found = read_json(path, "the manifest of a log of episodes")
    differing = sorted(
        key
        for key in {*found, *wanted}
        if found.get(key) != json.loads(json.dumps(wanted)).get(key)
    )
    partial = partial_path(out)
    if differing and not out.exists() and not (partial.exists() and partial.stat().st_size):
        write_json(path, wanted)  # that run ended before its first episode
        return
    if differing:
        raise ResultError(
            f"{out} belongs to a run with other {', '.join(differing)}: "
            f"{found.get(differing[0])!r} there, {wanted.get(differing[0])!r} here. "
            "Give another --out."
        )


def _whole_lines(partial: Path) -> list[Mapping[str, Any]]:
    """Episodes of a stopped run; a line cut short by the stop is dropped from the file."""
    if not partial.exists():
        return []
    records = list(_readable(partial))
    partial.write_text(
        "".join(json.dumps(record) + "\n" for record in records),
        encoding="utf-8",
    )
    return records


def _readable(path: Path) -> Iterator[Mapping[str, Any]]:
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            return
