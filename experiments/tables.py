"""The tables that commands end with, in plain words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.console import print_table, say
from interp.grading import Answer, bare_verdict
from interp.items import Item
from interp.records import RunRecord
from interp.statistics import bootstrap_mean, score_decisions

if TYPE_CHECKING:
    from activations import ModelBackend

__all__ = [
    "answer_rows",
    "print_answers",
    "print_expression_gap",
    "print_steering",
    "sharing_sentence",
    "verdict_note",
]


def verdict_note(backend: ModelBackend, items: Sequence[Item]) -> str:
    """Which token ids the forced choice is read at."""
    ids = backend.verdict_ids(backend.tokenize(items[:1]))
    return (
        f"Verdict logits are read after 'ANSWER:' at the ids {ids.true_id} ({ids.true_text!r}) and "
        f"{ids.false_id} ({ids.false_text!r})"
    )


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}%"


def _interval(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}%"


def _layers(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))


def sharing_sentence(shared: Mapping[str, Any] | None) -> str:
    """What an extraction shared, from a cache's `prefix_sharing`."""
    if shared is None:
        return "Shared prefixes: not recorded in this file"
    if shared["off"] is not None:
        return f"No prefix was shared: {shared['off']}"
    number = (
        "1 shared prefix" if shared["prefixes"] == 1 else f"{shared['prefixes']} shared prefixes"
    )
    return (
        f"{number} for {shared['items']} items: "
        f"{shared['tokens_saved']:,} of {shared['tokens']:,} prompt tokens not run again"
    )


def self_check_sentence(difference: float, dtype: str, store: str = "float32") -> str:
    """What the rerun items of an extraction say, and what it means in this number type."""
    from activations.manifests import self_check_fault, tolerance_of

    fault = self_check_fault(difference, dtype, store)
    if fault is not None:
        return f"WARNING: {fault}. Do not use these numbers before you know why"
    said = f"self-check: items that were rerun alone differ by at most {difference:.2g}"
    if difference == 0:
        return "self-check: items that were rerun alone are the same, bit for bit"
    if tolerance_of(dtype) < 0.01:
        where = dtype if store == "float32" else f"{dtype} stored as {store}"
        return f"{said}, which is rounding (allowed in {where}: {tolerance_of(dtype, store):.2g})"
    noise = "1 to 2%" if dtype == "bfloat16" else "some tenths of a percent"
    return (
        f"{said}. In {dtype} a batch of another shape alone moves activations by {noise}: smaller "
        f"effects than that need --dtype float32"
    )


def print_steering(summary: Mapping[str, Any]) -> None:
    """Tables of a steering sweep at the quoted layers and sizes."""
    words = {
        "baseline": "not steered",
        "signed": "signed",
        "oracle": "oracle (upper bound)",
        "fixed": "fixed, towards True",
        "negated": "negated",
        "random": "random",
        "shuffled": "shuffled",
        "orthogonal": "orthogonal",
        "writer": "writer",
        "text": "text",
    }
    where = f"layer {summary['quoted_layer']}, alpha {summary['quoted_alpha']:g}"
    if summary["chosen_on_inner_folds"]:
        where = "layer and alpha chosen without each fold: " + ", ".join(
            f"{entry['layer']}/{entry['alpha']:g}" for entry in summary["quoted_by_fold"]
        )
    low, high = summary.get("random_accuracy_range", (None, None))
    size = summary["quoted_alpha_absolute"]
    does = {
        "project_out": f"takes {size:.4g} of the projection out",
        "clamp": f"sets the projection to ±{size:.4g}",
    }.get(summary.get("intervention", "add"), f"adds a norm of {size:.4g}")
    print_table(
        f"Steering: {summary['n_items']} items, {where} ({does}; {summary['positions']})",
        (
            "forced choice",
            "accuracy",
            "95% interval",
            "True-recall",
            "False-recall",
            "AUROC",
            "to right",
            "to wrong",
            "moved back",
        ),
        [
            (
                words[name] + (f", mean of {entry['n_draws']}" if entry["n_draws"] > 1 else ""),
                _percent(entry["accuracy"]),
                _interval(entry["low"], entry["high"]),
                _percent(entry["true_recall"]),
                _percent(entry["false_recall"]),
                f"{entry['auroc']:.3f}",
                f"{entry['flips_to_right']:.3g}",
                f"{entry['flips_to_wrong']:.3g}",
                "–" if name == "baseline" else _percent(entry["moved_wrong_way"]),
            )
            for name, entry in summary["conditions"].items()
        ],
        caption="AUROC: of the True − False logits, whatever the threshold. to right, to wrong: "
        "changed verdicts. moved back: items whose True − False logits moved against their sign."
        + (
            f" Single random directions range from {_percent(low)} to {_percent(high)}; they use "
            f"the same signs."
            if low is not None
            else ""
        ),
    )
    if "generated" in summary:
        _print_generated(summary["generated"], words)
    if summary["n_without_effect"]:
        say(
            f"{summary['n_without_effect']} items are steered at the last layer, where the last "
            f"prompt token no longer reaches the verdict: they cannot change."
        )
    say(summary["verdict"])


