"""Where two pools of items come from, and whether a classifier can tell them apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import roc_auc_score

from interp.errors import ItemError
from interp.sources.tomas.schema import TomasItem, framework_of

__all__ = ["AUROC_LIMIT", "Provenance", "provenance"]

AUROC_LIMIT: Final = 0.75
"""AUROC of the domain classifier from which pools are said to differ, if chance is excluded."""

_OVERLAP_LIMIT: Final = 0.5
_FOLDS: Final = 5
_PERMUTATIONS: Final = 99
_RIDGE: Final = 1.0
_SHOWN: Final = 8


@dataclass(frozen=True, slots=True)
class Provenance:
    """Two pools side by side.

    Attributes:
        train: framework to number of train items.
        held_out: framework to number of held-out items.
        overlap: shared mass of the two mixes, 0 (no framework in common) to 1 (the same mix).
        auroc: of a classifier that tells the pools apart by wording, out of fold; None with fewer
            than five traces in a pool.
        p_value: share of permuted pool labels with at least that AUROC.
        telling: words that speak for train and for held-out most.
        warnings: what the figures mean for an evaluation.
        seed: of folds and permutations.
    """

    train: dict[str, int]
    held_out: dict[str, int]
    overlap: float
    auroc: float | None
    p_value: float | None
    telling: dict[str, list[str]]
    warnings: tuple[str, ...]
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """All fields."""
        return {
            "train": self.train,
            "held_out": self.held_out,
            "overlap": self.overlap,
            "auroc": self.auroc,
            "p_value": self.p_value,
            "telling": self.telling,
            "warnings": list(self.warnings),
            "seed": self.seed,
        }


def _mix(items: Sequence[TomasItem]) -> dict[str, int]:
    return dict(Counter(framework_of(item.source) for item in items).most_common())


def _folds(labels: NDArray[np.bool_], groups: NDArray[np.str_], seed: int) -> NDArray[np.int64]:
    """(n_items,) fold of each item: whole traces, those of a pool dealt out evenly."""
    rng = np.random.default_rng(seed)
    fold = np.zeros(len(labels), dtype=np.int64)
    dealt = 0
    for label in (False, True):
        for name in rng.permutation(np.unique(groups[labels == label])):
            fold[groups == name] = dealt % _FOLDS
            dealt += 1
    return fold


def _dual(kernel: NDArray[np.float64], labels: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Weights of the texts in a ridge classifier on ±1, both pools of the same total weight."""
    signs = np.where(labels, 1.0 / labels.sum(), -1.0 / (~labels).sum()) * len(labels) / 2
    weights: NDArray[np.float64] = np.linalg.solve(kernel + _RIDGE * np.eye(len(labels)), signs)
    return weights


def _out_of_fold(
    kernel: NDArray[np.float64], labels: NDArray[np.bool_], groups: NDArray[np.str_], seed: int
) -> float:
    """AUROC of decisions on the fold left out."""
    fold, values = _folds(labels, groups, seed), np.zeros(len(labels))
    for k in range(_FOLDS):
        test = fold == k
        fit = ~test
        if labels[fit].any() and not labels[fit].all():
            values[test] = kernel[np.ix_(test, fit)] @ _dual(kernel[np.ix_(fit, fit)], labels[fit])
    return float(roc_auc_score(labels, values))


def provenance(
    train: Sequence[TomasItem], held_out: Sequence[TomasItem], *, seed: int = 0
) -> Provenance:
    """Compare two pools by their sources and by the wording of prompt and question.

    The words' weights (TF-IDF) come from all texts, which no label enters; the classifier is fitted
    without the fold it is applied to. Pool labels are permuted by trace.

    Args:
        train: items of one pool.
        held_out: items of the other.
        seed: of folds and permutations.
    """
    mixes = _mix(train), _mix(held_out)
    shares = [
        {name: n / len(pool) for name, n in mix.items()}
        for mix, pool in zip(mixes, (train, held_out), strict=True)
    ]
    overlap = sum(min(shares[0].get(name, 0.0), shares[1].get(name, 0.0)) for name in shares[0])
    items = [*train, *held_out]
    labels = np.array([False] * len(train) + [True] * len(held_out))
    groups = np.array([item.source for item in items])
    texts = [f"{item.prompt} {item.question}" for item in items]
    auroc = p_value = None
    telling: dict[str, list[str]] = {"train": [], "held_out": []}
    if min(len({i.source for i in pool}) for pool in (train, held_out)) >= _FOLDS:
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
        try:
            matrix = words.fit_transform(texts)
        except ValueError as error:
            raise ItemError(
                "The items hold no word of two letters or more, so nothing can tell the pools "
                "apart. Check that they are the items you mean."
            ) from error
        kernel = (matrix @ matrix.T).toarray()
        auroc = _out_of_fold(kernel, labels, groups, seed)
        rng = np.random.default_rng(seed)
        as_good = sum(
            _out_of_fold(kernel, _permuted(labels, groups, rng), groups, seed) >= auroc
            for _ in range(_PERMUTATIONS)
        )
        p_value = (1 + as_good) / (1 + _PERMUTATIONS)
        names, weights = words.get_feature_names_out(), matrix.T @ _dual(kernel, labels)
        order = np.argsort(weights)
        telling = {
            "train": [str(names[i]) for i in order[:_SHOWN]],
            "held_out": [str(names[i]) for i in order[::-1][:_SHOWN]],
        }
    return Provenance(
        train=mixes[0],
        held_out=mixes[1],
        overlap=overlap,
        auroc=auroc,
        p_value=p_value,
        telling=telling,
        warnings=tuple(_warnings(overlap, auroc, p_value)),
        seed=seed,
    )


def _permuted(
    labels: NDArray[np.bool_], groups: NDArray[np.str_], rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Pool labels exchanged between traces; items of a trace keep one label where they had one."""
    names, first = np.unique(groups, return_index=True)
    swapped = dict(zip(names.tolist(), rng.permutation(labels[first]).tolist(), strict=True))
    return np.array([swapped[name] for name in groups.tolist()])


def _warnings(overlap: float, auroc: float | None, p_value: float | None) -> list[str]:
    found = []
    if overlap < _OVERLAP_LIMIT:
        found.append(
            f"The pools share {overlap:.0%} of their framework mix: they come from different "
            f"worlds, and a score on the held-out items is no measure of what training taught."
        )
    if auroc is None:
        found.append(f"No domain classifier: each pool needs items of at least {_FOLDS} traces.")
    elif auroc >= AUROC_LIMIT and p_value is not None and p_value <= 0.05:
        found.append(
            f"Wording alone tells the pools apart (AUROC {auroc:.2f}, p = {p_value:.2f}): held-out "
            f"items are out of domain. Evaluate on held-out items of the training domain as well."
        )
    return found
