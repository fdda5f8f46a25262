"""What steering does beside the forced choice: what is said, and what it costs elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from activations import ActivationCache, HFBackend, Prompt
from activations.batches import plan_batches, run_batches
from activations.head import VerdictHead
from interp.grading import bare_verdict, parse_verdict
from interp.statistics import Scores, bootstrap_mean, score_decisions
from steering.hooks import steer
from steering.interventions import CHANGES, Intervention, InterventionKind
from steering.plan import FoldPlan, SignedItems, make_plan
from steering.positions import Positions, require_positions
from steering.results import BASELINE, Cell, SteeringSweep
from steering.settings import Settings

__all__ = ["neutral_texts", "side_effects"]

_NEUTRAL: Final = Path(__file__).with_name("neutral.txt")
_LOGITS_SHARE: Final = 4
_ONE_DRAW: Final = {"random": "+0", "shuffled": "0", "orthogonal": "0"}


def neutral_texts() -> tuple[str, ...]:
    """Everyday sentences without claims to judge, one a line; written for this toolkit."""
    return tuple(_NEUTRAL.read_text(encoding="utf-8").splitlines())


def side_effects(
    cache: ActivationCache,
    signed: SignedItems,
    backend: HFBackend,
    sweep: SteeringSweep,
    settings: Settings,
    head: VerdictHead | None,
    *,
    n_items: int,
    max_new_tokens: int,
    batch_tokens: int,
    progress: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Greedy answers, KL at the answer position and perplexity at the quoted cells.

    Args:
        cache: of the sweep.
        signed: of the sweep.
        backend: transformers itself.
        sweep: what was found; says which cells are quoted.
        settings: of the sweep; of several draws the first one is taken.
        head: for `writer`.
        n_items: size of the random sample of items that is answered.
        max_new_tokens: cut of an answer.
        batch_tokens: padded tokens a batch.
        progress: called with the number of items finished since the last call, once a condition.

    Returns:
        condition to its figures: accuracy with interval, recalls, macro-F1, non-answers, flips and
        bare verdicts of greedy answers; `kl`, mean KL divergence in nats of the next-token
        distribution after the stub from the unsteered one; `perplexity` of the second half of
        neutral texts.
    """
    names = [name for name in sweep.conditions if name != "text"]
    # The same numbers of draws as in the sweep: with fewer, the first of a later layer is another.
    same = replace(settings, conditions=tuple(names))  # type: ignore[arg-type]
    cells, plans, _, _ = make_plan(cache, replace(signed, inner=None), same, head)
    prompts = backend.tokenize(cache.items())
    rng = np.random.default_rng([sweep.seed, 2])
    sample = np.sort(rng.choice(len(prompts), size=min(n_items, len(prompts)), replace=False))
    positions = require_positions(str(sweep.settings["positions"]))
    job = _Job(backend, prompts, positions, settings.intervention, batch_tokens)
    found: dict[str, Any] = {}
    reference: dict[int, Tensor] = {}
    unsteered: dict[int, str] = {}
    for name in (BASELINE, *names):
        pushes: list[_Push | None] = [None] * len(sample)
        neutral: _Push | None = None
        if name != BASELINE:
            numbers = [
                cells.index(Cell(*chosen, name, _ONE_DRAW.get(name, ""))) for chosen in sweep.chosen
            ]
            pushes = [
                _push_of(plans[fold], numbers[fold], int(row))
                for row, fold in zip(sample, signed.fold[sample], strict=True)
            ]
            # Of the first fold: these texts belong to none.
            neutral = _push_of(plans[0], numbers[0], int(plans[0].rows[0]))
        texts: dict[int, str] = {}
        divergence: dict[int, float] = {}
        for row, text, logits in job.answers(sample.tolist(), pushes, max_new_tokens):
            texts[row] = text
            if name == BASELINE:
                reference[row] = logits
            divergence[row] = _divergence(reference[row], logits)
            progress(1)
        if name == BASELINE:
            unsteered = texts
        found[name] = _scored(sweep, texts, unsteered) | {
            "kl": float(np.mean(list(divergence.values()))),
            "perplexity": job.perplexity(neutral),
        }
    return found