def _print_generated(generated: Mapping[str, Any], words: Mapping[str, str]) -> None:
    print_table(
        "Greedy answers and side effects at the same cells, one draw each",
        ("", "right", "bare accepted", "non-answers", "KL, nats", "perplexity of neutral texts"),
        [
            (
                words[name],
                _percent(entry["accuracy"]),
                _percent(entry["accuracy_bare_accepted"]),
                f"{entry['non_answers']} of {entry['n_items']}",
                f"{entry['kl']:.3g}",
                f"{entry['perplexity']:.1f}",
            )
            for name, entry in generated.items()
        ],
        caption="KL: of the next-token distribution after the stub from the unsteered one.",
    )


def answer_rows(items: Sequence[Item], answers: Sequence[Answer]) -> list[dict[str, Any]]:
    """Scores of an answer file, one row a condition."""
    by_id = {item.item_id: item for item in items}
    rows = []
    for condition in dict.fromkeys(entry.condition for entry in answers):
        chosen = [entry for entry in answers if entry.condition == condition]
        labels = [bool(by_id[entry.item_id].label) for entry in chosen]
        groups = [by_id[entry.item_id].group_id for entry in chosen]
        accuracy = bootstrap_mean([entry.correct for entry in chosen], groups, seed=0)
        answered = [entry for entry in chosen if entry.answered]
        both = len(set(labels)) == 2
        logits = [entry.logit_difference for entry in chosen]
        difference = [value for value in logits if value is not None]
        rows.append(
            {
                "condition": condition,
                "n_items": len(chosen),
                "accuracy": accuracy.value,
                "low": accuracy.low,
                "high": accuracy.high,
                "accuracy_among_answered": sum(entry.correct for entry in answered) / len(answered)
                if answered
                else None,
                "non_answers": len(chosen) - len(answered),
                "bare_verdicts": sum(
                    bare_verdict(entry.raw) is not None for entry in chosen if not entry.answered
                ),
                "said_true": sum(entry.verdict is True for entry in chosen) / len(chosen),
                "auroc_logit_difference": score_decisions(labels, labels, difference).auroc
                if both and len(difference) == len(chosen)
                else None,
            }
        )
    return rows


