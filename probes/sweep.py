"""The probe sweep: decisions at every layer, and a layer chosen without the test fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from activations import ActivationCache
from interp.adapters.device import usable_device
from interp.errors import ProbeError, require_choice
from interp.items import Item
from interp.statistics import class_weights
from interp.vocabulary import Grouping, ProbeKind, Solver, TransferKind
from probes.baselines import text_baselines
from probes.control import control_tasks, count_right
from probes.layer import C_GRID, LayerFit, decide_layer, probe_named
from probes.permutation import Scheme, choose_scheme, draw_labels
from probes.results import ProbeSweep
from probes.splits import check_folds, make_folds
from probes.transfer import Transfer, plan_transfer, run_transfer

__all__ = ["sweep_layers"]

_NAMED: Final = 5
"""Items that an error names."""


def sweep_layers(
    cache: ActivationCache,
    *,
    C: float | Literal["auto"] = 0.01,
    n_folds: int = 5,
    seed: int = 0,
    grouping: Grouping = "group",
    folds: Sequence[int] | NDArray[np.integer] | None = None,
    probe: ProbeKind = "logistic",
    one_standard_error: bool = False,
    solver: Solver = "batched",
    device: str = "cpu",
    n_permutations: int = 0,
    items: Sequence[Item] | None = None,
    wording: bool = True,
    transfer: Sequence[TransferKind] = (),
    progress: Callable[[int], None] = lambda _: None,
) -> ProbeSweep:
    """Probe every layer of a cache under the same folds.

    For each outer fold the layer is also chosen by cross-validation over the other folds alone
    (`layers_nested`): the accuracy at those layers is not inflated by having picked the layer.
    Permuted labels go through everything that the labels go through, the choice of C included.

    Args:
        cache: open activation cache of True/False items; one layer is read at a time.
        C: inverse L2 strength, or `auto` to choose it from `C_GRID` inside each training part.
        n_folds: outer folds; the inner ones are the outer ones that remain.
        seed: of the folds and of the permutations.
        grouping: `group` keeps groups whole.
        folds: (n_items,) from 0, instead of drawing them.
        probe: what is fitted; `lda` has no C.
        one_standard_error: with C `auto`, the smallest C within one standard error of the best.
        solver: `batched` or `sklearn`, of logistic probes.
        device: torch device of the batched solver; `auto` takes a GPU.
        n_permutations: label permutations for the null scores.
        items: with their texts and types, for text baselines and control tasks; None leaves these
            out.
        wording: whether text baselines are wanted.
        transfer: `category` and `template`, what to hold out in turn (`template` needs `items`).
        progress: called once a layer (and once for the embedding stream).

    Raises:
        ProbeError: an unknown name, a device that cannot be used, folds that are none, missing
            labels, labels and groups that cannot be split or permuted, or a fit that does not
            converge.
    """
    for what, value, known in (
        ("probe", probe, ProbeKind),
        ("solver", solver, Solver),
        ("grouping", grouping, Grouping),
    ):
        require_choice(what, value, get_args(known), ProbeError)
    unlabelled = [item for item, label in zip(cache.item_id, cache.label, strict=True) if label < 0]
    if unlabelled:
        raise ProbeError(
            f"{len(unlabelled)} of {cache.n_items} items have no label (first: {unlabelled[0]!r}); "
            f"probes need True/False items."
        )
    # Also where the solver that was asked for has no use of it.
    device = usable_device(device, ProbeError)
    if isinstance(transfer, str):
        raise ProbeError(f"transfer is {transfer!r}; expected a list, such as [{transfer!r}].")
    for kind in transfer:
        require_choice("transfer", kind, get_args(TransferKind), ProbeError)
    if not isinstance(C, int | float | np.number) and C != "auto":
        raise ProbeError(f"C is {C!r}; expected a positive number or 'auto'.")
    if one_standard_error and (C != "auto" or probe == "lda"):
        why = "LDA has no C" if probe == "lda" else "a given C is not chosen"
        raise ProbeError(f"--one-standard-error goes with --C auto; {why}.")
    if n_permutations < 0:
        raise ProbeError(f"--permutations is {n_permutations}; expected 0 or more.")
    labels, groups = cache.label.astype(bool), cache.group_id
    if folds is None:
        folds = make_folds(labels, groups, n_folds=n_folds, seed=seed, grouping=grouping)
    else:
        folds = check_folds(folds, labels, groups, grouping=grouping)
    strengths = C_GRID if C == "auto" and probe != "lda" else (1.0 if C == "auto" else float(C),)
    decide = probe_named(probe, solver, device)
    scheme: Scheme | None = None
    permuted = np.empty((cache.n_items, 0), dtype=bool)
    if n_permutations:
        scheme = choose_scheme(labels, groups, folds, grouped=grouping == "group")
        permuted = draw_labels(
            scheme, labels, groups, folds, n_permutations=n_permutations, seed=seed
        )
    gradients: list[float] = []

    def fit(activations: NDArray[np.float32], columns: NDArray[np.bool_], inner: int) -> LayerFit:
        found = decide_layer(
            activations,
            columns,
            folds,
            strengths,
            decide,
            inner=inner,
            one_standard_error=one_standard_error,
        )
        if found.relative_gradient is not None:
            gradients.append(found.relative_gradient)
        return found

    tasks = {} if items is None else control_tasks(items, folds, seed=seed)
    values = {
        "category": cache.category,
        "template": [item.template for item in items] if items else [None] * cache.n_items,
    }
    plans = [plan_transfer(k, values[k], labels, groups, folds, seed=seed) for k in transfer]
    carried: list[list[tuple[NDArray[np.float64], NDArray[np.float64]]]] = [[] for _ in plans]
    # All label vectors of a layer go together: they share its Gram matrices.
    parts = [labels[:, None], permuted, *(task.labels for task in tasks.values())]
    columns = np.concatenate(parts, axis=1)
    ends = np.cumsum([part.shape[1] for part in parts])[:-1]
    control_right: dict[str, list[NDArray[np.int64]]] = {name: [] for name in tasks}

    # First: rows that an unfinished cache lacks are found before anything is computed.
    pre0 = _finite(cache.resid_pre0(), "the embedding stream", cache.item_id)
    decision_pre0 = fit(pre0, labels[:, None], 0).decisions[:, 0]
    del pre0
    progress(1)
    n_folds = int(folds.max()) + 1
    decisions = np.empty((cache.n_items, cache.n_layers))
    inner_accuracy = np.empty((n_folds, cache.n_layers))
    instability = np.empty((n_folds, cache.n_layers))
    used = np.empty((cache.n_layers, n_folds))
    null_scores = np.empty((cache.n_layers, n_permutations))
    permuted_weights = class_weights(permuted)
    for layer in range(cache.n_layers):
        activations = _finite(cache.resid_post(layer), f"layer {layer}", cache.item_id)
        found = fit(activations, columns, 1)
        decisions[:, layer] = found.decisions[:, 0]
        inner_accuracy[:, layer] = found.inner_accuracy[:, 0]
        instability[:, layer] = found.instability[:, 0]
        used[layer] = found.C[:, 0]
        _, by_permuted, *by_control = np.split(found.decisions > 0, ends, axis=1)
        null_scores[layer] = (permuted_weights * (by_permuted == permuted)).mean(axis=0)
        for (name, task), said in zip(tasks.items(), by_control, strict=True):
            control_right[name].append(count_right(task, said, folds))
        for plan, by_layer in zip(plans, carried, strict=True):
            by_layer.append(run_transfer(plan, activations, labels, folds, strengths, decide))
        progress(1)
    return ProbeSweep(
        item_id=cache.item_id,
        label=labels,
        group_id=groups,
        category=cache.category,
        fold=folds,
        decision_values=decisions,
        decision_values_pre0=decision_pre0,
        C=used,
        # argmax takes the earliest of equally good layers.
        layers_nested=tuple(int(layer) for layer in inner_accuracy.argmax(axis=1)),
        inner_accuracy=inner_accuracy,
        instability=instability,
        seed=seed,
        grouping=grouping,
        manifest=cache.manifest,
        C_grid=() if probe == "lda" else strengths,
        probe=probe,
        one_standard_error=one_standard_error,
        solver=solver,
        relative_gradient=max(gradients, default=None),
        scheme=scheme,
        null_scores=null_scores,
        own_logits=_own_logits(cache),
        transfers=tuple(
            Transfer(
                plan,
                np.stack([decided for decided, _ in by_layer], axis=1),
                np.stack([accuracy for _, accuracy in by_layer], axis=1),
            )
            for plan, by_layer in zip(plans, carried, strict=True)
        ),
        control_types={name: task.types for name, task in tasks.items()},
        control_right={name: np.stack(counts) for name, counts in control_right.items()},
        baselines=text_baselines(items, labels, folds) if items and wording else {},
    )


def _own_logits(cache: ActivationCache) -> NDArray[np.float64]:
    logits = cache.answer_logits.astype(float)
    # A cache whose model was not asked holds no finite pair.
    return logits[:, 0] - logits[:, 1] if np.isfinite(logits).all() else np.empty(0)


def _finite(
    activations: NDArray[np.float32], where: str, item_ids: tuple[str, ...]
) -> NDArray[np.float32]:
    bad = np.flatnonzero(~np.isfinite(activations).all(axis=1))
    if len(bad):
        named = ", ".join(repr(item_ids[index]) for index in bad[:_NAMED])
        more = ", …" if len(bad) > _NAMED else ""
        raise ProbeError(
            f"{len(bad)} of {len(item_ids)} items have activations that are not finite at {where}: "
            f"{named}{more}. Extract again; an unfinished cache is completed by the same command."
        )
    return activations
