"""Greedy answers of a base model and its adapters on the same items, and which of them differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from activations import HFBackend
from activations.adapter import adapted, adapter_sha256, require_effect
from activations.batches import BATCH_TOKENS, plan_batches, run_batches
from experiments.grpo.prompts import ReplyPrompt, reply_prompts, until_stop
from experiments.grpo.similarity import Encoder, similarities
from interp.errors import ResultError, TrainingError
from interp.files import write_csv, write_json
from interp.items import Item, read_items
from interp.open_grading import ANSWER_CLOSE, grade_answer
from interp.records import RunRecord, read_run

__all__ = [
    "BASE",
    "Condition",
    "Pool",
    "conditions_of",
    "evaluate",
    "items_of",
    "record_of",
    "require_base",
]

BASE: Final = "base"


@dataclass(frozen=True, slots=True)
class Condition:
    """What is evaluated.

    Attributes:
        name: unique among the conditions.
        path: adapter folder; None for the base alone.
        seed: of its training, None if not known.
    """

    name: str
    path: Path | None = None
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Pool:
    """Items that are evaluated together.

    Attributes:
        name: `train` or `held_out`.
        items: open-ended ones.
        threshold: an answer is positive if its ROUGE-L F1 is strictly above it.
    """

    name: str
    items: tuple[Item, ...]
    threshold: float


def conditions_of(paths: Sequence[Path]) -> tuple[Condition, ...]:
    """The base, and one condition an adapter, named after its folder and run.

    Raises:
        TrainingError: a path is no adapter folder, or one is given twice.
    """
    conditions = [Condition(BASE)]
    for path in paths:
        if not (path / "adapter_config.json").is_file():
            raise TrainingError(
                f"{path} has no adapter_config.json; expected a PEFT adapter folder, such as the "
                f"run folder of `interp grpo train` or one of its checkpoints."
            )
        record = record_of(path)
        name = path.resolve().name
        if name.startswith("checkpoint-") or record is not None:
            name = "/".join(path.resolve().parts[-2:])
        if any(known.name == name for known in conditions):
            name = str(path)
        if any(known.name == name for known in conditions):
            raise TrainingError(f"{path} is given twice.")
        seed = None if record is None else record.seeds.get("training")
        conditions.append(Condition(name, path, seed))
    return tuple(conditions)


def record_of(path: Path) -> RunRecord | None:
    """The record of the run that an adapter is of, if it is there."""
    for folder in (path, path.resolve().parent):
        if (folder / "run.json").is_file():
            try:
                record = read_run(folder)
            except ResultError:
                return None
            return record if "training" in record.seeds else None
    return None


def items_of(path: Path) -> tuple[Item, ...]:
    """The items that an adapter was trained on, as its run kept them; none if it did not."""
    for folder in (path, path.resolve().parent):
        if (folder / "items.jsonl").is_file() and record_of(path) is not None:
            return tuple(read_items(folder / "items.jsonl"))
    return ()


def require_base(path: Path, backend: HFBackend) -> None:
    """Make sure that an adapter was trained on this very base, as far as that is recorded.

    By the fingerprint of the weights where the run of `interp grpo train` recorded it, else by the
    name in `adapter_config.json`. That the tensors fit is checked on attaching; a fit alone proves
    nothing, because models of one family have the same shapes.

    Raises:
        TrainingError: it was trained on another one.
    """
    ours = backend.fingerprint()
    record = record_of(path)
    if record is not None:
        theirs = record.model
        if theirs.get("weights") and theirs["weights"] != ours["weights"]:
            raise TrainingError(
                f"{path} was trained on {theirs.get('model_id')} with weights "
                f"{str(theirs['weights'])[:16]}…, this is {ours['model_id']} with "
                f"{str(ours['weights'])[:16]}…. Give the base it was trained on as --model."
            )
        if theirs.get("weights"):
            return
    try:
        config = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
        named = str(config.get("base_model_name_or_path") or "")
    except (ValueError, AttributeError) as error:
        raise TrainingError(f"{path}/adapter_config.json is no JSON object ({error}).") from error
    if named and Path(named).name.casefold() != Path(str(ours["model_id"])).name.casefold():
        raise TrainingError(
            f"{path} was trained on {named!r}, this is {ours['model_id']!r}. Give the base it was "
            f"trained on as --model."
        )


def evaluate(
    backend: HFBackend,
    conditions: Sequence[Condition],
    pools: Sequence[Pool],
    folder: Path,
    *,
    max_new_tokens: int,
    prefix: str = "",
    stop: str = ANSWER_CLOSE,
    encoder: Encoder | None = None,
    batch_tokens: int = BATCH_TOKENS,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Evaluate all conditions on all pools; write `evaluation.json`, `items.csv`, `identical.csv`.

    Decoding is greedy and in the same batches for every condition, so that equal weights give equal
    texts. Replies are compared up to their first stop text.

    Args:
        backend: the base model.
        conditions: see `conditions_of`; the base comes first.
        pools: the items.
        folder: to write to.
        max_new_tokens: cut of replies.
        prefix: opens the assistant's turn, as in training.
        stop: text that ends a reply.
        encoder: for a second score, the cosine of answer and gold.
        batch_tokens: padded tokens a batch, new tokens included.
        progress: called with the number of replies done since the last call.

    Returns:
        the content of `evaluation.json`.

    Raises:
        TrainingError: an adapter is of another base.
        ModelError: an adapter does not attach, or has no effect on the output.
    """
    if not pools or not conditions:
        raise TrainingError("There is nothing to evaluate: give items and at least the base.")
    for condition in conditions:
        if condition.path is not None:
            require_base(condition.path, backend)
    prompts = {
        pool.name: reply_prompts(
            backend.tokenizer, pool.items, prefix=prefix, template_args=backend.template_args
        )
        for pool in pools
    }
    rows: list[dict[str, Any]] = []
    attached: list[dict[str, Any]] = []
    for condition in conditions:
        if condition.path is None:
            rows += _answers(
                backend, condition, pools, prompts, max_new_tokens, prefix, stop, batch_tokens,
                progress,
            )  # fmt: skip
            attached.append(asdict(condition) | {"path": None, "sha256": None, "modules": 0})
            continue
        with adapted(backend, condition.path) as changed:
            require_effect(changed, condition.path, prompts[pools[0].name][0].ids)
            rows += _answers(
                changed, condition, pools, prompts, max_new_tokens, prefix, stop, batch_tokens,
                progress,
            )  # fmt: skip
            n_modules = sum(hasattr(m, "base_layer") for m in changed.model.modules())
        attached.append(
            asdict(condition)
            | {
                "path": str(condition.path),
                "sha256": adapter_sha256(condition.path),
                "modules": n_modules,
            }
        )
    _compare(rows, conditions[0].name)
    if encoder is not None:
        scores = similarities(encoder, [r["answer"] for r in rows], [r["gold"] for r in rows])
        for row, score in zip(rows, scores, strict=True):
            row["similarity"] = float(score)
    identical = {pool.name: _identical(rows, pool.name, conditions) for pool in pools}
    summary = {
        "model": dict(backend.fingerprint()),
        "conditions": attached,
        "max_new_tokens": max_new_tokens,
        "prefix": prefix,
        "stop": stop,
        "pools": {
            pool.name: {
                "n_items": len(pool.items),
                "threshold": pool.threshold,
                "conditions": {c.name: _summed(rows, pool.name, c.name) for c in conditions},
                "identical": identical[pool.name],
            }
            for pool in pools
        },
    }
    write_json(folder / "evaluation.json", summary)
    write_csv(folder / "items.csv", rows)
    write_csv(
        folder / "identical.csv",
        [
            {"pool": name, "condition": first, **counts}
            for name, matrix in identical.items()
            for first, counts in matrix.items()
        ],
    )
    return summary


