"""The model's own verdicts: forced choice after the stub, and greedy generation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from activations.backend import ModelBackend, Prompt, SharedPrefix
from activations.batches import BATCH_TOKENS
from activations.cache import manifest_differences, refuse_mismatch
from activations.passes import Reading, SharingPlan, plan_sharing, run_plan
from interp.errors import ItemError
from interp.files import atomic_path, parse_json, partial_path, read_json, write_json
from interp.grading import Answer, parse_verdict, read_answers, write_answers
from interp.items import Item
from interp.prompts import ANSWER_STUB, THINKING_ARGUMENT, are_injected, ask, asked_record
from interp.vocabulary import ANSWER_CONDITIONS, AnswerCondition, Reasoning

__all__ = [
    "COT_TOKENS",
    "MAX_NEW_TOKENS",
    "THINKING_TOKENS",
    "answer",
    "default_new_tokens",
    "forced_answers",
    "forced_logits",
    "greedy_answers",
    "require_labels",
]

MAX_NEW_TOKENS: Final = 48
"""Default length of a greedy answer: room for a short justification before the answer line."""

COT_TOKENS: Final = 768
"""Default length of a reply that is asked to reason first."""

THINKING_TOKENS: Final = 4096
"""Default length of a reply with the trained reasoning mode on; its traces run to thousands."""

Logits = NDArray[np.float32]


def default_new_tokens(reasoning: Reasoning, *, thinking: bool) -> int:
    """Cut of a reply where none is given: long enough for what is asked of the model."""
    if thinking:
        return THINKING_TOKENS
    return COT_TOKENS if reasoning == "cot" else MAX_NEW_TOKENS


def forced_logits(
    backend: ModelBackend,
    prompts: Sequence[Prompt],
    *,
    batch_tokens: int = BATCH_TOKENS,
    plan: SharingPlan | None = None,
    prefix_sharing: bool = False,
) -> Logits:
    """(n_items, 2) logits of True and False right after the answer stub.

    Args:
        backend: a running model.
        prompts: tokenised items.
        batch_tokens: padded tokens a batch.
        plan: which prompts share a prefix; None makes one.
        prefix_sharing: whether the plan that is made here shares prefixes.
    """
    reading = _reading(backend, prompts)
    logits = np.full((len(prompts), 2), np.nan, dtype=np.float32)

    def run(rows: Sequence[int], prefix: SharedPrefix | None) -> Logits:
        sequences = [prompts[row].ids_with_stub for row in rows]
        if prefix is None:
            return backend.logits(sequences, reading.logit_ids).numpy()
        start = prefix.n_tokens
        last = [len(ids) - start - 1 for ids in sequences]
        own = [ids[start:] for ids in sequences]
        return backend.capture_after(prefix, own, last, reading.logit_ids).logits.numpy()

    rows = range(len(prompts))
    plan = plan or plan_sharing(backend, reading, rows, prefix_sharing=prefix_sharing)
    for batch, values in run_plan(backend, reading, plan, run, batch_tokens=batch_tokens):
        logits[batch] = values
    return logits


def _reading(backend: ModelBackend, prompts: Sequence[Prompt]) -> Reading:
    """Prefixes of answers may go up to the last token of a prompt."""
    verdicts = backend.verdict_ids(prompts)
    last = [len(prompt.ids) - 1 for prompt in prompts]
    return Reading(prompts, last, (verdicts.true_id, verdicts.false_id))


def require_labels(items: Sequence[Item]) -> NDArray[np.bool_]:
    """(n_items,) labels of True/False items.

    Raises:
        ItemError: an item has none; the first one is named.
    """
    unlabelled = [item.item_id for item in items if item.label is None]
    if unlabelled:
        raise ItemError(
            f"{len(unlabelled)} items have no True/False label (first: {unlabelled[0]!r}); "
            f"verdicts can be graded for True/False items only."
        )
    return np.array([bool(item.label) for item in items])


def forced_answers(items: Sequence[Item], logits: Logits) -> tuple[Answer, ...]:
    """Verdicts by the larger of the two logits; a tie is False.

    Args:
        items: True/False items.
        logits: (n_items, 2), from `forced_logits` or a cache's `answer_logits`.
    """
    require_labels(items)
    answers = []
    for item, (logit_true, logit_false) in zip(items, logits.astype(float), strict=True):
        verdict = bool(logit_true > logit_false)
        answers.append(
            Answer(
                item_id=item.item_id,
                condition="forced",
                verdict=verdict,
                correct=verdict == item.label,
                answered=True,
                raw=f"{ANSWER_STUB} {verdict}",
                n_tokens=0,
                logit_true=float(logit_true),
                logit_false=float(logit_false),
            )
        )
    return tuple(answers)


def greedy_answers(
    backend: ModelBackend,
    items: Sequence[Item],
    prompts: Sequence[Prompt],
    logits: Logits,
    *,
    max_new_tokens: int = MAX_NEW_TOKENS,
    batch_tokens: int = BATCH_TOKENS,
    plan: SharingPlan | None = None,
) -> Iterator[list[Answer]]:
    """Generate greedily and parse the verdict, a batch at a time.

    Args:
        backend: a running model.
        items: True/False items.
        prompts: their tokenised prompts.
        logits: (n_items, 2), recorded beside the verdict.
        max_new_tokens: cut of the generation; what has no verdict by then is a non-answer.
        batch_tokens: padded tokens a batch, new tokens included.
        plan: which rows to ask, and which of them share a prefix; None asks all in full.

    Yields:
        the answers of one batch, in no particular order.
    """
    require_labels(items)
    reading = _reading(backend, prompts)
    plan = plan or plan_sharing(backend, reading, range(len(prompts)), prefix_sharing=False)

    def run(rows: Sequence[int], prefix: SharedPrefix | None) -> tuple[tuple[int, ...], ...]:
        return backend.generate([prompts[row].ids for row in rows], max_new_tokens, prefix)

    batches = run_plan(
        *(backend, reading, plan, run),
        batch_tokens=batch_tokens,
        more=max_new_tokens,
        aligned=True,
    )
    for rows, generated in batches:
        answers = []
        for i, ids in zip(rows, generated, strict=True):
            text = backend.decode(ids)
            verdict = parse_verdict(text)
            answers.append(
                Answer(
                    item_id=items[i].item_id,
                    condition="greedy",
                    verdict=verdict,
                    correct=verdict is not None and verdict == items[i].label,
                    answered=verdict is not None,
                    raw=text,
                    n_tokens=len(ids),
                    logit_true=float(logits[i, 0]),
                    logit_false=float(logits[i, 1]),
                )
            )
        yield answers


def answer(
    backend: ModelBackend,
    items: Sequence[Item],
    path: str | Path,
    *,
    source: Mapping[str, Any],
    conditions: Sequence[AnswerCondition] = ANSWER_CONDITIONS,
    reasoning: Reasoning = "base",
    logits: Logits | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    batch_tokens: int = BATCH_TOKENS,
    prefix_sharing: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> tuple[Answer, ...]:
    """Write an answer file, or reopen or resume what is there.

    Each finished batch is appended to `PATH.partial`, whose first line is the manifest. The
    finished file is in item order, with its manifest beside it in `PATH.manifest.json`.

    Args:
        backend: a running model.
        items: True/False items.
        path: of the answer file.
        source: from `activations.extraction.describe_source`.
        conditions: which of `forced` and `greedy`.
        reasoning: whether the prompts ask to reason first, or to answer at once. The manifest's
            `asked` holds it, with whether the correct answer stands in the prompts and whether the
            chat template was told to let the model think (`enable_thinking`).
        logits: (n_items, 2) if they are known already, from a cache of the same items and model.
        max_new_tokens: cut of greedy generation.
        batch_tokens: padded tokens a batch.
        prefix_sharing: run first tokens that prompts have in common once, as `extract` does.
        progress: called with the number of answers finished since the last call.

    Raises:
        CacheError: the file belongs to other settings; the differing fields are named.
        ItemError: an item has no label.
    """
    path = Path(path)
    require_labels(items)
    injected = are_injected(items)
    prompts = backend.tokenize([ask(item, reasoning) for item in items])
    fingerprint = dict(backend.fingerprint())
    thinking = fingerprint["template_args"].get(THINKING_ARGUMENT)
    manifest = {
        "model": fingerprint,
        "source": dict(source),
        "asked": asked_record(reasoning, thinking=thinking, injected=injected),
        "conditions": sorted(conditions),
        "answer_stub": ANSWER_STUB,
        "verdict_ids": asdict(backend.verdict_ids(prompts)),
        "max_new_tokens": max_new_tokens if "greedy" in conditions else None,
    }
    sidecar, partial = path.with_name(path.name + ".manifest.json"), partial_path(path)
    if path.exists():
        if not sidecar.exists():
            refuse_mismatch(path, [f"manifest: there is no {sidecar.name} beside it"])
        found = read_json(sidecar, "the manifest of an answer file")
        refuse_mismatch(path, manifest_differences(found, manifest))
        answers = read_answers(path)
        progress(len(answers))
        return answers
    done = {(entry.item_id, entry.condition): entry for entry in _resume(partial, manifest)}
    progress(len(done))
    left = {i for i, item in enumerate(items) if (item.item_id, "greedy") not in done}
    plan = None
    if logits is None or ("greedy" in conditions and left):
        plan = plan_sharing(
            *(backend, _reading(backend, prompts), range(len(items))),
            prefix_sharing=prefix_sharing,
        )
    if logits is None:
        logits = forced_logits(backend, prompts, batch_tokens=batch_tokens, plan=plan)
    if "forced" in conditions:
        forced = [a for a in forced_answers(items, logits) if (a.item_id, "forced") not in done]
        _append(partial, forced)
        done |= {(entry.item_id, entry.condition): entry for entry in forced}
        progress(len(forced))
    if "greedy" in conditions and plan is not None:
        for batch in greedy_answers(
            *(backend, items, prompts, logits),
            max_new_tokens=max_new_tokens,
            batch_tokens=batch_tokens,
            plan=plan.only(left),
        ):
            _append(partial, batch)
            done |= {(entry.item_id, entry.condition): entry for entry in batch}
            progress(len(batch))
    answers = tuple(
        done[item.item_id, condition] for condition in sorted(conditions) for item in items
    )
    write_json(sidecar, manifest)
    write_answers(path, answers)
    partial.unlink()
    return answers


def _append(partial: Path, answers: Iterable[Answer]) -> None:
    with partial.open("a", encoding="utf-8") as handle:
        for entry in answers:
            handle.write(json.dumps(asdict(entry), ensure_ascii=False, allow_nan=False) + "\n")


def _resume(partial: Path, manifest: Mapping[str, Any]) -> tuple[Answer, ...]:
    """Answers of an unfinished file; starts it if there is none.

    The first line is the manifest. A last line that a kill cut off is dropped from the file.
    """
    data = partial.read_bytes() if partial.exists() else b""
    whole = data.rfind(b"\n") + 1
    if not whole:
        with atomic_path(partial) as aside:
            aside.write_text(json.dumps(manifest, ensure_ascii=False) + "\n", encoding="utf-8")
        return ()
    # Not splitlines: an answer may hold characters that it takes for line ends.
    head, *lines = data[:whole].decode("utf-8").removesuffix("\n").split("\n")
    refuse_mismatch(partial, manifest_differences(_object(head), manifest))
    if whole < len(data):
        with partial.open("r+b") as handle:
            handle.truncate(whole)
    return tuple(Answer(**parse_json(line)) for line in lines)


def _object(line: str) -> Mapping[str, Any]:
    try:
        value = parse_json(line)
    except json.JSONDecodeError:
        value = None
    return value if isinstance(value, dict) else {}