def _divergence(before: Tensor, after: Tensor) -> float:
    """KL(before ‖ after) of two next-token distributions given as logits, in nats."""
    first, second = before.double().log_softmax(-1), after.double().log_softmax(-1)
    return max(0.0, float((first.exp() * (first - second)).sum()))


def _scored(
    sweep: SteeringSweep, texts: dict[int, str], unsteered: dict[int, str]
) -> dict[str, Any]:
    rows = sorted(texts)
    verdicts = [parse_verdict(texts[row]) for row in rows]
    bare = [bare_verdict(texts[row]) for row in rows]
    said = [own if own is not None else other for own, other in zip(verdicts, bare, strict=True)]
    label = sweep.label[rows]
    right = _right(verdicts, label)
    before = _right([parse_verdict(unsteered[row]) for row in rows], label)
    groups = [sweep.group_id[row] for row in rows]
    accuracy = bootstrap_mean(right, groups, seed=sweep.seed)
    strict, lenient = _scores(verdicts, label), _scores(said, label)
    return {
        "n_items": len(rows),
        "accuracy": accuracy.value,
        "low": accuracy.low,
        "high": accuracy.high,
        "true_recall": None if strict is None else strict.true_recall,
        "false_recall": None if strict is None else strict.false_recall,
        "macro_f1": None if strict is None else strict.macro_f1,
        "flips_to_right": int((~before & right).sum()),
        "flips_to_wrong": int((before & ~right).sum()),
        "accuracy_bare_accepted": float(_right(said, label).mean()),
        "true_recall_bare_accepted": None if lenient is None else lenient.true_recall,
        "false_recall_bare_accepted": None if lenient is None else lenient.false_recall,
        "non_answers": sum(v is None for v in verdicts),
        "bare_verdicts": sum(
            v is None and b is not None for v, b in zip(verdicts, bare, strict=True)
        ),
    }


def _right(verdicts: Sequence[bool | None], label: NDArray[np.bool_]) -> NDArray[np.bool_]:
    return np.array([v is not None and v == gold for v, gold in zip(verdicts, label, strict=True)])


def _scores(verdicts: Sequence[bool | None], label: NDArray[np.bool_]) -> Scores | None:
    """None where the sample has one label only. A non-answer is wrong for either label."""
    if len(set(label.tolist())) < 2:
        return None
    pairs = zip(verdicts, label, strict=True)
    decided = np.array([not gold if v is None else v for v, gold in pairs])
    return score_decisions(label, decided, np.where(decided, 1.0, -1.0))


@dataclass(frozen=True, slots=True)
class _Push:
    """What one item is steered with.

    Attributes:
        layer: 0-based block index.
        vector: (d_model,) unit norm.
        size: with sign, in units of the residual stream.
    """

    layer: int
    vector: NDArray[np.float32]
    size: float


def _push_of(plan: FoldPlan, cell: int, row: int) -> _Push:
    (index,) = np.flatnonzero(plan.cells == cell)
    (place,) = np.flatnonzero(plan.rows == row)
    size = float(plan.coefficients[index, place])
    return _Push(int(plan.layers[index]), plan.vectors[plan.which[index]], size)


def _changing(
    kind: InterventionKind, table: Tensor, amounts: Tensor
) -> Callable[[Tensor, Tensor], Tensor]:
    """What is done to tokens of the rows that have a vector; others are left as they are."""
    steered = (table != 0).any(dim=1)

    def change(hidden: Tensor, rows: Tensor) -> Tensor:
        vectors, sizes, here = (part.to(hidden.device)[rows] for part in (table, amounts, steered))
        return torch.where(here[:, None], CHANGES[kind](hidden, vectors, sizes), hidden)

    return change


