"""Logs that grow, read as `tail -F` does: each line once, through rotation and truncation.

Nothing here waits; whoever follows asks again after a while. A question costs a `stat` for each file, and also sees
what another host writes to NFS or Lustre, of which no kernel sends a notice: inotify and the libraries upon it are
blind there.
"""

from __future__ import annotations

import os
import select
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from glob import glob, has_magic
from heapq import heapify, heappop, heappush
from math import inf
from typing import Protocol

from .errors import EmitterError
from .log_file import CHUNK, Position, regular
from .readers.lines import last_stamp, moment
from .repeats import Once
from .rotation import ROTATED, GrowingLog, Piece

COMPRESSED = (".gz", ".xz", ".bz2", ".zst", ".lz4", ".Z")
"""Endings of files that no line is read from."""

COARSEST_NS = 2_000_000_000
"""What the times of files may be behind: file systems count in steps of up to two seconds."""

_once = Once(__name__)


class Source(Protocol):
    """Where lines come from."""

    over: bool
    """Whether nothing more can come."""

    @property
    def positions(self) -> Mapping[str, Position]:
        """How far each file has been given."""

    @property
    def past_left(self) -> float:
        """Share of the past that has not been given yet."""

    def read(self) -> Iterator[Piece]:
        """What is new."""

    def wait(self, seconds: float) -> object:
        """Let time pass, or less of it if something comes."""


class Tail:
    """Files, directories and patterns, followed together; files that appear are followed from their beginning.

    Of a directory all files count, of a pattern those that match: without hidden and compressed ones, and without
    those whose name is another's with a number or a date, which a rotation has put there. Nor do those that are
    `ours`. `positions` are those of an earlier tail, by absolute paths: what it has given comes first, again, as past.
    Without, what is there now is past.

    Raises: EmitterError if a path can be read by nobody.
    """

    def __init__(
        self,
        paths: Iterable[str],
        positions: Mapping[str, Position] | None = None,
        *,
        ours: Callable[[str], bool] = lambda path: False,
    ) -> None:
        self._ours = ours
        self._paths = tuple(dict.fromkeys(paths))
        self._logs: dict[str, GrowingLog] = {}
        self._times: dict[str, float] = {}
        """The last time in the lines of each file."""
        self._several = False
        """Whether there may be more than one file: a path can become a directory."""
        self._looked_ns: int | None = None
        """When it was last looked which files there are, if it ever was."""
        if positions is not None:
            self._looked_ns = max((position.modified_ns for position in positions.values()), default=time.time_ns())
        self.over = False
        for path in self._paths:
            _check(path)
        self._find(positions or {})

    def read(self) -> Iterator[Piece]:
        """What is new: first the past, then line by line what came since; of several files by the times in their lines.

        The positions are those behind the last piece.
        """
        self._find({})
        yield from self._merged([log for log in self._logs.values() if log.past_left], past=True)
        changed = []
        for log in self._logs.values():
            with _tried_again(log):
                if log.look():
                    changed.append(log)
        yield from self._merged(changed, past=False)

    def _merged(self, logs: Iterable[GrowingLog], *, past: bool) -> Iterator[Piece]:
        order = [(*self._time(log), log.path) for log in logs]
        heapify(order)
        while order:
            log = self._logs[heappop(order)[-1]]
            piece = None
            with _tried_again(log):
                piece = log.next()
            if piece is None:
                continue
            yield piece
            if log.past_left or not past:
                heappush(order, (*self._time(log), log.path))

    def _time(self, log: GrowingLog) -> tuple[float, bool, float]:
        """When the next line of one of several files was written: one without a time comes behind the one before."""
        if not self._several:
            return 0.0, False, 0.0
        with _tried_again(log):
            if (time_s := moment(last_stamp(log.peek().decode("ascii", "replace")))[0]) is not None:
                self._times[log.path] = time_s
                return time_s, False, 0.0
        return self._times.get(log.path, -inf), True, -log.past_left

    @property
    def past_left(self) -> float:
        """Share of the past that has not been given yet."""
        return max((log.past_left for log in self._logs.values()), default=0.0)

    @property
    def positions(self) -> dict[str, Position]:
        """How far each file has been read."""
        return {os.path.abspath(path): log.position for path, log in self._logs.items() if log.position}

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    def close(self) -> None:
        """Close the files."""
        for log in self._logs.values():
            log.close()
        self._logs.clear()

    def _find(self, positions: Mapping[str, Position]) -> None:
        now_ns = time.time_ns()
        found = {path for pattern in self._paths for path in _matching(pattern) if not self._ours(path)}
        for path in sorted(found - self._logs.keys()):
            if path in self._paths or not _is_rotated(path, found | self._logs.keys()):
                position = positions.get(os.path.abspath(path))
                alone = self._paths == (path,)
                if not alone and not self._several:
                    self._several = True
                    _allow_many_files()
                self._logs[path] = GrowingLog(path, "" if alone else path, position, new=self._looked_ns)
        self._looked_ns = now_ns - COARSEST_NS


class Pipe:
    """What comes through a pipe, as long as somebody holds its other end. It has no past, and no place to return to."""

    past_left = 0.0

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.positions: dict[str, Position] = {}
        self.over = False

    def read(self) -> Iterator[Piece]:
        """What is there."""
        while not self.over and self.wait(0):
            data = os.read(self._descriptor, CHUNK)
            if data:
                yield Piece(source="", data=data, past=False)
            self.over = not data

    def wait(self, seconds: float) -> bool:
        """Wait for more; whether there is."""
        return bool(select.select([self._descriptor], [], [], seconds)[0])


@contextmanager
def _tried_again(log: GrowingLog) -> Iterator[None]:
    """A network's file system may lose a file for a while."""
    try:
        yield
    except OSError as error:
        _once.warn(log.path, "%s: must be readable (got %s). It is tried again.", log.path, error)
        log.close()


def _check(path: str) -> None:
    """Refuse what never becomes a log; what is not there yet may."""
    try:
        mode = os.stat(path).st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise EmitterError(f"{path}: a log is a file or a directory (got a device or pipe). Pipe it in and name -.")
        if not os.access(path, os.R_OK):
            raise EmitterError(f"{path}: a log must be readable (got no permission). Check its owner and mode.")
    except FileNotFoundError:
        return
    except OSError as error:
        raise EmitterError(f"{path}: a log must be readable (got {error.strerror}). Check the path.") from error


def _matching(pattern: str) -> list[str]:
    if os.path.isdir(pattern):
        found = [os.path.join(pattern, name) for name in _names(pattern)]
    elif has_magic(pattern) and not os.path.exists(pattern):
        found = glob(pattern, recursive=True)
    else:
        return [pattern]
    return [path for path in found if _may_be_log(path)]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError as error:  # too many open files, or a file system that is away for a while
        _once.warn("folder", "%s: a folder must be readable (got %s). It is looked at again.", folder, error.strerror)
        return []


def _allow_many_files() -> None:
    """Each log that is followed is an open file; a shell's usual limit is 1024."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _may_be_log(path: str) -> bool:
    name = os.path.basename(path)
    return not name.startswith(".") and not name.endswith(COMPRESSED) and regular(path) is not None


def _is_rotated(path: str, others: Iterable[str]) -> bool:
    """Whether a path is another one with a number or a date behind it."""
    return any(path[: match.start()] in others for match in ROTATED.finditer(path))
