"""emitter.place: the state comes back as it was, nobody else's file is touched, and one follow at a time has it."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from log_commands import Live, outcome, training_line

from emitter.errors import EmitterError
from emitter.log_file import Position
from emitter.place import State, StateFile


def test_state_is_what_was_saved(tmp_path: Path) -> None:
    """A state comes back as it was, whatever bytes stand before a place."""
    file = StateFile(tmp_path / "state")
    position = Position(inode=2**63, offset=17, modified_ns=5, before=b"\0\xff\n")
    state = State(attempt=3, settled=True, positions={"a b.log": position})
    for durable in (True, False):
        file.save(state, durable=durable)
        assert file.load() == state
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_durable_state_is_on_disk_before_it_takes_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the machine finds the old state or the new one; one that need not be durable waits for no disk."""
    calls: list[str] = []

    def noted(name: str) -> Callable[..., None]:
        real = getattr(os, name)

        def call(*arguments: object) -> None:
            calls.append(name)
            real(*arguments)

        return call

    for name in ("fsync", "replace"):
        monkeypatch.setattr(os, name, noted(name))
    file = StateFile(tmp_path / "state")
    file.save(State(), durable=True)
    file.save(State(), durable=False)
    assert calls == ["fsync", "replace", "replace"]


@pytest.mark.parametrize("content", [b"[]", b"7", b"key: value\n", b"\x1f\x8b\0\xff", training_line(1).encode()])
def test_a_file_that_is_no_state_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    """A configuration, or the log itself, named by mistake: an error, and nothing is touched."""
    path = tmp_path / "config.yaml"
    path.write_bytes(content)
    with pytest.raises(EmitterError, match=r"config.yaml: must be a state that follow has written \(got another file"):
        StateFile(path).load()
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"config.yaml": content}


def test_a_damaged_state_that_cannot_be_moved_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder that takes no file there is no place to keep; it is said before anything is followed."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), "state")

    (tmp_path / "state").write_text('{"version": 2}')
    monkeypatch.setattr(os, "replace", refuse)
    with pytest.raises(EmitterError, match=r"a state file must be writable \(got Read-only file system\)"):
        StateFile(tmp_path / "state").load()


def test_what_is_no_file_is_no_state(tmp_path: Path) -> None:
    """A folder, a pipe that nobody writes to, a device: an error at once, and it is where it was."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(os.devnull)
    for name in ("", "fifo", "link"):
        with pytest.raises(EmitterError, match=r"a state is a file \(got a folder, device or pipe\)"):
            StateFile(tmp_path / name).load()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "link"]


def test_a_state_behind_a_link_is_written_there(tmp_path: Path) -> None:
    """The link stays, and so does the place for whoever goes by the other name."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "state")
    file, other = StateFile(tmp_path / "link"), StateFile(tmp_path / "disk" / "state")
    with file.alone(), other.alone() as free:
        assert not free
    file.save(State(attempt=3), durable=True)
    assert (tmp_path / "link").is_symlink()
    assert other.load() == State(attempt=3)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("s", True),
        ("s.new", True),
        ("s.lock", True),
        ("s.corrupt12", True),
        ("s.log", False),
        ("S", False),
        ("ss", False),
    ],
)
def test_a_state_knows_its_files(tmp_path: Path, name: str, own: bool) -> None:
    """Those beside it, by any spelling of their folder, and no others."""
    file = StateFile(tmp_path / "s")
    (tmp_path / "same").symlink_to(tmp_path)
    assert file.has(str(tmp_path / name)) is file.has(str(tmp_path / "same" / name)) is own
    assert not file.has(str(tmp_path / "deeper" / name))


def wait_for_iteration(live: Live, log: Path, iteration: int) -> None:
    """Write a training line, and see it told."""
    with open(log, "a") as file:
        file.write(training_line(iteration))
    live.wait_for(f"}} {iteration}.0\n")


@pytest.mark.live
def test_a_second_follow_of_one_state_ends_at_once(tmp_path: Path) -> None:
    """One line and exit code 2, while the first goes on; killed without a word, the first leaves the place free."""
    log, state = tmp_path / "r7.log", tmp_path / "state"
    verb = ("follow", str(log), "--to", "scrape:0", "--state", str(state))
    with Live(*verb) as first:
        wait_for_iteration(first, log, 11)
        code, out, err = outcome(*verb)
        assert (code, out) == (2, "")
        assert err == (
            f"{state}: a state file must be of one follow (got another that runs). "
            "Name another file, or end that one first.\n"
        )
        wait_for_iteration(first, log, 12)
        first.stop(signal.SIGKILL)
    with Live(*verb) as second:
        wait_for_iteration(second, log, 13)
        second.stop(signal.SIGTERM)
    assert json.loads(state.read_text())["positions"][str(log)]["offset"] == log.stat().st_size


def test_the_place_is_free_behind_its_block(tmp_path: Path) -> None:
    """It is kept through every replacement of the state, from whoever asks, and given up at the end."""
    first, second = StateFile(tmp_path / "state"), StateFile(tmp_path / "state")
    with first.alone() as free:
        assert free
        first.save(State(), durable=False)
        with second.alone() as free:
            assert not free
    with second.alone() as free:
        assert free


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_disk_without_locks_is_a_warning(
    number: int, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lustre and NFS may have none: follow goes on, and somebody has to see to it that it is alone."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with StateFile(tmp_path / "state").alone() as free:
        assert free
    assert caplog.text.count(f"state.lock: must be lockable (got [Errno {number}] {os.strerror(number)})") == 1


def test_no_lock_is_put_beside_another_file(tmp_path: Path) -> None:
    """A file named by mistake is refused before anything is written."""
    (tmp_path / "config.yaml").write_text("key: value\n")
    with pytest.raises(EmitterError, match="got another file"), StateFile(tmp_path / "config.yaml").alone():
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
