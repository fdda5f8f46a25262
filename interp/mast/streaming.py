"""Streaming a large JSON array of objects in bounded memory, with the byte offset of a fault."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from interp.errors import InterpError, SourceError
from interp.files import require_file

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["CountedFile", "stream_objects"]

_CHUNK: Final = 1 << 18
_PIECES: Final = (1 << 12, 1 << 6, 1)
_SPACE: Final = b" \t\r\n"


def _ijson() -> ModuleType:
    try:
        import ijson
    except ImportError as error:
        raise InterpError(
            f"Streaming MAST-Data needs ijson ({error}). Install it with: "
            f"pip install 'interp[tomas]'"
        ) from error
    return ijson  # type: ignore[no-any-return]


class CountedFile:
    """A binary file that knows where its last chunk started, and its digest so far.

    Attributes:
        chunk_start: byte offset of the last chunk that was read.
        position: bytes read so far.
    """

    def __init__(self, handle: BinaryIO, progress: Callable[[int], None] | None = None):
        self._handle = handle
        self._digest = hashlib.sha256()
        self._progress = progress
        self.chunk_start = 0
        self.position = 0

    def read(self, size: int = -1) -> bytes:
        """Read on; counts and digests what is read."""
        data = self._handle.read(size)
        if data or size != 0:
            self.chunk_start = self.position
        self.position += len(data)
        self._digest.update(data)
        if self._progress is not None and data:
            self._progress(len(data))
        return data

    def hexdigest(self) -> str:
        """sha256 of the bytes read so far."""
        return self._digest.hexdigest()


def stream_objects(path: Path, file: CountedFile) -> Iterator[dict[str, Any]]:
    """The objects of a top-level JSON array, one at a time.

    Args:
        path: of the file, for messages and for finding the offset of a fault.
        file: the same file, open at its start.

    Raises:
        SourceError: not JSON (with the byte offset of the first byte that cannot be), not an array,
            or an element that is no object (with its number).
        InterpError: the extra `tomas` is not installed.
    """
    ijson = _ijson()
    _require_array(path)
    n = 0
    try:
        for value in ijson.items(file, "item", use_float=True, buf_size=_CHUNK):
            n += 1
            if not isinstance(value, dict):
                raise SourceError(
                    f"{path}, record {n}: got a {type(value).__name__}; expected an object."
                )
            yield value
    except ijson.JSONError as error:
        offset = _offset(ijson, path, file.chunk_start)
        size = path.stat().st_size
        if offset >= size:
            what = f"ends at byte {size} in the middle of the array: the file is cut off"
        else:
            reason = str(error.args[0] if error.args else error)
            reason = reason.removeprefix("b'").replace("\\n", "\n").splitlines()[0].strip()
            what = f"is not JSON at byte {offset} ({reason})"
        raise SourceError(
            f"{path} {what}, after {n} whole records. Download it again, or mend that place."
        ) from error


def _require_array(path: Path) -> None:
    """The first byte that is no white space must open an array; ijson would not mind others."""
    require_file(path, "a JSON array of MAST traces", SourceError)
    offset = 0
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            rest = chunk.lstrip(_SPACE)
            if rest:
                offset += len(chunk) - len(rest)
                if rest[:1] != b"[":
                    raise SourceError(
                        f"{path} starts with {rest[:1]!r} at byte {offset}; expected '[', a JSON "
                        f"array of MAST traces."
                    )
                return
            offset += len(chunk)
    raise SourceError(f"{path} is empty; expected a JSON array of MAST traces.")


def _offset(ijson: ModuleType, path: Path, chunk_start: int) -> int:
    """The first byte that the parser refuses.

    The chunk that holds it is fed again in ever smaller pieces, each time to a new parser: byte by
    byte at once would scan the open string again with every byte.
    """
    start = chunk_start
    for piece in _PIECES:
        start = _refused_piece(ijson, path, start, piece)
    return start


def _refused_piece(ijson: ModuleType, path: Path, start: int, piece: int) -> int:
    """Where the first piece after `start` lies that the parser refuses, or the file's end."""
    events = ijson.sendable_list()
    parser = ijson.basic_parse_coro(events, use_float=True)
    position = 0
    with path.open("rb") as handle:
        try:
            while part := handle.read(min(_CHUNK, start - position) if position < start else piece):
                parser.send(part)
                events.clear()
                position += len(part)
        except (ijson.JSONError, StopIteration):
            return position
    return position
