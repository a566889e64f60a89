"""What waits on disk until its turn comes, in temporary files without a name: whatever ends the process, none is left.

Standard library only.
"""

from __future__ import annotations

import marshal
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedReader, FileIO
from typing import Any

from .errors import EmitterError

_LENGTH = 8
"""Bytes in front of a list that tell its length."""


class Spool:
    """Lists of plain values, out of memory. There is a file only while something is in it."""

    def __init__(self) -> None:
        self._file: FileIO | None = None
        self._size = 0

    def put(self, values: list[Any]) -> int:
        """Keep a list; where it is.

        Raises: EmitterError if there is no room for it.
        """
        data = marshal.dumps(values)
        with _room():
            self._file = self._file or _file()
            self._file.seek(self._size)
            _write(self._file, len(data).to_bytes(_LENGTH, "little") + data)
        place, self._size = self._size, self._size + _LENGTH + len(data)
        return place

    def get(self, place: int) -> list[Any]:
        """The list that is there."""
        assert self._file is not None
        with _room():
            self._file.seek(place)
            length = int.from_bytes(self._file.read(_LENGTH), "little")
            values: list[Any] = marshal.loads(self._file.read(length))
        return values

    def clear(self) -> None:
        """Forget all lists."""
        if self._file:
            self._file.close()
        self._file = None
        self._size = 0


def copied(pieces: Iterable[bytes]) -> BufferedReader:
    """The bytes of a pipe as a file, which can be read more than once; whoever asks closes it.

    Raises: EmitterError if there is no room for them.
    """
    with _room():
        file = _file()
    try:
        for data in pieces:
            with _room():
                _write(file, data)
    except BaseException:
        file.close()
        raise
    file.seek(0)
    return BufferedReader(file)


def _file() -> FileIO:
    """Without a buffer: closing a full disk's file would try to write it once more, and fail again."""
    return tempfile.TemporaryFile(buffering=0)


def _write(file: FileIO, data: bytes) -> None:
    left = memoryview(data)
    while left:  # a disk that is nearly full takes a part
        left = left[file.write(left) :]


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EmitterError(
            f"temporary files: there must be room for them (got {error.strerror}). "
            "Make some, or name another folder as TMPDIR."
        ) from error