class _Job:
    """Greedy answers, next-token logits and perplexity, whatever each row is steered with."""

    def __init__(
        self,
        backend: HFBackend,
        prompts: Sequence[Prompt],
        positions: Positions,
        kind: InterventionKind,
        batch_tokens: int,
    ) -> None:
        self._backend, self._prompts, self._positions = backend, prompts, positions
        self._kind, self._budget = kind, batch_tokens
        self._vocabulary = range(backend.model.get_output_embeddings().weight.shape[0])

    def _interventions(self, pushes: Sequence[_Push | None]) -> list[Intervention]:
        """One for each layer at which rows of a batch are steered; others get nothing there."""
        found = []
        for layer in sorted({push.layer for push in pushes if push is not None}):
            here = [push if push and push.layer == layer else None for push in pushes]
            width = self._backend.d_model
            vectors = np.stack(
                [np.zeros(width, np.float32) if p is None else p.vector for p in here]
            )
            sizes = [0.0 if push is None else push.size for push in here]
            table, amounts = torch.from_numpy(vectors), torch.tensor(sizes, dtype=torch.float32)
            change = _changing(self._kind, table, amounts)
            found.append(
                Intervention(
                    layer=layer,
                    hook_point="resid_post",
                    positions=self._positions,
                    change=change,
                    d_model=width,
                    n_rows=len(here),
                    model_id=self._backend.model_id,
                )
            )
        return found

    def answers(
        self, rows: Sequence[int], pushes: Sequence[_Push | None], max_new_tokens: int
    ) -> Iterator[tuple[int, str, Tensor]]:
        """For each item its greedy text, and the logits (d_vocab,) after the stub."""
        lengths = [len(self._prompts[row].ids) + max_new_tokens for row in rows]

        def run(batch: Sequence[int]) -> tuple[Any, Tensor]:
            prompts = [self._prompts[rows[i]] for i in batch]
            steering = self._interventions([pushes[i] for i in batch])
            ids, stubbed = [p.ids for p in prompts], [p.ids_with_stub for p in prompts]
            with steer(self._backend, steering):
                texts = self._backend.generate(ids, max_new_tokens)
            with steer(
                self._backend,
                steering,
                prompt_lengths=[len(p) for p in ids],
                lengths=[len(p) for p in stubbed],
            ):
                return texts, self._backend.logits(stubbed, self._vocabulary)

        for batch, (texts, logits) in run_batches(plan_batches(lengths, self._budget), run):
            for i, text, row in zip(batch, texts, logits, strict=True):
                yield rows[i], self._backend.decode(text), row

    def perplexity(self, push: _Push | None) -> float:
        """Of the second half of neutral texts after the first, which is steered as a prompt is.

        Both signs are run, since an item's sign says nothing about these texts; a projection is
        taken out without one.
        """
        texts = [self._backend.tokenizer(text)["input_ids"] for text in neutral_texts()]
        signs: tuple[_Push | None, ...] = (push,)
        if push is not None and self._kind != "project_out":
            signs = (push, replace(push, size=-push.size))
        rows = [(ids, sign) for ids in texts for sign in signs]

        def run(batch: Sequence[int]) -> list[float]:
            some = [rows[i] for i in batch]
            lengths = [len(ids) for ids, _ in some]
            tokens = torch.zeros(len(some), max(lengths), dtype=torch.long)
            for row, (ids, _) in enumerate(some):
                tokens[row, : len(ids)] = torch.tensor(ids)
            tokens = tokens.to(self._backend.device)
            steering = self._interventions([sign for _, sign in some])
            halves = [length // 2 for length in lengths]
            # Padded on the right, where causal attention does not look.
            with (
                steer(self._backend, steering, prompt_lengths=halves, lengths=lengths),
                torch.inference_mode(),
            ):
                logits = self._backend.model(input_ids=tokens, use_cache=False).logits
            losses: list[float] = []
            for row, (half, length) in enumerate(zip(halves, lengths, strict=True)):
                logs = logits[row, half - 1 : length - 1].float().log_softmax(-1)
                losses += (-logs.gather(1, tokens[row, half:length, None])).flatten().tolist()
            return losses

        # Logits of every token over the vocabulary take far more room than its residual stream.
        budget = max(1, self._budget // _LOGITS_SHARE)
        batches = plan_batches([len(ids) for ids, _ in rows], budget)
        losses = [loss for _, part in run_batches(batches, run) for loss in part]
        return math.exp(float(np.mean(losses)))
