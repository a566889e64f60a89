"""What becomes of a log's files while nobody looks: compressed, damaged, moved with their folder, named otherwise."""

from __future__ import annotations

import gzip
import os
import shutil
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from test_emitter_tail import append, compress

from emitter.tail import Tail

PACKED = gzip.compress(b"a line like any other\n" * 99, mtime=0)


def new(tail: Tail) -> list[str]:
    """The lines that are not past."""
    return [line for piece in tail.read() if not piece.past for line in piece.data.decode().splitlines()]


def rotate(path: Path) -> None:
    """As logrotate does it with `compress`, without `delaycompress`."""
    for number in (2, 1):
        with_number = Path(f"{path}.{number}.gz")
        if with_number.exists():
            with_number.rename(f"{path}.{number + 1}.gz")
    path.rename(f"{path}.1")
    compress(Path(f"{path}.1"))


def told(path: Path, happens: Callable[[], object], *, away: bool) -> list[str]:
    """What a tail tells of what happens after a first line, beside it or while it is away."""
    path.parent.mkdir(exist_ok=True)
    append(path, "a\n")
    with closing(Tail([str(path)], {})) as tail:
        assert new(tail) == ["a"]
        positions = dict(tail.positions)
        if not away:
            happens()
            return new(tail)
    happens()
    with closing(Tail([str(path)], positions)) as tail:
        return new(tail)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "logs" / "r7.log"


@pytest.mark.parametrize("away", [False, True])
def test_compressed_twice_between_two_looks(path: Path, away: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Of a file that was read in part the rest is read, and all of one that nobody has seen."""

    def happens() -> None:
        for text in ("b\n", "c\n"):
            append(path, text)
            rotate(path)
        append(path, "d\n")

    assert told(path, happens, away=away) == ["b", "c", "d"]
    assert caplog.text == ""


@pytest.mark.parametrize("empty", [False, True])
@pytest.mark.parametrize("away", [False, True])
def test_rotated_before_anybody_has_seen_it(
    path: Path, away: bool, empty: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A log that comes and is rotated between two looks is read from its beginning; an earlier run's files are not."""
    path.parent.mkdir()
    if empty:
        path.touch()
    Path(f"{path}.8.gz").write_bytes(gzip.compress(b"another run's\n"))
    Path(f"{path}.7").write_text("another run's, too\n")
    for old in (7, "8.gz"):
        os.utime(f"{path}.{old}", (0, 0))
    tail = Tail([str(path)])
    assert new(tail) == []
    positions = dict(tail.positions)
    for text in ("a\n", "b\n"):
        append(path, text)
        time.sleep(0.004)  # two files that were written to in one tick of the clock have no order
        rotate(path)
    append(path, "c\n")
    if away:
        tail.close()
        tail = Tail([str(path)], positions)
    with closing(tail):
        assert new(tail) == ["a", "b", "c"]
    assert caplog.text == ""


@pytest.mark.parametrize("away", [False, True])
def test_a_rank_that_comes_and_is_rotated_before_anybody_has_seen_it(path: Path, away: bool) -> None:
    """So is one of several that are found by a pattern; what an earlier run has left beside it is not."""
    path.parent.mkdir()
    append(path.parent / "rank0.log", "present\n")
    append(path.parent / "rank1.log.9", "another run's\n")
    os.utime(path.parent / "rank1.log.9", (0, 0))
    pattern = str(path.parent / "rank*.log")
    tail = Tail([pattern])
    assert new(tail) == []
    positions = dict(tail.positions)
    for text in ("a\n", "b\n"):
        append(path.parent / "rank1.log", text)
        time.sleep(0.004)
        rotate(path.parent / "rank1.log")
    append(path.parent / "rank1.log", "c\n")
    if away:
        tail.close()
        tail = Tail([pattern], positions)
    with closing(tail):
        assert new(tail) == ["a", "b", "c"]


@pytest.mark.parametrize("away", [False, True])
def test_copied_compressed_and_truncated(path: Path, away: bool) -> None:
    """What was written between the last look and the copy is read from the compressed copy."""

    def happens() -> None:
        append(path, "b\n")
        shutil.copy2(path, f"{path}.1")
        os.truncate(path, 0)
        compress(Path(f"{path}.1"))
        append(path, "c\n")

    assert told(path, happens, away=away) == ["b", "c"]


@pytest.mark.parametrize("away", [False, True])
def test_a_file_that_is_being_compressed_is_read_once(path: Path, away: bool) -> None:
    """While the compressed file is made, the other one is there as well."""

    def happens() -> None:
        append(path, "b\n")
        path.rename(f"{path}.1")
        with open(f"{path}.1", "rb") as plain, gzip.open(f"{path}.1.gz", "wb") as packed:
            packed.write(plain.read())
        append(path, "c\n")

    assert told(path, happens, away=away) == ["b", "c"]


@pytest.mark.parametrize("away", [False, True])
@pytest.mark.parametrize(
    "damage",
    [b"no such format", PACKED[:-9], PACKED[:9] + b"?" * 9 + PACKED[18:]],
    ids=["another format", "cut", "garbled"],
)
def test_a_damaged_file_beside_the_log_stops_nothing(path: Path, away: bool, damage: bytes) -> None:
    """It cannot be read, and all others can."""

    def happens() -> None:
        append(path, "b\n")
        path.rename(f"{path}.1")
        Path(f"{path}.2.gz").write_bytes(damage)
        append(path, "c\n")

    assert told(path, happens, away=away) == ["b", "c"]


@pytest.mark.parametrize("away", [False, True])
def test_files_that_were_compressed_long_ago_are_not_opened(
    path: Path, away: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each would have to be read as a whole at every rotation."""
    path.parent.mkdir()
    for number in range(1, 4):
        old = Path(f"{path}.{number}.gz")
        old.write_bytes(gzip.compress(b"old\n"))
        os.utime(old, (number, number))
    opened: list[str] = []
    monkeypatch.setattr(gzip, "open", lambda file, mode="rb": opened.append(file.name))

    def happens() -> None:
        append(path, "b\n")
        path.rename(f"{path}.0")
        append(path, "c\n")

    assert told(path, happens, away=away) == ["b", "c"]
    assert opened == []


@pytest.mark.parametrize("followed", ["the file", "its folder"])
@pytest.mark.parametrize("goes", [shutil.rmtree, lambda folder: folder.rename(f"{folder}.old")])
def test_a_folder_that_goes_takes_no_line_with_it(path: Path, followed: str, goes: Callable[[Path], object]) -> None:
    """What is open is read to its end, and the log of a folder that is back from its beginning."""
    path.parent.mkdir()
    append(path, "a\n")
    with closing(Tail([str(path if followed == "the file" else path.parent)], {})) as tail:
        assert new(tail) == ["a"]
        with open(path, "a") as writer:
            writer.write("b\n")
            writer.flush()
            goes(path.parent)
            assert new(tail) == ["b"]
            writer.write("c\n")
        assert new(tail) == ["c"]
        path.parent.mkdir()
        append(path, "d\n")
        assert new(tail) == ["d"]


def test_another_spelling_of_the_path_is_the_same_log(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started again from another folder, nothing is repeated."""
    path.parent.mkdir()
    append(path, "a\n")
    monkeypatch.chdir(path.parent)
    with closing(Tail(["r7.log"], {})) as tail:
        assert new(tail) == ["a"]
        positions = dict(tail.positions)
    append(path, "b\n")
    with closing(Tail([str(path)], positions)) as tail:
        assert new(tail) == ["b"]
