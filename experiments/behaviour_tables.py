"""The tables that `interp behave report` ends with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from experiments.console import print_table, say

__all__ = ["print_behaviour", "print_published"]

_SIDE_BY_SIDE: Final = ("counted wrong", "left out")
"""Column heads of the two policies on replies without a verdict."""


def _cell(row: Mapping[str, Any], name: str, *, signed: bool = False) -> str:
    """A share in percent with its interval where there is one."""
    value, low, high = (row.get(key) for key in (name, f"{name}_low", f"{name}_high"))
    if value is None:
        return "–"
    form = "{:+.1f}" if signed else "{:.1f}"
    text = form.format(100 * value)
    if low is None or high is None:
        return text
    return f"{text} [{form.format(100 * low)}, {form.format(100 * high)}]"


def _value(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    return "–" if value is None else f"{100 * value:.1f}"


def _words(category: str) -> str:
    return category.replace("_", " ")


def _p(value: float | None) -> str:
    if value is None:
        return "–"
    return "<0.001" if value < 0.001 else f"{value:.3f}"


def print_behaviour(report: Mapping[str, Any]) -> None:
    """All tables of a report on answer files."""
    asked = report["items"]
    say(
        f"{asked['n']} items in {asked['n_groups']} groups; verdicts: {report['readout']}. Percent "
        f"with 95% group-bootstrap intervals; replies without a verdict counted wrong and left out."
    )
    for text in report["warnings"]:
        say(text)
    _print_scores(report)
    if report["classes"]:
        print_table(
            "Class means of the average over abilities",
            ("class", "models", *_SIDE_BY_SIDE),
            [
                (
                    row["model_class"],
                    row["n_models"],
                    _cell(row, "accuracy_wrong"),
                    _cell(row, "accuracy_left_out"),
                )
                for row in report["classes"]
            ],
        )
    if report["injection"]:
        _print_pooled("The correct answer in the prompt (mean over models)", report["injection"])
    if report["toggle"]:
        _print_pooled("Reasoning first or answering at once", report["toggle"])
    if report["training"]:
        _print_paired("Reasoning training: base model before, trained after", report["training"])
    if report["probe"]:
        _print_paired("What the model says (before), what the probe reads (after)", report["probe"])
    _print_lengths(report)
    _print_axes(report["axes"])
    for text in report["notes"]:
        say(text)


def _print_scores(report: Mapping[str, Any]) -> None:
    main = [row for row in report["scores"] if row["main"]] or report["scores"]
    several = len({row["model"] for row in main if row["main"]}) > 1
    print_table(
        "Accuracy of each model's main condition",
        ("model", "category", "none", *_SIDE_BY_SIDE, "macro-F1 of both"),
        [
            (
                f"{row['model']} ({row['condition']})"
                if "model" in row
                else f"mean of {row['n_models']}",
                _words(row["category"]),
                f"{row['non_answers']}/{row['n']}" if "n" in row else "",
                _cell(row, "accuracy_wrong"),
                _cell(row, "accuracy_left_out"),
                f"{_value(row, 'f1_wrong')} | {_value(row, 'f1_left_out')}",
            )
            for row in (*main, *(report["averages"] if several else ()))
        ],
        caption="none: replies without a verdict.",
    )
    if len(report["scores"]) > len(main):
        say("The other conditions are in scores.csv (--out) and in --json.")


def _by_policy(
    rows: Sequence[Mapping[str, Any]], keys: Sequence[str]
) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Rows that differ in the policy only, side by side: (counted wrong, left out)."""
    found: dict[tuple[Any, ...], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), {})[row["policy"]] = row
    return [(pair["wrong"], pair.get("left_out", {})) for pair in found.values()]