def print_answers(rows: Sequence[Mapping[str, Any]]) -> None:
    """Table of an answer file."""
    print_table(
        "The model's own answers",
        (
            "readout",
            "accuracy",
            "95% interval",
            "among answered",
            "non-answers",
            "says True",
            "AUROC",
        ),
        [
            (
                row["condition"],
                _percent(row["accuracy"]),
                _interval(row["low"], row["high"]),
                _percent(row["accuracy_among_answered"]),
                f"{row['non_answers']} of {row['n_items']}",
                _percent(row["said_true"]),
                "–"
                if row["auroc_logit_difference"] is None
                else f"{row['auroc_logit_difference']:.3f}",
            )
            for row in rows
        ],
        caption="AUROC: of the True − False logit difference after the stub 'ANSWER:'.",
    )
    for row in rows:
        if row["bare_verdicts"]:
            say(
                f"{row['bare_verdicts']} of the {row['non_answers']} {row['condition']} "
                f"non-answers are a bare True or False without the ANSWER: line."
            )


def print_expression_gap(folder: Path, record: RunRecord) -> None:
    """The final table of an expression-gap run, with its verdict and where the figures are."""
    from interp.files import read_json

    readouts = read_json(folder / "readouts.json", "the readouts of an expression-gap run")
    probe = read_json(folder / "probe" / "probe.json", "the summary of a probe sweep")
    steering = read_json(folder / "steer" / "steer.json", "the summary of a steering sweep")
    m = record.metrics
    own = readouts["readouts"]

    def row(words: str, key: str, remark: str) -> tuple[str, str, str, str]:
        entry = own[key]
        return (
            words,
            _percent(entry["accuracy"]),
            _interval(entry["low"], entry["high"]),
            remark,
        )

    bare = f"{m['bare_verdicts']} of them a bare True/False" if m["bare_verdicts"] else ""
    print_table(
        f"What {record.model['model_id']} represents and what it says: {m['n_items']} items of "
        f"{record.source['name']} in {m['n_groups']} groups",
        ("", "accuracy", "95% interval", "remark"),
        [
            row(
                "probe, nested layer choice",
                "probe_nested",
                f"layers {_layers(m['layers_nested'])}",
            ),
            (
                "probe, best layer",
                _percent(m["probe_accuracy_best_layer"]),
                "",
                f"layer {m['best_layer']}; optimistic",
            ),
            (
                "probe, embedding stream",
                _percent(m["probe_accuracy_embedding"]),
                "",
                "before layer 0",
            ),
            row(
                "forced choice after 'ANSWER:'",
                "forced",
                f"True-recall {_percent(m['answer_true_recall_forced'])}, False-recall "
                f"{_percent(m['answer_false_recall_forced'])}",
            ),
            row(
                "the same logits, threshold fitted",
                "calibrated",
                f"AUROC {m['answer_auroc_forced']:.3f}",
            ),
            row(
                "greedy answer",
                "greedy",
                f"{m['non_answers']} non-answers" + (f", {bare}" if bare else ""),
            ),
            row("greedy, bare True/False accepted", "greedy_bare", ""),
            *(
                (
                    f"forced choice, steered: {name}",
                    _percent(m[f"steered_accuracy_{name}"]),
                    _interval(
                        m[f"steered_accuracy_{name}_low"], m[f"steered_accuracy_{name}_high"]
                    ),
                    f"True-recall {_percent(m[f'steered_true_recall_{name}'])}, False-recall "
                    f"{_percent(m[f'steered_false_recall_{name}'])}",
                )
                for name in ("signed", "negated", "random")
            ),
        ],
        caption="Intervals: 95% group bootstrap. Probe and threshold are judged out of fold.",
    )
    table = readouts["four_way"]
    print_table(
        f"Items by what is represented and what is said ({readouts['answer_readout']})",
        ("", "said right", "not said right"),
        [
            ("probe right", table["represented_expressed"], table["represented_not_expressed"]),
            (
                "probe wrong",
                table["not_represented_expressed"],
                table["not_represented_not_expressed"],
            ),
        ],
    )
    say(probe["verdict"])
    say(readouts["verdict"])
    say(steering["verdict"])
    say(f"Results: {folder}")
    for figure in sorted((folder / "figures").glob("*.png")):
        say(f"Figure:  {figure}")
