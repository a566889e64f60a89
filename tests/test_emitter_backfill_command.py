"""The verb `backfill`: what it reads, refuses and says."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from emitter import blocks
from emitter.__main__ import main

CHECKOUT = Path(__file__).parent.parent
DEMO = str(CHECKOUT / "examples" / "demo.log")
BEGIN = datetime(2025, 3, 1, 12)
UNIX_S = 1_740_830_400
"""The same in UTC."""


def line(iteration: int, stamp: str = "") -> str:
    return (
        f" {stamp}iteration {iteration:8d}/     100 | consumed samples: {iteration * 64:12d} | elapsed time per "
        "iteration (ms): 20000.0 | learning rate: 3.000E-04 | global batch size:    64 | "
        f"lm loss: {3 - iteration / 10:.6E} | loss scale: 1.0 | grad norm: 0.500 | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def log(path: Path, begin: datetime | None = BEGIN, lines: int = 5) -> Path:
    """A log with a line every 20 s; without a beginning, without times."""
    stamps = ["" if begin is None else f"[{begin + timedelta(seconds=20 * i)}] " for i in range(lines)]
    path.write_text("".join(line(i + 1, stamp) for i, stamp in enumerate(stamps)))
    return path


def times(text: str) -> list[int]:
    """When the loss was seen."""
    return [int(found.rsplit(" ", 1)[1]) for found in text.splitlines() if found.startswith("megatron_training_loss{")]


def refused(capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """What is said on wrong usage, which is one line."""
    with pytest.raises(SystemExit) as left:
        main(["backfill", *options])
    said = capsys.readouterr().err
    assert (left.value.code, said.count("\n")) == (2, 1)
    return said


def test_openmetrics_goes_to_standard_output_and_the_summary_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run's name, the job's and what became of the log are there."""
    assert main(["backfill", str(log(tmp_path / "r7.log")), "--to", "openmetrics"]) == 0
    text, said = capsys.readouterr()
    labels = 'nemo_run_id="r7",job="training",instance="backfill"'
    assert f"megatron_training_loss{{{labels}}} 2.9 {UNIX_S}\n" in text
    assert text.endswith("# EOF\n")
    assert times(text) == [UNIX_S + seconds for seconds in range(0, 91, 15)]
    samples = sum(not found.startswith("#") for found in text.splitlines())
    assert said.splitlines() == [
        "backfill: 5 lines read: 5 with results, 0 recognized, 0 skipped.",
        "backfill: megatron: 5 training lines, iterations 1 to 5, 1 attempt.",
        "backfill: the log's times are taken for UTC; --timezone says otherwise.",
        f"backfill: {samples} samples of {samples_series(text)} series, 2025-03-01 11:59:45 UTC to "
        "2025-03-01 12:01:30 UTC.",
    ]


def samples_series(text: str) -> int:
    return len({found.rsplit(" ", 2)[0] for found in text.splitlines() if not found.startswith("#")})


def test_options_name_the_run_its_zone_and_the_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Noon in Shanghai is eight hours earlier."""
    options = ["--run-id", "mine", "--timezone", "Asia/Shanghai", "--scrape-interval", "1m", "--format", "megatron"]
    assert main(["backfill", str(log(tmp_path / "r7.log")), "--to", "openmetrics", *options]) == 0
    text, said = capsys.readouterr()
    assert times(text) == [UNIX_S - 8 * 3600 + seconds for seconds in (0, 60, 120)]
    assert 'nemo_run_id="mine"' in text
    assert "are taken for Asia/Shanghai;" in said


def test_json_lines_carry_the_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every record says when it was."""
    assert main(["backfill", str(log(tmp_path / "r7.log")), "--to", "jsonl"]) == 0
    told = [json.loads(found) for found in capsys.readouterr().out.splitlines()]
    assert [record["time"] for record in told] == [UNIX_S + 20 * i for i in range(5)]
    assert [record["iteration"] for record in told] == [1, 2, 3, 4, 5]


