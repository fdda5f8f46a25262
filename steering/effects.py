"""What steering does beside the forced choice: what is said, and what it costs elsewhere."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from activations import ActivationCache, HFBackend, Prompt
from activations.batches import plan_batches, run_batches
from activations.head import VerdictHead
from interp.grading import bare_verdict, parse_verdict
from interp.statistics import bootstrap_mean, score_decisions
from steering.hooks import steer
from steering.interventions import Intervention, added
from steering.plan import FoldPlan, Settings, SignedItems, make_plan
from steering.positions import Positions, require_positions
from steering.results import BASELINE, Cell, SteeringSweep

__all__ = ["neutral_texts", "side_effects"]

_NEUTRAL: Final = Path(__file__).with_name("neutral.txt")
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
        condition to its figures: accuracy with interval, recalls, non-answers and bare verdicts of
        greedy answers; `kl`, mean KL divergence in nats of the next-token distribution after the
        stub from the unsteered one; `perplexity` of the second half of neutral texts.
    """
    names = [name for name in sweep.conditions if name != "text"]
    one = replace(settings, conditions=tuple(names), n_random=2, n_control=1)  # type: ignore[arg-type]
    cells, plans, _, _ = make_plan(cache, replace(signed, inner=None), one, head)
    prompts = backend.tokenize(cache.items())
    rng = np.random.default_rng([sweep.seed, 2])
    sample = np.sort(rng.choice(len(prompts), size=min(n_items, len(prompts)), replace=False))
    positions = require_positions(str(sweep.settings["positions"]))
    job = _Job(backend, prompts, positions, max_new_tokens, batch_tokens)
    found: dict[str, Any] = {}
    reference: dict[int, Tensor] = {}
    for name in (BASELINE, *names):
        texts: dict[int, str] = {}
        divergence: dict[int, float] = {}
        for fold, plan in enumerate(plans):
            rows = [row for row in sample if signed.fold[row] == fold]
            place, size = sweep.chosen[fold]
            cell = None
            if name != BASELINE:
                cell = cells.index(Cell(place, size, name, _ONE_DRAW.get(name, "")))
            for row, text, logits in job.answers(plan, rows, cell):
                texts[row] = text
                if name == BASELINE:
                    reference[row] = logits
                divergence[row] = _divergence(reference[row], logits)
                progress(1)
        found[name] = _scored(sweep, texts) | {
            "kl": float(np.mean(list(divergence.values()))),
            "perplexity": job.perplexity(
                plans[0],
                None
                if name == BASELINE
                else cells.index(Cell(*sweep.chosen[0], name, _ONE_DRAW.get(name, ""))),
            ),
        }
    return found


def _divergence(before: Tensor, after: Tensor) -> float:
    """KL(before ‖ after) of two next-token distributions given as logits, in nats."""
    first, second = before.double().log_softmax(-1), after.double().log_softmax(-1)
    return max(0.0, float((first.exp() * (first - second)).sum()))


def _scored(sweep: SteeringSweep, texts: dict[int, str]) -> dict[str, Any]:
    rows = sorted(texts)
    verdicts = [parse_verdict(texts[row]) for row in rows]
    bare = [bare_verdict(texts[row]) for row in rows]
    said = [own if own is not None else other for own, other in zip(verdicts, bare, strict=True)]
    label = sweep.label[rows]
    right = [v is not None and v == gold for v, gold in zip(verdicts, label, strict=True)]
    lenient = [v is not None and v == gold for v, gold in zip(said, label, strict=True)]
    groups = [sweep.group_id[row] for row in rows]
    accuracy = bootstrap_mean(right, groups, seed=sweep.seed)
    # A non-answer is wrong for either label.
    decided = np.array([not gold if v is None else v for v, gold in zip(said, label, strict=True)])
    both = len(set(label.tolist())) == 2
    scores = score_decisions(label, decided, np.where(decided, 1.0, -1.0)) if both else None
    return {
        "n_items": len(rows),
        "accuracy": accuracy.value,
        "low": accuracy.low,
        "high": accuracy.high,
        "accuracy_bare_accepted": float(np.mean(lenient)),
        "true_recall_bare_accepted": None if scores is None else scores.true_recall,
        "false_recall_bare_accepted": None if scores is None else scores.false_recall,
        "non_answers": sum(v is None for v in verdicts),
        "bare_verdicts": sum(
            v is None and b is not None for v, b in zip(verdicts, bare, strict=True)
        ),
    }


