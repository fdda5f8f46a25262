"""The inspect_ai task, with Inspect's own scripted model: no network."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from commands import ok, refused

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
inspect_ai = pytest.importorskip("inspect_ai", reason="the extra `agents` is not installed")

from inspect_ai.model import ChatMessageAssistant, ModelOutput, ModelUsage, get_model  # noqa: E402
from inspect_ai.tool import ToolCall  # noqa: E402

from interp.agents.unco import action_of, unco  # noqa: E402
from interp.errors import SourceError  # noqa: E402
from interp.sources.unco.build import build_groups  # noqa: E402
from interp.sources.unco.environment import Ask, Malformed, Submit, Wait  # noqa: E402
from interp.sources.unco.spec import number_to_json  # noqa: E402
from interp.sources.unco.tasks import Task  # noqa: E402


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id=f"{name}-{len(arguments)}", function=name, arguments=arguments)


def _output(*calls: ToolCall, text: str = "") -> ModelOutput:
    output = ModelOutput.from_content("mockllm/model", text)
    output.choices[0].message.tool_calls = list(calls) or None
    # Without it, Inspect counts tokens with a vocabulary that it would download.
    output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    return output


def _agent(tasks: dict[str, Task]) -> Any:
    """Asks everyone in one turn, then submits the gold answer; babbles in `missed` tasks."""

    def act(messages: Any, tools: Any, *_: Any) -> ModelOutput:
        assert {tool.name for tool in tools} == {"ask", "wait", "submit"}
        task = tasks[next(m.text for m in messages if m.role == "user")]
        if task.setting == "missed":
            return _output(text="Let me think.")
        if len(messages) == 2:
            roles = task.instance.spec.roles
            return _output(*(_call("ask", role=role, message="Your data?") for role in roles))
        replies = [m.text for m in messages if m.role == "tool"]
        assert "answered:" in replies[0] and set(replies[1:]) == {"See above."}
        gold = task.instance.gold
        number = None if gold.number is None else number_to_json(gold.number)
        return _output(_call("submit", candidate=gold.candidate, number=number))

    return act


def test_a_scripted_model_plays_and_the_report_reads_its_log(tmp_path: Path) -> None:
    # Prompts are the same in all settings: one setting a group tells them apart.
    chosen = [group[1 if i % 2 else 3] for i, group in enumerate(build_groups(4, 6))]
    from interp.sources.unco.tasks import task_to_json

    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps(task_to_json(task)) + "\n" for task in chosen))
    model = get_model(
        "mockllm/model", custom_outputs=_agent({task.prompt: task for task in chosen})
    )
    (log,) = inspect_ai.eval(
        unco(tasks=str(path), max_rounds=3),
        model=model,
        log_dir=str(tmp_path / "logs"),
        display="none",
    )
    assert log.status == "success", log.error
    (written,) = (tmp_path / "logs").glob("*.eval")
    found = json.loads(ok("unco", "report", str(written), "--json").stdout)["settings"]
    by = {row["setting"]: row for row in found}
    assert (by["misaligned"]["n"], by["misaligned"]["accuracy"]) == (2, 1.0)
    assert (by["missed"]["no_answer"], by["missed"]["malformed"]) == (2, 4.0)
    assert by["misaligned"]["mean_rounds"] == 1.0
    assert refused("unco", "report", str(tmp_path / "no.eval"))
    (tmp_path / "junk.eval").write_text("junk")
    assert "junk.eval" in refused("unco", "report", str(tmp_path / "junk.eval"))


def _turn(*calls: ToolCall, text: str = "") -> ChatMessageAssistant:
    return ChatMessageAssistant(content=text, tool_calls=list(calls) or None)


def test_turns_are_read_as_actions() -> None:
    ask = _call("ask", role="bursar", message="Costs?")
    assert action_of(_turn(ask, ask)) == Ask((("bursar", "Costs?"),) * 2)
    assert action_of(_turn(_call("wait"))) == Wait()
    one, two = _call("submit", candidate="A", number=1), _call("submit", candidate="B", number=2)
    assert action_of(_turn(ask, one, two)) == Submit("A", 1, answers=2)
    assert action_of(_turn(text='{"wait": true}')) == Wait()
    for odd in (
        _turn(text="hm"),
        _turn(_call("fly")),
        _turn(_call("ask", role="bursar")),
        _turn(_call("submit", candidate=3, number=1)),
        _turn(ToolCall(id="x", function="ask", arguments={}, parse_error="no JSON")),
    ):
        assert isinstance(action_of(odd), Malformed)


def test_parameters_choose_the_tasks() -> None:
    samples = unco(groups=3, settings="missed+mixed").dataset
    assert Counter(str(s.id).split("/")[1] for s in samples) == {"missed": 3, "mixed": 3}
    for wrong in ({"settings": "mised"}, {"arm": "everything"}):
        with pytest.raises(SourceError, match="unknown"):
            unco(groups=1, **wrong)  # type: ignore[arg-type]
