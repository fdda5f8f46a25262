"""From a path to the adapters below it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from interp.errors import AdapterError

__all__ = ["AdapterFolder", "checkpoints", "find_adapters", "find_runs", "step_of"]

CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = ("adapter_model.safetensors", "adapter_model.bin")
# Of other tools, or of PEFT's kind under a name that it does not load: named in the findings,
# never read as if they were PEFT's. Whole models (`model-00001-of-…`, a GGUF file of a model) are
# no such files.
_FOREIGN: Final = re.compile(
    r"(?ix) adapters?\.(safetensors|npz|bin|pt|pth|ckpt|gguf|msgpack)"
    r"| pytorch_lora_weights\.(safetensors|bin)"
    r"| adapter_model.*\.(safetensors|bin|pt|pth|ckpt|gguf|npz|msgpack|h5|json)"
    r"| .*(adapter|lora).*\.gguf"
)
_DEEPEST: Final = 3  # folders below one that is searched for runs
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d+)")


@dataclass(frozen=True, slots=True)
class AdapterFolder:
    """A folder that holds, or should hold, one adapter.

    Attributes:
        path: the folder.
        config: its `adapter_config.json`, which may not exist.
        weights: the file that PEFT would load, None if there is none.
        foreign: a file of another tool, or one that PEFT does not load, None if there is none.
        step: N of a `checkpoint-N` folder, else None.
        trainer_state: `trainer_state.json` of this adapter's run, None if there is none.
    """

    path: Path
    config: Path
    weights: Path | None
    foreign: Path | None
    step: int | None
    trainer_state: Path | None


def find_adapters(path: str | Path) -> tuple[AdapterFolder, ...]:
    """All adapters at a path, checkpoints in the order of their steps, the final adapter last.

    A path may be an adapter's folder or weight file, a trainer's `checkpoint-N`, or a run folder.

    Raises:
        AdapterError: the path does not exist, or holds neither an adapter nor checkpoints of one.
    """
    path = Path(path)
    if not path.exists():
        raise AdapterError(f"There is no {path}. Give an adapter folder, a checkpoint or a run.")
    if path.is_file():
        if path.name not in (*_WEIGHTS, CONFIG) and not _FOREIGN.fullmatch(path.name):
            raise AdapterError(
                f"{path} is no adapter file; expected a folder with {CONFIG} and {_WEIGHTS[0]}."
            )
        path = path.parent
    found = _below(path)
    if found:
        return tuple(found)
    whole = _whole_models(path)
    if whole:
        raise AdapterError(
            f"{whole[0]} holds a full model, not an adapter. Give the adapter that was trained "
            f"on it. To audit full models give the base too (--base); to run one, give it as "
            f"--model."
        )
    raise AdapterError(
        f"{path} holds neither an adapter ({CONFIG}, {_WEIGHTS[0]}) nor checkpoints of one. "
        f"Give the folder that save_pretrained or the trainer wrote."
    )


def find_runs(path: Path) -> tuple[Path, ...]:
    """The runs at a path: the path itself, or each run in a folder of several.

    A run is an adapter, or a folder with checkpoints of one. Adapters side by side in a folder
    without checkpoints and without a trainer's state are runs of their own. Where there is no
    adapter at all, fully fine-tuned models and runs of them are looked for in the same way.

    Returns:
        folders for `find_adapters`, by name; the path alone where it is one run, or none.
    """
    found = _runs(path, _DEEPEST, _below) or _runs(path, _DEEPEST, _whole_models)
    # A run folder may hold its one adapter in a subfolder.
    return (path,) if len(found) < 2 and _in_place(path) else tuple(found) or (path,)


def _in_place(path: Path) -> bool:
    return path.is_file() or (path.is_dir() and bool(_below(path)))


def _runs(path: Path, depth: int, held: Callable[[Path], Sequence[object]]) -> list[Path]:
    """Folders that are runs by what `held` finds in them, those further down included."""
    if not path.is_dir():
        return []
    state = (path / "trainer_state.json").is_file()
    if state or step_of(path) is not None or checkpoints(path) or _holds_weights(path):
        return [path] if held(path) else []
    if depth == 0:
        return []
    below = sorted(sub for sub in path.iterdir() if sub.is_dir() and not sub.name.startswith("."))
    return [run for sub in below for run in _runs(sub, depth - 1, held)]


def _holds_weights(folder: Path) -> bool:
    return _adapter(folder, None, None) is not None or _is_model(folder)


def _whole_models(path: Path) -> list[Path]:
    return [folder for folder in (path, *(f for _, f in checkpoints(path))) if _is_model(folder)]


def _is_model(folder: Path) -> bool:
    return any(folder.glob("model*.safetensors")) or any(folder.glob("pytorch_model*.bin"))


def _below(path: Path) -> list[AdapterFolder]:
    """Adapters in `path`, in its checkpoints, and in its named subfolders."""
    steps = checkpoints(path)
    found = [adapter for step, folder in steps for adapter in _in_folder(folder, step, folder)]
    last = steps[-1][1] if steps else None
    return found + _in_folder(path, step_of(path), last)


def checkpoints(path: Path) -> list[tuple[int, Path]]:
    """Steps and folders of a run's checkpoints, in the order of steps."""
    return sorted(
        (step, folder)
        for folder in path.iterdir()
        if folder.is_dir() and (step := step_of(folder)) is not None
    )


def step_of(folder: Path) -> int | None:
    """N of a folder called `checkpoint-N`, else None."""
    match = _CHECKPOINT.fullmatch(
        folder.resolve().name if folder.name in ("", "..") else folder.name
    )
    return int(match[1]) if match else None


def _in_folder(folder: Path, step: int | None, state_folder: Path | None) -> list[AdapterFolder]:
    """The adapter of a folder, or else those in subfolders that carry an adapter's name."""
    # A checkpoint's own state is the only one that ends at its step; a final adapter takes the
    # run's, or that of the last checkpoint.
    places = (folder,) if step is not None else (folder, state_folder)
    states = [place / "trainer_state.json" for place in places if place is not None]
    state = next((file for file in states if file.is_file()), None)
    own = _adapter(folder, step, state)
    if own is not None:
        return [own]
    named = [
        _adapter(sub, step, state)
        for sub in sorted(folder.iterdir())
        if sub.is_dir() and not _CHECKPOINT.fullmatch(sub.name)
    ]
    return [adapter for adapter in named if adapter is not None]


def _adapter(folder: Path, step: int | None, state: Path | None) -> AdapterFolder | None:
    weights = next((folder / name for name in _WEIGHTS if (folder / name).is_file()), None)
    foreign = next(
        (
            file
            for file in sorted(folder.iterdir())
            if file.name not in _WEIGHTS and _FOREIGN.fullmatch(file.name) and file.is_file()
        ),
        None,
    )
    if weights is None and foreign is None and not (folder / CONFIG).is_file():
        return None
    return AdapterFolder(
        path=folder,
        config=folder / CONFIG,
        weights=weights,
        foreign=foreign,
        step=step,
        trainer_state=state,
    )