def _print_pooled(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    print_table(
        title,
        ("category", "accuracy", *_SIDE_BY_SIDE, "fixed, broken", "models up"),
        [
            (
                _words(row["category"]),
                f"{_value(row, 'before')} → {_value(row, 'after')}",
                _cell(row, "delta", signed=True),
                _cell(other, "delta", signed=True),
                f"{_value(row, 'fixes')}, {_value(row, 'breaks')}",
                f"{row['n_improved']}/{row['n_models']}",
            )
            for row, other in _by_policy(rows, ("category",))
        ],
        caption="Left out: items on which both have a verdict. The other columns count wrong.",
    )


def _print_paired(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    print_table(
        title,
        ("before", "category", "accuracy", *_SIDE_BY_SIDE, "McNemar p"),
        [
            (
                row["before_is"],
                _words(row["category"]),
                f"{_value(row, 'before')} → {_value(row, 'after')}",
                _cell(row, "delta", signed=True),
                _cell(other, "delta", signed=True),
                _p(row["p_mcnemar"]),
            )
            for row, other in _by_policy(rows, ("before_is", "after_is", "category"))
        ],
        caption="Left out: items on which both have a verdict. McNemar takes items as independent: "
        "read it beside the interval.",
    )


def _print_lengths(report: Mapping[str, Any]) -> None:
    pooled = [row for row in report["length_quartiles"] if row["model"] == "pooled"]
    if not pooled:
        return
    print_table(
        "Accuracy by length of the reply, within model",
        ("condition", "quartile", *_SIDE_BY_SIDE),
        [
            (
                row["condition"],
                {1: "1 (shortest)", 4: "4 (longest)"}.get(row["quartile"], row["quartile"]),
                _cell(row, "accuracy"),
                _cell(other, "accuracy"),
            )
            for row, other in _by_policy(pooled, ("condition", "quartile"))
        ],
    )
    print_table(
        "Correlation of length and correctness",
        ("condition", "over", *_SIDE_BY_SIDE),
        [
            (
                row["condition"],
                "all replies" if row["kind"] == "pooled" else "within model and ability",
                _correlation(row),
                _correlation(other),
            )
            for row, other in _by_policy(report["length_correlation"], ("condition", "kind"))
        ],
    )


def _correlation(row: Mapping[str, Any]) -> str:
    if row.get("r") is None:
        return "–"
    if row["r_low"] is None:
        return f"{row['r']:+.3f}"
    return f"{row['r']:+.3f} [{row['r_low']:+.3f}, {row['r_high']:+.3f}]"


def _print_axes(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        return
    for quantity, title in (
        ("difficulty", "The two axes: accuracy"),
        ("cot_benefit", "The two axes: benefit of reasoning first"),
    ):
        if chosen := [row for row in rows if row["quantity"] == quantity]:
            print_table(
                title,
                ("effect", "equal weight of", _SIDE_BY_SIDE[0], "p", _SIDE_BY_SIDE[1], "p"),
                [
                    (
                        row["effect"],
                        row["weighting"],
                        _cell(row, "value", signed=True),
                        _p(row["p_permutation"]),
                        _cell(other, "value", signed=True),
                        _p(other["p_permutation"]),
                    )
                    for row, other in _by_policy(chosen, ("effect", "weighting"))
                ],
                caption="p: scenarios' cell labels shuffled, cell sizes kept.",
            )


def print_published(report: Mapping[str, Any]) -> None:
    """All tables of a report on a published table."""
    summary = report["summary"]
    print_table(
        f"Column averages over {summary['n_models']} models",
        ("ability", "accuracy as printed", "F1 as printed", "accuracy, non-answers wrong"),
        [
            (
                row["ability"],
                f"{100 * row['accuracy_printed']:.2f}",
                "–" if row["f1_printed"] is None else f"{100 * row['f1_printed']:.2f}",
                f"≤ {100 * row['accuracy_wrong_at_most']:.2f}",
            )
            for row in report["averages"]
        ],
    )
    say(f"Order as printed: {' > '.join(summary['ordering_printed'])}")
    say(f"Order, non-answers wrong: {' > '.join(summary['ordering_wrong_at_most'])}")
    odd = [row for row in report["models"] if row["model"] in summary["models_not_multiples"]]
    if odd:
        print_table(
            f"{len(odd)} models with accuracies that are no multiple of 1/n "
            f"({summary['n_cells_not_multiples']} cells)",
            ("model", "non-answers", "average as printed", "counted wrong", "rank"),
            [
                (
                    row["model"],
                    f"≥ {row['non_answers_at_least']}",
                    f"{100 * row['average_printed']:.2f}",
                    f"≤ {100 * row['average_wrong_at_most']:.2f}",
                    f"{row['rank_printed']} → {row['rank_wrong_at_most']}",
                )
                for row in odd
            ],
            caption=f"In all at least {summary['non_answers_at_least']} replies were left out.",
        )
    if report["axes"]:
        print_table(
            "The two axes: difficulty",
            ("effect", "each weighs the same", "points as printed", "non-answers wrong"),
            [
                (
                    row["effect"],
                    row["weighting"],
                    f"{100 * row['value_printed']:+.2f}",
                    f"{100 * row['value_wrong_at_most']:+.2f}",
                )
                for row in report["axes"]
            ],
        )
    if report["classes"]:
        print_table(
            "Class means",
            ("class", "models", "as printed", "non-answers wrong"),
            [
                (
                    row["model_class"],
                    row["n_models"],
                    f"{100 * row['average_printed']:.2f}",
                    f"≤ {100 * row['average_wrong_at_most']:.2f}",
                )
                for row in report["classes"]
            ],
        )
    if report["training"]:
        print_table(
            "Reasoning training",
            ("model", "base", "category", "points as printed", "non-answers wrong"),
            [
                (
                    row["model"],
                    row["base"],
                    row["category"],
                    f"{100 * row['delta_printed']:+.2f}",
                    f"{100 * row['delta_wrong']:+.2f}",
                )
                for row in report["training"]
            ],
        )
    for text in report["notes"]:
        say(text)
