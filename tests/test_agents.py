"""Items as tasks of Inspect, and its logs as answer files; the mock provider, no network."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import ok, refused

from interp import Item, load_items, open_source, parse_verdict, read_answers, write_items
from interp.errors import InterpError
from interp.prompts import ANSWER_LINE

pytest.importorskip("inspect_ai", reason="needs the extra agents")

from inspect_ai import Task
from inspect_ai import eval as run_eval
from inspect_ai.log import EvalLog, EvalSample, read_eval_log, write_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model

from interp.agents.logs import import_logs
from interp.agents.tasks import avalon
from interp.agents.tasks import items as items_task

# Inspect leaves streams of its event loop to the garbage collector, and calls a dependency of its
# own by an old name.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The 'initial' parameter is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Unclosed <Memory:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:.*MemoryObject:pytest.PytestUnraisableExceptionWarning"),
]

ROOT = Path(__file__).resolve().parents[1]
REPLIES = (
    "ANSWER: {right}",
    "The seat cannot know it.\n\n**ANSWER: {wrong}**",
    "<think>ANSWER: {wrong}</think>\nANSWER: {right}.",
    "I would say {right}.",
)
"""Right, wrong, right, and no verdict at all."""


def statement_in(prompt: str) -> str:
    return prompt.split("STATEMENT: ")[1].split("\n")[0]


def ask_mock(
    task: Task, folder: Path, asked: tuple[Item, ...], name: str = "mockllm/model", **options: Any
) -> EvalLog:
    """Run a task; the reply to an item follows from its place among the items."""
    place = {
        item.messages[-1].content.split("STATEMENT: ")[1].split("\n")[0]: i
        for i, item in enumerate(asked)
    }

    def reply(messages: list[Any], *_: Any) -> ModelOutput:
        i = place[statement_in(messages[-1].text)]
        label = asked[i].label
        text = REPLIES[i % 4].format(right=label, wrong=not label)
        output = ModelOutput.from_content("mockllm", text)
        output.usage = ModelUsage(input_tokens=9, output_tokens=10 + i, total_tokens=19 + i)
        return output

    (log,) = run_eval(
        task,
        model=get_model(name, custom_outputs=reply, memoize=False),
        display="none",
        log_dir=str(folder),
        log_format="json",
        **options,
    )
    return log


@pytest.fixture(scope="module")
def asked() -> tuple[Item, ...]:
    return load_items(open_source("avalon"), n=16, seed=3)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory, asked: tuple[Item, ...]) -> Path:
    found = ask_mock(avalon(n=16, seed=3), tmp_path_factory.mktemp("logs"), asked)
    assert found.status == "success", found.error
    return Path(found.location)


def test_prompts_and_labels_are_those_of_the_source(asked: tuple[Item, ...]) -> None:
    samples = list(avalon(n=16, seed=3).dataset)
    assert [sample.id for sample in samples] == [item.item_id for item in asked]
    for sample, item in zip(samples, asked, strict=True):
        assert [(turn.role, turn.text) for turn in sample.input] == [  # type: ignore[union-attr]
            (message.role, message.content) for message in item.messages
        ]
        assert sample.target == str(item.label)
        assert sample.metadata == {
            "group_id": item.group_id,
            "category": item.category,
            "statement": item.statement,
        }


def test_every_option_of_the_task_changes_what_is_asked() -> None:
    def texts(**options: Any) -> list[str]:
        return [sample.input[-1].text for sample in avalon(n=8, **options).dataset]  # type: ignore[union-attr]

    plain = texts()
    assert all(text.endswith(ANSWER_LINE) for text in plain)
    assert all("step by step" in text for text in texts(cot=True))
    assert all("Answer at once" in text for text in texts(cot=False))
    assert all("GROUND TRUTH" in text for text in texts(inject_truth=True))
    assert not any("SETUP:" in text for text in texts(view="no-facts"))
    assert texts(seed=1) != plain
    exam = avalon(rules_exam=True)
    assert {sample.metadata["category"] for sample in exam.dataset} == {"rules"}  # type: ignore[index]
    assert len(exam.dataset) == 34
    one = avalon(n=8, abilities="tacit_coordination, perspective_taking")
    assert {sample.metadata["category"] for sample in one.dataset} == {  # type: ignore[index]
        *("tacit_coordination", "perspective_taking")
    }
    told = avalon(n=8, inject_truth=True, cot=True).metadata
    assert told is not None
    assert told["interp"]["asked"] == {
        "condition": "injected",
        "reasoning": "cot",
        "thinking": None,
        "injected": True,
    }


def test_the_scorer_is_our_parser(log: Path, asked: tuple[Item, ...]) -> None:
    found = read_eval_log(str(log))
    assert found.results is not None
    assert found.samples is not None
    values = {sample.id: sample.scores["true_false"] for sample in found.samples}  # type: ignore[index]
    for i, item in enumerate(asked):
        score = values[item.item_id]
        assert (score.value, score.answer) == [
            ("C", str(item.label)),
            ("I", str(not item.label)),
            ("C", str(item.label)),
            ("N", None),
        ][i % 4]
    metrics = {
        name: metric.value
        for scores in found.results.scores
        for name, metric in scores.metrics.items()
    }
    assert metrics["accuracy"] == 0.5
    assert metrics["non_answers"] == 4
    by_ability = {
        category: [i % 4 in (0, 2) for i, item in enumerate(asked) if item.category == category]
        for category in {item.category for item in asked}
    }
    for category, right in by_ability.items():
        assert metrics[category] == pytest.approx(sum(right) / len(right))


def test_a_log_becomes_an_answer_file_that_a_report_reads(
    log: Path, asked: tuple[Item, ...], tmp_path: Path
) -> None:
    out = tmp_path / "provider.jsonl"
    found = json.loads(ok("answers", "import", log, "--out", out, "--json").stdout)
    assert found == {"n_items": 16, "accuracy": 0.5, "non_answers": 4}
    answers = read_answers(out)
    assert {answer.item_id for answer in answers} == {item.item_id for item in asked}
    by_id = {answer.item_id: answer for answer in answers}
    for i, item in enumerate(asked):
        answer = by_id[item.item_id]
        text = REPLIES[i % 4].format(right=item.label, wrong=not item.label)
        assert (answer.raw, answer.n_tokens, answer.condition) == (text, 10 + i, "greedy")
        assert answer.verdict is parse_verdict(text)
        assert (answer.correct, answer.answered) == (i % 4 in (0, 2), i % 4 != 3)
        assert (answer.logit_true, answer.logit_false) == (None, None)
    manifest = json.loads(Path(f"{out}.manifest.json").read_text())
    assert manifest["model"]["model_id"] == "mockllm/model"
    assert manifest["source"]["items_sha256"]
    assert manifest["asked"]["condition"] == "base"
    write_items(tmp_path / "items.jsonl", asked)
    report = ["behave", "report", out, "--items", tmp_path / "items.jsonl", "--json"]
    scores = json.loads(ok(*report).stdout)["scores"]
    for row in scores:
        mine = [i for i, item in enumerate(asked) if item.category == row["category"]]
        if mine:
            right = sum(i % 4 in (0, 2) for i in mine)
            assert row["accuracy_wrong"] == pytest.approx(right / len(mine))
            assert row["model"] == "mockllm/model"
    other = tmp_path / "other.jsonl"
    write_items(other, load_items(open_source("avalon"), n=16, seed=4))
    assert "field 'item_id'" in refused(*report[:3], "--items", other)
    assert "is there already" in refused("answers", "import", log, "--out", out)


def test_any_source_can_be_asked(tmp_path: Path) -> None:
    items = load_items(open_source("facts"), n=12, seed=0)
    base = ask_mock(items_task("facts", n=12), tmp_path, items)
    cot = ask_mock(items_task("facts", n=12, cot=True), tmp_path, items)
    write_items(tmp_path / "items.jsonl", items)
    files = []
    for name, found in (("base", base), ("cot", cot)):
        files.append(tmp_path / f"{name}.jsonl")
        answers = import_logs([Path(found.location)], files[-1])
        assert sum(answer.correct for answer in answers) == 6
    report = ["behave", "report", *files, "--items", tmp_path / "items.jsonl", "--json"]
    rows = json.loads(ok(*report).stdout)["scores"]
    assert {row["condition"] for row in rows} == {"base", "cot"}
    open_ended = tmp_path / "open.jsonl"
    write_items(open_ended, [Item("q1", items[0].messages, None, "Paris", "g", "c", {})])
    with pytest.raises(InterpError, match="'q1' has no True/False label"):
        items_task(f"jsonl:{open_ended}")


def changed(log: Path, folder: Path, change: Callable[[EvalLog], object]) -> Path:
    found = read_eval_log(str(log))
    change(found)
    path = folder / f"{len(list(folder.iterdir()))}.json"
    write_eval_log(found, str(path))
    return path


def first(found: EvalLog) -> EvalSample:
    assert found.samples
    return found.samples[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda log: setattr(log, "status", "cancelled"), ["'status'", "eval-retry"]),
        (lambda log: setattr(log.eval, "metadata", {}), ["eval.metadata.interp", "interp/avalon"]),
        (lambda log: setattr(log.eval.config, "epochs", 3), ["'epochs': 3", "--epochs 1"]),
        (lambda log: setattr(first(log), "target", "yes"), ["sample", "'target'", "'yes'"]),
        (lambda log: setattr(log, "samples", []), ["'samples': none"]),
    ],
)
def test_logs_that_cannot_be_used_are_named_by_sample_and_field(
    log: Path, tmp_path: Path, change: Callable[[EvalLog], object], words: list[str]
) -> None:
    path = changed(log, tmp_path, change)
    message = refused("answers", "import", path, "--out", tmp_path / "a.jsonl")
    assert all(word in message for word in (str(path), *words)), message
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_logs_that_do_not_belong_together_are_refused(log: Path, tmp_path: Path) -> None:
    def other_model(found: EvalLog) -> None:
        found.eval.model = "mockllm/other"

    out = tmp_path / "out" / "a.jsonl"
    base = ["answers", "import", log]
    assert "answered in an earlier log too" in refused(*base, log, "--out", out)
    other = changed(log, tmp_path, other_model)
    assert "field 'model'" in refused(*base, other, "--out", out)
    text = tmp_path / "text.json"
    text.write_text("{}")
    assert "cannot be read as a log of Inspect" in refused("answers", "import", text, "--out", out)
    assert "/no/such.eval" in refused("answers", "import", "/no/such.eval", "--out", out)
    assert not out.exists()


def test_without_the_extra_the_error_names_it(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    message = refused("answers", "import", log, "--out", tmp_path / "a.jsonl")
    assert "pip install 'interp[agents]'" in message


def test_the_command_line_does_not_import_inspect() -> None:
    code = "import sys, experiments.cli; print('inspect_ai' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_inspect_finds_the_tasks_by_the_entry_point(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # As an installer would write it, so that the test does not depend on what is installed.
    info = tmp_path / "declared-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 0\n")
    points = project["entry-points"]["inspect_ai"]
    lines = [f"{name} = {value}" for name, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[inspect_ai]", *lines]) + "\n")
    # The mock provider counts tokens with a table that it would download.
    code = (
        "import sys, tiktoken; sys.path[:0] = sys.argv[1:3]; sys.argv[1:3] = []; "
        "words = {'encode': lambda self, text, **options: text.split()}; "
        "tiktoken.get_encoding = lambda name: type('Words', (), words)(); "
        "from inspect_ai._cli.main import main; main()"
    )
    arguments = ["eval", "interp/avalon", "--model", "mockllm/model", "-T", "n=4", "-T", "cot=true"]
    arguments += ["--log-dir", str(tmp_path / "logs"), "--display", "plain", "--log-format", "json"]
    done = subprocess.run(
        [sys.executable, "-c", code, ROOT, tmp_path, *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "logs").glob("*.json")
    found = read_eval_log(str(path))
    assert (found.status, found.eval.task_registry_name) == ("success", "interp/avalon")
    answers = import_logs([path], tmp_path / "a.jsonl")
    assert [answer.verdict for answer in answers] == [None] * 4
