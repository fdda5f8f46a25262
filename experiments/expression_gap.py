"""Is truth represented and not said? Probe, own answers and steering on the same items.

The comparison of Avalon-ToM-Bench, section 5.1: a linear probe against the model's own output on
identical items, and steering along the class-mean direction.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from activations import (
    ModelSpec,
    answer,
    describe_source,
    extract,
    load_backend,
)
from activations.answers import MAX_NEW_TOKENS
from activations.batches import BATCH_TOKENS
from activations.cache import manifest_differences, refuse_mismatch
from experiments.console import note, progress
from figures import draw_expression_gap
from interp.files import read_json, write_csv, write_json
from interp.grading import Answer, bare_verdict
from interp.items import Item, write_items
from interp.records import (
    RunRecord,
    artifacts_of,
    git_state,
    package_versions,
    read_run,
    utc_now,
    write_run,
)
from interp.registry import load_items, open_source
from interp.statistics import Estimate, bootstrap_mean, out_of_fold_threshold, score_decisions
from interp.vocabulary import Dtype, Grouping, TokenRule
from probes import ProbeSweep, sweep_layers, write_sweep
from steering import SignedItems, sweep_steering, write_steering

__all__ = ["NAME", "ExpressionGapConfig", "readouts_of", "run_expression_gap", "signed_items"]

NAME: Final = "expression-gap"


@dataclass(frozen=True, slots=True)
class ExpressionGapConfig:
    """What an expression-gap run depends on.

    Attributes:
        model: alias, Hub id, folder or `gguf:PATH`.
        source: item source, `NAME` or `NAME:ARGUMENT`.
        n: items; None takes the source's default.
        view: of the prompts; None takes the source's first.
        field_map: for tabular sources.
        token: token rule of the extraction.
        C: inverse L2 strength of the probes, or `auto`.
        permutations: label permutations of the probes' null.
        folds: outer folds.
        grouping: `group` or `none`.
        alphas: steering sizes, in multiples of the median residual norm.
        random_directions: random directions, each in a ± pair.
        max_new_tokens: cut of greedy answers.
        batch_tokens: padded tokens a batch.
        dtype: of the model.
        device: torch device or `auto`.
        seed: of items, folds, random directions and intervals.
    """

    model: str
    source: str
    n: int | None = None
    view: str | None = None
    field_map: Mapping[str, str] | None = None
    token: TokenRule = "last_prompt"
    C: float | Literal["auto"] = 0.01
    permutations: int = 200
    folds: int = 5
    grouping: Grouping = "group"
    alphas: tuple[float, ...] = (1.0,)
    random_directions: int = 5
    max_new_tokens: int = MAX_NEW_TOKENS
    batch_tokens: int = BATCH_TOKENS
    dtype: Dtype = "float32"
    device: str = "auto"
    seed: int = 0


def signed_items(sweep: ProbeSweep) -> SignedItems:
    """What steering needs of a probe sweep."""
    return SignedItems(sweep.fold, sweep.layer_nested, sweep.decision_values)


def run_expression_gap(
    config: ExpressionGapConfig, folder: Path, *, command: str = ""
) -> RunRecord:
    """Run everything into `folder`; started again with the same configuration, it goes on.

    Raises:
        CacheError: the folder holds a run with another configuration.
        InterpError: whatever the parts raise.
    """
    started, clock = utc_now(), time.process_time()
    settings = asdict(config)
    settings["alphas"] = list(config.alphas)
    config_path = folder / "config.json"
    if config_path.exists():
        found = read_json(config_path, "the configuration of a run")
        refuse_mismatch(folder, manifest_differences(found, settings))
        if (folder / "run.json").exists():
            note(f"{folder} is finished already; nothing is computed.")
            return read_run(folder)
    source = open_source(config.source, config.field_map)
    items = load_items(source, view=config.view, n=config.n, seed=config.seed)
    spec = ModelSpec.parse(config.model, dtype=config.dtype, device=config.device)
    write_json(config_path, settings)
    described = describe_source(source, items, view=config.view, seed=config.seed)

    note(f"1/5  loading {spec.model_id} ({spec.dtype}) and {len(items)} items of {source.name}")
    backend = load_backend(spec)
    write_items(folder / "items.jsonl", items)
    n_tokens = sum(len(prompt.ids_with_stub) for prompt in backend.tokenize(items))
    cache_mib = len(items) * backend.n_layers * backend.d_model * 4 / 2**20
    note(
        f"     {n_tokens:,} prompt tokens, run about three times (activations, greedy answers, "
        f"steering); {backend.n_layers} layers × {backend.d_model}: a cache of {cache_mib:.0f} MiB"
    )
    with progress("2/5  activations", len(items)) as advance:
        cache = extract(
            backend,
            items,
            folder / "activations.h5",
            source=described,
            token_rule=config.token,
            batch_tokens=config.batch_tokens,
            progress=advance,
        )
    with cache:
        with progress("3/5  probes", cache.n_layers + 1) as advance:
            sweep = sweep_layers(
                cache,
                C=config.C,
                n_folds=config.folds,
                seed=config.seed,
                grouping=config.grouping,
                n_permutations=config.permutations,
                items=items,
                progress=advance,
            )
        probe = write_sweep(folder / "probe", sweep)
        with progress("4/5  own answers", 2 * len(items)) as advance:
            answers = answer(
                backend,
                items,
                folder / "answers.jsonl",
                source=described,
                logits=cache.answer_logits,
                max_new_tokens=config.max_new_tokens,
                batch_tokens=config.batch_tokens,
                progress=advance,
            )
        readouts = readouts_of(sweep, items, answers, seed=config.seed)
        write_json(folder / "readouts.json", readouts)
        with progress("5/5  steering", len(items)) as advance:
            steered = sweep_steering(
                cache,
                signed_items(sweep),
                backend,
                alphas=config.alphas,
                n_random=config.random_directions,
                seed=config.seed,
                batch_tokens=config.batch_tokens,
                progress=advance,
            )
        self_check = cache.self_check_max_relative
    steering = write_steering(folder / "steer", steered)
    draw_expression_gap(folder)
    metrics = _metrics(probe, readouts, steering) | {"self_check_max_relative": self_check}
    _write_metrics(folder / "metrics.csv", metrics)
    commit, dirty = git_state()
    record = RunRecord(
        run_id=folder.resolve().name,
        experiment=NAME,
        command=command,
        config=settings,
        seeds={"items": config.seed, "folds": config.seed, "steering": config.seed},
        started_utc=started,
        finished_utc=utc_now(),
        cpu_seconds=round(time.process_time() - clock, 1),
        git_commit=commit,
        git_dirty=dirty,
        versions=package_versions(),
        model=dict(backend.fingerprint()),
        source=described,
        metrics=metrics,
        artifacts=artifacts_of(folder),
    )
    write_run(folder, record)
    return record


def readouts_of(
    sweep: ProbeSweep, items: tuple[Item, ...], answers: tuple[Answer, ...], *, seed: int
) -> dict[str, Any]:
    """Compare, item by item, what the probe has right with what the model says right.

    Args:
        sweep: probe sweep over the items.
        items: in the order of the sweep.
        answers: forced and greedy answers on the same items.
        seed: of the intervals.

    Returns:
        the content of `readouts.json`: each readout with interval, the better of forced and
        greedy as `answer`, paired gaps of the nested probe over each readout, the four-way table,
        and a verdict in words.
    """
    by = {(entry.item_id, entry.condition): entry for entry in answers}
    forced = [by[item.item_id, "forced"] for item in items]
    greedy = [by[item.item_id, "greedy"] for item in items]
    bare = [entry.verdict if entry.answered else bare_verdict(entry.raw) for entry in greedy]
    difference = np.array([entry.logit_true - entry.logit_false for entry in forced])
    calibrated = out_of_fold_threshold(difference, sweep.label, sweep.fold)
    correct: dict[str, NDArray[np.bool_]] = {
        "forced": np.array([entry.correct for entry in forced]),
        "greedy": np.array([entry.correct for entry in greedy]),
        "greedy_bare": np.array(
            [
                said is not None and said == gold
                for said, gold in zip(bare, sweep.label, strict=True)
            ]
        ),
        "calibrated": calibrated == sweep.label,
    }
    answer_readout = max(("forced", "greedy"), key=lambda name: correct[name].mean())
    correct["answer"] = correct[answer_readout]
    probe = sweep.correct_nested

    def estimate(values: NDArray[Any]) -> dict[str, float]:
        e = bootstrap_mean(values, sweep.group_id, seed=seed)
        return {"accuracy": e.value, "low": e.low, "high": e.high}

    gaps = {
        name: asdict(bootstrap_mean(probe.astype(float) - right, sweep.group_id, seed=seed))
        for name, right in correct.items()
    }
    said = correct["answer"]
    answered = np.array([entry.answered for entry in greedy])
    return {
        "n_items": sweep.n_items,
        "answer_readout": answer_readout,
        "readouts": {"probe_nested": estimate(probe)}
        | {name: estimate(right) for name, right in correct.items()},
        "gaps": gaps,
        "forced_scores": asdict(
            score_decisions(sweep.label, [bool(entry.verdict) for entry in forced], difference)
        ),
        "non_answers": int((~answered).sum()),
        "bare_verdicts": sum(
            entry.verdict is None and said is not None
            for entry, said in zip(greedy, bare, strict=True)
        ),
        "answer_accuracy_among_answered": float(correct["greedy"][answered].mean())
        if answered.any()
        else None,
        "four_way": {
            "represented_expressed": int((probe & said).sum()),
            "represented_not_expressed": int((probe & ~said).sum()),
            "not_represented_expressed": int((~probe & said).sum()),
            "not_represented_not_expressed": int((~probe & ~said).sum()),
        },
        "verdict": _verdict({name: Estimate(**gap) for name, gap in gaps.items()}),
        "manifest": dict(sweep.manifest),
    }


def _verdict(gaps: Mapping[str, Estimate]) -> str:
    """One sentence that follows from the paired gaps of the probe over every readout."""
    smallest = min(gaps, key=lambda name: gaps[name].low)
    gap = gaps[smallest]
    name = {"answer": "forced", "greedy_bare": "greedy"}.get(smallest, smallest)
    size = f"{100 * gap.value:+.1f} points [{100 * gap.low:+.1f}, {100 * gap.high:+.1f}]"
    if gap.low > 0:
        return (
            f"Represented and not said: the nested probe beats every readout of the model's own "
            f"answer, by at least {size} (over the {name} one)."
        )
    return (
        f"No expression gap is shown: over the model's {name} readout the nested probe's lead is "
        f"{size}, which includes zero or less."
    )


def _metrics(
    probe: Mapping[str, Any], readouts: Mapping[str, Any], steering: Mapping[str, Any]
) -> dict[str, Any]:
    """The flat table of `run.json`; intervals are `NAME_low` and `NAME_high`."""

    def with_interval(name: str, entry: Mapping[str, float]) -> dict[str, float]:
        return {name: entry["accuracy"], f"{name}_low": entry["low"], f"{name}_high": entry["high"]}

    own, steered = readouts["readouts"], steering["conditions"]
    gaps = readouts["gaps"]
    metrics: dict[str, Any] = {"n_items": probe["n_items"], "n_groups": probe["n_groups"]}
    metrics |= with_interval("probe_accuracy_nested", own["probe_nested"])
    metrics |= {
        "probe_auroc_nested": probe["scores_nested"]["auroc"],
        "layers_nested": probe["layers_nested"],
        "probe_accuracy_best_layer": probe["accuracy_best_layer"],
        "best_layer": probe["best_layer"],
        "probe_accuracy_embedding": probe["accuracy_embedding"],
        "probe_p_familywise": probe["p_familywise"],
        "probe_text_baseline_accuracy": probe["text_baseline_accuracy"],
    }
    for name, key in (
        ("answer_accuracy", "answer"),
        ("answer_accuracy_forced", "forced"),
        ("answer_accuracy_greedy", "greedy"),
        ("answer_accuracy_greedy_bare", "greedy_bare"),
        ("answer_accuracy_calibrated", "calibrated"),
    ):
        metrics |= with_interval(name, own[key])
    metrics |= {
        "answer_auroc_forced": readouts["forced_scores"]["auroc"],
        "answer_true_recall_forced": readouts["forced_scores"]["true_recall"],
        "answer_false_recall_forced": readouts["forced_scores"]["false_recall"],
        "non_answers": readouts["non_answers"],
        "bare_verdicts": readouts["bare_verdicts"],
        "answer_accuracy_among_answered": readouts["answer_accuracy_among_answered"],
    }
    for key in ("answer", "calibrated"):
        gap = gaps[key]
        metrics |= {
            f"gap_over_{key}": gap["value"],
            f"gap_over_{key}_low": gap["low"],
            f"gap_over_{key}_high": gap["high"],
        }
    metrics |= readouts["four_way"]
    for condition in ("baseline", "signed", "negated", "random"):
        metrics |= with_interval(f"steered_accuracy_{condition}", steered[condition])
        metrics[f"steered_true_recall_{condition}"] = steered[condition]["true_recall"]
        metrics[f"steered_false_recall_{condition}"] = steered[condition]["false_recall"]
    metrics["steering_alpha"] = steering["quoted_alpha"]
    return metrics


def _write_metrics(path: Path, metrics: Mapping[str, Any]) -> None:
    """`metrics.csv`: one row a metric, with its interval where it has one."""
    rows = [
        {
            "metric": name,
            "value": " ".join(map(str, value)) if isinstance(value, list) else value,
            "low": metrics.get(f"{name}_low"),
            "high": metrics.get(f"{name}_high"),
        }
        for name, value in metrics.items()
        if not name.endswith(("_low", "_high"))
    ]
    write_csv(path, rows)
