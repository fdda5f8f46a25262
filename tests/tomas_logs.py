"""Lines and files of conversion logs, and a session that writes one."""

import json
from pathlib import Path
from typing import Any

from commands import runner

from experiments.cli import app


def line(key: str, number: int, code: str, **changes: Any) -> dict[str, Any]:
    return {
        "trace_key": key,
        "trace_id": number,
        "framework": "MetaGPT",
        "model": "GPT-4o",
        "code": code,
        "rationale": "why",
        "supporting_quote": "",
        "coder": "me",
    } | changes


def write_log(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join((x if isinstance(x, str) else json.dumps(x)) + "\n" for x in lines))
    return path


def session(traces: Path, log: Path, only: Path, text: str) -> Any:
    arguments = ["tomas", "code", traces, "--log", log, "--coder", "ann", "--only", only]
    return runner.invoke(app, [str(each) for each in arguments], input=text, catch_exceptions=False)
