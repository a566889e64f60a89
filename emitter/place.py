"""The place of a follow on disk: where it was, for the next one, and that nobody else goes on from there meanwhile."""

from __future__ import annotations

import json
import logging
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .errors import EmitterError
from .log_file import Position
from .repeats import Once

_log = logging.getLogger(__name__)

_MARK = '{"version": '
"""What a state begins with."""


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a follow was."""

    attempt: int = 0
    settled: bool = False
    """Whether what might have gone on was taken as whole."""
    positions: dict[str, Position] = field(default_factory=dict)


class StateFile:
    """A file that holds a state; it is replaced as a whole, so that no crash leaves half of one."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()  # behind a link, for that would be replaced, too
        self._once = Once(__name__)

    def has(self, path: str) -> bool:
        """Whether that file belongs to the state."""
        folder, name = os.path.split(path)
        endings = r"|\.new|\.lock|\.corrupt\d*"
        named = re.fullmatch(f"{re.escape(self._path.name)}({endings})", name)
        return bool(named) and os.path.realpath(folder) == str(self._path.parent)

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Keep other follows from the state in a block; whether no other does so.

        By a lock on a file beside it, since the state itself is replaced. The kernel gives the lock up with the
        process, whatever ends that; the file stays, for who removes it may remove another one's lock.

        Raises: EmitterError as `load`.
        """
        self._text()  # nothing is put beside another's file
        beside = self._path.with_name(f"{self._path.name}.lock")
        free = True
        with ExitStack() as closing:
            try:
                import fcntl

                file = closing.enter_context(open(beside, "a"))  # NFS locks only what can be written
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                free = False
            except (ImportError, OSError) as error:
                _log.warning(
                    "%s: must be lockable (got %s). Follow goes on; see that no other has its state.", beside, error
                )
            yield free

    def load(self) -> State | None:
        """The state; None if there is none. A damaged one is kept beside it and counts as none.

        Raises: EmitterError if the file is another's, which stays as it is, or cannot be read.
        """
        text = self._text()
        if text is None:
            return None
        try:
            return _state(text)
        except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            aside = _free(self._path)
            try:
                os.replace(self._path, aside)
            except OSError as reason:
                raise EmitterError(
                    f"{self._path}: a state file must be writable (got {reason.strerror}). Name another file."
                ) from error
            _log.warning(
                "%s: must be a state that follow has written (got %r). It is now %s; "
                "what the log holds already counts as past.",
                self._path,
                error,
                aside,
            )
            return None

    def _text(self) -> str | None:
        try:
            if not stat.S_ISREG(self._path.stat().st_mode):
                raise EmitterError(
                    f"{self._path}: a state is a file (got a folder, device or pipe). Name another file."
                )
            text = self._path.read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EmitterError(
                f"{self._path}: a state file must be readable (got {error.strerror}). Name another file."
            ) from error
        if not text.startswith(_MARK) and not _MARK.startswith(text.strip("\0")):
            raise EmitterError(
                f"{self._path}: must be a state that follow has written (got another file). Name another file."
            )
        return text

    def save(self, state: State, *, durable: bool) -> None:
        """Replace the file; `durable` waits for the disk, so that it also outlives a crash of the machine.

        Never raises: a disk that is full is a warning.
        """
        data = {
            "version": 1,
            "attempt": state.attempt,
            "settled": state.settled,
            "positions": {
                path: {**asdict(position), "before": position.before.hex()}
                for path, position in state.positions.items()
            },
        }
        beside = self._path.with_name(f"{self._path.name}.new")
        try:
            with open(beside, "w", encoding="utf-8") as file:
                json.dump(data, file)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(beside, self._path)
        except OSError as error:
            self._once.warn("save", "%s: the state must be written (got %s). Follow goes on without.", beside, error)


def _state(text: str) -> State:
    data = json.loads(text)
    if data["version"] != 1:
        raise ValueError(f"version {data['version']}")
    positions = {
        str(path): Position(
            inode=int(of["inode"]),
            offset=int(of["offset"]),
            modified_ns=int(of["modified_ns"]),
            before=bytes.fromhex(of["before"]),
        )
        for path, of in data["positions"].items()
    }
    if any(not len(place.before) <= place.offset < 2**63 for place in positions.values()):
        raise ValueError("a place that cannot be")
    return State(attempt=int(data["attempt"]), settled=bool(data["settled"]), positions=positions)


def _free(path: Path) -> Path:
    number = 0
    while (aside := path.with_name(f"{path.name}.corrupt{number or ''}")).exists():
        number += 1
    return aside
