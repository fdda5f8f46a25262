"""What `interp probe` and `interp probe compare` print."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.console import print_table, say

__all__ = ["print_comparison", "print_probe"]


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _interval(low: float, high: float) -> str:
    return f"{100 * low:.1f} to {100 * high:.1f}%"


def _layers(layers: Sequence[int]) -> str:
    return ", ".join(map(str, layers))


def print_probe(summary: Mapping[str, Any]) -> None:
    """Table of a probe sweep: what to quote first, the optimistic figure labelled as such."""
    best = summary["layers"][summary["best_layer"]]
    scores = summary["scores_nested"]
    text = summary["text_baseline_accuracy"]
    strength = ""
    if summary["C"] is not None:
        chosen = " (median of the choices)" if len(summary["C_grid"]) > 1 else ""
        strength = f", C = {summary['C']:g}{chosen}"
    print_table(
        f"Probe ({summary['probe']}): {summary['n_items']} items in {summary['n_groups']} groups, "
        f"{summary['n_folds']} folds{strength}",
        ("", "accuracy", "95% interval", "AUROC", "layer"),
        [
            (
                "nested layer choice "
                + ("(quote this)" if summary["grouping"] == "group" else "(leaks: do not quote)"),
                _percent(summary["accuracy_nested"]),
                _interval(*summary["accuracy_nested_interval"]),
                f"{scores['auroc']:.3f}",
                f"{_layers(summary['layers_nested'])} (one a fold)",
            ),
            (
                "best layer (optimistic)",
                _percent(summary["accuracy_best_layer"]),
                _interval(best["low"], best["high"]),
                f"{best['auroc']:.3f}",
                str(summary["best_layer"]),
            ),
            (
                "embedding stream",
                _percent(summary["accuracy_embedding"]),
                _interval(*summary["accuracy_embedding_interval"]),
                "",
                "before layer 0",
            ),
            *(
                []
                if text is None
                else [
                    (
                        "text alone",
                        _percent(text),
                        "",
                        "",
                        f"TF-IDF or length: best is {summary['text_baseline']}",
                    )
                ]
            ),
            *(
                []
                if summary["accuracy_own_answer"] is None
                else [
                    (
                        "the model's own forced choice",
                        _percent(summary["accuracy_own_answer"]),
                        _interval(*summary["accuracy_own_answer_interval"]),
                        "",
                        "",
                    )
                ]
            ),
            *(
                []
                if summary["untrained"] is None
                else [
                    (
                        "random weights",
                        _percent(summary["untrained"]["accuracy_nested"]),
                        _interval(*summary["untrained"]["accuracy_nested_interval"]),
                        "",
                        "same architecture, nested layer choice",
                    )
                ]
            ),
            ("always the commoner label", _percent(summary["majority_class"]), "", "", ""),
        ],
        caption=None
        if summary["grouping"] == "group"
        else "GROUPS WERE IGNORED: these numbers leak between items of one group.",
    )
    if summary["majority_class"] > 0.5:
        low, high = summary["scores_nested_intervals"]["balanced_accuracy"]
        say(
            f"The classes are unequal: layers, C, every p and the verdict go by balanced accuracy, "
            f"{_percent(scores['balanced_accuracy'])} [{100 * low:.1f}, {100 * high:.1f}] at the "
            f"nested layers; always one label has 50%."
        )
    if summary["n_permutations"]:
        say(
            f"Against {summary['n_permutations']} label permutations ({summary['scheme']}): p = "
            f"{summary['p_familywise']:.2g} over all layers; "
            f"{sum(row['p_adjusted'] <= 0.05 for row in summary['layers'])} of "
            f"{summary['n_layers']} layers at a false discovery rate of 5%."
        )
        for name in ("false_discovery_warning", "permuted_warning"):
            if summary[name]:
                say(summary[name])
    for kind, rows in summary["transfer"].items():
        _print_transfer(kind, rows)
    for kind, control in summary["control_tasks"].items():
        say(_control_sentence(kind, control))
    say(summary["verdict"])


def _print_transfer(kind: str, rows: Sequence[Mapping[str, Any]]) -> None:
    print_table(
        f"Each {kind} held out: probes that never saw it, nor its groups",
        (kind, "items", "accuracy", "95% interval", "AUROC", "not held out", "layer"),
        [
            (
                row["value"],
                str(row["n_items"]),
                _percent(row["accuracy"]),
                _interval(row["low"], row["high"]),
                "" if row["auroc"] is None else f"{row['auroc']:.3f}",
                _percent(row["accuracy_within"]),
                str(row["layer"]),
            )
            for row in rows
        ],
    )


def _control_sentence(kind: str, control: Mapping[str, Any]) -> str:
    if not control["applicable"]:
        return f"Control task (random labels by {kind}): not applicable, {control['why']}."
    return (
        f"Control task (random labels by {kind}, {control['n_types']} types that recur across "
        f"folds): {_percent(control['accuracy'])}; selectivity "
        f"{100 * control['selectivity']:+.1f} points."
    )


def print_comparison(first: str, second: str, found: Mapping[str, Any]) -> None:
    """Table of a paired comparison of two probe folders."""
    print_table(
        f"Nested probes on the same {found['n_items']} items in {found['n_groups']} groups",
        ("", "accuracy", "95% interval", "right where the other is wrong"),
        [
            (
                name,
                _percent(found[key]["value"]),
                _interval(found[key]["low"], found[key]["high"]),
                str(found[f"only_{key}_right"]),
            )
            for name, key in ((first, "first"), (second, "second"))
        ],
        caption=" ".join(
            [
                *(
                    f"{name}: GROUPS WERE IGNORED, this number leaks between items of one group."
                    for name, key in ((first, "first"), (second, "second"))
                    if found["grouping"][key] == "none"
                ),
                *([] if found["same_folds"] else ["The two sweeps have different folds."]),
            ]
        )
        or None,
    )
    say(found["verdict"])
