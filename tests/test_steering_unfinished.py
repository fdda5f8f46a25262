"""A steering sweep that was killed goes on where it was, and ends with the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from activations import ActivationCache, HFBackend
from interp.errors import CacheError, SteeringError
from steering import SignedItems, SteeringSweep, sweep_steering
from steering.settings import SteeredDirection

Prepared = Callable[..., tuple[HFBackend, ActivationCache, SignedItems]]


class Killed(Exception):
    pass


def _swept(
    ready: tuple[HFBackend, ActivationCache, SignedItems],
    unfinished: Path | None,
    **changes: Any,
) -> SteeringSweep:
    backend, cache, signed = ready
    settings: dict[str, Any] = {
        "alphas": [0, 2],
        "layers": [0, 1],
        "conditions": ("signed", "random"),
        "n_random": 4,
        "batch_tokens": 256,
    }
    return sweep_steering(cache, signed, backend, **settings | changes, unfinished=unfinished)


def _killed_after(n_items: int) -> Callable[[int], None]:
    seen = 0

    def progress(n: int) -> None:
        nonlocal seen
        seen += n
        if seen >= n_items:
            raise Killed

    return progress


@pytest.mark.parametrize("positions", ["last_prompt", "all"])
def test_it_goes_on_with_the_same_numbers(
    prepared: Prepared, tmp_path: Path, positions: str
) -> None:
    ready = prepared()
    expected = _swept(ready, None, positions=positions)
    path = tmp_path / "steer.h5.partial"
    for n_items in (3, 9, 14):
        with pytest.raises(Killed):
            _swept(ready, path, positions=positions, progress=_killed_after(n_items))
    counted: list[int] = []
    whole = _swept(ready, path, positions=positions, progress=counted.append)
    np.testing.assert_array_equal(whole.logits, expected.logits)
    assert sum(counted) == ready[1].n_items
    assert counted[0] >= 14, "what was found before is not run again"
    assert sum(counted[1:]) > 0, "and the rest is"


def test_a_line_that_was_cut_off_is_run_again(prepared: Prepared, tmp_path: Path) -> None:
    ready = prepared()
    path = tmp_path / "steer.h5.partial"
    expected = _swept(ready, path)
    data = path.read_bytes()
    rng = np.random.default_rng(0)
    head = data.index(b"\n") + 1
    for cut in (0, head // 2, head, *rng.integers(head, len(data), 4).tolist()):
        path.write_bytes(data[:cut])
        np.testing.assert_array_equal(_swept(ready, path).logits, expected.logits)
        assert sorted(path.read_bytes().splitlines()) == sorted(data.splitlines())


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"alphas": [0, 3]}, "alphas"),
        ({"layers": [1]}, "layers"),
        ({"seed": 1}, "seed"),
        ({"n_random": 6}, "random_directions"),
        ({"conditions": ("signed", "fixed")}, "conditions"),
        ({"positions": "generated"}, "positions"),
        ({"intervention": "clamp"}, "intervention"),
        ({"alpha_unit": "absolute"}, "alpha_unit"),
        ({"plain": True}, "plain"),
        ({"direction": SteeredDirection("given", lambda *_: np.ones(32), fitted=False)}, "vectors"),
    ],
)
def test_other_settings_are_refused(
    prepared: Prepared, tmp_path: Path, changes: dict[str, Any], field: str
) -> None:
    ready = prepared()
    path = tmp_path / "steer.h5.partial"
    with pytest.raises(Killed):
        _swept(ready, path, progress=_killed_after(3))
    before = path.read_bytes()
    with pytest.raises(CacheError, match=rf"{field}: the file has .*Choose another --out"):
        _swept(ready, path, **changes)
    assert path.read_bytes() == before


def test_a_run_that_found_nothing_leaves_nothing_in_the_way(
    prepared: Prepared, tmp_path: Path
) -> None:
    ready = prepared()
    path = tmp_path / "out" / "steer.h5.partial"
    with pytest.raises(SteeringError, match="not finite"):
        _swept(ready, path, alphas=[0, 1e38])
    assert not path.parent.exists()
    path.parent.mkdir()
    path.write_text("{}\n")
    assert _swept(ready, path).logits.shape[1] == ready[1].n_items


def test_decisions_of_another_probe_are_refused(prepared: Prepared, tmp_path: Path) -> None:
    backend, cache, signed = prepared()
    path = tmp_path / "steer.h5.partial"
    with pytest.raises(Killed):
        _swept((backend, cache, signed), path, progress=_killed_after(3))
    # Of the same signs, as a probe of another strength may have them.
    other = replace(signed, decision_values=2 * signed.decision_values)
    with pytest.raises(CacheError, match="probe: the file has"):
        _swept((backend, cache, other), path)
