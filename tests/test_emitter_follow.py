"""Follow, without processes: what is told when, what a restart repeats, and when it is over."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from log_commands import training_line

from emitter import catalog
from emitter.follow import LINGER_S, NOTHING_YET_S, SETTLE_S, SLOWEST_POLL_S, Follower
from emitter.log_run import Past
from emitter.place import StateFile
from emitter.readers import reader
from emitter.records import Record
from emitter.tail import Tail

BEGIN = "using world size: 16, data-parallel size: 16\n"
END = "[exiting program at iteration 3] datetime: 2031-01-02 03:00:04\n"
PLACE = (
    '{"version": 1, "attempt": 0, "settled": false, '
    '"positions": {"r7.log": {"inode": 1, "offset": %d, "modified_ns": 0, "before": "%s"}}}'
)
"""A state with one place."""
TIMERS = "(min, max) time across ranks (ms):\n    optimizer ......................................: (1.00, 2.00)\n"


class Stage:
    """A follow in a time that only waiting moves; `script` says what happens at which wait."""

    def __init__(self, *paths: Path, state: Path | None = None, **options: Any) -> None:
        self.now = 0.0
        self.waits = 0
        self.told: list[Record] = []
        self.at: list[float] = []
        self.past = Past()
        self.log = reader()
        self.state_file = StateFile(state) if state else None
        self.saved = self.state_file.load() if self.state_file else None
        self._paths = [str(path) for path in paths]
        self._options = options
        self.follower: Follower

    def run(self, script: dict[int, Callable[[], object]] | None = None, waits: int = 5) -> list[tuple[int, int]]:
        """Attempt and iteration of each training line that was told in so many waits."""

        def wait(seconds: float) -> None:
            assert seconds <= SLOWEST_POLL_S
            self.now += seconds
            self.waits += 1
            (script or {}).get(self.waits, lambda: None)()

        def begin(past: Past) -> list[Callable[[Record], None]]:
            self.past = past
            return [self.told.append, lambda record: self.at.append(self.now)]

        ours = self.state_file.has if self.state_file else lambda path: False
        with closing(Tail(self._paths, self.saved.positions if self.saved else None, ours=ours)) as tail:
            self.follower = Follower(
                tail, self.log, begin, saved=self.saved, state_file=self.state_file, **self._options
            )
            self.follower.run(wait, lambda: self.waits >= waits, lambda: self.now)
        return [
            (record.attempt, int(record.values[catalog.ITERATION])) for record in self.told if record.kind == "train"
        ]


def append(path: Path, text: str) -> Callable[[], object]:
    def write() -> None:
        with open(path, "a") as file:
            file.write(text)

    return write


def test_what_is_there_is_past_and_what_comes_is_told(tmp_path: Path) -> None:
    """A log's present is known from the beginning; only new lines are told."""
    path = tmp_path / "r7.log"
    path.write_text(BEGIN + training_line(1) + BEGIN + training_line(2, 4.0))
    stage = Stage(path)
    assert stage.run({1: append(path, training_line(3))}) == [(1, 3)]
    assert (stage.past.phase, stage.past.attempt, stage.past.gauges[catalog.LOSS]) == ("train", 1, 4.0)


def test_a_log_that_appears_is_told_from_its_beginning(tmp_path: Path) -> None:
    """Nothing of a log that was not there at the start is past."""
    path = tmp_path / "r7.log"
    stage = Stage(path)
    assert stage.run({2: append(path, BEGIN + training_line(1) + training_line(2))}) == [(0, 1), (0, 2)]
    assert stage.past.phase == "startup"


def test_what_may_go_on_is_told_after_a_silence(tmp_path: Path) -> None:
    """A block that has no end of its own is told when nothing moved for a while, and not before."""
    path = tmp_path / "r7.log"
    path.write_text(training_line(1))
    stage = Stage(path)
    stage.run({1: append(path, training_line(2) + TIMERS)}, waits=10)
    assert [record.kind for record in stage.told] == ["train", "timers"]
    written_at, timers_at = stage.at
    assert SETTLE_S <= timers_at - written_at < SETTLE_S + 2 * SLOWEST_POLL_S