def test_a_log_without_times_ended_when_its_file_was_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Or when --end says, in the zone that is named, or in its own."""
    file = log(tmp_path / "r7.log", None)
    os.utime(file, (UNIX_S + 80, UNIX_S + 80))
    for options in (
        [],
        ["--end", "2025-03-01T12:01:20"],
        ["--end", "2025-03-01T12:01:20Z", "--timezone", "Asia/Tokyo"],
    ):
        assert main(["backfill", str(file), "--to", "openmetrics", *options]) == 0
        text, said = capsys.readouterr()
        assert times(text) == [UNIX_S + seconds for seconds in range(0, 91, 15)]
        assert "they are counted back from 2025-03-01 12:01:20 UTC" in said


def test_standard_input_is_read_from_a_pipe(tmp_path: Path) -> None:
    """What is decompressed on the way needs no file; without times it needs an end."""
    command = [sys.executable, "-m", "emitter", "backfill", "-", "--to", "openmetrics"]
    for begin, options, code in ((BEGIN, [], 0), (None, [], 1), (None, ["--end", "2025-03-01 12:01:20"], 0)):
        text = log(tmp_path / "r7.log", begin).read_text()
        done = subprocess.run(
            [*command, *options], cwd=CHECKOUT, input=text, capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        if code:
            assert done.stderr == (
                "standard input: a log without times ended at some time (got none). Give it with --end.\n"
            )
        else:
            assert len(times(done.stdout)) == 7
            assert 'nemo_run_id="stdin"' in done.stdout


@pytest.mark.parametrize("to", ["otlp:http://user:secret@host:4318", "otlp", "scrape:9464", "http://host/api/v1/write"])
def test_history_is_not_sent_to_a_live_server(to: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Why, and what to do instead, in one line; no password is repeated."""
    said = refused(capsys, DEMO, "--to", to)
    assert "history does not go to a live server" in said
    assert "Make blocks:DIR" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--to", "blocks:"], "a destination is blocks:DIR, openmetrics or jsonl (got 'blocks')"),
        (["--to", "blocks"], "a destination is blocks:DIR, openmetrics or jsonl (got 'blocks')"),
        (["--to", "jsonl", "--timezone", "Mars/Olympus"], "(got 'Mars/Olympus')"),
        (["--to", "jsonl", "--timezone", "../../etc/passwd"], "a zone is UTC, local or a name of the tz database"),
        (
            ["--to", "jsonl", "--scrape-interval", "15"],
            "with ms, s, m or h, as 15s, up to 24h (got '15')",
        ),
        (
            ["--to", "jsonl", "--scrape-interval", "0s"],
            "with ms, s, m or h, as 15s, up to 24h (got '0s')",
        ),
        (["--to", "jsonl", "--scrape-interval", "25h"], "up to 24h (got '25h')"),
        (["--to", "jsonl", "--format", "megatorn"], "Did you mean 'megatron'?"),
        (["--to", "jsonl", "--run-id", " "], "a run has an id"),
        ([], "the following arguments are required: --to"),
    ],
)
def test_wrong_usage_is_one_line(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What must hold, what came, and exit code 2."""
    assert said in refused(capsys, DEMO, *options)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nowhere.log", "--to", "jsonl"], "nowhere.log: a log must be readable (got No such file or directory)."),
        ([".", "--to", "jsonl"], ".: a log is a file (got a directory). Name a file in it."),
        (
            [DEMO, "--to", "jsonl", "--end", "noon"],
            "--end: a time is as 2026-01-31T18:00, from 1970 to 2100 (got 'noon').",
        ),
        ([DEMO, "--to", "blocks:x", "--promtool", "/nonexistent"], "promtool: blocks are made by it"),
        (["/dev/null", "--to", "openmetrics"], "/dev/null: a log has lines (got an empty file)."),
    ],
)
def test_work_that_fails_is_one_line(options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What must hold, what came, and exit code 1."""
    assert main(["backfill", *options]) == 1
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(said)


@pytest.mark.parametrize("zone", ["local", "UTC", "Asia/Shanghai"])
@pytest.mark.parametrize("end", ["0001-01-01T00:00", "0001-01-01T00:00Z", "1969-12-30", "9999-12-31T23:59"])
def test_an_end_that_is_no_time_of_a_run_is_one_line(
    end: str, zone: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor is it a time where the zone takes it beyond what there is."""
    assert (
        main(["backfill", str(log(tmp_path / "r7.log", None)), "--to", "jsonl", "--end", end, "--timezone", zone]) == 1
    )
    assert capsys.readouterr() == (
        "",
        f"--end: a time is as 2026-01-31T18:00, from 1970 to 2100 (got {end!r}). Correct it.\n",
    )


@pytest.mark.parametrize("to", ["openmetrics", "jsonl"])
@pytest.mark.parametrize("begin", [BEGIN, None])
@pytest.mark.parametrize("step_ms", ["1e17", "1e300"])
def test_a_step_that_is_longer_than_there_is_time_is_one_line(
    step_ms: str, begin: datetime | None, to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Counted back from the end, or on from the last time: no run was then."""
    file = log(tmp_path / "r7.log", begin, 1)
    with file.open("a") as more:
        more.write(line(2).replace("20000.0", step_ms))
    assert main(["backfill", str(file), "--to", to]) == 1
    said = capsys.readouterr().err
    assert said.startswith("backfill: a log's times are from 1970 to 2100 (got ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("year", ["0001", "9999"])
def test_a_time_of_a_clock_that_was_never_set_is_none(
    year: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The log then has no times of its own."""
    file = log(tmp_path / "r7.log")
    file.write_text(file.read_text().replace("[2025-", f"[{year}-"))
    assert main(["backfill", str(file), "--to", "openmetrics", "--end", "2025-03-01T12:01:20"]) == 0
    text, said = capsys.readouterr()
    assert times(text) == [UNIX_S + seconds for seconds in range(0, 91, 15)]
    assert "the log has no times" in said


def test_times_that_name_their_zone_are_not_taken_for_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever --timezone says."""
    file = log(tmp_path / "r7.log")
    file.write_text(re.sub(r"\[(\S+) (\S+)\]", r"\1T\2Z", file.read_text()))
    assert main(["backfill", str(file), "--to", "openmetrics", "--timezone", "Asia/Shanghai"]) == 0
    text, said = capsys.readouterr()
    assert times(text) == [UNIX_S + seconds for seconds in range(0, 91, 15)]
    assert "backfill: the log's times name their zone.\n" in said


def test_what_a_server_would_do_with_the_blocks_is_said(
    promtool_binary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Old ones it drops, young ones it may be writing itself, and none are from the future."""
    now = datetime.now(timezone.utc).replace(tzinfo=None)
    for before, said in (
        (timedelta(days=16), "older than the 15 days that Prometheus keeps by default"),
        (timedelta(days=14), ""),
        (timedelta(hours=1), "give them to a server only that did not run at that time"),
        (timedelta(hours=-1), "the last samples are in the future; is --timezone right?"),
    ):
        to = ["--to", f"blocks:{tmp_path / 'data'}", "--promtool", str(promtool_binary)]
        assert main(["backfill", str(log(tmp_path / "r7.log", now - before)), *to]) == 0
        cautions = capsys.readouterr().err.splitlines()[4:]
        assert bool(cautions) == bool(said)
        assert said in " ".join(cautions)


def test_a_question_ends_in_its_question_mark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log from tomorrow raises one, without a full stop behind it."""
    tomorrow = datetime.now(timezone.utc).replace(tzinfo=None) + timedelta(days=1)
    assert main(["backfill", str(log(tmp_path / "r7.log", tomorrow)), "--to", "openmetrics"]) == 0
    assert capsys.readouterr().err.endswith("backfill: the last samples are in the future; is --timezone right?\n")


def test_a_log_that_was_just_written_is_not_from_the_future(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scrape that sees its last line is a little later than that."""
    assert main(["backfill", str(log(tmp_path / "r7.log", None)), "--to", "openmetrics"]) == 0
    assert "future" not in capsys.readouterr().err


@pytest.mark.parametrize("hole", [3, 3_000_000])
def test_a_line_behind_a_hole_is_read(hole: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that was cut under its writer begins with NULs, or has them in the middle, more than any line is long."""
    file = log(tmp_path / "r7.log", BEGIN, 3)
    first, second, third = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(bytes(hole) + first + second + bytes(hole) + third + bytes(hole))
    assert main(["backfill", str(file), "--to", "jsonl"]) == 0
    text, said = capsys.readouterr()
    assert [json.loads(found)["iteration"] for found in text.splitlines()] == [1, 2, 3]
    assert "\\x00" not in said


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT], [signal.SIGHUP], [*blocks.STOPS] * 20])
def test_stopped_it_leaves_nothing_behind(signals: list[int], tmp_path: Path) -> None:
    """No block, no folder of work, no promtool; nor if whoever stops it is impatient."""
    slow = tmp_path / "promtool"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    slow.chmod(0o755)
    to = ["--to", f"blocks:{tmp_path / 'data'}", "--promtool", str(slow)]
    command = [sys.executable, "-m", "emitter", "backfill", DEMO, *to]
    process = subprocess.Popen(command, cwd=CHECKOUT, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    for number in signals:
        process.send_signal(number)
    _, said = process.communicate(timeout=60)
    if len(signals) == 1:
        assert (process.returncode, said) == (0, "backfill: stopped.\n")
    assert list((tmp_path / "data").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_what_nobody_may_hang_up_goes_on(tmp_path: Path) -> None:
    """A signal that whoever started it has it ignore, as nohup does, is ignored."""
    script = f"trap '' HUP; exec {sys.executable} -m emitter backfill - --to jsonl"
    with subprocess.Popen(
        ["sh", "-c", script], cwd=CHECKOUT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.stdin.write(log(tmp_path / "r7.log", lines=2).read_bytes())
        process.stdin.flush()
        time.sleep(1)  # it reads
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.count(b"\n")) == (0, 2)
