"""Unreliable colleagues as an inspect_ai task: any model that Inspect can reach is the main agent.

The environment is the same pure state machine as in `interp unco play`; Inspect brings the model,
the tool calls and the log. `interp unco report` reads the log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from inspect_ai import Task as InspectTask
from inspect_ai import task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.log import EvalLog, read_eval_log
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    get_model,
)
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer, stderr
from inspect_ai.solver import Generate, Solver, TaskState, solver
from inspect_ai.tool import ToolCall, ToolInfo, ToolParam, ToolParams

from interp.errors import ResultError, SourceError, did_you_mean
from interp.sources.unco.build import VERSION, build_groups
from interp.sources.unco.defects import SETTINGS
from interp.sources.unco.environment import (
    MAX_ROUNDS,
    Action,
    Ask,
    Malformed,
    Submit,
    Wait,
    start,
    step,
)
from interp.sources.unco.episodes import episode_record
from interp.sources.unco.interventions import ARMS
from interp.sources.unco.protocol import SYSTEM, parse_action, transcript_text
from interp.sources.unco.tasks import read_tasks, task_from_json, task_to_json

__all__ = ["action_of", "episodes_of_log", "unco"]


def _nullable(kind: Any) -> list[ToolParam]:
    return [ToolParam(type=kind), ToolParam(type="null")]


_TOOLS = (
    ToolInfo(
        name="ask",
        description="Ask a colleague. Several calls in one turn are one round.",
        parameters=ToolParams(
            properties={
                "role": ToolParam(type="string", description="Whom to ask."),
                "message": ToolParam(type="string", description="What to ask."),
            },
            required=["role", "message"],
        ),
    ),
    ToolInfo(
        name="wait",
        description="Let a round pass without asking.",
        parameters=ToolParams(properties={}, required=[]),
    ),
    ToolInfo(
        name="submit",
        description="Decide. Give null for both where no candidate qualifies.",
        parameters=ToolParams(
            properties={
                "candidate": ToolParam(anyOf=_nullable("string"), description="Who is chosen."),
                "number": ToolParam(anyOf=_nullable("number"), description="The number asked for."),
            },
            required=["candidate", "number"],
        ),
    ),
)


@task
def unco(
    groups: int = 20,
    seed: int = 0,
    settings: str | None = None,
    arm: str = "none",
    max_rounds: int = MAX_ROUNDS,
    tasks: str | None = None,
) -> InspectTask:
    """Tasks with unreliable colleagues.

    Args:
        groups: task groups, each under all settings.
        seed: of the tasks.
        settings: some of the five, between commas or plus signs; None takes all.
        arm: intervention: none, existence, location, diagnosis or action.
        max_rounds: rounds of asking or waiting.
        tasks: file of `interp unco build`, instead of groups and seed.
    """
    chosen = (
        SETTINGS if settings is None else [s.strip() for s in settings.replace("+", ",").split(",")]
    )
    for name, known in (*((name, SETTINGS) for name in chosen), (arm, ARMS)):
        if name not in known:
            raise SourceError(f"{name!r} is unknown. {did_you_mean(name, known)}")
    found = (
        read_tasks(Path(tasks))
        if tasks is not None
        else [one for group in build_groups(groups, seed) for one in group]
    )
    samples = [
        Sample(
            id=one.task_id,
            input=[ChatMessageSystem(content=SYSTEM), ChatMessageUser(content=one.prompt)],
            target=str(one.instance.gold.candidate),
            metadata={"task": task_to_json(one)},
        )
        for one in found
        if one.setting in chosen
    ]
    return InspectTask(
        dataset=MemoryDataset(samples, name="unco"),
        solver=_play(arm, max_rounds, seed),
        scorer=_right(),
        name="unco",
        version=VERSION,
    )


@solver
def _play(arm: str, max_rounds: int, seed: int) -> Solver:
    """Run the episode; its record is kept in the sample's store."""

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        del generate  # the loop decides when the model speaks
        model = get_model()
        episode = start(task_from_json(state.metadata["task"]), arm, max_rounds)  # type: ignore[arg-type]  # checked
        told = ""
        while not episode.ended:
            output = await model.generate(state.messages, tools=list(_TOOLS))
            message = output.message
            state.output = output
            state.messages.append(message)
            before = len(episode.rounds)
            episode = step(episode, action_of(message))
            seen = episode.observation()
            news = (
                transcript_text(episode.rounds[before:], first=before + 1)
                if not episode.ended
                else ""
            )
            hint = seen.hint.text if seen.hint is not None else ""
            tell, told = (hint if hint != told else ""), hint
            left = f"Rounds left: {seen.rounds_left}."
            said = "\n".join(part for part in (news, tell, left) if part)
            state.messages += _answers(message, said)
        state.store.set("episode", episode_record(episode, str(model), seed))
        return state

    return solve


