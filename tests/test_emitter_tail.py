"""Logs that grow: each line once, whatever becomes of the file."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emitter.errors import EmitterError
from emitter.log_file import CHUNK
from emitter.tail import Pipe, Tail


def lines(tail: Tail) -> list[str]:
    """What is new, line by line; the past is told by a sign in front."""
    return [
        ("<" if piece.past else "") + line
        for piece in tail.read()
        for line in piece.data.decode().splitlines()
        if piece.data
    ]


def append(path: Path, text: str) -> None:
    with open(path, "a") as file:
        file.write(text)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "r7.log"


@pytest.fixture
def tail(path: Path) -> Iterator[Tail]:
    with closing(Tail([str(path)])) as one:
        yield one


def test_lines_come_when_they_are_complete(path: Path, tail: Tail) -> None:
    """A file may not be there yet; a line without its end waits for the rest."""
    assert lines(tail) == []
    append(path, "a\nb")
    assert lines(tail) == ["a"]
    assert lines(tail) == []
    append(path, "c\nd\r\n")
    assert lines(tail) == ["bc", "d"]


def test_what_a_progress_bar_overwrites_is_a_line(path: Path, tail: Tail) -> None:
    """A carriage return completes a line as soon as it is known not to be half of a line end; a line feed says so."""
    append(path, "10 %\r20 %\r")
    assert [piece.data for piece in tail.read()] == [b"10 %\n"]
    append(path, "30 %")
    assert lines(tail) == ["20 %"]
    append(path, "\r\n")
    assert lines(tail) == ["30 %"]


def test_what_is_there_at_the_start_is_past(path: Path) -> None:
    """An unfinished last line is not: it is complete only when somebody is there to see it."""
    append(path, "a\nb\nc")
    with closing(Tail([str(path)])) as tail:
        append(path, "d\ne\n")
        assert lines(tail) == ["<a", "<b", "cd", "e"]


def test_a_line_without_end_does_not_fill_the_memory(path: Path, tail: Tail) -> None:
    """A line longer than a chunk comes in pieces, and those after it come whole."""
    append(path, "x" * (2 * CHUNK + 10))
    pieces = [len(piece.data) for piece in tail.read()]
    append(path, "\nlast\n")
    assert pieces == [CHUNK, CHUNK]
    assert lines(tail) == ["x" * 10, "last"]


def test_renamed_and_made_anew(path: Path, tail: Tail) -> None:
    """What is written to the old file, before and after the new one is there, comes first."""
    append(path, "a\n")
    assert lines(tail) == ["a"]
    with open(path, "a") as old:
        old.write("b\n")
        path.rename(f"{path}.1")
        path.touch()
        assert lines(tail) == []
        old.write("c\nwithout end")
        old.flush()
        assert lines(tail) == ["b", "c"]
    append(path, "d\n")
    assert lines(tail) == ["without end", "d"]


def test_removed_and_made_anew(path: Path, tail: Tail) -> None:
    """What nobody has read of a file that was removed is read all the same."""
    append(path, "a\n")
    assert lines(tail) == ["a"]
    append(path, "b\n")
    path.unlink()
    assert lines(tail) == ["b"]
    append(path, "c\n")
    assert lines(tail) == ["c"]


def test_several_rotations_between_two_looks(path: Path, tail: Tail) -> None:
    """The files in between are read too, in their order."""
    append(path, "a\n")
    assert lines(tail) == ["a"]
    for number, text in enumerate(("b\n", "c\n", "d\n")):
        os.utime(path, ns=(0, 10**9 * (number + 1)))
        for back in range(number, 0, -1):
            os.rename(f"{path}.{back}", f"{path}.{back + 1}")
        path.rename(f"{path}.1")
        append(path, text)
    assert lines(tail) == ["b", "c", "d"]


def test_copied_and_truncated(path: Path, tail: Tail) -> None:
    """What was written between the last look and the copy is read from the copy."""
    append(path, "a\n")
    assert lines(tail) == ["a"]
    append(path, "b\n")
    shutil.copy(path, f"{path}-20310102")
    os.truncate(path, 0)
    append(path, "c\n")
    assert lines(tail) == ["b", "c"]


def test_truncated_and_grown_beyond(path: Path, tail: Tail, caplog: pytest.LogCaptureFixture) -> None:
    """A file that was emptied and is longer than before is read from its beginning; that lines may be lost is said."""
    append(path, "alpha\n")
    assert lines(tail) == ["alpha"]
    path.write_text("beta\ngamma\n")
    assert lines(tail) == ["beta", "gamma"]
    assert "what was read last must be there or beside it" in caplog.text


def test_truncated_under_a_writer_that_goes_on_at_its_old_place(path: Path, tail: Tail) -> None:
    """The hole that such a program leaves is no line."""
    with open(path, "w") as writer:
        writer.write("a" * 3 * CHUNK + "\n")
        writer.flush()
        for _ in tail.read():
            pass
        os.truncate(path, 0)
        writer.write("b\n")
        writer.flush()
        assert lines(tail) == ["b"]


def test_place_is_kept_through_a_restart(path: Path) -> None:
    """What a tail has given comes again as past, and the next line is new, wherever the file went meanwhile."""
    append(path, "a\nb\nc")
    with closing(Tail([str(path)], {})) as tail:
        assert lines(tail) == ["a", "b"]
        positions = dict(tail.positions)
    append(path, "d\n")
    path.rename(f"{path}.1")
    append(path, "e\n")
    with closing(Tail([str(path)], positions)) as tail:
        assert lines(tail) == ["<a", "<b", "cd", "e"]


def test_place_in_a_copy_after_a_restart(path: Path) -> None:
    """A file that was copied and truncated while nobody looked is gone on with in its copy."""
    append(path, "a\nb\n")
    with closing(Tail([str(path)], {})) as tail:
        assert lines(tail) == ["a", "b"]
        positions = dict(tail.positions)
    append(path, "c\n")
    shutil.copy(path, f"{path}.1")
    path.write_text("a much longer line than those before\n")
    with closing(Tail([str(path)], positions)) as tail:
        assert lines(tail) == ["<a", "<b", "c", "a much longer line than those before"]


def test_place_that_is_gone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the old file is nowhere to be found, that is said, and the new one is read."""
    append(path, "a\nb\n")
    with closing(Tail([str(path)], {})) as tail:
        assert lines(tail) == ["a", "b"]
        positions = dict(tail.positions)
    path.write_text("c\n")
    with closing(Tail([str(path)], positions)) as tail:
        assert lines(tail) == ["c"]
    assert caplog.text.count("Lines that had not been read are lost.") == 1


