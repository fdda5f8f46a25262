"""From figures to a verdict, the reasons for it, and one plain paragraph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from interp.adapters.budget import Budget
from interp.adapters.findings import Finding, breaks, finding, named
from interp.adapters.results import ModuleAudit
from interp.adapters.thresholds import (
    COHERENT_KAPPA,
    EXTREME_RHO,
    NEGLIGIBLE_DELTA,
    NEGLIGIBLE_RHO,
    NOISE_KAPPA,
    NOISE_KAPPA_LEAST,
    WEAK_DELTA,
    WEAK_RHO,
    Verdict,
)

__all__ = ["Judgement", "explain", "judge", "judge_budget"]

_SIZES: tuple[Verdict, ...] = ("negligible", "weak", "effective", "extreme")
_SAVED = ("saved", "bias", "tokens")
# Why a base that was given does not help; they have said so.
_NOT_IN_BASE = ("base_quantized", "base_ambiguous", "base_names_unknown", "base_not_finite")


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and what it rests on.

    Attributes:
        verdict: see `interp.adapters.thresholds`.
        basis: one clause with the deciding number.
        size: the deciding number over the threshold of `weak`; None where nothing was measured.
        findings: reasons that come from the figures.
    """

    verdict: Verdict
    basis: str
    size: float | None
    findings: tuple[Finding, ...]


def judge(
    modules: Sequence[ModuleAudit],
    findings: Sequence[Finding],
    *,
    indeterminate: bool,
    base_given: bool = False,
) -> Judgement:
    """Try the rules in the order of `VERDICTS`.

    The size that counts is that of the most changed parameter, so that an adapter with one
    trained layer among many idle ones is not called negligible.

    Args:
        modules: figures of all parameters.
        findings: of reading; any that breaks the adapter decides.
        indeterminate: what the files hold is not the change that training made.
        base_given: whether there was a base to compare with, so that its absence is no reason.
    """
    broken = [found for found in findings if breaks(found.code)]
    if broken:
        return Judgement("broken", broken[0].message.rstrip("."), None, ())
    noted = _notes(modules)
    if indeterminate or not modules:
        return Judgement("indeterminate", "its change cannot be told from its files", None, noted)
    if all(module.starts_zero for module in modules):
        return Judgement("untrained", "nothing has moved from its initial value", 0.0, noted)
    sizes = [(_size(module), module) for module in modules]
    known = [(size, module) for size, module in sizes if size is not None]
    # A saved tensor that the base does not have has said so itself.
    said = any(found.code == "saved_tensors_unverified" for found in findings)
    unknown = [module for module in modules if not module.complete]
    opened = tuple(
        f
        for f in _open(unknown, base_given=base_given)
        if not (said and f.code == "saved_tensors_unverified")
    )
    if base_given and any(found.code in _NOT_IN_BASE for found in findings):
        opened = ()
    if not known:
        noted = (*noted, *opened)
        return Judgement("indeterminate", "no change can be computed", None, noted)
    (rank, ratio), module = max(known, key=lambda item: item[0])
    basis = (
        f"the largest relative change is {module.relative:.2g} ({module.name})"
        if _relative(module)
        else f"the largest entry of ΔW is {module.max_abs_delta:.2g} ({module.name})"
    )
    if unknown and _SIZES[rank] in ("negligible", "weak"):
        return Judgement("indeterminate", basis, ratio, (*noted, *opened))
    if unknown:
        noted = (*noted, *opened)
    if _SIZES[rank] == "extreme":
        noted = (*noted, finding("extreme_update", f"{basis[0].upper()}{basis[1:]}."))
    return Judgement(_SIZES[rank], basis, ratio, noted)


def _relative(module: ModuleAudit) -> bool:
    # Biases start near 0, so their relative change says little.
    return module.relative is not None and module.kind != "bias"


def _size(module: ModuleAudit) -> tuple[int, float] | None:
    """Index into the sizes, and the number over the threshold of `weak`."""
    if _relative(module) and module.relative is not None:
        rho = module.relative
        limits = (NEGLIGIBLE_RHO, WEAK_RHO, EXTREME_RHO)
        return sum((rho >= limits[0], rho >= limits[1], rho > limits[2])), rho / WEAK_RHO
    if module.max_abs_delta is None:
        return None
    largest = module.max_abs_delta
    return sum((largest >= NEGLIGIBLE_DELTA, largest >= WEAK_DELTA)), largest / WEAK_DELTA


def _notes(modules: Sequence[ModuleAudit]) -> tuple[Finding, ...]:
    notes = []
    factored = [module for module in modules if module.kind not in _SAVED]
    idle = [module.module for module in factored if module.starts_zero]
    if idle and not all(module.starts_zero for module in modules):
        notes.append(
            finding(
                "some_modules_zero",
                f"{len(idle)} of {len(factored)} modules have not moved at all: {named(idle)}.",
            )
        )
    same = [m.name for m in modules if m.kind in _SAVED and m.starts_zero]
    if same:
        notes.append(finding("saved_tensors_identical", f"Equal to the base: {named(same)}."))
    return tuple(notes)


def _open(modules: Sequence[ModuleAudit], *, base_given: bool) -> tuple[Finding, ...]:
    """Why some changes are not known."""
    remedy = "Give the base that the adapter was trained on, whole." if base_given else None
    saved = [module.name for module in modules if module.kind in _SAVED]
    other = [module.name for module in modules if module.kind not in _SAVED]
    found = []
    if saved:
        found.append(
            finding(
                "saved_tensors_unverified",
                f"Not compared with the base: {named(saved)}.",
                remedy=remedy,
            )
        )
    if other:
        found.append(
            finding(
                "needs_base",
                f"The change depends on the base's weights: {named(other)}.",
                remedy=remedy,
            )
        )
    return tuple(found)