def action_of(message: ChatMessageAssistant) -> Action:
    """The action of a model's turn: its tool calls, or a JSON object in its text.

    All questions of one turn are one round. A turn that decides is a decision whatever else it
    holds; several decisions count as a double answer, of which the first is taken.
    """
    calls = message.tool_calls or []
    if not calls:
        return parse_action(message.text)
    bad = [call for call in calls if call.parse_error]
    if bad:
        return Malformed(message.text, f"the call of {bad[0].function} could not be read")
    submits = [call for call in calls if call.function == "submit"]
    if submits:
        return _submit(submits[0], len(submits))
    asks = [call for call in calls if call.function == "ask"]
    if asks:
        pairs = [(call.arguments.get("role"), call.arguments.get("message")) for call in asks]
        messages = tuple(
            (r, m) for r, m in pairs if isinstance(r, str) and isinstance(m, str) and m.strip()
        )
        if len(messages) == len(pairs):
            return Ask(messages)
        return Malformed(message.text, "a question lacks its role or its message")
    if any(call.function == "wait" for call in calls):
        return Wait()
    return Malformed(message.text, f"there is no tool {calls[0].function!r}")


def _submit(call: ToolCall, answers: int) -> Action:
    if not {"candidate", "number"} <= set(call.arguments):
        return Malformed(str(call.arguments), "an answer lacks its candidate or its number")
    name = call.arguments["candidate"]
    if name is not None and not isinstance(name, str):
        return Malformed(str(call.arguments), "the candidate is no name")
    return Submit(name, call.arguments.get("number"), answers)


def _answers(message: ChatMessageAssistant, said: str) -> list[ChatMessage]:
    """What the model gets back: every call needs a reply of its own; the first one holds it all."""
    calls = message.tool_calls or []
    if not calls:
        return [ChatMessageUser(content=said)]
    return [
        ChatMessageTool(
            content=said if i == 0 else "See above.", tool_call_id=call.id, function=call.function
        )
        for i, call in enumerate(calls)
    ]


@scorer(metrics=[accuracy(), stderr()])
def _right() -> Scorer:
    """Correct where decision and number are both right; the episode is the score's metadata."""

    async def score(state: TaskState, target: Target) -> Score:
        del target  # the gold answer is in the task
        record: dict[str, Any] = state.store.get("episode")
        return Score(
            value=CORRECT if record["correct"] else INCORRECT,
            answer=str(record["answer"]),
            metadata=record,
        )

    return score


def episodes_of_log(path: Path) -> list[Mapping[str, Any]]:
    """The episodes of an Inspect log, as `interp unco play` would have written them.

    Raises:
        ResultError: the log is not of this task, or has samples without a score.
    """
    try:
        log = read_eval_log(str(path))
    except Exception as error:
        raise ResultError(f"{path} is not an Inspect log that can be read: {error}.") from error
    return list(_episodes(path, log))


def _episodes(path: Path, log: EvalLog) -> Sequence[Mapping[str, Any]]:
    found = []
    for sample in log.samples or []:
        scores = [s for s in (sample.scores or {}).values() if s.metadata and "arm" in s.metadata]
        if not scores:
            raise ResultError(
                f"{path}: sample {sample.id} has no score of the task unco; expected a finished "
                f"log of `inspect eval interp/unco`."
            )
        assert scores[0].metadata is not None
        found.append(scores[0].metadata)
    if not found:
        raise ResultError(f"{path} holds no sample; expected a log of `inspect eval interp/unco`.")
    return found
