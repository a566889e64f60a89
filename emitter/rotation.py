"""A path, and the files that it names one after the other: rotated, copied and cut, moved, not there yet.

The bytes just before the place that was reached are compared at each reading: a file that was cut, and has grown beyond
that place meanwhile, is known by them, and so is the copy that a rotation took of it. Beside the path, names with a
number or a date behind it are its earlier files.
"""

from __future__ import annotations

import logging
import os
import re
import stat
from collections import deque
from dataclasses import dataclass

from .repeats import Once

CHUNK = 65_536
"""Bytes that are read at a time; a line that is longer is cut."""

BEFORE = 512
"""Bytes by which a place in a log is known again: a whole training line, for many end alike."""

TRIES = 10
"""How often a folder is listed until it stands still."""

ROTATED = re.compile(r"[.-](?=\d[\d_.:T-]*$)", re.ASCII)
"""Where the number or date begins that a rotation appends."""

_log = logging.getLogger(__name__)
_once = Once(__name__)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Whole lines of a file."""

    source: str
    """Path of the file; empty where there is only one."""
    data: bytes
    past: bool
    """Whether they were there before."""


@dataclass(frozen=True, kw_only=True)
class Position:
    """How far a file has been read."""

    inode: int
    offset: int
    modified_ns: int
    """When the file was last written to, as far as it is known."""
    before: bytes
    """The last bytes before the offset."""


class _File:
    """One file, open for as long as it may grow."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.inode = os.fstat(self._descriptor).st_ino
        self.offset = 0
        """Behind what has been given."""
        self.before = b""
        self.past: Position | None = None
        """How far it was read before."""
        self._lines: deque[bytes] = deque()

    @property
    def position(self) -> Position:
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
        self._lines.clear()
        os.close(self._descriptor)


class GrowingLog:
    """A path, and the files that it named one after the other."""

    def __init__(self, path: str, source: str, position: Position | None, *, past: bool) -> None:
        self.path = path
        self._source = source
        self._files: deque[_File] = deque()
        """To be read, the oldest first; the last one is, or was, at the path."""
        self.position = position
        """Behind what has been given."""
        self._seen: tuple[int, int, int] | None = None
        self._dry = False
        """Whether all that was seen has been given."""
        self._past_over = not past and position is None
        if position is not None:
            self._go_on(position, 0, b"")
        elif past and (there := regular(path)) and there.st_size and (file := _open(path)):
            file.mark()
            self._files.append(file)

    @property
    def past_left(self) -> float:
        """Share of the past that has not been given yet."""
        if self._past_over or not self._files or not (past := self._files[0].past) or not past.offset:
            return 0.0
        return max(0.0, 1 - self._files[0].offset / past.offset)

    def look(self) -> bool:
        """Whether there may be something new: at the path is another file, or the file has changed."""
        there = regular(self.path)
        if there is None:  # not there yet, or just being renamed; what is open can still grow
            if self._files:
                self._come_over()
            return bool(self._files)
        seen = (there.st_ino, there.st_size, there.st_mtime_ns)
        if seen == self._seen and self._dry:
            return False
        if not self._files:
            if there.st_size:
                self._open_first()
        elif there.st_ino != self._files[-1].inode:
            self._come_over()
        elif not (newest := self._files[-1]).holds(known := newest.known):
            self._files.pop().close()
            self._go_on(known, newest.offset, newest.before)
        self._seen = seen if self._files and self._files[-1].inode == there.st_ino else None
        return True

    def peek(self) -> bytes:
        """The next line, as far as it can be told."""
        return self._files[0].peek(complete=len(self._files) > 1) if self._files else b""

    def next(self) -> Piece | None:
        """The next lines; None if there are none now."""
        self._dry = False
        while self._files:
            first, more = self._files[0], len(self._files) > 1
            found = first.next(complete=more, at_once=not self._source)
            self.position = first.position
            self._past_over = self._past_over or not (found and found[1])
            if found:
                return Piece(source=self._source, data=found[0], past=found[1])
            if not more:
                break
            self._files.popleft().close()
        self._dry = True
        return None

    def close(self) -> None:
        """Close the files; the next look opens them again."""
        while self._files:
            self._files.pop().close()

    def _open_first(self) -> None:
        if self.position is not None:  # it could not be read for a while
            self._go_on(self.position, self.position.offset, self.position.before)
        elif file := _open(self.path):
            self._files.append(file)

    def _go_on(self, position: Position, offset: int, before: bytes) -> None:
        """Open what was read up to a position, wherever it is now, and what came after it.

        It goes on behind `offset`; up to the position that is past.
        """
        files = self._open_all()
        same = [file for file in files if file.holds(position)]
        ours = min(same, key=lambda file: file.inode != position.inode, default=None)
        if ours is None:
            _log.warning(
                "%s: what was read last must be there or beside it (got neither: it was cut, moved or compressed). "
                "Lines that had not been read are lost.",
                self.path,
            )
        else:
            ours.past, ours.offset, ours.before = position, offset, before
        self._keep(files, ours, position)

    def _keep(self, files: list[_File], after: _File | None, position: Position) -> None:
        """Of files in their order, go on with those from one on, or with those that were changed since a position."""
        begin = files.index(after) if after else 0
        for number, file in enumerate(files):
            new = after or file.path == self.path or file.position.modified_ns > position.modified_ns
            if new and number >= begin:
                self._files.append(file)
            else:
                file.close()

    def _come_over(self) -> None:
        """Open the files that came after the newest one."""
        newest = self._files[-1]
        files = self._open_all()
        again = next((file for file in files if file.inode == newest.inode), None)
        self._keep(files, again, newest.position)
        if again:
            self._files.remove(again)
            again.close()

    def _open_all(self) -> list[_File]:
        """The files of this path as one moment has them, the oldest first, the one at the path last.

        Without empty ones: whoever writes has not come over to such a file yet.
        """
        for _ in range(TRIES):
            before = self._generations()
            files = [file for path, _ in before if (file := _open(path))]
            if [inode for _, inode in before] == [file.inode for file in files] and before == self._generations():
                break
            for file in files:  # a rotation is going on
                file.close()
            files = []
        return files

    def _generations(self) -> list[tuple[str, int]]:
        """Paths and inodes of earlier files and of the present one."""
        found = []
        folder, name = os.path.split(self.path)
        for other in os.listdir(folder or "."):
            path = os.path.join(folder, other)
            if not other.startswith(name) or not ROTATED.match(other, len(name)):
                continue
            if (there := regular(path)) and there.st_size:
                number = other[len(name) + 1 :]
                age = -int(number) if number.isdecimal() and len(number) < 5 else 0  # .1 is younger than .2
                found.append((there.st_mtime_ns, age, path, there.st_ino))
        generations = [(path, inode) for *_, path, inode in sorted(found)]
        if (there := regular(self.path)) and there.st_size:
            generations.append((self.path, there.st_ino))
        return generations


def regular(path: str) -> os.stat_result | None:
    """What is known of a file; None if there is none."""
    try:
        there = os.stat(path)
    except OSError:
        return None
    return there if stat.S_ISREG(there.st_mode) else None


def _open(path: str) -> _File | None:
    """The file at a path; None if it is not there, or not to be read."""
    try:
        return _File(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        _once.warn(path, "%s: must be readable (got %s). It is tried again.", path, error)
        return None