def test_directory(tmp_path: Path) -> None:
    """All files of a directory, those that appear included; what a rotation puts beside them is no other log."""
    append(tmp_path / "rank0.log", "a\n")
    append(tmp_path / "rank0.log.1", "before\n")
    os.utime(tmp_path / "rank0.log.1", (0, 0))
    append(tmp_path / "old.gz", "z\n")
    append(tmp_path / ".hidden", "h\n")
    (tmp_path / "deeper").mkdir()
    with closing(Tail([str(tmp_path)])) as tail:
        assert lines(tail) == ["<a"]
        append(tmp_path / "rank1.log", "b\n")
        (tmp_path / "rank0.log").rename(tmp_path / "rank0.log.2")
        assert lines(tail) == ["b"]
        append(tmp_path / "rank0.log", "c\n")
        assert [(Path(piece.source).name, piece.data) for piece in tail.read()] == [("rank0.log", b"c\n")]


def test_a_directory_that_appears(tmp_path: Path) -> None:
    """A path that nothing is at yet may become a directory: its files are told apart."""
    folder = tmp_path / "logs"
    with closing(Tail([str(folder)])) as tail:
        assert lines(tail) == []
        folder.mkdir()
        for name in ("rank0", "rank1"):
            append(folder / name, f"{name}\n")
        assert [(Path(piece.source).name, piece.data) for piece in tail.read()] == [
            ("rank0", b"rank0\n"),
            ("rank1", b"rank1\n"),
        ]


def test_pattern(tmp_path: Path) -> None:
    """Files that match, those that appear included."""
    with closing(Tail([str(tmp_path / "*.log")])) as tail:
        append(tmp_path / "a.log", "a\n")
        append(tmp_path / "a.txt", "b\n")
        assert lines(tail) == ["a"]