class _Job:
    """Greedy answers, next-token logits and perplexity in one cell of a fold."""

    def __init__(
        self,
        backend: HFBackend,
        prompts: Sequence[Prompt],
        positions: Positions,
        max_new_tokens: int,
        batch_tokens: int,
    ) -> None:
        self._backend, self._prompts, self._positions = backend, prompts, positions
        self._new, self._budget = max_new_tokens, batch_tokens
        self._vocabulary = range(backend.model.get_output_embeddings().weight.shape[0])

    def _pushing(self, plan: FoldPlan, cell: int, sizes: Sequence[float]) -> Intervention:
        (index,) = np.flatnonzero(plan.cells == cell)
        vector = torch.from_numpy(plan.vectors[plan.which[index]])
        amounts = torch.tensor(list(sizes), dtype=torch.float32)

        def change(hidden: Tensor, rows: Tensor) -> Tensor:
            device = hidden.device
            vectors = vector.to(device).expand(len(rows), -1)
            return added(hidden, vectors, amounts.to(device)[rows])

        return Intervention(
            layer=int(plan.layers[index]),
            hook_point="resid_post",
            positions=self._positions,
            change=change,
            d_model=len(vector),
            n_rows=len(sizes),
            model_id=self._backend.model_id,
        )

    def _sizes(self, plan: FoldPlan, cell: int, rows: Sequence[int]) -> list[float]:
        (index,) = np.flatnonzero(plan.cells == cell)
        place = {int(row): at for at, row in enumerate(plan.rows)}
        return [float(plan.coefficients[index, place[row]]) for row in rows]

    def answers(
        self, plan: FoldPlan, rows: Sequence[int], cell: int | None
    ) -> list[tuple[int, str, Tensor]]:
        """For each item its greedy text, and the logits (d_vocab,) after the stub."""
        lengths = [len(self._prompts[row].ids) + self._new for row in rows]
        found = []

        def run(batch: Sequence[int]) -> tuple[Any, Tensor]:
            chosen = [int(rows[i]) for i in batch]
            prompts = [self._prompts[row] for row in chosen]
            steering = []
            if cell is not None:
                steering = [self._pushing(plan, cell, self._sizes(plan, cell, chosen))]
            ids, stubbed = [p.ids for p in prompts], [p.ids_with_stub for p in prompts]
            with steer(self._backend, steering):
                texts = self._backend.generate(ids, self._new)
            with steer(
                self._backend,
                steering,
                prompt_lengths=[len(p) for p in ids],
                lengths=[len(p) for p in stubbed],
            ):
                return texts, self._backend.logits(stubbed, self._vocabulary)

        for batch, (texts, logits) in run_batches(plan_batches(lengths, self._budget), run):
            for i, text, row in zip(batch, texts, logits, strict=True):
                found.append((int(rows[i]), self._backend.decode(text), row))
        return found

    def perplexity(self, plan: FoldPlan, cell: int | None) -> float:
        """Of the second half of neutral texts after the first, which is steered as a prompt is.

        Both signs are run, since an item's sign says nothing about these texts.
        """
        losses: list[float] = []
        size = 0.0
        if cell is not None:
            (index,) = np.flatnonzero(plan.cells == cell)
            size = float(np.abs(plan.coefficients[index]).mean())
        for text in neutral_texts():
            ids = self._backend.tokenizer(text)["input_ids"]
            half, tokens = len(ids) // 2, torch.tensor([ids], device=self._backend.device)
            for sign in (1, -1) if cell is not None else (1,):
                steering = [] if cell is None else [self._pushing(plan, cell, [sign * size])]
                with (
                    steer(self._backend, steering, prompt_lengths=[half]),
                    torch.inference_mode(),
                ):
                    logits = self._backend.model(input_ids=tokens, use_cache=False).logits[0]
                logs = logits[half - 1 : -1].float().log_softmax(-1)
                losses += (-logs.gather(1, tokens[0, half:, None])).flatten().tolist()
        return math.exp(float(np.mean(losses)))
