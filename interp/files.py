"""Writing files so that nothing half-written stands where a finished file would be."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from interp.errors import InterpError, ResultError

__all__ = [
    "atomic_path",
    "drawn_files",
    "new_file",
    "numbered_lines",
    "parse_json",
    "partial_path",
    "read_json",
    "replaced_together",
    "require_file",
    "require_writable",
    "sha256_file",
    "sha256_json",
    "write_csv",
    "write_json",
]


_NO_ROOM: Final = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)


def partial_path(path: Path) -> Path:
    """Where a file that is still being written lives: beside the finished one."""
    return path.with_name(path.name + ".partial")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a path to write to; on success it replaces `path`, on failure it is removed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield aside
        aside.replace(path)
    except OSError as error:
        raise _naming(error, aside, path) from error
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def replaced_together(folder: Path, *, last: str, gone: Sequence[str] = ()) -> Iterator[Path]:
    """Yield an empty folder to write files to; on success they replace those of `folder`.

    Until all of them are whole, what stands in `folder` is left as it is. Files of neither
    are kept.

    Args:
        folder: made if it does not exist.
        last: the file that says that the others are finished: the old one goes first, the new one
            comes last.
        gone: further files that go with the old one, such as figures that were drawn from it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    aside = folder / f".{last}.{os.getpid()}"
    aside.mkdir(exist_ok=True)
    try:
        yield aside
        for name in (last, *gone):
            (folder / name).unlink(missing_ok=True)
        for path in sorted(aside.iterdir(), key=lambda path: (path.name == last, path.name)):
            path.replace(folder / path.name)
    except OSError as error:
        raise _naming(error, aside, folder) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def drawn_files(*names: str, below: str = "figures/") -> tuple[str, ...]:
    """Both files of each figure, which `replaced_together` takes away with what they show."""
    return tuple(f"{below}{name}{end}" for name in names for end in (".png", ".pdf"))


def _naming(error: OSError, aside: Path, path: Path) -> OSError:
    """The error, with the name of what the user knows of instead of the one aside, or of none."""
    name = str(error.filename)
    if name.startswith(str(aside)):
        return OSError(error.errno, error.strerror, str(path) + name[len(str(aside)) :])
    if error.filename is None and error.errno in _NO_ROOM:
        # Writing, unlike opening, says no name.
        return OSError(error.errno, error.strerror, str(path))
    return error


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a path to write to; on success it becomes `path`, unless another process was quicker.

    Then what is at `path` stays, and what was written here is removed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield aside
        try:
            # Unlike a rename, a link never replaces what is there.
            path.hardlink_to(aside)
        except FileExistsError:
            return
        except OSError:
            # No links on this file system.
            aside.replace(path)
    except OSError as error:
        raise _naming(error, aside, path) from error
    finally:
        aside.unlink(missing_ok=True)


def require_file(path: Path, what: str, error: type[InterpError]) -> Path:
    """Return `path` if it is a readable file, else raise `error` saying what was expected."""
    if path.is_file():
        return path
    if path.is_dir():
        raise error(f"{path} is a folder, but {what} is a file. Give the file's path.")
    raise error(f"There is no file {path}; expected {what}. Check the path.")


def require_writable(path: Path, *, folder: bool, option: str = "--out") -> Path:
    """Return `path` if a result can be written there, before the work that leads to it.

    Nothing is made but a folder that is gone again, in the nearest one that there is.

    Args:
        path: of the result.
        folder: whether it is a folder of files, or one file.
        option: that the path was given by.

    Raises:
        ResultError: something is in the way.
        OSError: the place cannot be written to.
    """
    if not folder and path.is_dir():
        raise ResultError(f"{option} is {path}, which is a folder; expected a file's path.")
    above = path if folder else path.parent
    while not os.path.lexists(above):
        above = above.parent
    if not above.is_dir():
        raise ResultError(f"{option} is {path}, but {above} is no folder. Choose another path.")
    try:
        tempfile.TemporaryDirectory(prefix=".interp-", dir=above).cleanup()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
    return path


def sha256_file(path: Path) -> str:
    """Hex sha256 of a file's bytes."""
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_json(value: object) -> str:
    """Hex sha256 of a JSON value, independent of the order of its keys."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write one JSON object, atomically. NaN and infinity are refused: they are not JSON."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    with atomic_path(path) as aside:
        aside.write_text(text + "\n", encoding="utf-8")


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows under a header of the first row's keys, atomically."""
    with atomic_path(path) as aside, aside.open("w", encoding="utf-8", newline="") as handle:
        writer = csv.DictWriter(handle, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def numbered_lines(path: Path, what: str, error: type[InterpError]) -> tuple[tuple[int, str], ...]:
    """The lines of a text file that hold something, numbered from 1.

    Raises:
        error: the file is missing or is not UTF-8; the message names it and what was expected.
    """
    require_file(path, what, error)
    try:
        # Not splitlines: it also splits at characters that JSON allows inside a string.
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError as fault:
        raise error(f"{path} is not UTF-8 text ({fault}); expected {what}.") from fault
    return tuple((number, line) for number, line in enumerate(lines, start=1) if line.strip())


def parse_json(text: str, *, parse_constant: Callable[[str], Any] | None = None) -> Any:
    """A JSON value from a text of somebody else's.

    Args:
        text: of any size and depth.
        parse_constant: called with `NaN`, `Infinity` and `-Infinity`; None takes them as numbers.

    Raises:
        json.JSONDecodeError: it is not JSON, or is nested deeper or has longer numbers than Python
            reads.
    """
    try:
        return json.loads(text, parse_constant=parse_constant)
    except json.JSONDecodeError:
        raise
    except RecursionError as error:
        raise json.JSONDecodeError("nested too deeply", text, 0) from error
    except ValueError as error:
        # Not of ours: a number of thousands of digits.
        if not str(error).startswith("Exceeds the limit"):
            raise
        raise json.JSONDecodeError("a number of too many digits", text, 0) from error


def read_json(path: Path, what: str) -> dict[str, Any]:
    """Read one JSON object.

    Raises:
        ResultError: the file is missing, is not JSON or is not an object.
    """
    require_file(path, what, ResultError)
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ResultError(f"{path} is not JSON ({error}); expected {what}.") from error
    if not isinstance(value, dict):
        raise ResultError(f"{path} holds a {type(value).__name__}; expected {what}, a JSON object.")
    return value
