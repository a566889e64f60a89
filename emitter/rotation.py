"""A path, and the files that it names one after the other: rotated, copied and cut, compressed, moved, not there yet.

The bytes just before the place that was reached are compared at each reading: a file that was cut, and has grown beyond
that place meanwhile, is known by them, and so is the copy that a rotation took of it. Beside the path, names with a
number or a date behind it are its earlier files.
"""

from __future__ import annotations

import logging
import os
import re
from collections import deque
from dataclasses import dataclass

from .log_file import PACKED, LogFile, Position, open_log, regular

TRIES = 10
"""How often a folder is listed until it stands still."""

_NONE = 0
"""Inode of a place in a log that has not been there yet."""

ROTATED = re.compile(r"[.-](?=\d[\d_.:T-]*$)", re.ASCII)
"""Where the number or date begins that a rotation appends."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Whole lines of a file."""

    source: str
    """Path of the file; empty where there is only one."""
    data: bytes
    past: bool
    """Whether they were there before."""


class GrowingLog:
    """A path, and the files that it named one after the other.

    Without a position what is there is past, unless the path is `new`: it was not there at this time, in ns, so that
    what was written later is of the same log, rotated before anybody has seen it.
    """

    def __init__(self, path: str, source: str, position: Position | None, *, new: int | None = None) -> None:
        self.path = path
        self._source = source
        self._files: deque[LogFile] = deque()
        """To be read, the oldest first; the last one is, or was, at the path."""
        self.position = position
        """Behind what has been given."""
        self._seen: tuple[int, int, int] | None = None
        self._dry = False
        """Whether all that was seen has been given."""
        self._past_over = new is not None and position is None
        if position is not None:
            self._go_on(position, 0, b"")
        elif not ((there := regular(path)) and there.st_size):
            self._wait_for_first()
        elif new is not None:
            self.position = _nowhere(new)
        elif file := open_log(path):
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

    def _wait_for_first(self) -> None:
        """Remember that nothing was there: what is beside the path by now is another run's, and what comes is new."""
        changed_ns = [there.st_mtime_ns for path, _ in self._generations(0) if (there := regular(path))]
        self.position = _nowhere(max(changed_ns, default=0))
        self._past_over = True

    def _open_first(self) -> None:
        if self.position is not None:  # it could not be read for a while
            self._go_on(self.position, self.position.offset, self.position.before)
        elif file := open_log(self.path):
            self._files.append(file)

    def _go_on(self, position: Position, offset: int, before: bytes) -> None:
        """Open what was read up to a position, wherever it is now, and what came after it.

        It goes on behind `offset`; up to the position that is past.
        """
        files = self._open_all((self.position or position).modified_ns)
        same = [file for file in files if file.holds(position)]
        ours = min(same, key=lambda file: file.inode != position.inode, default=None)
        if ours is None and position.inode != _NONE:
            _log.warning(
                "%s: what was read last must be there or beside it (got neither: it was cut, moved or compressed). "
                "Lines that had not been read are lost.",
                self.path,
            )
        elif ours:
            ours.past, ours.offset, ours.before = position, offset, before
        self._keep(files, ours, position)

    def _keep(self, files: list[LogFile], after: LogFile | None, position: Position) -> None:
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
        files = self._open_all((self.position or newest.known).modified_ns)
        again = next((file for file in files if file.inode == newest.inode or file.copies(newest)), None)
        self._keep(files, again, newest.position)
        if again:
            self._files.remove(again)
            again.close()

    def _open_all(self, since_ns: int) -> list[LogFile]:
        """The files of this path as one moment has them, the oldest first, the one at the path last.

        Without empty ones: whoever writes has not come over to such a file yet. Without compressed ones that were not
        changed since, for opening one takes as long as reading it. And without those that cannot be read.
        """
        for _ in range(TRIES):
            before = self._generations(since_ns)
            opened = [(open_log(path), inode) for path, inode in before]
            files = [file for file, _ in opened if file]
            same = all(file is None or file.inode == inode for file, inode in opened)
            if same and before == self._generations(since_ns):
                break
            for file in files:  # a rotation is going on
                file.close()
            files = []
        return files

    def _generations(self, since_ns: int) -> list[tuple[str, int]]:
        """Paths and inodes of earlier files and of the present one."""
        found = []
        folder, name = os.path.split(self.path)
        others = _names(folder or ".")
        for other in others:
            path, plain = os.path.join(folder, other), other.removesuffix(PACKED)
            if not plain.startswith(name) or not ROTATED.match(plain, len(name)):
                continue
            packed = plain != other
            if (there := regular(path)) and there.st_size and not (packed and there.st_mtime_ns < since_ns):
                if packed and plain in others:  # it is being made
                    continue
                number = plain[len(name) + 1 :]
                age = -int(number) if number.isdecimal() and len(number) < 5 else 0  # .1 is younger than .2
                found.append((there.st_mtime_ns, age, path, there.st_ino))
        generations = [(path, inode) for *_, path, inode in sorted(found)]
        if (there := regular(self.path)) and there.st_size:
            generations.append((self.path, there.st_ino))
        return generations


def _nowhere(modified_ns: int) -> Position:
    """The place in front of all that was written after a time."""
    return Position(inode=_NONE, offset=0, modified_ns=modified_ns, before=b"")


def _names(folder: str) -> frozenset[str]:
    """What is in a folder, as far as it is there and can be listed; what is open is read all the same."""
    try:
        return frozenset(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return frozenset()
