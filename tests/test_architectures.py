"""The architecture gate: captures of every family against one unpadded sequence at a time."""

from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch

from activations import HFBackend

HERE = Path(__file__).resolve().parent
MODULE: dict[str, Any] = run_path(str(HERE / "families.py"), run_name="families")
FAMILIES, TOLERANCE = MODULE["FAMILIES"], MODULE["TOLERANCE"]
DOCUMENT = HERE.parent / "docs" / "architectures.md"


@pytest.mark.parametrize("name", FAMILIES)
def test_captures_equal_a_pass_of_one_unpadded_sequence(name: str) -> None:
    family = FAMILIES[name]
    measured = MODULE["measure"](name)
    assert measured.hooks_left == 0
    # What stands in the document is what comes out here.
    assert MODULE["table_row"](name, measured) in DOCUMENT.read_text().splitlines()
    if family.refused is not None:
        assert family.refused in str(measured.refused)
        return
    assert measured.refused is None
    assert measured.right < TOLERANCE
    assert measured.padded < TOLERANCE
    assert measured.states < TOLERANCE
    assert measured.logits < TOLERANCE
    assert (measured.left < TOLERANCE) == family.left
    assert (measured.unshared is None) == family.shares
    if family.shares:
        assert measured.shared < TOLERANCE
    assert (measured.continued is not None) == family.continues
    if family.continues:
        assert measured.continued < TOLERANCE
    # The control: a neighbouring layer is far outside the tolerance.
    assert measured.neighbour > 1e-3


def test_the_gate_covers_what_it_says_and_names_nothing_else() -> None:
    assert sum(family.refused is None for family in FAMILIES.values()) >= 20
    rows = [line for line in DOCUMENT.read_text().splitlines() if "Config` |" in line]
    assert [line.split("|")[1].strip() for line in rows] == list(FAMILIES)


def test_the_gate_sees_a_neighbouring_position_and_a_hook_left_behind() -> None:
    def shifted(backend: HFBackend) -> HFBackend:
        right = backend.capture
        backend.capture = lambda ids, positions, logit_ids: right(  # type: ignore[method-assign]
            ids, [max(position - 1, 0) for position in positions], logit_ids
        )
        return backend

    measured = MODULE["measure"]("Llama", shifted)
    assert measured.right > 0.05
    assert "**differs**" in MODULE["table_row"]("Llama", measured)

    def leaky(backend: HFBackend) -> HFBackend:
        right = backend.share_prefix

        def share(ids: Any) -> Any:
            backend.blocks[0].register_forward_hook(lambda *_: None)
            return right(ids)

        backend.share_prefix = share  # type: ignore[method-assign]
        return backend

    assert MODULE["measure"]("Llama", leaky).hooks_left == 1


def test_recurrent_families_are_right_as_they_are_run(tmp_path: Path) -> None:
    # Padding on the left runs through the state of these; captures pad on the right by default.
    for name, family in FAMILIES.items():
        if not family.left:
            model = MODULE["build"](name)
            backend = HFBackend(model, None, model_id=name)
            assert backend.padding == "right"
            batch = backend.capture(MODULE["SEQUENCES"], MODULE["POSITIONS"], [0])
            for row, ids in enumerate(MODULE["SEQUENCES"]):
                one = backend.capture([ids], [MODULE["POSITIONS"][row]], [0])
                torch.testing.assert_close(
                    batch.resid_post[row], one.resid_post[0], rtol=1e-4, atol=1e-4
                )
