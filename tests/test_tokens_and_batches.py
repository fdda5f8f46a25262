from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from activations.batches import Halvings, plan_batches, run_batches
from activations.tokens import pad, render, tokenize, verdict_ids
from interp import Item, Message
from interp.errors import ItemError, ModelError

ITEM = Item(
    "i",
    (Message("system", "Be brief."), Message("user", "STATEMENT: Snow is white. Really?")),
    True,
    None,
    "g",
    "c",
    {"statement": "Snow is white."},
)


def test_the_template_is_applied_once(tokenizer: Any) -> None:
    text = render(tokenizer, ITEM)
    assert text == (
        "<|system|>\nBe brief.<|end|>\n"
        "<|user|>\nSTATEMENT: Snow is white. Really?<|end|>\n"
        "<|assistant|>\n"
    )
    (prompt,) = tokenize(tokenizer, [ITEM])
    assert tokenizer.decode(list(prompt.ids)) == text
    assert tokenizer.decode(list(prompt.stub_ids)) == "ANSWER:"


def test_token_rules_name_the_right_tokens(tokenizer: Any) -> None:
    (prompt,) = tokenize(tokenizer, [ITEM])
    sequence = prompt.ids_with_stub

    def text_until(position: int) -> str:
        return str(tokenizer.decode(list(sequence[: position + 1])))

    assert text_until(prompt.position("last_prompt")).endswith("<|assistant|>\n")
    assert text_until(prompt.position("statement_end")).endswith("STATEMENT: Snow is white.")
    assert text_until(prompt.position("answer_stub")).endswith("<|assistant|>\nANSWER:")


def test_the_statement_in_the_question_counts_not_one_before(tokenizer: Any) -> None:
    item = Item(
        "i",
        (Message("system", "Snow is white."), Message("user", "Is it so? Snow is white. Yes?")),
        True,
        None,
        "g",
        "c",
        {"statement": "Snow is white."},
    )
    (prompt,) = tokenize(tokenizer, [item])
    before = tokenizer.decode(list(prompt.ids[: prompt.position("statement_end") + 1]))
    assert before.endswith("Is it so? Snow is white.")


def test_a_statement_that_is_not_in_the_prompt_is_an_error_for_its_rule_only(
    tokenizer: Any,
) -> None:
    item = Item("lost", ITEM.messages, True, None, "g", "c", {"statement": "Coal is black."})
    (prompt,) = tokenize(tokenizer, [item])
    assert prompt.position("last_prompt") == len(prompt.ids) - 1
    with pytest.raises(ItemError, match="'lost'"):
        prompt.position("statement_end")


def test_without_a_template_the_prompt_is_plain_text(tokenizer: Any) -> None:
    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    assert render(plain, ITEM) == "Be brief.\n\nSTATEMENT: Snow is white. Really?\n"


def test_a_template_that_refuses_names_the_item(tokenizer: Any) -> None:
    strict = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        chat_template="{{ raise_exception('no system turns') }}",
    )
    with pytest.raises(ItemError, match=r"'i'.*no system turns"):
        tokenize(strict, [ITEM])


@pytest.mark.parametrize("template_writes_bos", [True, False])
def test_exactly_one_bos(tokenizer: Any, template_writes_bos: bool) -> None:
    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    core.add_special_tokens(["<s>"])
    bos = core.token_to_id("<s>")
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", bos)]
    )
    with_bos = PreTrainedTokenizerFast(
        tokenizer_object=core,
        bos_token="<s>",
        chat_template=("{{ bos_token }}" if template_writes_bos else "")
        + "{% for m in messages %}{{ m['content'] }}{% endfor %}\n",
    )
    (prompt,) = tokenize(with_bos, [ITEM])
    assert prompt.ids[0] == bos
    assert prompt.ids.count(bos) == 1
    assert bos not in prompt.stub_ids
    last = prompt.ids[: prompt.position("statement_end") + 1]
    assert with_bos.decode(list(last)).endswith("Snow is white.")


THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n"
    "{% endif %}{% endif %}"
)


@pytest.fixture
def thinker(tokenizer: Any) -> Any:
    """A tokenizer whose template opens, or skips, a think block, as Qwen3's does."""
    core = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    core.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    core.add_tokens(["<think>", "</think>", "\n\n", "assistant"])
    return PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", chat_template=THINKING
    )


