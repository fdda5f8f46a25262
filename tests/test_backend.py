"""The transformers backend: prefixes, generation, edits, tuple outputs, fingerprints."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import FAMILIES, POSITIONS, SEQUENCES, TOLERANCE, relative
from torch import Tensor, nn

from activations import Edit, HFBackend
from activations.hooks import count_hooks, edited, find_blocks, observed
from interp.errors import ModelError


@torch.inference_mode()
def test_the_last_layer_is_before_the_final_norm(tiny_backend: Callable[..., HFBackend]) -> None:
    backend = tiny_backend("llama")
    (ids,) = [SEQUENCES[0]]
    capture = backend.capture([ids], [len(ids) - 1], [0])
    states = backend.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    after_norm = states[-1][0, -1]
    assert relative(backend.model.model.norm(capture.resid_post[0, -1]), after_norm) < TOLERANCE
    assert relative(capture.resid_post[0, -1], after_norm) > 0.1


@pytest.mark.parametrize("family", FAMILIES)
def test_continuing_a_prefix_equals_the_plain_pass(
    family: str, tiny_backend: Callable[..., HFBackend]
) -> None:
    backend = tiny_backend(family)
    suffix = [9, 14, 21]
    plain = backend.logits([ids + suffix for ids in SEQUENCES], [3, 5, 8])
    prefix = backend.prefill(SEQUENCES)
    first = backend.logits_after(prefix, [suffix] * len(SEQUENCES), [3, 5, 8])
    torch.testing.assert_close(first, plain, rtol=1e-4, atol=1e-4)
    # A continuation leaves the prefix as it was.
    assert torch.equal(backend.logits_after(prefix, [suffix] * 4, [3, 5, 8]), first)
    assert not torch.allclose(backend.logits_after(prefix, [[1, 2, 3]] * 4, [3, 5, 8]), first)


def test_suffixes_must_fit_their_prefixes(tiny_backend: Callable[..., HFBackend]) -> None:
    backend = tiny_backend()
    prefix = backend.prefill(SEQUENCES)
    with pytest.raises(ModelError, match="3 suffixes"):
        backend.logits_after(prefix, [[1]] * 3, [0])
    with pytest.raises(ModelError, match=r"lengths \[1, 2\]"):
        backend.logits_after(prefix, [[1], [1, 2], [1], [1]], [0])


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_greedy_batches_equal_an_argmax_loop(
    family: str, tiny_backend: Callable[..., HFBackend]
) -> None:
    backend = tiny_backend(family)
    generated = backend.generate(SEQUENCES, 6)
    for ids, continuation in zip(SEQUENCES, generated, strict=True):
        grown = list(ids)
        for _ in range(6):
            token = int(backend.model(torch.tensor([grown])).logits[0, -1].argmax())
            if token == backend.tokenizer.eos_token_id:
                break
            grown.append(token)
        assert list(continuation) == grown[len(ids) :]
    assert any(generated)


def test_the_models_own_generation_settings_do_not_change_the_greedy_answer(
    tiny_backend: Callable[..., HFBackend],
) -> None:
    backend = tiny_backend()
    expected = backend.generate(SEQUENCES, 8)
    settings = backend.model.generation_config
    settings.repetition_penalty = 5.0
    settings.no_repeat_ngram_size = 1
    settings.do_sample, settings.temperature = True, 3.0
    settings.max_new_tokens = 2
    assert backend.generate(SEQUENCES, 8) == expected
    # A row that ends early does not stop the others.
    stop = expected[0][2]
    settings.eos_token_id = [stop]
    cut = backend.generate(SEQUENCES, 8)
    assert cut[0] == expected[0][: expected[0].index(stop)]
    for row, whole in zip(cut, expected, strict=True):
        assert row == (whole[: whole.index(stop)] if stop in whole else whole)


def test_prompts_beyond_the_models_positions_are_refused(
    tiny_model: Callable[..., Any], tokenizer: Any, facts: Any
) -> None:
    model = tiny_model("gpt2", n_positions=40)
    backend = HFBackend(model, tokenizer, model_id="short")
    with pytest.raises(ModelError, match=r"Item 'capitals-.*tokens; short takes at most 40"):
        backend.tokenize(facts)
    with pytest.raises(ModelError, match="41 tokens; short takes at most 40"):
        backend.generate([[1] * 36], 5)


def add_one(hidden: Tensor) -> Tensor:
    return hidden + 1.0


@pytest.mark.parametrize("hook_point", ["resid_pre", "resid_post"])
def test_edits_change_the_run_and_nothing_stays_behind(
    hook_point: str, tiny_backend: Callable[..., HFBackend]
) -> None:
    backend = tiny_backend()
    before = backend.logits(SEQUENCES, [3, 5])
    hooks = count_hooks(backend.model)
    with backend.intervene([Edit(1, hook_point, add_one)]):  # type: ignore[arg-type]
        assert count_hooks(backend.model) == hooks + 1
        assert not torch.allclose(backend.logits(SEQUENCES, [3, 5]), before)
    assert count_hooks(backend.model) == hooks
    assert torch.equal(backend.logits(SEQUENCES, [3, 5]), before)


def test_no_hook_survives_an_exception(tiny_backend: Callable[..., HFBackend]) -> None:
    backend = tiny_backend()
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
        observed(backend.blocks, lambda _layer, hidden: fail(hidden), lambda _hidden: None),
    ):
        backend.logits(SEQUENCES, [3])
    assert count_hooks(backend.model) == hooks
    edits = [Edit(0, "resid_post", add_one), Edit(3, "resid_post", add_one)]
    with pytest.raises(ModelError, match="Layer 3 is out of range; this model has layers 0 to 2"):
        backend.intervene(edits).__enter__()
    assert count_hooks(backend.model) == hooks


def test_a_capture_sees_the_edited_stream(tiny_backend: Callable[..., HFBackend]) -> None:
    backend = tiny_backend()
    plain = backend.capture(SEQUENCES, POSITIONS, [3])
    with backend.intervene([Edit(1, "resid_post", add_one)]):
        steered = backend.capture(SEQUENCES, POSITIONS, [3])
    assert torch.equal(steered.resid_post[:, 0], plain.resid_post[:, 0])
    torch.testing.assert_close(steered.resid_post[:, 1], plain.resid_post[:, 1] + 1.0)
    assert not torch.allclose(steered.resid_post[:, 2], plain.resid_post[:, 2])


class TupleBlock(nn.Module):
    """A block that returns a tuple, as some families do."""

    def forward(self, hidden_states: Tensor, **_: object) -> tuple[Tensor, str]:
        return hidden_states * 2, "attention"


def test_blocks_that_return_tuples_are_observed_and_edited() -> None:
    blocks = nn.ModuleList([TupleBlock(), TupleBlock()])
    seen: dict[int, Tensor] = {}
    start = torch.ones(1, 2, 3)

    def run() -> tuple[Tensor, str]:
        hidden, extra = start, ""
        for block in blocks:
            hidden, extra = block(hidden_states=hidden)
        return hidden, extra

    with observed(blocks, seen.__setitem__, lambda hidden: seen.__setitem__(-1, hidden)):
        run()
    assert torch.equal(seen[-1], start)
    assert torch.equal(seen[0], start * 2)
    assert torch.equal(seen[1], start * 4)
    edits = [Edit(0, "resid_post", lambda h: h + 1), Edit(1, "resid_pre", lambda h: h * 10)]
    with edited(blocks, edits):  # type: ignore[arg-type]
        hidden, extra = run()
    # (1·2 + 1)·10·2, and what stands beside the hidden states is passed on.
    assert torch.equal(hidden, torch.full((1, 2, 3), 60.0))
    assert extra == "attention"


def test_edits_of_one_block_run_in_the_given_order() -> None:
    blocks = nn.ModuleList([TupleBlock()])
    edits = [Edit(0, "resid_post", lambda h: h + 1), Edit(0, "resid_post", lambda h: h * 10)]
    with edited(blocks, edits):
        hidden, _ = blocks[0](torch.ones(1, 1, 1))
    assert hidden.item() == 30


def test_the_block_list_must_be_there_and_unique(tiny_model: Callable[..., Any]) -> None:
    assert len(find_blocks(tiny_model("llama"))) == 3
    with pytest.raises(ModelError, match="no list of"):
        find_blocks(nn.Linear(2, 2))
    model = tiny_model("llama")
    model.twin = nn.Module()
    model.twin.layers = nn.ModuleList(nn.Identity() for _ in range(3))
    with pytest.raises(ModelError, match="several lists"):
        find_blocks(model)


def test_fingerprints_tell_weights_templates_and_types_apart(
    tiny_model: Callable[..., Any], tokenizer: Any, tiny_backend: Callable[..., HFBackend]
) -> None:
    base = tiny_backend().fingerprint()
    assert tiny_backend().fingerprint() == base
    changed = {
        "weights": tiny_backend(seed=1).fingerprint(),
        "attn_implementation": tiny_backend(attn="eager").fingerprint(),
    }
    for field, fingerprint in changed.items():
        assert {name for name in base if base[name] != fingerprint[name]} == {field}
    nudged = tiny_model("llama")
    with torch.no_grad():
        nudged.model.layers[2].mlp.down_proj.weight[0, 0] += 1e-6
    assert (
        HFBackend(nudged, tokenizer, model_id="tiny-llama").fingerprint()["weights"]
        != base["weights"]
    )