def judge_budget(
    budget: Budget | None, modules: Sequence[ModuleAudit], verdict: Verdict
) -> tuple[dict[str, float | bool | None], tuple[Finding, ...]]:
    """What the learning-rate budget explains.

    Returns:
        kappa = RMS(B)/√Σlr², whether the run was capped by its learning rate, and the largest
        size it could have reached in units of the threshold of `weak`; and findings.
    """
    if budget is None:
        return {}, ()
    moving = [m for m in modules if m.moved_norm is not None and m.n_moved]
    other = [m for m in modules if m.moved_norm is None and not m.starts_zero]
    count = sum(m.n_moved or 0 for m in moving)
    rms = math.hypot(*(m.moved_norm or 0.0 for m in moving)) / math.sqrt(count) if count else None
    walk = budget.lr_root_square
    kappa = rms / walk if rms is not None and walk > 0 else None
    # What else is trained (saved modules, biases, magnitudes) has no bound here.
    reach = None if other else _reach(budget, moving)
    largest = max((m.moved_max or 0.0 for m in moving), default=0.0)
    exceeded = budget.adam_bound is not None and largest > budget.adam_bound * (1 + 1e-6)
    # A state of another run explains nothing, and no rate but 0 leaves B at exactly 0.
    excluded = exceeded or (verdict == "untrained" and budget.lr_sum > 0)
    capped = None if reach is None else reach < 1 and not excluded
    found = []
    small = verdict in ("negligible", "weak", "untrained")
    if capped and small:
        found.append(
            finding(
                "lr_capped",
                f"With Σ lr = {budget.lr_sum:.2g} over {budget.n_steps} steps even gradients that "
                f"always agree reach {reach:.2g} of what a weak update needs.",
            )
        )
    # Only Adam's steps have the learning rate's size, so that κ says something.
    small = small and budget.n_logged > 1 and budget.adam_like
    if exceeded:
        found.append(
            finding(
                "budget_exceeded",
                f"max|B| is {largest:.2g}, the optimiser could reach {budget.adam_bound:.2g}.",
            )
        )
    elif kappa is not None and small and NOISE_KAPPA_LEAST <= kappa <= NOISE_KAPPA:
        found.append(
            finding("compatible_with_noise", f"RMS(B)/√Σlr² is {kappa:.2g}; noise gives about 1.")
        )
    elif kappa is not None and small and kappa >= COHERENT_KAPPA:
        found.append(finding("coherent_step_limited", f"RMS(B)/√Σlr² is {kappa:.2g}."))
    return {"kappa": kappa, "lr_capped": capped, "reach": reach}, tuple(found)


def _reach(budget: Budget, modules: Sequence[ModuleAudit]) -> float | None:
    """The largest size any module could have had, over the threshold of `weak`.

    With the base by ρ, without it by max|ΔW|; both bounds hold for any sequence of gradients.
    """
    bound = budget.adam_bound
    reached = []
    for module in modules:
        if bound is None or module.reach_max is None or module.reach_frobenius is None:
            return None
        if module.base_norm:
            reached.append(bound * module.reach_frobenius / module.base_norm / WEAK_RHO)
        else:
            reached.append(bound * module.reach_max / WEAK_DELTA)
    return max(reached, default=None)


_CAUSES = {
    "lr_capped": "the learning rate was too small for the number of steps",
    "no_learning_signal": "every logged gradient was 0",
    "compatible_with_noise": "the gradients look like noise",
    "coherent_step_limited": "the gradients agreed but the steps were too small",
    "alpha_zero": "alpha is 0",
}


def explain(judgement: Judgement, findings: Sequence[Finding]) -> str:
    """The verdict in one plain paragraph: what it means, the cause, what to try."""
    basis = judgement.basis
    causes = [found for found in findings if found.code in _CAUSES]
    tail = ""
    if causes:
        tail = f"; cause: {' and '.join(_CAUSES[found.code] for found in causes)}"
    gain = ""
    if judgement.size and any(found.code != "alpha_zero" for found in causes):
        gain = f" About {_round(1 / judgement.size)} times the change would be effective."
    advice = _advice(causes[0]) if causes else ""
    if judgement.verdict == "broken":
        first = next(found for found in findings if breaks(found.code))
        return f"This adapter is broken: {basis}{_advice(first)}."
    if judgement.verdict == "indeterminate":
        reason = next((found for found in findings if found.severity != "info"), None)
        why = "" if reason is None else f"; cause: {reason.message.rstrip('.')}{_advice(reason)}"
        return f"Whether this adapter changes its base cannot be told: {basis}{why}."
    if judgement.verdict == "untrained":
        idle = "; try: check that its parameters require gradients and reach the optimiser"
        return f"This adapter is its base: {basis}{tail}{advice or idle}."
    if judgement.verdict == "negligible":
        return (
            f"This adapter will decode like its base, or very nearly: {basis}{tail}{advice}.{gain}"
        )
    if judgement.verdict == "weak":
        return f"This adapter will decode mostly like its base: {basis}{tail}{advice}.{gain}"
    if judgement.verdict == "extreme":
        return f"This adapter changes its base by about its own size: {basis}."
    return f"This adapter changes its base: {basis}."


def _advice(found: Finding) -> str:
    remedy = found.remedy.rstrip(".")
    # A name in capitals keeps them.
    first = remedy[0] if remedy[:2].isupper() else remedy[0].lower()
    return f"; try: {first}{remedy[1:]}"


def _round(value: float) -> str:
    return f"{value:.2g}" if value < 100 else f"{round(value, 2 - len(str(int(value)))):.0f}"
