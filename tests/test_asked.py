"""How a model is asked: told to reason first or not, thinking or not, with the answer or not."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import ok, refused

from activations import HFBackend, answer, describe_source
from activations.answers import COT_TOKENS, MAX_NEW_TOKENS, THINKING_TOKENS, default_new_tokens
from interp import Item, Message, load_items, open_source, write_items
from interp.errors import CacheError, ItemError
from interp.prompts import ANSWER_LINE, are_injected, ask


def test_only_the_answer_line_changes(facts: tuple[Item, ...]) -> None:
    item = facts[0]
    assert ask(item, "base") is item
    text = item.messages[-1].content
    assert text.endswith(ANSWER_LINE)
    endings = set()
    for reasoning in ("cot", "no_cot"):
        asked = ask(item, reasoning)
        said = asked.messages[-1].content
        head = text.removesuffix(ANSWER_LINE)
        assert said.startswith(head)
        ending = said.removeprefix(head)
        assert ending.endswith("'ANSWER: True' or 'ANSWER: False'.")
        endings.add(ending)
        assert (asked.item_id, asked.label, asked.metadata) == (
            *(item.item_id, item.label),
            item.metadata,
        )
        assert asked.messages[:-1] == item.messages[:-1]
    assert len(endings) == 2
    own = Item("x", (Message("user", "Is water wet? Yes or no."),), True, None, "g", "c", {})
    said = ask(own, "cot").messages[-1].content
    assert said.startswith("Is water wet? Yes or no.\n\nThink")


def test_an_injected_answer_is_seen_in_the_prompts_themselves(tmp_path: Path) -> None:
    plain = load_items(open_source("avalon"), n=8)
    told = load_items(open_source("avalon:inject-truth"), n=8)
    assert not are_injected(plain)
    assert are_injected(told)
    assert are_injected([ask(item, "cot") for item in told])
    with pytest.raises(ItemError, match=f"first without: '{plain[1].item_id}'"):
        are_injected([told[0], plain[1]])


def test_the_cut_fits_what_is_asked() -> None:
    assert default_new_tokens("base", thinking=False) == MAX_NEW_TOKENS
    assert default_new_tokens("no_cot", thinking=False) == MAX_NEW_TOKENS
    assert default_new_tokens("cot", thinking=False) == COT_TOKENS
    assert default_new_tokens("base", thinking=True) == THINKING_TOKENS


def test_the_model_is_asked_that_way_and_the_file_says_so(
    tmp_path: Path, tiny_backend: Callable[..., HFBackend], facts: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    right, seen = backend.generate, []

    def looks(sequences: Any, *rest: Any) -> Any:
        seen.extend(backend.decode(ids) for ids in sequences)
        return right(sequences, *rest)

    backend.generate = looks  # type: ignore[method-assign]
    source = describe_source(open_source("facts"), facts, view=None, seed=1)
    options: dict[str, Any] = {"source": source, "conditions": ("greedy",), "max_new_tokens": 2}
    for reasoning, words in (("cot", "step by step"), ("no_cot", "Answer at once")):
        seen.clear()
        path = tmp_path / f"{reasoning}.jsonl"
        answer(backend, facts, path, reasoning=reasoning, **options)
        assert len(seen) == len(facts)
        assert all(words in text and ANSWER_LINE not in text for text in seen)
        manifest = json.loads((tmp_path / f"{path.name}.manifest.json").read_text())
        assert manifest["asked"] == {
            "condition": reasoning,
            "reasoning": reasoning,
            "thinking": None,
            "injected": False,
        }
        # The items are those of the source, whatever they are asked.
        assert manifest["source"] == source
    with pytest.raises(CacheError, match=r"asked\.reasoning: the file has 'cot', this run has"):
        answer(backend, facts, tmp_path / "cot.jsonl", reasoning="base", **options)


@pytest.fixture(scope="module")
def thinker(
    tmp_path_factory: pytest.TempPathFactory, tiny_model: Callable[..., Any], tokenizer: Any
) -> Path:
    """A tiny model whose chat template has a switch for its reasoning mode."""
    folder = tmp_path_factory.mktemp("models") / "thinker"
    tiny_model("qwen3").save_pretrained(folder)
    own = copy.deepcopy(tokenizer)
    own.chat_template += "{% if enable_thinking is false %}<think></think>{% endif %}"
    own.save_pretrained(folder)
    return folder


def test_a_report_reads_the_conditions_from_the_files(thinker: Path, tmp_path: Path) -> None:
    items = load_items(open_source("facts"), n=24, seed=0)
    write_items(tmp_path / "items.jsonl", items)
    told = tmp_path / "told.jsonl"
    hint = "GROUND TRUTH: The correct answer to the statement below is {}.\n\n"
    write_items(
        told,
        [
            Item(
                item.item_id,
                (Message("user", hint.format(item.label) + item.messages[-1].content),),
                *(item.label, None, item.group_id, item.category, item.metadata),
            )
            for item in items
        ],
    )
    base = ["answer", "--model", thinker, "--max-new-tokens", 2, "--device", "cpu"]
    facts = [*base, "--source", "facts", "--n", 24]
    runs = {
        "base": facts,
        "cot": [*facts, "--cot"],
        "no_cot": [*facts, "--no-cot", "--no-thinking"],
        "thinking": [*facts, "--thinking"],
        "injected": [*base, "--source", f"jsonl:{told}"],
    }
    files = []
    for condition, command in runs.items():
        files.append(tmp_path / f"{condition}.jsonl")
        ok(*command, "--out", files[-1])
        manifest = json.loads(Path(f"{files[-1]}.manifest.json").read_text())
        assert manifest["asked"]["condition"] == condition
        assert manifest["conditions"] == (
            ["greedy"] if condition in ("cot", "thinking") else ["forced", "greedy"]
        )
    assert manifest["asked"]["injected"]
    off = json.loads((tmp_path / "no_cot.jsonl.manifest.json").read_text())
    assert (off["asked"]["thinking"], off["model"]["template_args"]) == (
        *(False,),
        {"enable_thinking": False},
    )
    report = ["behave", "report", *files, "--items", tmp_path / "items.jsonl"]
    found = json.loads(ok(*report, "--json").stdout)
    assert {row["condition"] for row in found["scores"]} == set(runs)
    assert found["toggle"]
    assert found["injection"]
    # A models table says the names; an empty condition is the file's own.
    table = tmp_path / "models.csv"
    rows = [f"{path.name},M,{'base' if path.stem == 'base' else ''}" for path in files]
    table.write_text("\n".join(["file,model,condition", *rows]) + "\n")
    named = json.loads(ok(*report, "--models", table, "--json").stdout)
    assert {(row["model"], row["condition"]) for row in named["scores"]} == {
        ("M", condition) for condition in runs
    }
    manifest["asked"]["condition"] = "cott"
    Path(f"{files[-1]}.manifest.json").write_text(json.dumps(manifest))
    assert "field 'asked.condition': got 'cott'. Did you mean cot" in refused(*report)


def test_a_reasoning_mode_that_the_template_does_not_have_is_refused(
    model_folder: Path, thinker: Path, tmp_path: Path
) -> None:
    base = ["answer", "--source", "facts", "--n", 8, "--out", tmp_path / "a.jsonl"]
    message = refused(*base, "--model", model_folder, "--thinking")
    assert "does not read 'enable_thinking'" in message
    both = ["--thinking", "--template-arg", "enable_thinking=false"]
    assert "are one thing" in refused(*base, "--model", thinker, *both)
    assert list(tmp_path.iterdir()) == []
