"""What a steering grid claims: p-value and verdict."""

import numpy as np
import pytest
from steering_grids import right, sweep_of

from steering.results import BASELINE, cell_rows
from steering.summary import summarise


def test_the_p_value_counts_random_directions_whose_best_cell_is_as_good() -> None:
    cells = {(BASELINE, ""): right(50), ("signed", ""): right(70), ("negated", ""): right(30)}
    draws = {("random", f"{mark}{i}"): right(60 + (i < 3) * 10) for i in range(50) for mark in "+-"}
    sweep = sweep_of(cells | draws)
    null = summarise(sweep, cell_rows(sweep))["null"]
    # Three pairs reach 70 of 100: six of a hundred directions; signed itself and its mirror count.
    assert null["n_directions"] == 100
    assert null["p_value"] == pytest.approx((1 + 6) / 102)
    assert null["range"] == [0.6, 0.7]
    fewer = sweep_of(cells | dict(list(draws.items())[:98]))
    null = summarise(fewer, cell_rows(fewer))["null"]
    assert null["p_value"] is None
    assert null["range"] == [0.6, 0.7]


def test_the_verdict_follows_from_the_paired_intervals() -> None:
    base, good = right(50), np.arange(100) < 95
    cells = {(BASELINE, ""): base, ("signed", ""): good, ("fixed", ""): base}
    sweep = sweep_of(cells | {("random", "+0"): base, ("writer", ""): good})
    summary = summarise(sweep, cell_rows(sweep))
    verdict = summary["verdict"]
    assert "raises the accuracy" in verdict
    assert "more than signing random directions" in verdict
    assert "no more and no less than signing the unembedding" in verdict
    assert "one sign for all items does not move it" in verdict
    assert verdict.count(".") == verdict.count("[") * 3 + 1  # one sentence, decimals aside
    assert summary["signed_minus_writer"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    worse = sweep_of({(BASELINE, ""): good, ("signed", ""): base, ("random", "+0"): good})
    assert "lowers the accuracy" in summarise(worse, cell_rows(worse))["verdict"]
    # A model that always says the same can only show the pushes the other way.
    assert "to every item" not in verdict
    odd = np.arange(100) % 2 == 1
    for said, always in ((~odd, True), (odd, False)):
        stuck = sweep_of({(BASELINE, ""): said, ("signed", ""): good})
        words = summarise(stuck, cell_rows(stuck))["verdict"]
        assert words.startswith(f"Unsteered, the model says {always} to every item; steering")
    (row,) = (r for r in summary["grid"] if (r["condition"], r["alpha"]) == ("signed", 1.0))
    assert row["minus_random"]["value"] == pytest.approx(good.mean() - base.mean())
    assert row["flips_to_right"] == (good & ~base).sum()
    assert row["flips_to_wrong"] == (base & ~good).sum()