@pytest.mark.parametrize(("text", "told"), [("", 1), ("noise\n", 1), (training_line(1), 0)])
def test_a_log_that_gives_nothing_is_told_once(tmp_path: Path, text: str, told: int) -> None:
    """A wrong path and an unknown layout look like a run that has not begun: after a while somebody asks."""
    path = tmp_path / "r7.log"
    asked: list[float] = []
    stage = Stage(path, nothing_yet=lambda: asked.append(stage.now))
    stage.run({1: append(path, text)}, waits=100)
    assert len(asked) == told
    assert all(NOTHING_YET_S <= at < NOTHING_YET_S + 2 * SLOWEST_POLL_S for at in asked)


def test_ranks_that_print_the_same(tmp_path: Path) -> None:
    """Of several ranks' files with the same lines each is told once, those of the past included."""
    ranks = [tmp_path / f"rank{number}.log" for number in range(8)]
    for rank in ranks[:7]:
        rank.write_text(BEGIN + training_line(1) + training_line(2))

    def all_append(text: str) -> Callable[[], object]:
        return lambda: [append(rank, text)() for rank in ranks]

    stage = Stage(tmp_path)
    script = {number: all_append(training_line(number + 2)) for number in range(1, 5)}
    assert stage.run(script, waits=6) == [(0, number) for number in range(3, 7)]
    assert (stage.past.attempt, stage.past.gauges[catalog.ITERATION]) == (0, 2)


def test_the_past_of_several_files_is_read_by_its_times(tmp_path: Path) -> None:
    """A rank that prints more than the others at its start has not started later."""
    talkative, silent = tmp_path / "rank0.log", tmp_path / "rank1.log"
    run = "".join(training_line(number) for number in range(1, 40))
    again = "".join(training_line(number, 4.0).replace("03:", "04:", 1) for number in range(20, 40))
    talkative.write_text("args\n" * 5000 + BEGIN + run + "args\n" * 5000 + BEGIN + again)
    silent.write_text(run + again)
    stage = Stage(tmp_path)
    assert stage.run({1: append(silent, training_line(40).replace("03:", "05:", 1))}) == [(1, 40)]


def test_lines_of_several_files_are_not_mixed(tmp_path: Path) -> None:
    """What waits for its end in one file is not ended by another one's lines."""
    one, other = tmp_path / "one.log", tmp_path / "other.log"
    line = training_line(1)
    stage = Stage(one, other)
    script = {
        1: append(one, line[:200] + "\n"),
        2: append(other, "hello\n" + training_line(1)[:200] + "\n"),
        3: append(one, line[200:]),
    }
    assert stage.run(script) == [(0, 1)]


def test_restart_goes_on(tmp_path: Path) -> None:
    """After a restart what came meanwhile is told, and nothing twice; attempts go on being counted."""
    path, state = tmp_path / "r7.log", tmp_path / "state"
    first = Stage(path, state=state)
    script = {1: append(path, BEGIN + training_line(1) + BEGIN + training_line(1, 4.0))}
    assert first.run(script) == [(0, 1), (1, 1)]
    append(path, training_line(2) + training_line(3))()
    second = Stage(path, state=state)
    assert second.run() == [(1, 2), (1, 3)]
    assert second.past.gauges[catalog.WORLD_SIZE] == 16


def test_restart_after_the_beginning_was_rotated_away(tmp_path: Path) -> None:
    """Attempts of a file that is gone still count."""
    path, state = tmp_path / "r7.log", tmp_path / "state"
    script = {1: append(path, training_line(1) + BEGIN + training_line(1, 4.0))}
    assert Stage(path, state=state).run(script) == [(0, 1), (1, 1)]
    path.unlink()
    append(path, training_line(2) + BEGIN + training_line(2, 3.0))()
    assert Stage(path, state=state).run() == [(1, 2), (2, 2)]


def test_restart_between_the_lines_of_one_record(tmp_path: Path) -> None:
    """What was waiting for its end when a follow was stopped is neither lost nor repeated."""
    path, state = tmp_path / "r7.log", tmp_path / "state"
    first = Stage(path, state=state)
    assert first.run({1: append(path, training_line(1) + training_line(2) + TIMERS)}, waits=1) == [(0, 1), (0, 2)]
    assert [record.kind for record in first.told] == ["train", "train"]
    second = Stage(path, state=state)
    second.run(waits=8)
    assert [record.kind for record in second.told] == ["timers"]
    third = Stage(path, state=state)
    third.run(waits=8)
    assert third.told == []


