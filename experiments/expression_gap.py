"""Is truth represented and not said? Probe, own answers and steering on the same items.

The comparison of Avalon-ToM-Bench, section 5.1: a linear probe against the model's own output on
identical items, and steering along the class-mean direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal

from activations import (
    ModelSpec,
    answer,
    describe_source,
    extract,
    load_backend,
)
from activations.answers import MAX_NEW_TOKENS, require_labels
from activations.batches import BATCH_TOKENS
from activations.digests import weights_sha256
from activations.sharing import tokens_saved
from experiments.console import note, progress
from experiments.readouts import readouts_of
from experiments.resuming import CONFIG, finished_run
from experiments.steer_inputs import signed_items
from experiments.tables import verdict_note
from figures import draw_expression_gap
from interp.files import write_csv, write_json
from interp.items import Item, write_items
from interp.records import RunRecord, Started, finish_run
from interp.registry import load_items, open_source
from interp.vocabulary import Dtype, Grouping
from probes import make_folds, sweep_layers, write_sweep
from probes.solver import require_strength
from steering import sweep_steering, write_steering
from steering.settings import nonzero_alphas

__all__ = ["NAME", "ExpressionGapConfig", "run_expression_gap"]

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
        C: inverse L2 strength of the probes, or `auto`.
        permutations: label permutations of the probes' null.
        folds: outer folds.
        grouping: `group` or `none`.
        alphas: steering sizes, in multiples of the median residual norm.
        random_directions: random directions, in ± pairs.
        max_new_tokens: cut of greedy answers.
        batch_tokens: padded tokens a batch.
        dtype: of the model.
        device: torch device or `auto`.
        seed: of items, folds, random directions and intervals.
        template_args: further variables of the chat template.
    """

    model: str
    source: str
    n: int | None = None
    view: str | None = None
    field_map: Mapping[str, str] | None = None
    C: float | Literal["auto"] = 0.01
    permutations: int = 200
    folds: int = 5
    grouping: Grouping = "group"
    alphas: tuple[float, ...] = (1.0,)
    random_directions: int = 10
    max_new_tokens: int = MAX_NEW_TOKENS
    batch_tokens: int = BATCH_TOKENS
    dtype: Dtype = "float32"
    device: str = "auto"
    seed: int = 0
    template_args: Mapping[str, Any] | None = None


def run_expression_gap(
    config: ExpressionGapConfig, folder: Path, *, command: str = ""
) -> RunRecord:
    """Run everything into `folder`; started again with the same configuration, it goes on.

    Raises:
        CacheError: the folder holds a run with another configuration.
        InterpError: whatever the parts raise.
    """
    started = Started.now()
    settings = asdict(config)
    settings["alphas"] = list(config.alphas)
    source = open_source(config.source, config.field_map)
    items = load_items(source, view=config.view, n=config.n, seed=config.seed)
    spec = ModelSpec.parse(
        config.model,
        dtype=config.dtype,
        device=config.device,
        template_args=config.template_args,
    )
    _require_runnable(config, items)
    described = describe_source(source, items, view=config.view, seed=config.seed)
    finished = finished_run(folder, settings, source=described, weights=weights_sha256(spec))
    if finished is not None:
        note(f"{folder} is finished already; nothing is computed.")
        return finished

    note(f"1/5  loading {spec.model_id} ({spec.dtype}) and {len(items)} items of {source.name}")
    backend = load_backend(spec)
    write_json(folder / CONFIG, settings)
    write_items(folder / "items.jsonl", items)
    prompts = backend.tokenize(items)
    n_tokens = sum(len(prompt.ids_with_stub) for prompt in prompts)
    n_saved = tokens_saved(
        [prompt.ids for prompt in prompts], [len(prompt.ids) - 1 for prompt in prompts]
    )
    cache_mib = len(items) * backend.n_layers * backend.d_model * 4 / 2**20
    note(
        f"     {n_tokens:,} prompt tokens ({n_tokens - n_saved:,} if the model can share first "
        f"tokens), run about three times (activations, greedy answers, steering); "
        f"{backend.n_layers} layers × {backend.d_model}: a cache of {cache_mib:.0f} MiB"
    )
    note(f"     {verdict_note(backend, items)}")
    with progress("2/5  activations", len(items)) as advance:
        cache = extract(
            backend,
            items,
            folder / "activations.h5",
            source=described,
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
    return finish_run(
        folder,
        started,
        experiment=NAME,
        command=command,
        config=settings,
        seeds={"items": config.seed, "folds": config.seed, "steering": config.seed},
        model=dict(backend.fingerprint()),
        source=described,
        metrics=metrics,
    )


def _require_runnable(config: ExpressionGapConfig, items: tuple[Item, ...]) -> None:
    """Raise now what would otherwise be raised after the model has run."""
    labels = require_labels(items)
    groups = [item.group_id for item in items]
    make_folds(labels, groups, n_folds=config.folds, seed=config.seed, grouping=config.grouping)
    if config.C != "auto":
        require_strength(config.C)
    nonzero_alphas(config.alphas, config.random_directions)


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
