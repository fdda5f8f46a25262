"""`ProbeSweep`: what a sweep found, and its folder on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import h5py
import numpy as np
from numpy.typing import NDArray

from interp.errors import ResultError
from interp.files import atomic_path, require_file, write_csv, write_json
from interp.statistics import Scores, bootstrap_means, score_decisions
from interp.vocabulary import Grouping

__all__ = ["ProbeSweep", "read_sweep", "summarise", "write_sweep"]

_FORMAT: Final = "interp probe sweep"


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
        inner_accuracy: (n_folds, n_layers) accuracy that the choice was made by.
        seed: of the folds.
        grouping: `group` or `none`.
        manifest: of the cache that was probed.
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
    seed: int
    grouping: Grouping
    manifest: Mapping[str, Any]

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
    def best_layer(self) -> int:
        """The most accurate layer on the reported folds; its accuracy is optimistic."""
        return int(self.correct.mean(axis=0).argmax())


def summarise(sweep: ProbeSweep) -> dict[str, Any]:
    """The content of `probe.json`; accuracies are fractions, intervals are 95%."""

    def scores(decisions: NDArray[np.float64]) -> Scores:
        return score_decisions(sweep.label, decisions > 0, decisions)

    correct_pre0 = np.equal(sweep.decision_values_pre0 > 0, sweep.label)
    columns = np.column_stack([sweep.correct, sweep.correct_nested, correct_pre0])
    *per_layer, nested, pre0 = bootstrap_means(columns, sweep.group_id, seed=sweep.seed)
    best = sweep.best_layer
    return {
        "n_items": sweep.n_items,
        "n_groups": len(set(sweep.group_id)),
        "n_layers": sweep.n_layers,
        "n_folds": len(sweep.layers_nested),
        "grouping": sweep.grouping,
        "seed": sweep.seed,
        "C": float(sweep.C[0, 0]),
        "accuracy_nested": nested.value,
        "accuracy_nested_interval": [nested.low, nested.high],
        "scores_nested": asdict(scores(sweep.decision_values_nested)),
        "layers_nested": list(sweep.layers_nested),
        "best_layer": best,
        "accuracy_best_layer": per_layer[best].value,
        "accuracy_best_layer_note": "optimistic: the layer was chosen on the reported folds",
        "accuracy_embedding": pre0.value,
        "accuracy_embedding_interval": [pre0.low, pre0.high],
        "majority_class": float(max(sweep.label.mean(), 1 - sweep.label.mean())),
        "by_category": {
            category: float(sweep.correct_nested[[c == category for c in sweep.category]].mean())
            for category in dict.fromkeys(sweep.category)
        },
        "layers": [
            {
                "layer": layer,
                "accuracy": e.value,
                "low": e.low,
                "high": e.high,
                **{
                    name: value
                    for name, value in asdict(scores(sweep.decision_values[:, layer])).items()
                    if name != "accuracy"
                },
            }
            for layer, e in enumerate(per_layer)
        ],
        "manifest": dict(sweep.manifest),
    }


def write_sweep(folder: Path, sweep: ProbeSweep) -> dict[str, Any]:
    """Write `probes.h5`, `layers.csv` and, last, `probe.json`; returns the latter's content."""
    summary = summarise(sweep)
    folder.mkdir(parents=True, exist_ok=True)
    # The summary is the sign that a folder is finished, so an old one goes first.
    (folder / "probe.json").unlink(missing_ok=True)
    text = h5py.string_dtype("utf-8")
    with atomic_path(folder / "probes.h5") as aside, h5py.File(aside, "w") as file:
        file.attrs["format"] = _FORMAT
        file.attrs["settings"] = json.dumps(
            {
                "layers_nested": sweep.layers_nested,
                "seed": sweep.seed,
                "grouping": sweep.grouping,
                "manifest": dict(sweep.manifest),
            }
        )
        file["decision_values"] = sweep.decision_values
        file["decision_values_pre0"] = sweep.decision_values_pre0
        file["fold"] = sweep.fold
        file["C"] = sweep.C
        file["inner_accuracy"] = sweep.inner_accuracy
        file["label"] = sweep.label.astype(np.int8)
        for name in ("item_id", "group_id", "category"):
            file[name] = np.array(getattr(sweep, name), dtype=text)
    write_csv(folder / "layers.csv", summary["layers"])
    write_json(folder / "probe.json", summary)
    return summary


def read_sweep(folder: Path) -> ProbeSweep:
    """Read a probe folder.

    Raises:
        ResultError: missing, damaged, or not a probe folder.
    """
    if not folder.is_dir():
        raise ResultError(f"There is no probe folder {folder}. Make one with `interp probe`.")
    require_file(folder / "probe.json", "the summary of a finished probe sweep", ResultError)
    path = require_file(folder / "probes.h5", "the arrays of a probe sweep", ResultError)
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
                layers_nested=tuple(settings["layers_nested"]),
                seed=settings["seed"],
                grouping=settings["grouping"],
                manifest=settings["manifest"],
            )
    except (OSError, KeyError, ValueError) as error:
        raise ResultError(f"{folder} is not a complete probe folder ({error}).") from error