def test_a_state_among_the_logs_is_no_log(tmp_path: Path) -> None:
    """Nor is what lies beside it: each record would have it written, and read, without end."""
    log, state = tmp_path / "r7.log", tmp_path / "r7"
    stage = Stage(tmp_path, state=state)
    (tmp_path / "r7.lock").touch()
    (tmp_path / "r7.corrupt1").write_text('{"version": 7}\n')
    script = {number: append(log, training_line(number)) for number in (1, 3, 5)}
    assert stage.run(script, waits=9) == [(0, 1), (0, 3), (0, 5)]
    assert stage.log.counts.total == 3


def test_first_attempt_is_the_schedulers(tmp_path: Path) -> None:
    """A scheduler that has started the job again knows of attempts that this log does not."""
    path = tmp_path / "r7.log"
    stage = Stage(path, first_attempt=3)
    assert stage.run({1: append(path, training_line(1))}) == [(3, 1)]


def test_the_end_is_followed_by_silence(tmp_path: Path) -> None:
    """Follow stops when the run has said that it ended and nothing came for long; each line begins the wait anew."""
    path = tmp_path / "r7.log"
    stage = Stage(path)
    stage.run({1: append(path, training_line(3) + END), 50: append(path, "one more word\n")}, waits=10_000)
    assert stage.follower.ended
    assert LINGER_S + 49 * SLOWEST_POLL_S <= stage.now + 1 < LINGER_S + 55 * SLOWEST_POLL_S


def test_a_stop_tells_what_is_there(tmp_path: Path) -> None:
    """What was written until somebody said stop is read, and nothing is waited for any more."""
    path = tmp_path / "r7.log"
    stage = Stage(path)
    assert stage.run({2: append(path, training_line(1) + training_line(2) + TIMERS)}, waits=2) == [(0, 1), (0, 2)]
    assert stage.told[-1].kind == "timers"
    assert not stage.follower.ended


@pytest.mark.parametrize("text", [training_line(3), training_line(3) + END + BEGIN])
def test_silence_is_no_end(tmp_path: Path, text: str) -> None:
    """A log that falls silent, and one that goes on after an end, is followed for good."""
    path = tmp_path / "r7.log"
    stage = Stage(path)
    stage.run({1: append(path, text)}, waits=2000)
    assert stage.waits == 2000
    assert not stage.follower.ended


def test_an_end_in_the_past_is_waited_beyond(tmp_path: Path) -> None:
    """A log that ended before it is followed may go on any time: the job is just being started again."""
    path = tmp_path / "r7.log"
    path.write_text(training_line(3) + END)
    stage = Stage(path)
    assert stage.run({1000: append(path, BEGIN + training_line(4))}, waits=1001) == [(1, 4)]
    assert stage.past.phase == "ended"


def test_cancelled_by_the_scheduler(tmp_path: Path) -> None:
    """A scheduler's word is an end."""
    path = tmp_path / "r7.log"
    stage = Stage(path)
    said = "slurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2031-01-02T03:00:09 DUE TO TIME LIMIT ***\n"
    stage.run({1: append(path, training_line(3) + said)})
    assert stage.follower.ended


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        '{"version": 2}',
        '{"version": 1, "attempt": 0}',
        '{"version": 1, "a',
        "\0" * 99,
        '{"version": ' + "[" * 100_000,
        '{"version": 1, "attempt": Infinity, "settled": false, "positions": {}}',
        PLACE % (-5, ""),
        PLACE % (2, "000000"),
        PLACE % (10**30, ""),
    ],
)
def test_state_that_cannot_be_read(tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture) -> None:
    """It is named, kept beside its place under a free name, and follow begins as for the first time."""
    path, log = tmp_path / "state", tmp_path / "r7.log"
    (tmp_path / "state.corrupt").write_text("an earlier one")
    path.write_text(content)
    log.write_text(training_line(1))
    assert Stage(log, state=path).run({1: append(log, training_line(2))}) == [(0, 2)]
    assert caplog.text.count("must be a state that follow has written (got ") == 1
    assert (tmp_path / "state.corrupt1").read_text() == content
    assert (tmp_path / "state.corrupt").read_text() == "an earlier one"
    assert json.loads(path.read_text())["version"] == 1


def test_state_that_cannot_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder that takes no file is one warning, and follow goes on."""
    log = tmp_path / "r7.log"
    stage = Stage(log, state=tmp_path / "nowhere" / "state")
    assert stage.run({1: append(log, training_line(1)), 2: append(log, training_line(2))}) == [(0, 1), (0, 2)]
    assert caplog.text.count("the state must be written (got ") == 1
