"""`--device`: one check for every command that takes it, before any work, in one paragraph."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import typer
from commands import ok, refused

from experiments.cli import app
from interp.adapters.device import usable_device
from interp.errors import ProbeError

BAD = ("foo", "meta", "cuda:99", "", *([] if torch.cuda.is_available() else ["cuda"]))


def with_device(command: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Names of the commands that take --device."""
    for sub, child in getattr(command, "commands", {}).items():
        yield from with_device(child, (*name, sub))
    if any("--device" in parameter.opts for parameter in command.params):
        yield name


COMMANDS = sorted(with_device(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def files(
    tmp_path_factory: pytest.TempPathFactory, model_folder: Path
) -> dict[tuple[str, ...], list[object]]:
    """What each command needs to get as far as its device."""
    import peft
    from adapter_models import llama, save_case

    folder = tmp_path_factory.mktemp("devices")
    cache, probe, tasks = folder / "facts.h5", folder / "probe", folder / "tasks.jsonl"
    source = ("--model", model_folder, "--source", "facts", "--n", 40)
    ok("extract", *source, "--device", "cpu", "--out", cache)
    ok("probe", cache, "--permutations", 0, "--no-text-baselines", "--out", probe)
    ok("unco", "build", "--groups", 1, "--seed", 0, "--out", tasks)
    save_case(folder, llama, peft.LoraConfig(r=2, target_modules=["q_proj"]), scale=0.01)
    out = ("--out", Path("new"))
    run = ("--model", model_folder, *out)
    return {
        ("extract",): [*source, *out],
        ("answer",): [*source, *out],
        ("probe",): [cache, *out],
        ("direction",): [cache, "--layer", 1, *out],
        ("steer",): [cache, "--probe", probe, *run],
        ("adapters", "audit"): [folder / "adapter"],
        ("adapters", "compare"): [
            *(folder / "adapter", "--base", folder / "base", "--source", "facts", "--n", 8),
            *out,
        ],
        ("run", "expression-gap"): [*run, "--n", 40],
        ("run", "noticed-but-silent"): run,
        ("run", "grpo-audit"): run,
        ("unco", "play"): [tasks, "--agent", model_folder, *out],
    }


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_refuses_a_device_that_is_not_there(
    command: tuple[str, ...], files: dict[tuple[str, ...], list[object]], tmp_path: Path
) -> None:
    new = tmp_path / "new"
    arguments = [new if argument == Path("new") else argument for argument in files[command]]
    for device in BAD:
        message = refused(*command, *arguments, "--device", device)
        assert message.startswith(f"Error: The device {device!r} cannot be used ("), message
        assert message.endswith("Take cpu or auto."), message
    # Nothing is left that a next try would stumble over.
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("probe", [("--probe", "lda"), ("--solver", "sklearn")])
def test_a_probe_that_has_no_use_of_the_device_checks_it_too(
    files: dict[tuple[str, ...], list[object]], probe: tuple[str, str], tmp_path: Path
) -> None:
    assert "cannot be used" in refused(
        "probe", files["probe",][0], "--out", tmp_path, *probe, "--device", "foo"
    )


def test_what_can_be_used_is_given_back() -> None:
    assert usable_device("cpu", ProbeError) == "cpu"
    assert usable_device("auto", ProbeError) == ("cuda" if torch.cuda.is_available() else "cpu")
    with pytest.raises(ProbeError, match="The device 'foo' cannot be used"):
        usable_device("foo", ProbeError)