@pytest.mark.parametrize(
    ("arguments", "last"),
    [
        ({}, ["<|im_start|>", "assistant", "\n"]),
        ({"enable_thinking": True}, ["<|im_start|>", "assistant", "\n"]),
        (
            {"enable_thinking": False},
            ["<|im_start|>", "assistant", "\n", "<think>", "\n\n", "</think>", "\n\n"],
        ),
    ],
)
def test_the_last_tokens_of_a_template_that_thinks(
    thinker: Any, arguments: dict[str, Any], last: list[str]
) -> None:
    (prompt,) = tokenize(thinker, [ITEM], arguments)
    assert [thinker.decode([token]) for token in prompt.ids[-len(last) :]] == last
    before = prompt.ids[-len(last) - 2 : -len(last)]
    assert [thinker.decode([token]) for token in before] == ["<|im_end|>", "\n"]
    assert prompt.position("last_prompt") == len(prompt.ids) - 1
    assert thinker.decode(list(prompt.stub_ids)) == "ANSWER:"


def test_a_template_argument_without_effect_is_refused(tokenizer: Any, thinker: Any) -> None:
    with pytest.raises(ModelError, match="does not read 'enable_thinkin'"):
        tokenize(thinker, [ITEM], {"enable_thinkin": False})
    with pytest.raises(ModelError, match="set already"):
        tokenize(thinker, [ITEM], {"add_generation_prompt": False})
    plain = PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer)
    with pytest.raises(ModelError, match="no chat template"):
        tokenize(plain, [ITEM], {"enable_thinking": False})


@pytest.mark.parametrize("template", ["", "<|end|>"])
def test_a_prompt_without_text_is_an_error_that_names_the_item(
    tokenizer: Any, template: str
) -> None:
    empty = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        eos_token="<|end|>",
        chat_template=template + "{{ '' }}",
    )
    with pytest.raises(ItemError, match=r"Item 'i': its prompt is '.*', which has no tokens"):
        tokenize(empty, [ITEM])


def test_verdict_ids_are_those_of_the_place(tokenizer: Any) -> None:
    verdicts = verdict_ids(tokenizer, tokenize(tokenizer, [ITEM]))
    assert (verdicts.true_text, verdicts.false_text) == (" True", " False")
    bare = tokenizer("True", add_special_tokens=False)["input_ids"]
    assert verdicts.true_id not in bare


def test_verdicts_that_share_their_first_token_are_refused() -> None:
    # One token a character: " True" and " False" both start with a space.
    alphabet = {chr(code): code - 10 for code in [10, *range(32, 127)]}
    core = Tokenizer(models.WordLevel(alphabet, unk_token="?"))
    core.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters = PreTrainedTokenizerFast(tokenizer_object=core)
    with pytest.raises(ModelError, match="both start with the token ' '"):
        verdict_ids(characters, tokenize(characters, [ITEM]))


sequences = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=8), min_size=1, max_size=6)


@given(sequences, st.sampled_from(["left", "right"]))
def test_padding_keeps_every_sequence(rows: list[list[int]], side: Any) -> None:
    batch = pad(rows, side, torch.device("cpu"))
    for index, row in enumerate(rows):
        mask = batch.is_token[index]
        assert batch.ids[index][mask].tolist() == row
        assert batch.position_ids[index][mask].tolist() == list(range(len(row)))
        assert int(batch.starts[index]) == int(mask.long().argmax())
    assert batch.is_ragged == (len({len(row) for row in rows}) > 1)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 200))
def test_batches_hold_everything_once_within_the_budget(lengths: list[int], budget: int) -> None:
    batches = plan_batches(lengths, budget)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or longest * len(batch) <= budget
    order = [lengths[index] for batch in batches for index in batch]
    assert order == sorted(order, reverse=True)


def test_a_batch_that_does_not_fit_is_halved() -> None:
    tried: list[int] = []

    def run(index: list[int]) -> int:
        tried.append(len(index))
        if len(index) > 3:
            raise torch.OutOfMemoryError("does not fit")
        return sum(index)

    halvings = Halvings()
    done = list(run_batches([list(range(8)), [8, 9]], run, halvings))  # type: ignore[arg-type]
    assert [index for index, _ in done] == [[0, 1], [2, 3], [4, 5], [6, 7], [8], [9]]
    assert sum(result for _, result in done) == 45
    # What did not fit is not tried again, in this call or in a later one of the run.
    assert tried == [8, 4, 2, 2, 2, 2, 1, 1]
    tried.clear()
    assert len(list(run_batches([list(range(8))], run, halvings))) == 4  # type: ignore[arg-type]
    assert tried == [2, 2, 2, 2]


def test_one_sequence_that_does_not_fit_is_an_error() -> None:
    def run(_: object) -> None:
        raise torch.OutOfMemoryError("does not fit")

    with pytest.raises(ModelError, match="One sequence alone"):
        list(run_batches([[0, 1]], run))
    with pytest.raises(ModelError, match="--batch-tokens is 0"):
        plan_batches([1], 0)
