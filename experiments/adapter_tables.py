"""What `interp adapters` prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.console import note, print_table, say
from interp.adapters.results import AdapterAudit, ModuleAudit, total

if TYPE_CHECKING:
    from experiments.compare import Comparison
    from interp.adapters.runs import RunAudit

__all__ = ["print_audit", "print_comparisons", "print_overview", "print_runs"]


def print_audit(audit: AdapterAudit) -> None:
    """Figures by projection and by layer, the budget, findings and the verdict."""
    _print_figures(
        str(audit.path),
        "projection",
        _grouped(audit, lambda module: f"{module.projection} ({module.kind})"),
        "‖ΔW‖_F and ρ over the layers together, all else the largest of them",
    )
    blocks = _grouped(audit, lambda m: None if m.layer is None else str(m.layer))
    if len(blocks) > 1:
        _print_figures("By layer", "layer", blocks, "‖ΔW‖_F and ρ over the modules together")
    totals = audit.totals
    figures = {
        "‖A‖": totals.a_norm,
        "‖B‖": totals.b_norm,
        "max|B|": totals.max_abs_b,
        "max|ΔW|": totals.max_abs_delta,
        "‖ΔW‖_F": totals.frobenius,
        "ρ": totals.relative,
        "changed by a bf16 merge": totals.bf16_changed,
    }
    known = {name: value for name, value in figures.items() if value is not None}
    if known:
        say("In total: " + ", ".join(f"{name} {value:.4g}" for name, value in known.items()))
    ratios = [m.a_init_ratio for m in audit.modules if m.a_init_ratio is not None]
    if ratios:
        say(
            f"‖A‖ over its initialisation's: {min(ratios):.3f} to {max(ratios):.3f} (1: where it "
            f"started)"
        )
    found = audit.direction
    if found is not None:
        times = f", {found.overlap / found.expected:.2f} times" if found.expected > 0 else ""
        say(
            f"Along the {found.method} direction of layer {found.layer}: ‖vᵀΔW‖ "
            f"{found.overlap:.3g} over {found.n_modules} writing modules{times} what a random "
            f"direction gives ({found.expected:.3g})"
        )
    if audit.budget:
        budget = audit.budget
        bound = budget["adam_bound"]
        say(
            f"Budget: {budget['n_steps']} steps, Σlr {budget['lr_sum']:.3g}, √Σlr² "
            f"{budget['lr_root_square']:.3g}, AdamW bound "
            f"{'none' if bound is None else format(bound, '.3g')}, kappa "
            f"{'none' if budget['kappa'] is None else format(budget['kappa'], '.3g')}"
        )
        for name in ("grad_norm", "reward"):
            logged = budget[name]
            if logged:
                said = ", ".join(f"{which} {value:.3g}" for which, value in logged.items())
                say(f"Logged {name}: {said}")
    if audit.findings:
        print_table(
            "Findings",
            ("severity", "code", "what", "remedy"),
            [(f.severity, f.code, f.message, f.remedy) for f in audit.findings],
        )
    say(f"{audit.verdict.upper()}: {audit.summary}")


def print_overview(audits: Sequence[AdapterAudit]) -> None:
    """One line an adapter."""
    rows = [
        (
            a.path,
            a.verdict,
            _most([a.totals.max_abs_delta]),
            _most([a.totals.frobenius]),
            _most([a.totals.relative]),
        )
        for a in audits
    ]
    print_table("All adapters", ("path", "verdict", "max|ΔW|", "‖ΔW‖_F", "ρ"), rows)


def print_runs(runs: Sequence[RunAudit]) -> None:
    """What the last adapters of several runs have in common, where that can be asked."""
    rows = []
    said: set[Path] = set()
    for run in runs:
        said.add(run.path)
        for other in run.audits[-1].compared:
            if other.other in said:
                continue  # said already, the other way round
            if other.refused is not None:
                note(f"Not compared: {other.refused}")
                continue
            rows.append(
                (
                    run.path,
                    other.other,
                    len(other.modules),
                    _signed(other.cosine),
                    _signed(other.median_cosine),
                    _plain(other.median_left_alignment),
                    _plain(other.chance),
                )
            )
    columns = (
        *("run", "other run", "n", "cos(ΔW)", "median cos", "|cos| of top left vectors", "chance"),
    )
    if rows:
        print_table(
            "Runs side by side", columns, rows, caption="|cos| and chance: medians over parameters"
        )


def _signed(value: float | None) -> str:
    return "" if value is None else f"{value:+.3f}"


def _plain(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _grouped(
    audit: AdapterAudit, key: Callable[[ModuleAudit], str | None]
) -> dict[str, list[ModuleAudit]]:
    groups: dict[str, list[ModuleAudit]] = {}
    for module in audit.modules:
        name = key(module)
        if name is not None:
            groups.setdefault(name, []).append(module)
    return groups


def _print_figures(
    title: str, what: str, groups: dict[str, list[ModuleAudit]], caption: str
) -> None:
    rows = []
    for name, modules in groups.items():
        totals = total(modules)
        rows.append(
            (
                name,
                len(modules),
                _most([m.rank for m in modules]),
                _most([m.a_norm for m in modules]),
                _most([m.a_init_ratio for m in modules]),
                _most([totals.max_abs_b]),
                _most([totals.max_abs_delta]),
                _most([totals.frobenius]),
                _most([m.spectral for m in modules]),
                _most([m.stable_rank for m in modules]),
                _most([totals.relative]),
            )
        )
    columns = (
        *(what, "n", "rank", "‖A‖", "‖A‖/init", "max|B|", "max|ΔW|", "‖ΔW‖_F", "‖ΔW‖₂"),
        *("stable rank", "ρ"),
    )
    # Without a base, and for methods without factors, some columns are empty.
    filled = [i for i in range(len(columns)) if any(row[i] != "" for row in rows)]
    if rows:
        print_table(
            title,
            [columns[i] for i in filled],
            [[row[i] for i in filled] for row in rows],
            caption=caption,
        )


def _most(values: list[float | None] | list[int | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{max(known):.3g}" if known else ""


def print_comparisons(results: Sequence[Comparison]) -> None:
    """Adapted models beside their base."""
    print_table(
        f"Adapted models beside their base, {results[0].n_items} items",
        (
            "adapter",
            "KL mean",
            "KL max",
            "argmax flips",
            "same greedy",
            "forced",
            "greedy",
            "drift",
        ),
        [
            (
                result.path,
                f"{result.kl_mean:.2e}",
                f"{result.kl_max:.2e}",
                str(result.argmax_flips),
                f"{result.identical_greedy:.1%}",
                f"{result.forced_before:.1%} → {result.forced_after:.1%}",
                f"{result.greedy_before:.1%} → {result.greedy_after:.1%}",
                f"{max(row.relative_change for row in result.drift):.2e}",
            )
            for result in results
        ],
        caption="drift: largest relative change of a layer's residual stream, mean over items. In "
        "bfloat16 rounding alone gives a KL of about 2e-3.",
    )
