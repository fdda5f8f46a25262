"""A place that nothing can be written to is noticed before the work, and nothing is made there."""

import os
import shutil
from pathlib import Path

import pytest
from commands import invoke, ok, refused

from interp.errors import ResultError
from interp.files import require_writable


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, model_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("out")
    cache = folder / "facts.h5"
    ok("extract", "--source", "facts", "--n", 40, "--model", model_folder, "--out", cache)
    quick = ("--permutations", 0, "--no-text-baselines")
    ok("probe", cache, *quick, "--out", folder / "probe")
    (folder / "file").write_text("in the way")
    (folder / "gone").symlink_to(folder / "nowhere")
    return folder


@pytest.mark.parametrize("out", ["file", "file/below", "gone", "gone/below"])
@pytest.mark.parametrize(
    ("command", "work"),
    [
        ("probe {0}/facts.h5", "activations.ActivationCache.open"),
        ("steer {0}/facts.h5 --probe {0}/probe --model {1}", "activations.ActivationCache.open"),
        ("direction {0}/facts.h5 --layer 1", "activations.ActivationCache.open"),
        ("extract --source facts --n 8 --model {1}", "experiments.cli_model.open_items"),
        ("answer --source facts --n 8 --model {1}", "experiments.cli_model.open_items"),
        ("run expression-gap --model {1}", "experiments.expression_gap.run_expression_gap"),
        ("run noticed-but-silent --model {1}", "experiments.noticed_but_silent.run_noticed"),
        ("run grpo-audit --model {1}", "experiments.grpo.audit_run.run_grpo_audit"),
        ("grpo train --model {1}", "experiments.grpo.train.load_base"),
        ("grpo evaluate {0}", "experiments.grpo.evaluate.conditions_of"),
        ("unco play {0}/none --agent oracle", "interp.sources.unco.tasks.read_tasks"),
        ("behave report {0}/a.jsonl --items {0}/i.jsonl", "experiments.cli_behave._answered"),
        ("adapters audit {0}", "interp.adapters.runs.audit_runs"),
        ("adapters compare {1} --source facts", "experiments.cli_adapters.open_items"),
    ],
)
def test_before_any_work(
    command: str,
    work: str,
    out: str,
    files: Path,
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def started(*_: object, **__: object) -> None:
        raise AssertionError("the work has begun")

    monkeypatch.setattr(work, started)
    monkeypatch.setattr("experiments.cli_adapters._last_adapters", lambda path: [path])
    arguments = command.format(files, model_folder).split()
    one_file = arguments[0] in ("direction", "extract", "answer", "unco")
    if one_file and out in ("file", "gone"):
        pytest.skip("a file there is replaced or reopened")
    end = ".npz" if arguments[0] == "direction" else ""
    message = refused(*arguments, "--out", f"{files / out}{end}")
    assert "is no folder. Choose another path." in message


def test_what_can_be_written_to_is_left_as_it_was(tmp_path: Path) -> None:
    for path, folder in (
        (tmp_path, True),
        (tmp_path / "a" / "b", True),
        (tmp_path / "x.npz", False),
        (Path("new"), True),
    ):
        assert require_writable(path, folder=folder) == path
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ResultError, match="is a folder; expected a file's path"):
        require_writable(tmp_path, folder=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match="below"):
        require_writable(tmp_path / "below", folder=True)


def test_a_place_that_says_no(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "elsewhere")

    monkeypatch.setattr("tempfile.TemporaryDirectory", no)
    with pytest.raises(PermissionError, match="below"):
        require_writable(tmp_path / "below", folder=True)
    message = refused("probe", tmp_path / "none.h5", "--out", tmp_path / "below")
    assert "below cannot be read or written (Permission denied)" in message


def test_random_weights_of_another_seed_are_noticed_before_the_sweep(
    files: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = ("probe", files / "facts.h5", "--permutations", 0, "--no-text-baselines", "--untrained")
    base += ("--model", model_folder, "--out", tmp_path / "p")
    ok(*base, "--seed", 3)
    before = {path: path.read_bytes() for path in (tmp_path / "p").iterdir()}
    # The same seed reopens them.
    ok(*base, "--seed", 3)

    def started(*_: object, **__: object) -> None:
        raise AssertionError("the sweep has begun")

    monkeypatch.setattr("probes.sweep_layers", started)
    message = refused(*base, "--seed", 1)
    assert "--untrained, weights drawn with --seed 1: " in message
    assert "untrained.h5" in message
    assert {path: path.read_bytes() for path in (tmp_path / "p").iterdir()}.keys() == before.keys()
    # So is a model that cannot be found.
    wrong = ("--model", tmp_path / "no-model", "--out", tmp_path / "q")
    assert "no-model" in refused(*base[:6], *wrong)
    assert not (tmp_path / "q").exists()
    shutil.rmtree(tmp_path / "p")
    with pytest.raises(AssertionError, match="the sweep has begun"):
        invoke(*base, "--seed", 1)
