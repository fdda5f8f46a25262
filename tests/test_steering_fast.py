"""The fast path of a steering grid against plain passes, and when it is given up."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES as ALL_FAMILIES
from families import build

from activations import ActivationCache, Edit, HFBackend
from activations.branches import Branches, branching, head_rows
from activations.hooks import count_hooks
from activations.reuse import branch_logits, keep_residuals, resumed_logits, why_not_reusable
from steering import POSITIONS, SignedItems, SteeringSweep, sweep_steering

FAMILIES = ("llama", "qwen3", "gemma3", "gpt2")
Prepared = Callable[..., tuple[HFBackend, ActivationCache, SignedItems]]
PROMPTS = [[7, 30, 41, 5, 99, 12, 250, 9, 9, 31], [8, 77, 3, 4], [11, 4, 60, 61], [200, 9]]
STUB = [21, 8, 150]
IDS = [3, 5, 9]


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float(((got - expected).norm(dim=-1) / expected.norm(dim=-1)).max())


def plain_cells(
    backend: HFBackend,
    prompts: list[list[int]],
    layers: list[int],
    shifts: torch.Tensor,
    every: bool,
) -> torch.Tensor:
    """Each branch by itself, from the first token, under an edit of our own."""
    cells = [backend.logits([prompt + STUB for prompt in prompts], IDS)]
    for layer, shift in zip(layers, shifts, strict=True):

        def apply(hidden: torch.Tensor, shift: torch.Tensor = shift) -> torch.Tensor:
            changed = hidden.clone()
            for row, prompt in enumerate(prompts):
                end = len(prompt) + len(STUB) if every else len(prompt)
                changed[row, len(prompt) - 1 : end] += shift[row]
            return changed

        with backend.intervene([Edit(layer, "resid_post", apply)]):
            cells.append(backend.logits([prompt + STUB for prompt in prompts], IDS))
    return torch.stack(cells)


# Not exchangeable, or keys and values in a form of their own: plain passes, by the self-check.
PLAIN_ONLY = {
    "BioGPT", "BLOOM", "DeepSeek-V3", "Falcon", "Falcon, ALiBi", "Gemma 3n", "GPT-BigCode",
    "GPT-Neo", "Jamba", "Mamba", "MPT", "Qwen3-Next", "RecurrentGemma", "RWKV", "StableLM", "XGLM",
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(set(ALL_FAMILIES) - PLAIN_ONLY))
def test_branches_equal_plain_passes(name: str) -> None:
    model = build(name)
    backend = HFBackend(model, None, model_id=name)
    assert why_not_reusable(backend) is None
    before, implementation = count_hooks(model), model.config._attn_implementation
    layers = [layer for layer in range(backend.n_layers) for _ in range(2)]
    generator = torch.Generator().manual_seed(0)
    for prompts in (PROMPTS, PROMPTS[:1]):
        size = (len(layers), len(prompts), backend.d_model)
        shifts = 5 * torch.randn(*size, generator=generator)
        kept = backend.prefill([prompt[:-1] for prompt in prompts])
        suffixes = [prompt[-1:] + STUB for prompt in prompts]
        for every in (False, True):
            expected = plain_cells(backend, prompts, layers, shifts, every)
            # The last block whole or in part, in one tile or in many.
            for trimmed, tile in ((False, 10**6), (True, 10**6), (True, 20)):
                branches = Branches(layers, shifts, every, trimmed, tile)
                got = branch_logits(backend, kept, suffixes, IDS, branches)
                assert relative(got, expected) < 1e-4
            # A control: the branches do differ, and from each other.
            assert relative(expected[1:2], expected[:1]) > 1e-3
            assert relative(got[1:2], expected[2:3]) > 1e-3
    assert count_hooks(model) == before
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("family", FAMILIES)
def test_the_last_block_runs_its_last_token_only(
    family: str, tiny_backend: Callable[..., HFBackend]
) -> None:
    backend, seen = tiny_backend(family), []
    kept = backend.prefill([PROMPTS[0][:-1]])
    branches = Branches([0, 1], torch.ones(2, 1, backend.d_model), tile_tokens=4)
    mlps = [next(m for n, m in block.named_children() if n == "mlp") for block in backend.blocks]
    handles = [
        mlp.register_forward_pre_hook(lambda _, args, at=at: seen.append((at, args[0].shape[:2])))
        for at, mlp in enumerate(mlps)
    ]
    branch_logits(backend, kept, [PROMPTS[0][-1:] + STUB], IDS, branches)
    for handle in handles:
        handle.remove()
    # A row of four tokens in block 0; two, then three rows above, one tile each; the last block
    # takes one token of each.
    assert seen == [(0, (1, 4)), *[(1, (1, 4))] * 2, *[(2, (1, 1))] * 3]


def test_where_the_last_block_cannot_be_cut_all_of_it_is_run(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, cache, signed = prepared("llama")
    last = backend.blocks[-1].mlp
    own = last.forward

    def mixing(x: torch.Tensor) -> torch.Tensor:
        """Each token also takes from the one before it in the same pass, as a convolution does."""
        return own(x) + own(torch.nn.functional.pad(x, (0, 0, 1, 0))[:, :-1])

    monkeypatch.setattr(last, "forward", mixing)
    options: dict[str, Any] = {"alphas": [4], "layers": [1], "conditions": ("signed",)}
    fast = sweep_steering(cache, signed, backend, **options)
    plain = sweep_steering(cache, signed, backend, **options, plain=True)
    assert fast.settings["fast_path"]["used"]
    assert not fast.settings["fast_path"]["trimmed"]
    np.testing.assert_allclose(fast.logits, plain.logits, rtol=1e-4, atol=1e-4)
    monkeypatch.undo()
    assert sweep_steering(cache, signed, backend, **options).settings["fast_path"]["trimmed"]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_resumed_run_is_the_plain_one_bit_for_bit(
    family: str, tiny_backend: Callable[..., HFBackend]
) -> None:
    backend = tiny_backend(family)
    kept = keep_residuals(backend, PROMPTS, IDS, [0, 1])
    assert torch.equal(kept.logits, backend.logits(PROMPTS, IDS))
    for layer in (0, 1):

        def change(hidden: torch.Tensor) -> torch.Tensor:
            return hidden + torch.linspace(-1, 1, 32)

        with backend.intervene([Edit(layer, "resid_post", change)]):
            expected = backend.logits(PROMPTS, IDS)
        assert torch.equal(resumed_logits(backend, kept, IDS, layer, change), expected)
        assert not torch.allclose(expected, kept.logits)
    assert torch.equal(backend.logits(PROMPTS, IDS), kept.logits)
    assert not any("forward" in vars(block) for block in backend.blocks)


def test_resuming_runs_no_block_below(tiny_backend: Callable[..., HFBackend]) -> None:
    backend = tiny_backend()
    kept, run = keep_residuals(backend, PROMPTS, IDS, [1]), []
    for layer, block in enumerate(backend.blocks):
        block.self_attn.register_forward_hook(lambda *_, layer=layer: run.append(layer))
    resumed_logits(backend, kept, IDS, 1, lambda hidden: hidden)
    assert run == [2]


def test_the_head_computes_some_rows_only(tiny_backend: Callable[..., HFBackend]) -> None:
    backend = tiny_backend()
    every = backend.logits(PROMPTS, IDS)
    with head_rows(backend.model, IDS) as few:
        assert few
        got = backend.model(torch.tensor([PROMPTS[0]])).logits
    assert got.shape[-1] == len(IDS)
    torch.testing.assert_close(got[0, -1], every[0])
    assert torch.equal(backend.logits(PROMPTS, IDS), every)


def test_nothing_stays_after_an_exception(tiny_backend: Callable[..., HFBackend]) -> None:
    backend = tiny_backend()
    before, implementation = count_hooks(backend.model), backend.model.config._attn_implementation
    state = backend.prefill([PROMPTS[0][:-1]]).state
    branches = Branches([0, 1], torch.zeros(2, 1, 32))
    with (
        pytest.raises(RuntimeError, match="stop"),
        branching(backend.model, backend.blocks, state, branches),
    ):
        raise RuntimeError("stop")
    assert count_hooks(backend.model) == before
    assert backend.model.config._attn_implementation == implementation


def grid(prepared: Prepared, family: str, **options: Any) -> SteeringSweep:
    backend, cache, signed = prepared(family)
    settings: dict[str, Any] = {
        "alphas": [4],
        "layers": [0, 1],
        "conditions": ("signed", "random", "writer"),
        "n_random": 2,
        "n_control": 1,
        "seed": 3,
    }
    return sweep_steering(cache, signed, backend, **settings | options)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("positions", POSITIONS)
def test_a_grid_is_the_same_with_plain_passes(
    family: str, positions: str, prepared: Prepared
) -> None:
    fast = grid(prepared, family, positions=positions)
    plain = grid(prepared, family, positions=positions, plain=True)
    assert fast.settings["fast_path"]["used"]
    assert fast.settings["fast_path"]["trimmed"] == (positions in ("last_prompt", "generated"))
    off = {"used": False, "off": "--plain", "max_relative": None, "trimmed": False}
    assert plain.settings["fast_path"] == off
    assert fast.cells == plain.cells
    difference = np.linalg.norm(fast.logits - plain.logits, axis=-1)
    assert (difference <= 1e-4 * np.linalg.norm(plain.logits, axis=-1)).all()
    if positions in ("prompt", "all"):
        assert np.array_equal(fast.logits, plain.logits)
    # A control: every condition moves the logits.
    assert (np.abs(plain.logits[1:] - plain.logits[0]).max(axis=(1, 2)) > 1e-3).all()


def test_policies_differ(prepared: Prepared) -> None:
    found = [grid(prepared, "llama", positions=positions).logits for positions in POSITIONS]
    for number, first in enumerate(found):
        for second in found[number + 1 :]:
            assert not np.allclose(first[1:], second[1:], rtol=1e-3)
        assert np.allclose(first[0], found[0][0], rtol=1e-4, atol=1e-4)


def test_small_budgets_change_nothing(prepared: Prepared) -> None:
    for positions in ("last_prompt", "all"):
        large = grid(prepared, "llama", positions=positions)
        small = grid(prepared, "llama", positions=positions, batch_tokens=400)
        np.testing.assert_allclose(small.logits, large.logits, rtol=1e-4, atol=1e-4)


def test_a_model_that_does_not_allow_it_is_run_plainly(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = grid(prepared, "llama", plain=True)
    monkeypatch.setattr("transformers.LlamaForCausalLM._supports_attention_backend", False)
    found = grid(prepared, "llama")
    assert not found.settings["fast_path"]["used"]
    assert "not exchangeable" in found.settings["fast_path"]["off"]
    assert np.array_equal(found.logits, plain.logits)
    monkeypatch.undo()
    # A position scheme that depends on the length of the pass, which a kept prompt hides.
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    original = LlamaRotaryEmbedding.forward

    def stretched(self: Any, x: Any, position_ids: Any) -> Any:
        return original(self, x, position_ids * (2 if x.shape[1] > 10 else 1))

    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", stretched)
    found = grid(prepared, "llama")
    assert "differs from a plain pass" in found.settings["fast_path"]["off"]
    assert found.settings["fast_path"]["max_relative"] > 1e-4


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (None, "LlamaAttention adds position biases"),
        (AttributeError("no such part"), "no such part"),
        (KeyError("masks"), "masks"),
        (AssertionError(), "AssertionError"),
        (NotImplementedError("not there"), "not there"),
    ],
    ids=["position biases", "attribute", "key", "assertion", "not implemented"],
)
def test_a_model_that_fails_in_a_branch_is_run_plainly(
    prepared: Prepared, monkeypatch: pytest.MonkeyPatch, fault: Exception | None, said: str
) -> None:
    from transformers.models.llama.modeling_llama import LlamaAttention

    original = LlamaAttention.forward

    def failing(self: Any, *args: Any, **options: Any) -> Any:
        if self.config._attn_implementation == "interp_branches":
            if fault is not None:
                raise fault
            options["position_bias"] = torch.zeros(1, 1, 1, 1)
        return original(self, *args, **options)

    plain = grid(prepared, "llama", plain=True)
    monkeypatch.setattr(LlamaAttention, "forward", failing)
    found = grid(prepared, "llama")
    assert not found.settings["fast_path"]["used"]
    assert "the model does not allow it" in found.settings["fast_path"]["off"]
    assert said in found.settings["fast_path"]["off"]
    assert np.array_equal(found.logits, plain.logits)


@pytest.mark.parametrize("name", ["DeepSeek-V3", "GPT-BigCode", "BLOOM"])
def test_families_that_cannot_are_known_or_fail_loudly(name: str) -> None:
    backend = HFBackend(build(name), None, model_id=name)
    if why_not_reusable(backend) is None:
        kept = backend.prefill([PROMPTS[0][:-1]])
        branches = Branches([0], torch.ones(1, 1, backend.d_model))
        with pytest.raises(RuntimeError):
            branch_logits(backend, kept, [PROMPTS[0][-1:] + STUB], IDS, branches)
