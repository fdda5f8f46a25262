"""A cache proves what it was made from: each field that differs is refused by name."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from activations import ModelSpec, describe_source, extract, in_library, load_backend
from activations.adapter import adapted
from activations.cache import CacheWriter
from activations.extraction import manifest_of
from interp import Item, load_items, open_source
from interp.errors import CacheError
from interp.files import partial_path

ROOT = Path(__file__).resolve().parents[1]
THINKING = (
    "{% for m in messages %}<|{{ m['role'] }}|>\n{{ m['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n"
    "{% if enable_thinking is defined and enable_thinking is false %}No.{% endif %}{% endif %}"
)


@dataclass
class Setting:
    """Everything that an extraction is asked for; a test changes one thing of it."""

    folder: Path
    adapter: Path
    spec: dict[str, Any] = field(default_factory=dict)
    view: str = "full"
    seed: int = 1
    options: dict[str, Any] = field(default_factory=dict)
    library: str = "hf"


def run(setting: Setting, out: Path) -> None:
    source = open_source("facts")
    items = load_items(source, n=8, seed=setting.seed, view=setting.view)
    spec = ModelSpec.parse(str(setting.folder), device="cpu", **setting.spec)
    with adapted(load_backend(spec), setting.adapter) as backend:
        extract(
            in_library(backend, setting.library),  # type: ignore[arg-type]
            items,
            out,
            source=describe_source(source, items, view=setting.view, seed=setting.seed),
            prefix_sharing=False,
            **setting.options,
        ).close()


@pytest.fixture
def setting(tmp_path: Path, model_folder: Path, tiny_model: Callable[..., Any]) -> Setting:
    pytest.importorskip("peft", reason="the extra train is not installed")
    from attaching import save_adapter

    folder, adapter = tmp_path / "tiny-llama", tmp_path / "adapter"
    shutil.copytree(model_folder, folder)
    (folder / "chat_template.jinja").write_text(THINKING)
    save_adapter(tiny_model("llama"), adapter)
    return Setting(folder, adapter)


def other_weights(setting: Setting) -> None:
    """Same path, same shapes, one number moved by one part in a million."""
    path = setting.folder / "model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "down_proj" in name)
    tensors[name][0, 0] *= 1 + 1e-6
    save_file(tensors, path, metadata={"format": "pt"})


def other_adapter(setting: Setting) -> None:
    path = setting.adapter / "adapter_model.safetensors"
    tensors = load_file(path)
    name = next(name for name in tensors if "lora_B" in name)
    tensors[name][0, 0] += 1e-6
    save_file(tensors, path, metadata={"format": "pt"})


def other_tokenizer(setting: Setting) -> None:
    """A merge that no prompt here uses is gone: the same ids, another tokenizer."""
    path = setting.folder / "tokenizer.json"
    core = json.loads(path.read_text())
    core["model"]["merges"].pop()
    path.write_text(json.dumps(core))


def other_template(setting: Setting) -> None:
    """A comment: the same prompts, another template."""
    (setting.folder / "chat_template.jinja").write_text("{# new #}" + THINKING)


CHANGES: dict[str, Callable[[Setting], object]] = {
    "model.weights": other_weights,
    "model.adapter": other_adapter,
    "model.tokenizer": other_tokenizer,
    "model.chat_template": other_template,
    "model.template_args.enable_thinking": lambda s: s.spec.update(
        template_args={"enable_thinking": False}
    ),
    "source.view": lambda s: setattr(s, "view", "statement"),
    "source.seed": lambda s: setattr(s, "seed", 2),
    "model.dtype": lambda s: s.spec.update(dtype="bfloat16"),
    "token_rule": lambda s: s.options.update(token_rule="answer_stub"),
    "model.attn_implementation": lambda s: s.spec.update(attn="eager"),
    "store": lambda s: s.options.update(store="float16"),
    "backend": lambda s: setattr(s, "library", "nnsight"),
}
# Fields that follow from another one.
ALONG = {"source.view": {"source.items_sha256"}, "source.seed": {"source.items_sha256"}}


@pytest.mark.parametrize("name", CHANGES)
def test_one_changed_field_is_refused_by_name(name: str, tmp_path: Path, setting: Setting) -> None:
    if name == "backend":
        pytest.importorskip("nnsight", reason="the extra nnsight is not installed")
    out = tmp_path / "c.h5"
    run(setting, out)
    before = out.read_bytes()
    # The control: without a change, the file is taken.
    run(setting, out)
    CHANGES[name](setting)
    with pytest.raises(CacheError, match="left as it is") as refused:
        run(setting, out)
    listed = str(refused.value).split("Fields that differ: ")[1]
    fields = {part.split(": the file has")[0] for part in listed.split("; ")}
    fields = {each.split(". Choose")[0] for each in fields}
    assert fields - ALONG.get(name, set()) - {"versions.nnsight"} == {name}
    assert out.read_bytes() == before
    # An unfinished file is held to the same.
    out.rename(partial_path(out))
    with pytest.raises(CacheError, match=f"{name}: the file has"):
        run(setting, out)
    assert partial_path(out).read_bytes() == before


SECOND = """
import pickle, sys
from pathlib import Path
from activations.cache import CacheWriter
from interp.errors import CacheError
options = pickle.load(sys.stdin.buffer)
for out, locking in ((sys.argv[1], True), (sys.argv[2], False)):
    try:
        with CacheWriter.open(Path(out), file_locking=locking, **options):
            print("opened")
    except CacheError as error:
        print(error)
