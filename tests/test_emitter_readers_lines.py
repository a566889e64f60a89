"""Physical lines: cut where a terminal would, freed of what launchers, loggers and viewers put in front."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emitter.readers.lines import LONGEST, Splitter, last_stamp, moment, read_line

PREFIXES = {
    "0: ": ("0:", ""),
    "  7: ": ("7:", ""),
    "511: ": ("511:", ""),
    "[default7]:": ("[default7]:", ""),
    "[rank0]: ": ("[rank0]:", ""),
    "[node12:3]: ": ("[node12:3]:", ""),
    "(pretrain, pid=4711) ": ("(pretrain, pid=4711)", ""),
    "train_9b_x/0 ": ("train_9b_x/0", ""),
    "train_9b_x/0 [default0]:": ("train_9b_x/0 [default0]:", ""),
    "node250: ": ("node250:", ""),
    "[1743] ": ("", ""),
    "> ": ("", ""),
    "[titan] 2031-02-03 04:05:06,789 - root - INFO - ": ("", "2031-02-03 04:05:06,789"),
    "2031-02-03T04:05:06.1234567Z ": ("", "2031-02-03T04:05:06.1234567Z"),
    "INFO [2031-02-03 04:05:06] >> ": ("", "2031-02-03 04:05:06"),
    "INFO:megatron.core.utils:": ("", ""),
    "[20310203 04:05:06][rank-3/8][INFO ] [-----trainer.py:77] : ": ("[rank-3/8]", "20310203 04:05:06"),
    "[2031-02-03 04:05:06,123456][I][megatron/training_log:402:training_log] ": ("", "2031-02-03 04:05:06,123456"),
    "[2031-02-03 04:05:06][INFO][training:1609] - ": ("", "2031-02-03 04:05:06"),
    "02/03/2031 04:05:06 [INFO|DP=0|PP=1|TP=2|node-1]: ": ("[INFO|DP=0|PP=1|TP=2|node-1]:", "02/03/2031 04:05:06"),
}
"""What stands in front of lines; the source and the time that it tells."""


@pytest.mark.parametrize(("prefix", "told"), PREFIXES.items())
def test_prefix(prefix: str, told: tuple[str, str]) -> None:
    """A prefix is taken off, and its source and time are known."""
    line = read_line(f"{prefix}iteration 5\n".encode())
    assert (line.text, line.source, line.stamp) == ("iteration 5", *told)
    assert line.width == len(prefix) + len("iteration 5")


def test_innermost_time() -> None:
    """Of several times in front the last one counts: the program's own."""
    assert read_line(b"2031-02-03T04:05:06.1Z 0: [2031-02-03 04:05:05.000001] x").stamp == "2031-02-03 04:05:05.000001"


@pytest.mark.parametrize(
    "text",
    ["step: 10  loss:  7.1", "iteration: 9 / 10 | x", "    optimizer ....: (1.0, 2.0)", " 0.5 | grad norm: 1 |", ": 1"],
)
def test_what_is_no_prefix(text: str) -> None:
    """The beginning of a line of its own, or of the rest of a wrapped one, stays."""
    assert read_line(text.encode()).text == text


def test_dirt() -> None:
    """Colors, a byte order mark, NULs and the line's end are no text; bytes that are no UTF-8 are marked."""
    assert read_line(b"\xef\xbb\xbf\x00\x1b[32mloss\x1b[0m \xff\x00\r\n").text == "loss \ufffd"


@pytest.mark.parametrize(
    ("stamp", "seconds", "microseconds"),
    [
        ("2031-01-02 00:00:01", 1_925_078_401.0, False),
        ("2031-01-02 00:00:01.250000", 1_925_078_401.25, True),
        ("2031-01-02T00:00:01,250", 1_925_078_401.25, False),
        ("20310102 00:00:01", 1_925_078_401.0, False),
        ("01/02/2031 00:00:01", 1_925_078_401.0, False),
        ("2031-13-02 00:00:01", None, False),
        ("1999-12-31 23:59:59", None, False),
        ("0001-01-02 00:00:01", None, False),
        ("21010101 00:00:00", None, False),
        ("", None, False),
    ],
)
def test_moment(stamp: str, seconds: float | None, microseconds: bool) -> None:
    """A printed time becomes seconds, and tells whether it has microseconds; what is no time is none."""
    assert moment(stamp) == (seconds, microseconds, False)


@pytest.mark.parametrize(
    "stamp", ["2031-02-03T04:05:06.5Z", "2031-02-03 09:35:06,5+05:30", "2031-02-02 23:05:06.5-05:00"]
)
def test_a_time_that_names_its_zone(stamp: str) -> None:
    """It is turned into UTC, in front of a line as in a text."""
    assert moment(stamp) == (moment("2031-02-03 04:05:06.5")[0], False, True)
    assert read_line(f"{stamp} iteration 5".encode()) == ("iteration 5", "", stamp, len(stamp) + 12)
    assert last_stamp(f"done at {stamp}.") == stamp


@pytest.mark.parametrize("stamp", ["", "2031-02-03 04:05:06", "20310203 04:05:06", "2031-02-03T04:05:06.123456"])
def test_a_time_that_does_not_name_its_zone(stamp: str) -> None:
    """The hyphens of a date are no zone."""
    assert not moment(stamp)[2]


def test_last_time_of_a_text() -> None:
    """Of the times in a text the last one is found."""
    assert last_stamp("2031-02-03 04:05:06 and [2031-02-03 04:05:07.5]") == "2031-02-03 04:05:07.5"
    assert last_stamp("no time") == ""


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=8))
def test_pieces_do_not_matter(data: bytes, cuts: list[int]) -> None:
    """However the bytes come, the lines are those that are between line feeds and carriage returns."""
    splitter = Splitter()
    lines = []
    begin = 0
    for end in [*sorted(cuts), len(data)]:
        lines += splitter.feed(data[begin:end])
        begin = max(begin, end)
    rest = splitter.close()
    assert [line.rstrip(b"\r\n") for line in [*lines, *([rest] if rest else [])]] == data.splitlines()


def test_a_line_without_end_is_bounded() -> None:
    """Of a line that never ends so much is kept that memory stays bounded."""
    splitter = Splitter()
    for _ in range(1000):
        assert splitter.feed(b"x" * 1000) == []
    assert len(splitter.close()) < LONGEST + 1000
