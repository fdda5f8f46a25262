"""`ProbeSweep`: what a sweep found, and its folder on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from interp.errors import ResultError
from interp.files import atomic_path, require_file
from interp.hdf5 import new_hdf5
from interp.statistics import Estimate, bootstrap_mean, class_weights, cross_validation_spread
from interp.vocabulary import Grouping, ProbeKind, Solver
from probes.permutation import Scheme
from probes.transfer import Transfer, TransferPlan

__all__ = ["ProbeSweep", "read_sweep", "write_arrays"]

_FORMAT: Final = "interp probe sweep"
_MAPPINGS: Final = {
    "baseline": "baselines",
    "control_types": "control_types",
    "control_right": "control_right",
}


@dataclass(frozen=True, slots=True)
class ProbeSweep:
    """Out-of-fold decisions of the probes of every layer.

    Attributes:
        item_id: (n_items,).
        label: (n_items,) of bool.
        group_id: (n_items,).
        category: (n_items,).
        fold: (n_items,) outer fold of each item.
        decision_values: (n_items, n_layers) log odds of True, from probes without the item's fold.
        decision_values_pre0: (n_items,), the same on the embedding stream.
        C: (n_layers, n_folds) inverse L2 strength that was used.
        layers_nested: (n_folds,) layer chosen on the training part of each outer fold.
        inner_accuracy: (n_folds, n_layers) balanced accuracy that the choice was made by.
        instability: (n_folds, n_layers) share of the fold's verdicts that change when a further
            fold is left out of the training.
        seed: of the folds.
        grouping: `group` or `none`.
        manifest: of the cache that was probed.
        C_grid: strengths that `C` was chosen from; one if it was given, none for LDA, which has
            no C (`C` is then what was given, for logistic fits beside it).
        probe: what was fitted.
        one_standard_error: whether the smallest C within one standard error of the best was taken.
        solver: `batched` or `sklearn`.
        relative_gradient: largest gradient norm at a solution, relative to the one at zero weights;
            None if the solver does not say.
        scheme: how labels were permuted; None without permutations.
        null_scores: (n_layers, n_permutations) balanced accuracy on permuted labels.
        own_logits: (n_items,) the model's own logit of True minus that of False after the answer
            stub; empty where the cache holds none.
        transfers: decisions about categories or templates that were held out.
        control_types: kind of type (`template`, `entity`) to the (n_items,) types of the items,
            integers from 0, −1 where it is not known.
        control_right: the same kinds to (n_layers, n_folds, draws), how many items of each fold are
            right under random labels by type, of those whose type also stands in another fold; no
            draws where the control is not applicable.
        baselines: name of a text baseline to its (n_items,) out-of-fold log odds of True.
    """

    item_id: tuple[str, ...]
    label: NDArray[np.bool_]
    group_id: tuple[str, ...]
    category: tuple[str, ...]
    fold: NDArray[np.int64]
    decision_values: NDArray[np.float64]
    decision_values_pre0: NDArray[np.float64]
    C: NDArray[np.float64]
    layers_nested: tuple[int, ...]
    inner_accuracy: NDArray[np.float64]
    instability: NDArray[np.float64]
    seed: int
    grouping: Grouping
    manifest: Mapping[str, Any]
    C_grid: tuple[float, ...] = ()
    probe: ProbeKind = "logistic"
    one_standard_error: bool = False
    solver: Solver = "batched"
    relative_gradient: float | None = None
    scheme: Scheme | None = None
    null_scores: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0)))
    own_logits: NDArray[np.float64] = field(default_factory=lambda: np.empty(0))
    transfers: tuple[Transfer, ...] = ()
    control_types: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    control_right: Mapping[str, NDArray[np.int64]] = field(default_factory=dict)
    baselines: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def n_items(self) -> int:
        """Number of items."""
        return len(self.item_id)

    @property
    def n_layers(self) -> int:
        """Number of layers."""
        return int(self.decision_values.shape[1])

    @property
    def layer_nested(self) -> NDArray[np.int64]:
        """(n_items,) the layer chosen without the item's fold."""
        return np.asarray(self.layers_nested)[self.fold]

    @property
    def decision_values_nested(self) -> NDArray[np.float64]:
        """(n_items,) decision of each item at its fold's nested layer."""
        return self.decision_values[np.arange(self.n_items), self.layer_nested]

    @property
    def correct(self) -> NDArray[np.bool_]:
        """(n_items, n_layers) whether the decision is the label."""
        return np.equal(self.decision_values > 0, self.label[:, None])

    @property
    def correct_nested(self) -> NDArray[np.bool_]:
        """(n_items,) whether the decision at the nested layer is the label."""
        return np.equal(self.decision_values_nested > 0, self.label)

    @property
    def spread(self) -> NDArray[np.float64]:
        """(n_layers,) how much wider than the bootstrap of its groups an accuracy's interval is."""
        share = np.bincount(self.fold, minlength=len(self.layers_nested)) / self.n_items
        folds = len(self.layers_nested)
        return np.array([cross_validation_spread(v, folds) for v in share @ self.instability])

    @property
    def spread_nested(self) -> float:
        """The same at the nested layers."""
        nested = self.instability[self.fold, self.layer_nested].mean()
        return cross_validation_spread(float(nested), len(self.layers_nested))

    def estimate_nested(self, values: NDArray[Any]) -> Estimate:
        """Mean of (n_items,) scores that rest on the nested decisions, with a 95% interval."""
        return bootstrap_mean(values, self.group_id, seed=self.seed, spread=self.spread_nested)

    @property
    def best_layer(self) -> int:
        """Layer of the highest balanced accuracy on the reported folds: optimistic."""
        return int(self.scores.argmax())

    @property
    def scores(self) -> NDArray[np.float64]:
        """(n_layers,) balanced accuracy, what layers are compared and tested by.

        The very accuracy where both classes are equally large. Where they are not, a probe that
        always says the commoner one would outdo one that tells them apart.
        """
        weights = class_weights(self.label)
        return np.asarray((weights[:, None] * self.correct).mean(axis=0))