"""


def test_there_is_one_writer_unless_locks_are_turned_off(
    tmp_path: Path, tiny_backend: Callable[..., Any], facts: tuple[Item, ...]
) -> None:
    backend = tiny_backend()
    prompts = backend.tokenize(facts)
    source = describe_source(open_source("facts"), facts, view=None, seed=1)
    manifest = manifest_of(
        backend, source, backend.verdict_ids(prompts), token_rule="last_prompt", store="float32"
    )
    options: dict[str, Any] = {"manifest": manifest, "items": facts, "prompts": prompts}
    options |= {"n_layers": 3, "d_model": 32}
    locked, unlocked = tmp_path / "locked.h5", tmp_path / "unlocked.h5"
    with (
        CacheWriter.open(locked, **options),
        CacheWriter.open(unlocked, file_locking=False, **options),
    ):
        child = subprocess.run(
            [sys.executable, "-c", SECOND, str(locked), str(unlocked)],
            input=pickle.dumps(options),
            capture_output=True,
            env=dict(os.environ, PYTHONPATH=str(ROOT), OMP_NUM_THREADS="1"),
            check=False,
        )
    said = child.stdout.decode().splitlines()
    assert len(said) == 2, child.stderr
    assert "is locked. Another process may be writing it" in said[0]
    assert "truncated" not in said[0]
    assert said[1] == "opened"


def test_of_two_processes_that_start_a_file_one_makes_it(tmp_path: Path) -> None:
    from interp.files import new_file

    path = tmp_path / "c.h5.partial"
    with new_file(path) as mine:
        mine.write_text("mine")
        path.write_text("the quicker one's")
    assert path.read_text() == "the quicker one's"
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]
    with pytest.raises(RuntimeError), new_file(tmp_path / "other") as mine:
        mine.write_text("half")
        raise RuntimeError
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_a_soft_capped_model_runs_with_eager_attention(
    tmp_path: Path, tokenizer: Any, facts: tuple[Item, ...]
) -> None:
    from transformers import AutoModelForCausalLM, Gemma2Config

    torch.manual_seed(0)
    config = Gemma2Config(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    config.num_key_value_heads, config.head_dim, config.intermediate_size = 2, 8, 48
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "gemma2")
    tokenizer.save_pretrained(tmp_path / "gemma2")
    backend = load_backend(ModelSpec.parse(str(tmp_path / "gemma2"), device="cpu"))
    assert backend.fingerprint()["attn_implementation"] == "eager"
