"""New HDF5 files on a disk that may fill up.

HDF5 writes when it closes a file, and cannot close one that it cannot write: the objects that stay
open then end the whole process with a segmentation fault. So what is written passes through a file
object of Python that remembers the first error and lets HDF5 believe that all went well; the error
is raised once the file is closed.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

__all__ = ["new_hdf5"]


class _Patient(io.RawIOBase):
    """A file to write whose errors wait in `error`; after the first nothing more is written."""

    def __init__(self, raw: io.FileIO) -> None:
        self._raw = raw
        self._end = 0
        self._place = 0
        self.error: OSError | None = None

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._end}[whence]
        self._place = start + offset
        return self._place

    def tell(self) -> int:
        return self._place

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        self._raw.seek(self._place)
        found = self._raw.readinto(view) or 0
        # What is missing was not written; there is nothing better to give.
        view[found:] = bytes(len(view) - found)
        self._place += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        try:
            done = 0
            while self.error is None and done < len(view):
                self._raw.seek(self._place + done)
                done += self._raw.write(view[done:]) or 0
        except OSError as error:
            self.error = error
        self._place += len(view)
        self._end = max(self._end, self._place)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        self._end = self._place if size is None else size
        try:
            if self.error is None:
                self._raw.truncate(self._end)
        except OSError as error:
            self.error = error
        return self._end


@contextmanager
def new_hdf5(path: Path) -> Iterator[h5py.File]:
    """Yield a new, empty HDF5 file to fill; it is closed when the block ends.

    Args:
        path: written at once, so give a path aside (`interp.files.atomic_path`).

    Raises:
        OSError: it could not be written, for instance because the disk is full.
    """
    with path.open("wb+", buffering=0) as raw:
        patient = _Patient(raw)
        try:
            with h5py.File(patient, "w") as file:
                yield file
        except (OSError, RuntimeError, KeyError, ValueError):
            # What HDF5 says after a failed write is only a consequence of it.
            if patient.error is None:
                raise
    if patient.error is not None:
        fault = patient.error
        raise OSError(fault.errno, fault.strerror, str(path)) from fault