def write_arrays(path: Path, sweep: ProbeSweep) -> None:
    """Write `probes.h5`, atomically."""
    text = h5py.string_dtype("utf-8")
    with atomic_path(path) as aside, new_hdf5(aside) as file:
        file.attrs["format"] = _FORMAT
        file.attrs["settings"] = json.dumps(
            {
                "layers_nested": sweep.layers_nested,
                "seed": sweep.seed,
                "grouping": sweep.grouping,
                "manifest": dict(sweep.manifest),
                "C_grid": sweep.C_grid,
                "probe": sweep.probe,
                "one_standard_error": sweep.one_standard_error,
                "solver": sweep.solver,
                "relative_gradient": sweep.relative_gradient,
                "scheme": sweep.scheme,
            }
        )
        file["decision_values"] = sweep.decision_values
        file["decision_values_pre0"] = sweep.decision_values_pre0
        file["fold"] = sweep.fold
        file["C"] = sweep.C
        file["inner_accuracy"] = sweep.inner_accuracy
        file["instability"] = sweep.instability
        file["null_scores"] = sweep.null_scores
        file["own_logits"] = sweep.own_logits
        file["label"] = sweep.label.astype(np.int8)
        for name in ("item_id", "group_id", "category"):
            file[name] = np.array(getattr(sweep, name), dtype=text)
        file.create_group("transfer")
        for transfer in sweep.transfers:
            place = file["transfer"].create_group(transfer.plan.kind)
            place["value"] = np.array(transfer.plan.value, dtype=text)
            place["part"] = transfer.plan.part
            place["training"] = transfer.plan.training
            place["decision_values"] = transfer.decision_values
            place["inner_accuracy"] = transfer.inner_accuracy
        for group, field_name in _MAPPINGS.items():
            file.create_group(group)
            for name, values in getattr(sweep, field_name).items():
                file[group][name] = values


def _read_transfers(group: h5py.Group) -> tuple[Transfer, ...]:
    return tuple(
        Transfer(
            TransferPlan(
                kind, tuple(place["value"].asstr()[:]), place["part"][:], place["training"][:]
            ),
            place["decision_values"][:],
            place["inner_accuracy"][:],
        )
        for kind, place in group.items()
    )


def read_sweep(folder: str | Path) -> ProbeSweep:
    """Read a probe folder.

    Raises:
        ResultError: missing, damaged, or not a probe folder.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ResultError(f"There is no probe folder {folder}. Make one with `interp probe`.")
    require_file(folder / "probe.json", "the summary of a finished probe sweep", ResultError)
    path = require_file(folder / "probes.h5", "the arrays of a probe sweep", ResultError)

    def mapping(file: h5py.File, group: str) -> dict[str, NDArray[Any]]:
        return {name: values[:] for name, values in file[group].items()}

    try:
        with h5py.File(path, "r") as file:
            if file.attrs.get("format") != _FORMAT:
                raise ResultError(f"{path} is not a probe sweep; expected one of `interp probe`.")
            settings = json.loads(file.attrs["settings"])
            strings = {n: tuple(file[n].asstr()[:]) for n in ("item_id", "group_id", "category")}
            return ProbeSweep(
                **strings,
                label=file["label"][:].astype(bool),
                fold=file["fold"][:],
                decision_values=file["decision_values"][:],
                decision_values_pre0=file["decision_values_pre0"][:],
                C=file["C"][:],
                inner_accuracy=file["inner_accuracy"][:],
                instability=file["instability"][:],
                layers_nested=tuple(settings["layers_nested"]),
                seed=settings["seed"],
                grouping=settings["grouping"],
                manifest=settings["manifest"],
                C_grid=tuple(settings["C_grid"]),
                probe=settings["probe"],
                one_standard_error=settings["one_standard_error"],
                solver=settings["solver"],
                relative_gradient=settings["relative_gradient"],
                scheme=settings["scheme"],
                null_scores=file["null_scores"][:],
                own_logits=file["own_logits"][:],
                transfers=_read_transfers(file["transfer"]),
                control_types=mapping(file, "control_types"),
                control_right=mapping(file, "control_right"),
                baselines=mapping(file, "baseline"),
            )
    except (OSError, KeyError, ValueError) as error:
        raise ResultError(f"{folder} is not a complete probe folder ({error}).") from error
