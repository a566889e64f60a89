"""A file of a log, and a place in it that is known again after a restart, a rotation or a cut."""

from __future__ import annotations

import gzip
import os
import stat
import zlib
from collections import deque
from dataclasses import dataclass

from .errors import EmitterError
from .repeats import Once
from .spool import copied

CHUNK = 65_536
"""Bytes that are read at a time; a line that is longer is cut."""

BEFORE = 512
"""Bytes by which a place in a log is known again: a whole training line, for many end alike."""

PACKED = ".gz"
"""Ending of a file that a rotation has compressed, of which nothing may have been read yet."""

_once = Once(__name__)


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a file has been read."""

    inode: int
    offset: int
    modified_ns: int
    """When the file was last written to, as far as it is known."""
    before: bytes
    """The last bytes before the offset."""


class LogFile:
    """One file, open for as long as it may grow; a compressed one as it was before."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor, self.inode = (_unpacked if path.endswith(PACKED) else _plain)(path)
        self.offset = 0
        self.before = b""
        self.past: Position | None = None
        """How far it was read before."""
        self._lines: deque[bytes] = deque()

    @property
    def position(self) -> Position:
        """Behind what has been given."""
        modified_ns = os.fstat(self._descriptor).st_mtime_ns
        return Position(inode=self.inode, offset=self.offset, modified_ns=modified_ns, before=self.before)

    @property
    def known(self) -> Position:
        """The place by which the file is known again."""
        return self.past if self.past and self.past.offset > self.offset else self.position

    def mark(self) -> None:
        """What is there now is past."""
        there = os.fstat(self._descriptor)
        begin = max(0, there.st_size - BEFORE)
        before = os.pread(self._descriptor, there.st_size - begin, begin)
        self.past = Position(inode=self.inode, offset=begin + len(before), modified_ns=there.st_mtime_ns, before=before)

    def holds(self, position: Position) -> bool:
        """Whether this is the file that was read so far, or a copy of it."""
        if os.fstat(self._descriptor).st_size < position.offset:
            return False
        if not position.before:
            return self.inode == position.inode
        begin = position.offset - len(position.before)
        return os.pread(self._descriptor, len(position.before), begin) == position.before

    def copies(self, other: LogFile) -> bool:
        """Whether this is another one that was compressed since it was opened."""
        return self.path.endswith(PACKED) and self.holds(other.position)

    def peek(self, *, complete: bool) -> bytes:
        """The line that `next` gives; empty if there is no whole one."""
        if not self._lines:
            self._lines.extend(self._read(complete))
        return self._lines[0] if self._lines else b""

    def next(self, *, complete: bool, at_once: bool) -> tuple[bytes, bool] | None:
        """The next line and whether it is past; None if there is no whole line.

        Of a file that is `complete`, the last line needs no end; `at_once` means a chunk where it is past.
        """
        if not self.peek(complete=complete):
            return None
        given = [self._lines.popleft()]
        end = self.offset + len(given[0])
        limit = self.past.offset if self.past else 0
        past = end <= limit
        while past and at_once and self._lines and end + len(self._lines[0]) <= limit:
            given.append(self._lines.popleft())
            end += len(given[-1])
        data = b"".join(given)
        self.offset = end
        self.before = (self.before + data)[-BEFORE:]
        data = data.lstrip(b"\0")  # where a file was cut under a program that goes on at its old place
        if data.endswith(b"\r"):  # a progress bar's line is complete, so nobody need wait for a line feed
            data = data[:-1] + b"\n"
        elif complete and data and not data.endswith(b"\n"):
            data += b"\n"
        return data, past

    def _read(self, complete: bool) -> list[bytes]:
        begin = self.offset - len(self.before)
        data = os.pread(self._descriptor, len(self.before) + CHUNK, begin)
        if not data.startswith(self.before):  # cut a moment ago: the next look finds out
            return []
        data = data[len(self.before) :]
        whole = max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
        if whole == 0 and (complete or len(data) == CHUNK):
            whole = len(data)
        return data[:whole].splitlines(keepends=True)

    def close(self) -> None:
        """Close the file."""
        self._lines.clear()
        os.close(self._descriptor)


def regular(path: str) -> os.stat_result | None:
    """What is known of a file; None if there is none."""
    try:
        there = os.stat(path)
    except OSError:
        return None
    return there if stat.S_ISREG(there.st_mode) else None


def open_log(path: str) -> LogFile | None:
    """The file at a path; None if it is not there, or not to be read."""
    try:
        return LogFile(path)
    except FileNotFoundError:
        return None
    except (OSError, EOFError, zlib.error, EmitterError) as error:
        _once.warn(path, "%s: must be readable (got %s). It is tried again.", path, error)
        return None


def _plain(path: str) -> tuple[int, int]:
    """A file's descriptor and inode."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    return descriptor, os.fstat(descriptor).st_ino


def _unpacked(path: str) -> tuple[int, int]:
    """Descriptor of a copy that is not compressed and was changed when the file was; and the inode of that."""
    with open(path, "rb") as packed, gzip.open(packed) as lines:
        there = os.fstat(packed.fileno())
        with copied(iter(lambda: lines.read(CHUNK), b"")) as file:
            os.utime(file.fileno(), ns=(there.st_mtime_ns, there.st_mtime_ns))
            return os.dup(file.fileno()), there.st_ino