def test_several_files_are_read_at_one_pace(tmp_path: Path) -> None:
    """Lines of several files come by the times in them; those without a time come with the one before."""
    first, second = tmp_path / "a", tmp_path / "b"
    append(first, "head\n[2031-01-02 03:00:01] 1\nmore\n[2031-01-02 03:00:05] 5\n")
    append(second, "[2031-01-02 03:00:03] 3\n[2031-01-02 03:00:04] 4\n")
    with closing(Tail([str(tmp_path)])) as tail:
        assert [line.split()[-1] for line in lines(tail)] == ["<head", "1", "<more", "3", "4", "5"]
        append(first, "[2031-01-02 03:00:07] 7\n[2031-01-02 03:00:09] 9\n")
        append(second, "[2031-01-02 03:00:06] 6\n[2031-01-02 03:00:08] 8\n")
        assert [line.split()[-1] for line in lines(tail)] == ["6", "7", "8", "9"]


def test_what_is_no_log(tmp_path: Path) -> None:
    """A pipe with a name is refused at once, and so is a path that cannot be."""
    os.mkfifo(tmp_path / "fifo")
    for path, got in ((tmp_path / "fifo", "a device or pipe"), (tmp_path / ("x" * 300), "File name too long")):
        with pytest.raises(EmitterError, match=got):
            Tail([str(path)])


def test_pipe() -> None:
    """A pipe gives what is there without waiting, and is over when nobody holds its other end."""
    read, write = os.pipe()
    pipe = Pipe(read)
    assert list(pipe.read()) == []
    os.write(write, b"a\nb")
    assert [piece.data for piece in pipe.read()] == [b"a\nb"]
    assert not pipe.over
    os.close(write)
    assert list(pipe.read()) == []
    assert pipe.over
    os.close(read)


def compress(path: Path) -> None:
    """As gzip does it: the time of the last change is kept."""
    there = path.stat()
    packed = Path(f"{path}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes()))
    os.utime(packed, ns=(there.st_atime_ns, there.st_mtime_ns))
    path.unlink()


ACTIONS = ("write", "half", "rename", "create", "copytruncate", "compress", "restart", "look")


@given(actions=st.lists(st.sampled_from(ACTIONS), max_size=20))
def test_nothing_is_lost_and_nothing_repeated(actions: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever order of writing, rotating, looking and starting again: every line once, in its order."""
    path = tmp_path_factory.mktemp("tail") / "r7.log"
    written = rotated = 0
    half = False
    tail = Tail([str(path)], {})
    append(path, "first\n")
    found = lines(tail)
    writer = open(path, "a")  # noqa: SIM115  # it outlives the steps
    for action in [*actions, "finish", "look"]:
        if action in ("write", "half", "finish") and half:
            writer.write(" end\n")
            half = False
        if action == "write":
            written += 1
            writer.write(f"line {written} end\n")
        elif action == "half" and path.exists() and os.path.getsize(path):
            written += 1
            writer.write(f"line {written}")
            half = True
        elif action == "rename" and path.exists():
            rotated += 1
            path.rename(f"{path}-2031{rotated:04}")
        elif action == "create" and not path.exists() and not half:
            writer.close()
            writer = open(path, "a")  # noqa: SIM115
        elif action == "copytruncate" and path.exists() and not half and os.path.getsize(path):
            rotated += 1
            shutil.copy(path, f"{path}-2031{rotated:04}")
            os.truncate(path, 0)
        elif action == "compress" and path.exists():
            for plain in path.parent.glob("r7.log-*[0-9]"):
                compress(plain)
        elif action == "restart":
            positions = dict(tail.positions)
            tail.close()
            tail = Tail([str(path)], positions)
        writer.flush()
        time.sleep(0.004)  # two files that were written to in one tick of the clock have no order
        if action in ("look", "copytruncate", "restart"):
            found += [line for line in lines(tail) if not line.startswith("<")]
    found += [line for line in lines(tail) if not line.startswith("<")]
    writer.close()
    tail.close()
    assert found == ["first", *(f"line {number} end" for number in range(1, written + 1))]


WRITER = """
import logging.handlers, sys, time
handler = logging.handlers.RotatingFileHandler(sys.argv[1], maxBytes=2000, backupCount=50)
log = logging.getLogger("writer")
log.addHandler(handler)
for number in range(int(sys.argv[2])):
    log.warning("line %d", number)
    if number % 50 == 0:
        time.sleep(0.01)
"""


def test_a_process_that_writes_and_rotates(path: Path, tail: Tail) -> None:
    """A program that rotates its own log several times between two looks loses nothing here."""
    found: list[str] = []
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path), "5000"]) as writer:
        while writer.poll() is None:
            found += lines(tail)
            time.sleep(0.02)
    found += lines(tail)
    assert found == [f"line {number}" for number in range(5000)]
