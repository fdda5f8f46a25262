"""Logs of Inspect as answer files, so that a report treats every provider alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from interp.errors import InterpError, ResultError
from interp.files import require_file, sha256_file, write_json
from interp.grading import Answer, parse_verdict, write_answers

if TYPE_CHECKING:
    from inspect_ai.log import EvalLog, EvalSample

__all__ = ["answers_from_logs", "import_logs", "require_inspect"]

_VERDICTS: Final = {"True": True, "False": False}


def require_inspect() -> None:
    """Raise `InterpError` naming the extra if Inspect is not installed."""
    try:
        import inspect_ai  # noqa: F401
    except ImportError as error:
        raise InterpError(
            "Reading logs of Inspect needs inspect_ai. Install it with: pip install "
            "'interp[agents]'"
        ) from error


def import_logs(paths: Sequence[Path], out: Path) -> tuple[Answer, ...]:
    """Write an answer file, with its manifest beside it, from finished logs of one model.

    Args:
        paths: `.eval` or `.json` logs of `interp/avalon` or `interp/items`; several are joined.
        out: the answer file; must not exist.

    Raises:
        InterpError: Inspect is not installed.
        ResultError: a log cannot be used; log, sample and field are named.
    """
    if out.exists():
        raise ResultError(f"{out} is there already. Give another --out, or remove it.")
    answers, manifest = answers_from_logs(paths)
    write_json(out.with_name(out.name + ".manifest.json"), manifest)
    write_answers(out, answers)
    return answers


def answers_from_logs(paths: Sequence[Path]) -> tuple[tuple[Answer, ...], dict[str, Any]]:
    """The answers of some logs in their order, and their manifest.

    Verdicts are parsed again from what the model said; scores in the log are not used.
    """
    require_inspect()
    from inspect_ai.log import read_eval_log

    answers: dict[str, Answer] = {}
    manifest: dict[str, Any] = {}
    logs = []
    for path in paths:
        require_file(path, "a log of Inspect (.eval or .json)", ResultError)
        try:
            log = read_eval_log(str(path), resolve_attachments="core")
        except Exception as error:
            raise ResultError(
                f"{path} cannot be read as a log of Inspect ({type(error).__name__}: {error})."
            ) from error
        found = _manifest(path, log)
        _require_same(path, manifest or found, found)
        manifest = manifest or found
        logs.append({"file": path.name, "sha256": sha256_file(path), "run_id": log.eval.run_id})
        for answer in _answers(path, log):
            if answer.item_id in answers:
                raise ResultError(
                    f"{path}, sample {answer.item_id!r}: answered in an earlier log too. Import "
                    f"each run into a file of its own."
                )
            answers[answer.item_id] = answer
    return tuple(answers.values()), manifest | {"inspect": logs}


def _manifest(path: Path, log: EvalLog) -> dict[str, Any]:
    ours = (log.eval.metadata or {}).get("interp")
    if not isinstance(ours, dict) or set(ours) < {"source", "asked"}:
        raise ResultError(
            f"{path}, field 'eval.metadata.interp': missing; the log is of the task "
            f"{log.eval.task!r}. Expected a log of interp/avalon or interp/items."
        )
    if log.status != "success":
        raise ResultError(
            f"{path}, field 'status': {log.status!r}; expected a finished run. Finish it with "
            f"`inspect eval-retry`."
        )
    if (log.eval.config.epochs or 1) != 1:
        raise ResultError(
            f"{path}, field 'epochs': {log.eval.config.epochs}; an answer file holds one answer an "
            f"item. Run with --epochs 1."
        )
    config = log.plan.config.model_dump(exclude_none=True)
    config |= log.eval.model_generate_config.model_dump(exclude_none=True)
    return {
        "model": {"model_id": log.eval.model, "generate_config": config},
        "source": ours["source"],
        "asked": ours["asked"],
        "conditions": ["greedy"],
        "max_new_tokens": config.get("max_tokens"),
    }


def _require_same(path: Path, first: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    """Logs that are joined must be of one model, asked in one way."""
    for name in ("model", "asked"):
        if first[name] != found[name]:
            raise ResultError(
                f"{path}, field {name!r}: {found[name]} differs from the first log's "
                f"{first[name]}. Import each into a file of its own."
            )


def _answers(path: Path, log: EvalLog) -> list[Answer]:
    samples = log.samples or []
    if not samples:
        raise ResultError(f"{path}, field 'samples': none. Run without --no-log-samples.")
    return [_answer(f"{path}, sample {sample.id!r}", sample) for sample in samples]


def _answer(where: str, sample: EvalSample) -> Answer:
    if sample.error is not None:
        raise ResultError(
            f"{where}, field 'error': {sample.error.message} Retry the run with `inspect "
            f"eval-retry`; a reply that never came is not a wrong answer."
        )
    target = sample.target if isinstance(sample.target, str) else "".join(sample.target)
    if target not in _VERDICTS:
        raise ResultError(f"{where}, field 'target': got {target!r}; expected True or False.")
    said = sample.output.completion
    verdict = parse_verdict(said)
    used = sample.output.usage
    return Answer(
        item_id=str(sample.id),
        condition="greedy",
        verdict=verdict,
        correct=verdict is _VERDICTS[target],
        answered=verdict is not None,
        raw=said,
        n_tokens=0 if used is None else used.output_tokens,
        logit_true=None,
        logit_false=None,
    )
