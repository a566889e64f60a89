"""OpenMetrics text into blocks of a Prometheus' database, by promtool. Standard library only.

promtool reads its whole input again for every block of two hours. So it is given one block's samples at a time.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .errors import EmitterError

BLOCK_MS = 2 * 60 * 60 * 1000
"""Length of a block; each begins at a multiple of it."""

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What whoever waits for it stops it by: Ctrl-C, a scheduler, a terminal that is closed."""

AT_ONCE = max(1, min(4, os.cpu_count() or 1))
"""promtool runs that go on at the same time."""


def find_promtool(named: str | None, environ: Mapping[str, str]) -> str:
    """Path of promtool: as named, else as PROMTOOL says, else on PATH.

    Raises: EmitterError if there is none.
    """
    wanted = named or environ.get("PROMTOOL") or "promtool"
    if found := shutil.which(wanted, path=environ.get("PATH")):
        return found
    raise EmitterError(
        f"promtool: blocks are made by it (got no program {wanted!r}). Install it (Debian: package prometheus, from "
        "trixie on promtool) or name it with --promtool or PROMTOOL."
    )


def write(pieces: Iterable[Iterable[str]], folder: Path, promtool: str, progress: Callable[[], None]) -> int:
    """Make blocks of the pieces, none longer than a block, and put them into a database's folder; how many there are.

    They are moved in when all are made. Until then, and after a failure, there is nothing that a Prometheus would load.

    Raises: EmitterError if the folder cannot be written, or if promtool fails.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".backfill-", dir=folder) as work:
            made = list(_made(pieces, Path(work), promtool, progress))
            for block in made:
                _hand_over(block, folder)
            with _uninterrupted():
                for block in made:
                    block.rename(folder / block.name)
            return len(made)
    except OSError as error:
        raise EmitterError(
            f"blocks:{folder}: must be a folder that can be written (got {error.strerror}). Check owner and disk."
        ) from error


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Where a signal waits: half of the blocks are none, and a promtool that nobody knows of yet is ended by nobody."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hand_over(block: Path, folder: Path) -> None:
    """Give a block to whoever owns the folder: a Prometheus that cannot delete one does not start."""
    owner = folder.stat()
    for path in (block, *block.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
        if owner.st_uid != os.geteuid():
            os.chown(path, owner.st_uid, owner.st_gid)


@dataclass(frozen=True, kw_only=True)
class _Run:
    """promtool at work on a piece."""

    process: subprocess.Popen[str]
    source: Path
    out: Path

    def blocks(self) -> Iterator[Path]:
        """What it has made, once it is done."""
        said, _ = self.process.communicate()
        if code := self.process.returncode:
            lines = [line for line in said.splitlines() if line.strip()]
            last = lines[-1].strip() if lines else "no word"
            raise EmitterError(
                f"promtool: must make the blocks (got exit code {code}: {last}). Nothing was put into the folder."
            )
        self.source.unlink()
        yield from (path for path in sorted(self.out.iterdir()) if (path / "meta.json").is_file())


def _made(pieces: Iterable[Iterable[str]], work: Path, promtool: str, progress: Callable[[], None]) -> Iterator[Path]:
    """The blocks, in order; a few are made at the same time, while the next piece is written."""
    running: deque[_Run] = deque()
    try:
        for number, piece in enumerate(pieces):
            source, out = work / f"{number}.om", work / str(number)
            with source.open("w", encoding="utf-8") as file:
                file.writelines(piece)
            progress()
            while len(running) >= AT_ONCE:
                yield from running[0].blocks()
                running.popleft()
            with _uninterrupted():
                running.append(_Run(process=_start(promtool, source, out), source=source, out=out))
        while running:
            yield from running[0].blocks()
            running.popleft()
            progress()
    finally:
        for run in running:
            with run.process:  # closes its pipe and waits
                run.process.kill()


def _start(promtool: str, source: Path, out: Path) -> subprocess.Popen[str]:
    command = (promtool, "tsdb", "create-blocks-from", "openmetrics", str(source), str(out))
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise EmitterError(f"{promtool}: must be a program of this system (got {error}). Name another.") from error
