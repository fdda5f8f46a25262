"""Agreement of two coders: raw, Cohen's kappa with an interval, and where they differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from interp.conversion.log import CODES, ConversionEntry
from interp.errors import ResultError

__all__ = ["Agreement", "agree", "cohen_kappa"]

N_RESAMPLES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Agreement:
    """Two logs over the traces that both coded.

    Attributes:
        n: traces in both logs.
        only_a: traces in the first alone.
        only_b: traces in the second alone.
        raw: share of equal codes.
        kappa: Cohen's; None where both used one and the same code throughout.
        interval: 95% percentile bootstrap over traces; None with kappa.
        confusion: (4, 4) traces, rows the first coder's code, columns the second's.
        disagreements: (entry of the first, entry of the second), in the order of the first log.
        seed: of the bootstrap.
    """

    n: int
    only_a: int
    only_b: int
    raw: float
    kappa: float | None
    interval: tuple[float, float] | None
    confusion: NDArray[np.int64]
    disagreements: tuple[tuple[ConversionEntry, ConversionEntry], ...]
    seed: int

    def as_dict(self) -> dict[str, Any]:
        """The agreement as a JSON object."""
        return {
            "n": self.n,
            "only_a": self.only_a,
            "only_b": self.only_b,
            "raw_agreement": self.raw,
            "kappa": self.kappa,
            "kappa_interval": None if self.interval is None else list(self.interval),
            "confusion": {
                first: {second: int(self.confusion[i, j]) for j, second in enumerate(CODES)}
                for i, first in enumerate(CODES)
            },
            "disagreements": [
                {
                    "trace_key": first.trace_key,
                    "trace_id": first.trace_id,
                    "a": first.code,
                    "b": second.code,
                    "rationale_a": first.rationale,
                    "rationale_b": second.rationale,
                }
                for first, second in self.disagreements
            ],
            "seed": self.seed,
        }


def cohen_kappa(confusion: NDArray[np.int64]) -> NDArray[np.float64]:
    """Cohen's kappa of confusion matrices (…, k, k); NaN where chance agreement is certain.

    Source: Cohen 1960.
    """
    counts = np.asarray(confusion, dtype=float)
    n = counts.sum(axis=(-2, -1))
    observed = np.trace(counts, axis1=-2, axis2=-1) / n
    expected = (counts.sum(axis=-1) * counts.sum(axis=-2)).sum(axis=-1) / n**2
    certain = np.isclose(expected, 1.0)
    kappa = (observed - expected) / np.where(certain, 1.0, 1 - expected)
    return np.where(certain, np.nan, kappa)


def agree(
    first: Sequence[ConversionEntry], second: Sequence[ConversionEntry], *, seed: int = 0
) -> Agreement:
    """Compare two logs on the traces that both coded.

    Raises:
        ResultError: they have no trace in common.
    """
    by_key = {entry.key: entry for entry in second}
    pairs = [(entry, by_key[entry.key]) for entry in first if entry.key in by_key]
    if not pairs:
        raise ResultError(
            f"The logs have no trace in common ({len(first)} and {len(second)} entries); agreement "
            f"needs traces with the same trace_key and trace_id."
        )
    place = {code: index for index, code in enumerate(CODES)}
    cells = np.array([place[a.code] * len(CODES) + place[b.code] for a, b in pairs])
    size = len(CODES)
    confusion = np.bincount(cells, minlength=size**2).reshape(size, size)
    kappa = float(cohen_kappa(confusion))
    interval = None
    if not np.isnan(kappa):
        # Drawing traces with replacement is drawing how often each cell occurs.
        draws = np.random.default_rng(seed).multinomial(
            len(pairs), confusion.ravel() / len(pairs), size=N_RESAMPLES
        )
        drawn = cohen_kappa(draws.reshape(-1, size, size))
        low, high = np.nanquantile(drawn, [0.025, 0.975])
        interval = (float(low), float(high))
    return Agreement(
        n=len(pairs),
        only_a=len(first) - len(pairs),
        only_b=len(second) - len(pairs),
        raw=sum(a.code == b.code for a, b in pairs) / len(pairs),
        kappa=None if np.isnan(kappa) else kappa,
        interval=interval,
        confusion=confusion,
        disagreements=tuple((a, b) for a, b in pairs if a.code != b.code),
        seed=seed,
    )
