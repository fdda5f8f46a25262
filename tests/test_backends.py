"""One suite for all backends: plain transformers, TransformerLens and nnsight."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import families
import h5py
import numpy as np
import pytest
import torch
from commands import ok, refused
from reference import FAMILIES, POSITIONS, SEQUENCES, TOLERANCE, loop_over_blocks, relative
from torch import Tensor

from activations import Edit, HFBackend, describe_source, extract, in_library
from activations.hooks import count_hooks
from interp import Item, open_source
from interp.errors import ModelError, SharingError
from interp.vocabulary import Library

LIBRARIES: tuple[Library, ...] = ("hf", "transformer_lens", "nnsight")
# TransformerLens 4.3 passes an empty cache around with this transformers: it keeps nothing.
KEEPS = ("hf", "nnsight")

Build = Callable[..., HFBackend]


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    value: Library = request.param
    if value != "hf":
        pytest.importorskip(value, reason=f"the extra {value} is not installed")
    return value


@pytest.fixture
def build(library: Library, tiny_backend: Build) -> Build:
    """A tiny model in the library."""

    def make(family: str = "llama", **changes: Any) -> HFBackend:
        return in_library(tiny_backend(family, **changes), library)

    return make


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("padding", ["left", "right"])
@pytest.mark.parametrize("attn", ["sdpa", "eager"])
@torch.inference_mode()
def test_captures_equal_the_loop_over_blocks(
    family: str,
    padding: str,
    attn: str,
    tiny_model: Callable[..., Any],
    library: Library,
    build: Build,
) -> None:
    reference = tiny_model(family, attn="eager")
    backend = build(family, padding=padding, attn=attn)
    hooks = count_hooks(backend.model)
    capture = backend.capture(SEQUENCES, POSITIONS, [3, 5])
    assert count_hooks(backend.model) == hooks
    for row, (ids, position) in enumerate(zip(SEQUENCES, POSITIONS, strict=True)):
        streams, logits = loop_over_blocks(reference, family, ids)
        # The loop itself is right: it ends in the model's own logits.
        assert relative(logits, reference(torch.tensor([ids])).logits[0]) < TOLERANCE
        expected = torch.stack([stream[position] for stream in streams])
        assert relative(capture.resid_pre0[row], expected[0]) < TOLERANCE
        assert relative(capture.resid_post[row], expected[1:]) < TOLERANCE
        torch.testing.assert_close(capture.logits[row], logits[-1, [3, 5]], rtol=1e-4, atol=1e-4)
        norms = torch.stack([stream[1:].norm(dim=-1).median() for stream in streams[1:]])
        torch.testing.assert_close(capture.resid_norm[row], norms, rtol=1e-4, atol=1e-4)
        # The control: a neighbouring position or layer is far outside the tolerance.
        other = torch.stack([stream[position - 1] for stream in streams[1:]])
        assert relative(capture.resid_post[row], other) > 0.05
        assert relative(capture.resid_post[row, 1:], expected[1:-1]) > 0.05


def scaled(factor: float) -> Callable[[Tensor], Tensor]:
    # Not the same in every dimension: a layer norm would take that out again.
    return lambda hidden: hidden + factor * torch.linspace(-1, 1, hidden.shape[-1])


@pytest.mark.parametrize("family", FAMILIES)
def test_an_edit_of_size_nought_changes_no_bit_and_nothing_stays_behind(
    family: str, build: Build
) -> None:
    backend = build(family)
    plain = backend.capture(SEQUENCES, POSITIONS, [3, 5])
    hooks = count_hooks(backend.model)
    everywhere = [
        Edit(layer, point, scaled(0.0))  # type: ignore[arg-type]
        for layer in range(3)
        for point in ("resid_pre", "resid_post")
    ]
    with backend.intervene(everywhere):
        zero = backend.capture(SEQUENCES, POSITIONS, [3, 5])
    assert torch.equal(zero.resid_post, plain.resid_post)
    assert torch.equal(zero.resid_pre0, plain.resid_pre0)
    assert torch.equal(zero.logits, plain.logits)
    # The control: an edit that is not nought is seen from its layer on, and only there.
    with backend.intervene([Edit(1, "resid_post", scaled(1.0))]):
        moved = backend.capture(SEQUENCES, POSITIONS, [3, 5])
    assert torch.equal(moved.resid_post[:, 0], plain.resid_post[:, 0])
    torch.testing.assert_close(moved.resid_post[:, 1], scaled(1.0)(plain.resid_post[:, 1]))
    assert relative(moved.resid_post[:, 2], plain.resid_post[:, 2]) > 1e-3
    assert not torch.allclose(moved.logits, plain.logits)
    assert count_hooks(backend.model) == hooks
    assert torch.equal(backend.capture(SEQUENCES, POSITIONS, [3, 5]).logits, plain.logits)


def test_edits_agree_with_plain_transformers_in_every_order(
    build: Build, tiny_backend: Build
) -> None:
    edits = [
        Edit(2, "resid_pre", lambda hidden: hidden * 1.5),
        Edit(1, "resid_post", lambda hidden: hidden + 1),
        Edit(1, "resid_post", lambda hidden: hidden * 2),
        Edit(0, "resid_pre", lambda hidden: hidden - 1),
    ]
    plain = tiny_backend(attn="eager")
    backend = build(attn="eager")
    with plain.intervene(edits[2:]), plain.intervene(edits[:2]):
        expected = plain.capture(SEQUENCES, POSITIONS, [3, 5])
    with backend.intervene(edits[2:]), backend.intervene(edits[:2]):
        got = backend.capture(SEQUENCES, POSITIONS, [3, 5])
    assert relative(got.resid_post, expected.resid_post) < TOLERANCE
    assert relative(got.resid_pre0, expected.resid_pre0) < TOLERANCE
    torch.testing.assert_close(got.logits, expected.logits, rtol=1e-4, atol=1e-4)
    # Of nested contexts the inner one edits first: (h + 1) · 2, not h · 2 + 1.
    with plain.intervene([edits[3], edits[1], edits[2], edits[0]]):
        at_once = plain.capture(SEQUENCES, POSITIONS, [3, 5])
    assert relative(got.resid_post, at_once.resid_post) < TOLERANCE


@pytest.mark.parametrize("name", ["BLOOM", "MPT", "GPT-Neo"])
@pytest.mark.parametrize("library", ["hf", "nnsight"])
def test_blocks_that_return_tuples_are_read_and_edited(
    name: str, library: Library, tokenizer: Any
) -> None:
    if library != "hf":
        pytest.importorskip(library, reason=f"the extra {library} is not installed")
    model = families.build(name)
    plain = HFBackend(model, tokenizer, model_id=name)
    backend = in_library(plain, library)
    kinds: list[type] = []
    handle = plain.blocks[0].register_forward_hook(lambda _, __, out: kinds.append(type(out)))
    before = backend.capture(SEQUENCES, POSITIONS, [3, 5])
    handle.remove()
    assert kinds == [tuple]
    for row, (ids, position) in enumerate(zip(SEQUENCES, POSITIONS, strict=True)):
        streams, _, _ = families.alone(model, plain.blocks, ids)
        assert relative(before.resid_post[row], streams[1:, position]) < TOLERANCE
    with backend.intervene([Edit(0, "resid_post", scaled(0.0))]):
        assert torch.equal(backend.capture(SEQUENCES, POSITIONS, [3]).resid_post, before.resid_post)
    with backend.intervene([Edit(0, "resid_post", scaled(1.0))]):
        moved = backend.capture(SEQUENCES, POSITIONS, [3, 5])
    torch.testing.assert_close(moved.resid_post[:, 0], scaled(1.0)(before.resid_post[:, 0]))
    assert relative(moved.resid_post[:, 1], before.resid_post[:, 1]) > 1e-4


def test_nothing_survives_an_exception(build: Build) -> None:
    backend = build()
    before = backend.logits(SEQUENCES, [3, 5])
    hooks = count_hooks(backend.model)

    def fail(hidden: Tensor) -> Tensor:
        raise RuntimeError("in the middle of a pass")

    with (
        pytest.raises(RuntimeError, match="middle"),
        backend.intervene([Edit(1, "resid_post", fail)]),
    ):
        backend.logits(SEQUENCES, [3])
    assert count_hooks(backend.model) == hooks
    with (
        pytest.raises(RuntimeError, match="middle"),
        backend.observed(lambda _layer, hidden: [fail(hidden)][:0], lambda _hidden: None),  # type: ignore[arg-type,return-value]
    ):
        backend.logits(SEQUENCES, [3])
    assert count_hooks(backend.model) == hooks
    with (
        pytest.raises(ModelError, match="Layer 3 is out of range; this model has layers 0 to 2"),
        backend.intervene([Edit(3, "resid_post", scaled(1.0))]),
    ):
        pass
    assert count_hooks(backend.model) == hooks
    assert torch.equal(backend.logits(SEQUENCES, [3, 5]), before)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_answers_agree(family: str, build: Build, tiny_backend: Build) -> None:
    expected = tiny_backend(family, attn="eager").generate(SEQUENCES, 6)
    assert any(len(row) > 1 for row in expected)
    assert build(family, attn="eager").generate(SEQUENCES, 6) == expected


@pytest.mark.parametrize("family", FAMILIES)
def test_prefixes_are_shared_or_refused(family: str, library: Library, build: Build) -> None:
    backend = build(family)
    prefix = list(range(10, 50))
    if library not in KEEPS:
        with pytest.raises(SharingError, match="keeps no keys and values"):
            backend.share_prefix(prefix)
        with pytest.raises(ModelError, match="keeps no keys and values"):
            backend.prefill(SEQUENCES)
        return
    plain = backend.capture(
        [prefix + ids for ids in SEQUENCES], [len(prefix) + at for at in POSITIONS], [3, 5]
    )
    after = backend.capture_after(backend.share_prefix(prefix), SEQUENCES, POSITIONS, [3, 5])
    assert relative(after.resid_post, plain.resid_post) < TOLERANCE
    torch.testing.assert_close(after.resid_norm, plain.resid_norm, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(after.logits, plain.logits, rtol=1e-4, atol=1e-4)
    suffixes = [[9, 14, 21]] * len(SEQUENCES)
    whole = backend.logits([ids + suffixes[0] for ids in SEQUENCES], [3, 5])
    kept = backend.logits_after(backend.prefill(SEQUENCES), suffixes, [3, 5])
    torch.testing.assert_close(kept, whole, rtol=1e-4, atol=1e-4)


def test_the_model_and_tokenizer_that_were_given_stay_as_they_are(
    library: Library, tiny_model: Callable[..., Any], tokenizer: Any
) -> None:
    model = tiny_model("llama", attn="sdpa")
    names = [name for name, _ in model.named_parameters()]
    modules = [(name, type(module)) for name, module in model.named_modules()]
    side = tokenizer.padding_side
    plain = HFBackend(model, tokenizer, model_id="tiny-llama")
    before = plain.capture(SEQUENCES, POSITIONS, [3, 5])
    backend = in_library(plain, library)
    backend.capture(SEQUENCES, POSITIONS, [3, 5])
    assert [name for name, _ in model.named_parameters()] == names
    assert [(name, type(module)) for name, module in model.named_modules()] == modules
    assert (tokenizer.padding_side, model.config._attn_implementation) == (side, "sdpa")
    assert torch.equal(plain.capture(SEQUENCES, POSITIONS, [3, 5]).resid_post, before.resid_post)
    # One model, one digest, whatever a library calls the parameters.
    assert backend.fingerprint()["weights"] == plain.fingerprint()["weights"]
    attn = "eager" if library == "transformer_lens" else "sdpa"
    assert backend.fingerprint()["attn_implementation"] == attn


def test_the_file_names_its_backend_and_the_numbers_are_the_same(
    tmp_path: Path, library: Library, tiny_backend: Build, facts: tuple[Item, ...]
) -> None:
    source = describe_source(open_source("facts"), facts, view=None, seed=1)
    plain = tiny_backend(attn="eager")
    extract(plain, facts, tmp_path / "hf.h5", source=source).close()
    with extract(in_library(plain, library), facts, tmp_path / "other.h5", source=source) as cache:
        assert cache.manifest["backend"] == library
        assert cache.self_check_max_relative is not None
        assert cache.self_check_max_relative < TOLERANCE
        shared = cache.prefix_sharing or {}
        assert (shared["off"] is None) == (library in KEEPS)
        named = {"transformer_lens": "transformer-lens"}.get(library, library)
        assert (named in cache.manifest["versions"]) == (library != "hf")
    with h5py.File(tmp_path / "hf.h5") as a, h5py.File(tmp_path / "other.h5") as b:
        for name in ("resid_post", "resid_pre0", "answer_logits", "resid_norm"):
            np.testing.assert_allclose(b[name][:], a[name][:], rtol=1e-3, atol=1e-5)


def test_the_command_takes_a_backend_and_refuses_another_ones_file(
    tmp_path: Path, library: Library, model_folder: Path
) -> None:
    out = tmp_path / "c.h5"
    base = ["extract", "--source", "facts", "--n", 8, "--model", model_folder, "--out", out]
    ok(*base, "--backend", library, "--device", "cpu", "--attn", "eager")
    info = json.loads(ok("cache", "info", out, "--json").stdout)
    assert info["manifest"]["backend"] == library
    assert info["manifest"]["model"]["attn_implementation"] == "eager"
    assert info["self_check_max_relative"] < TOLERANCE
    other = "nnsight" if library == "hf" else "hf"
    message = refused(*base, "--backend", other, "--device", "cpu", "--attn", "eager")
    assert f"backend: the file has '{library}', this run has '{other}'" in message


def test_a_backend_that_is_not_installed_names_its_extra(
    tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("transformer_lens", "nnsight"):
        monkeypatch.setitem(sys.modules, name, None)
        message = refused(
            *("extract", "--source", "facts", "--n", 8, "--model", model_folder),
            *("--out", tmp_path / "c.h5", "--backend", name),
        )
        assert f"pip install 'interp[{name}]'" in message
    assert not list(tmp_path.iterdir())


def test_what_transformer_lens_cannot_do_is_said(
    tmp_path: Path, tiny_model: Callable[..., Any], tokenizer: Any, model_folder: Path
) -> None:
    pytest.importorskip("transformer_lens", reason="the extra transformer_lens is not installed")
    message = refused(
        *("extract", "--source", "facts", "--n", 8, "--model", model_folder, "--attn", "sdpa"),
        *("--out", tmp_path / "c.h5", "--backend", "transformer_lens"),
    )
    assert "TransformerLens runs eager attention only" in message

    class Unheard(type(tiny_model("llama"))):  # type: ignore[misc]
        pass

    model = tiny_model("llama")
    model.__class__ = Unheard
    model.config.model_type = "unheard"
    with pytest.raises(ModelError, match=r"TransformerLens cannot run Unheard .*--backend hf"):
        in_library(HFBackend(model, tokenizer, model_id="m"), "transformer_lens")


def test_an_adapter_is_seen_through_every_library(
    tmp_path: Path, library: Library, tiny_model: Callable[..., Any], tokenizer: Any
) -> None:
    pytest.importorskip("peft", reason="the extra train is not installed")
    from attaching import save_adapter

    from activations.adapter import adapted

    model = tiny_model("llama", attn="eager")
    merged = save_adapter(model, tmp_path / "adapter")
    expected = HFBackend(merged, tokenizer, model_id="merged").capture(SEQUENCES, POSITIONS, [3])
    plain = HFBackend(model, tokenizer, model_id="base")
    bare = plain.capture(SEQUENCES, POSITIONS, [3])
    with adapted(plain, tmp_path / "adapter") as changed:
        backend = in_library(changed, library)
        got = backend.capture(SEQUENCES, POSITIONS, [3])
        assert backend.fingerprint()["adapter"] == changed.fingerprint()["adapter"] is not None
    assert relative(got.resid_post, expected.resid_post) < TOLERANCE
    assert relative(got.resid_post, bare.resid_post) > 0.01