def _answers(
    backend: HFBackend,
    condition: Condition,
    pools: Sequence[Pool],
    prompts: Mapping[str, Sequence[ReplyPrompt]],
    max_new_tokens: int,
    prefix: str,
    stop: str,
    batch_tokens: int,
    progress: Callable[[int], None],
) -> list[dict[str, Any]]:
    """One row an item: the reply and its grade."""
    rows = []
    for pool in pools:
        asked = prompts[pool.name]

        def run(
            index: Sequence[int], asked: Sequence[ReplyPrompt] = asked
        ) -> tuple[tuple[int, ...], ...]:
            return backend.generate([asked[i].ids for i in index], max_new_tokens)

        replies = [""] * len(asked)
        lengths = [len(prompt.ids) + max_new_tokens for prompt in asked]
        for index, generated in run_batches(plan_batches(lengths, batch_tokens), run):
            for i, ids in zip(index, generated, strict=True):
                replies[i] = prefix + until_stop(backend.decode(ids), stop)
            progress(len(index))
        for prompt, reply in zip(asked, replies, strict=True):
            graded = grade_answer(reply, prompt.gold, threshold=pool.threshold)
            rows.append(
                {
                    "pool": pool.name,
                    "item_id": prompt.item_id,
                    "condition": condition.name,
                    "seed": condition.seed,
                    "reply": reply,
                    "status": graded.span.status,
                    "answer": graded.span.text,
                    "gold": prompt.gold,
                    "rouge_l_f1": graded.f1,
                    "positive": graded.reward == 1,
                }
            )
    return rows


def _compare(rows: list[dict[str, Any]], first: str) -> None:
    """Note in each row whether its reply is that of the first condition."""
    replies = {(r["pool"], r["item_id"]): r["reply"] for r in rows if r["condition"] == first}
    for row in rows:
        row["same_as_base"] = row["reply"] == replies[row["pool"], row["item_id"]]


def _summed(rows: Sequence[Mapping[str, Any]], pool: str, condition: str) -> dict[str, Any]:
    found = [r for r in rows if r["pool"] == pool and r["condition"] == condition]
    positive = [r["item_id"] for r in found if r["positive"]]
    summary = {
        "seed": found[0]["seed"],
        "positives": len(positive),
        "positive_ids": positive,
        "mean_rouge_l_f1": sum(r["rouge_l_f1"] for r in found) / len(found),
        "no_answer": sum(not r["answer"] for r in found),
        "same_as_base": sum(r["same_as_base"] for r in found),
    }
    if "similarity" in found[0]:
        summary["mean_similarity"] = sum(r["similarity"] for r in found) / len(found)
    return summary


def _identical(
    rows: Sequence[Mapping[str, Any]], pool: str, conditions: Sequence[Condition]
) -> dict[str, dict[str, int]]:
    """How many replies two conditions have in common, for all pairs."""
    replies = {
        c.name: [r["reply"] for r in rows if r["pool"] == pool and r["condition"] == c.name]
        for c in conditions
    }
    return {
        first: {
            second: sum(a == b for a, b in zip(replies[first], replies[second], strict=True))
            for second in replies
        }
        for first in replies
    }
