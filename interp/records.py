"""`RunRecord`: everything that is needed to know where a run's numbers come from."""

from __future__ import annotations

import platform
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from interp.errors import ResultError
from interp.files import read_json, sha256_file, write_json

__all__ = [
    "Artifact",
    "RunRecord",
    "Started",
    "artifacts_of",
    "finish_run",
    "git_state",
    "package_versions",
    "read_run",
    "run_folder",
    "utc_now",
    "write_run",
]

_PACKAGES: Final = (
    "interp",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "scipy",
    "scikit-learn",
    "h5py",
    "gguf",
    "safetensors",
    "accelerate",
    "datasets",
    "peft",
    "rouge-score",
    "trl",
)


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file of a run.

    Attributes:
        path: relative to the run's folder, with forward slashes.
        sha256: of its bytes.
        n_bytes: its size.
    """

    path: str
    sha256: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run of an experiment; `run.json` in its folder.

    Attributes:
        run_id: the run folder's name.
        experiment: the experiment's name.
        command: the command line, as typed.
        config: the resolved configuration, defaults filled in.
        seeds: every seed, by what it is for.
        started_utc: ISO 8601.
        finished_utc: ISO 8601.
        cpu_seconds: processor time of the process that finished the run.
        git_commit: of the toolkit's own checkout; None when it is installed from a wheel.
        git_dirty: whether that checkout had uncommitted changes; None likewise.
        versions: installed package versions.
        model: id and fingerprints of the model.
        source: name and fingerprints of the item source.
        metrics: the results; accuracies are fractions.
        artifacts: the run's files.
    """

    run_id: str
    experiment: str
    command: str
    config: Mapping[str, Any]
    seeds: Mapping[str, int]
    started_utc: str
    finished_utc: str
    cpu_seconds: float
    git_commit: str | None
    git_dirty: bool | None
    versions: Mapping[str, str]
    model: Mapping[str, Any]
    source: Mapping[str, Any]
    metrics: Mapping[str, Any]
    artifacts: tuple[Artifact, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """When a run began; made with `Started.now()` before anything else is done.

    Attributes:
        utc: ISO 8601.
        cpu_seconds: processor time of the process so far.
    """

    utc: str
    cpu_seconds: float

    @classmethod
    def now(cls) -> Started:
        """This moment."""
        return cls(utc_now(), time.process_time())


def utc_now() -> str:
    """The time in UTC, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def run_folder(slug: str, root: Path = Path("runs")) -> Path:
    """`runs/<utc>-<slug>`, the default place of a run; not created yet."""
    return root / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{slug}"


def package_versions(*more: str) -> dict[str, str]:
    """Versions of Python and of the packages that numbers depend on.

    Args:
        more: distributions beside the ones that are always named.
    """
    versions = {"python": platform.python_version()}
    for name in (*_PACKAGES, *more):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def git_state() -> tuple[str | None, bool | None]:
    """Commit and dirty flag of the checkout that the toolkit runs from, or (None, None)."""
    root = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        # A wheel in a virtual environment inside somebody's repository is not that repository.
        if Path(git("rev-parse", "--show-toplevel")).resolve() != root:
            return None, None
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain"))
    except (OSError, subprocess.CalledProcessError):
        return None, None


def artifacts_of(folder: Path, exclude: Iterable[str] = ("run.json",)) -> tuple[Artifact, ...]:
    """All finished files below a run's folder, with their digests."""
    left_out = set(exclude)
    return tuple(
        Artifact(path.relative_to(folder).as_posix(), sha256_file(path), path.stat().st_size)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
        and path.relative_to(folder).as_posix() not in left_out
        and not path.name.endswith(".partial")
        and not path.name.startswith(".")
    )


def write_run(folder: Path, record: RunRecord) -> Path:
    """Write `run.json`, atomically, and return its path."""
    path = folder / "run.json"
    write_json(path, asdict(record))
    return path


def finish_run(
    folder: Path,
    started: Started,
    *,
    experiment: str,
    command: str,
    config: Mapping[str, Any],
    seeds: Mapping[str, int],
    model: Mapping[str, Any],
    source: Mapping[str, Any],
    metrics: Mapping[str, Any],
) -> RunRecord:
    """Record a run whose other files are all in its folder: `run.json` is written last.

    Args:
        folder: of the run; every file in it becomes an artifact.
        started: from before the run.
        experiment: see `RunRecord`, as are all others.
        command: see there.
        config: see there.
        seeds: see there.
        model: see there.
        source: see there.
        metrics: see there.
    """
    commit, dirty = git_state()
    record = RunRecord(
        run_id=folder.resolve().name,
        experiment=experiment,
        command=command,
        config=config,
        seeds=seeds,
        started_utc=started.utc,
        finished_utc=utc_now(),
        cpu_seconds=round(time.process_time() - started.cpu_seconds, 1),
        git_commit=commit,
        git_dirty=dirty,
        versions=package_versions(),
        model=model,
        source=source,
        metrics=metrics,
        artifacts=artifacts_of(folder),
    )
    write_run(folder, record)
    return record


def read_run(folder: str | Path) -> RunRecord:
    """Read a run's record.

    Raises:
        ResultError: there is none, or it has other fields than this version writes.
    """
    folder = Path(folder)
    path = folder / "run.json"
    value = read_json(path, "a run record")
    try:
        artifacts = tuple(Artifact(**artifact) for artifact in value.pop("artifacts"))
        return RunRecord(**value, artifacts=artifacts)
    except (KeyError, TypeError) as error:
        raise ResultError(f"{path} is not a run record of this version ({error}).") from error
