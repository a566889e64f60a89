"""The command line of the emitter: what it says, where it ends, and what it takes for an answer."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from log_commands import END, LOG, ROOT, Live, outcome, training_line

from emitter.readers import FAMILIES

DEMO = ROOT / "examples" / "demo.log"


def test_command_line_jsonl(tmp_path: Path) -> None:
    """Alone, jsonl is written at once; the lines of the log are accounted for on stderr."""
    path = tmp_path / "r7.log"
    path.write_text(LOG + "garbage\n" + LOG.splitlines()[-1][:120])
    code, out, err = outcome("replay", str(path), "--to", "jsonl")
    assert (code, len(out.splitlines())) == (0, 4)
    assert err.splitlines() == [
        "replay: 9 lines read: 3 with results, 4 recognized, 2 skipped (1 cut, 1 unknown).",
        "replay: megatron: 2 training lines, iterations 5 to 10, 1 attempt.",
        "replay: the first line that was not read and looks like a training line: "
        "'iteration       10/      50 | consumed samples:           80 | elapsed time per iteration'.",
    ]


def test_summary_names_what_was_not_read(tmp_path: Path) -> None:
    """A value that is missing now and then, a key that nobody knows and a strange training line are named."""
    path = tmp_path / "r7.log"
    strange = training_line(3).replace("grad norm: 1.250 |", "warp factor: 9 |")
    path.write_text(training_line(1) + training_line(2) + strange + "step 12 loss 2.5\n")
    _, _, err = outcome("replay", str(path), "--to", "jsonl")
    assert err.splitlines()[2:] == [
        "replay: training lines without a value that others have: grad_norm (1).",
        "replay: keys that nobody knows: warp factor.",
        "replay: the first line that was not read and looks like a training line: 'step 12 loss 2.5'.",
    ]


def test_formats_are_listed_and_forced() -> None:
    """Each format has a name, a title and a line that a reader of that name reads; a near miss is offered."""
    code, out, err = outcome("formats")
    assert (code, err) == (0, "")
    entries = re.findall(r"^([a-z0-9-]+): .+\n    (.+)$", out, re.MULTILINE)
    assert [name for name, _ in entries] == [family.name for family in FAMILIES]
    assert len(out.splitlines()) == 2 * len(entries)
    for name, example in entries:
        code, out, _ = outcome("replay", "-", "--to", "jsonl", "--format", name, text=f"{example}\n".encode())
        assert (code, json.loads(out)["kind"]) == (0, "train")
    code, _, err = outcome("replay", "-", "--format", "megatrom")
    assert (code, err.count("\n")) == (2, 1)
    assert "(got 'megatrom'). Did you mean 'megatron'?" in err


@pytest.mark.parametrize("verb", [["formats"], ["replay", str(DEMO), "--to", "jsonl"], ["doctor"]], ids=lambda v: v[0])
def test_a_full_disk_under_the_output_is_one_clear_line(verb: list[str]) -> None:
    """What cannot be written is said, exit 1, no traceback."""
    command = [sys.executable, "-m", "emitter", *verb]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, cwd=ROOT, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False
        )
    assert done.returncode == 1
    last = "standard output: must take what is written (got No space left on device). Is the disk full?"
    assert done.stderr.splitlines()[-1] == last
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("closed", "code", "words"), [("<&-", 1, "empty file"), (">&-", 0, "training lines")])
def test_closed_streams_are_empty_ones(closed: str, code: int, words: str) -> None:
    """Nothing comes from a standard input that is closed, and nothing goes to such an output."""
    log = "-" if closed == "<&-" else str(DEMO)
    shell = f'"{sys.executable}" -m emitter replay "{log}" --to jsonl {closed}'
    done = subprocess.run(shell, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (code, False)
    assert words in done.stderr


def test_standard_input() -> None:
    """A dash reads standard input."""
    code, out, _ = outcome("replay", "-", "--to", "jsonl", text=LOG.encode())
    assert (code, len(out.splitlines())) == (0, 4)


def test_only_working_verbs_are_listed() -> None:
    """The help names the verbs, each of which has a help of its own."""
    code, out, _ = outcome("--help")
    verbs = re.findall(r"^    (\w+)  ", out, re.MULTILINE)
    assert code == 0
    assert {"replay", "follow", "formats"} <= set(verbs)
    for verb in verbs:
        assert outcome(verb, "--help")[0] == 0
    for arguments in ([], ["chase", "x"], ["replay"], ["follow"]):
        code, out, err = outcome(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "a log must be readable (got No such file or directory). Check the path."),
        (b"", "a log has lines (got an empty file). Is the run's output somewhere else?"),
        (b"\x7fELF\x02\x01\x01\x00\x00" * 99, "a log is text (got binary data). Decompress or convert it."),
        (b"\x1f\x8b\x08\xfe\xff" * 99, "a log is text (got binary data). Decompress or convert it."),
        (b"hello\nworld\n", "a log has training lines of a known layout (got 2 lines without one). Other layouts"),
    ],
)
def test_useless_file_is_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    """A file that cannot be replayed is one line on stderr, exit 1, and nothing on stdout or on a port."""
    path = tmp_path / "x.log"
    if content is not None:
        path.write_bytes(content)
    for to in ("jsonl", "scrape:0"):
        code, out, err = outcome("replay", str(path), "--to", to)
        assert (code, out, err.count("\n")) == (1, "", 1), err
        assert err.startswith(f"{path}: {message}")


def test_directory_is_one_line(tmp_path: Path) -> None:
    """So is a directory."""
    code, out, err = outcome("replay", str(tmp_path))
    assert (code, out, err) == (1, "", f"{tmp_path}: a log is a file (got a directory). Name a file in it.\n")


def test_occupied_port_is_one_line() -> None:
    """So is a port that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code, out, err = outcome("replay", str(DEMO), "--to", f"scrape:{port}", "--to", "jsonl")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith(f"scrape:127.0.0.1:{port}: the port must be free to listen on (got ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--to", "nowhere"),
        ("--to", "scrape:http"),
        ("--speed", "0"),
        ("--speed", "nan"),
        ("--speed", "fast"),
        ("--linger", "-1"),
        ("--run-id", " "),
        ("--fast",),
    ],
)
def test_wrong_usage_is_one_line(arguments: tuple[str, ...]) -> None:
    """What cannot be asked for is one line on stderr, and exit 2."""
    code, out, err = outcome("replay", str(DEMO), *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "Traceback" not in err


@pytest.mark.live
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_live_scrape(tmp_path: Path, number: int) -> None:
    """The last values stay after the end of the log, with the end marked, until a signal stops it cleanly."""
    path = tmp_path / "r7.log"
    path.write_text(LOG + END)
    with Live("replay", str(path), "--to", "scrape:0", "--speed", "200") as live:
        text = live.wait_for('phase="ended"} 1.0')
        assert 'megatron_training_iteration{nemo_run_id="r7"' in text
        assert text.count("\nmegatron_training_iteration{") == 1
        code, err = live.stop(number)
    assert code == 0
    assert err.splitlines() == [
        "replay: 8 lines read: 3 with results, 5 recognized, 0 skipped.",
        "replay: megatron: 2 training lines, iterations 5 to 10, 1 attempt.",
        "replay: the log is over; its last values stay for 60 s, or until Ctrl-C.",
        "replay: stopped.",
    ]


@pytest.mark.live
def test_signal_during_the_log() -> None:
    """A signal in the middle stops at once, cleanly."""
    with Live("replay", str(DEMO), "--to", "scrape:0", "--run-id", "a`b") as live:
        code, err = live.stop(signal.SIGTERM)
    assert code == 0
    assert err.splitlines()[-1] == "replay: stopped."
    assert "Traceback" not in err


@pytest.mark.live
def test_linger_ends() -> None:
    """A linger has an end, and its end is success."""
    code, _, err = outcome("replay", str(DEMO), "--to", "scrape:0", "--speed", "100000", "--linger", "0.1")
    assert code == 0
    assert err.endswith("its last values stay for 0.1 s, or until Ctrl-C.\n")


@pytest.mark.live
def test_collector_that_never_answers_is_a_failure() -> None:
    """A replay whose values reached nobody does not pretend to have worked."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    code, out, err = outcome("replay", str(DEMO), "--to", f"otlp:http://127.0.0.1:{port}", "--speed", "1e9")
    assert (code, out) == (1, "")
    assert "replay: the last values must arrive" in err
    assert "Traceback" not in err


@pytest.mark.live
@pytest.mark.parametrize("to", ["jsonl", "console"])
def test_broken_pipe(to: str, tmp_path: Path) -> None:
    """Whoever reads only the first lines leaves no traceback behind."""
    path = tmp_path / "long.log"
    train = LOG.splitlines()[4]
    path.write_text("\n".join(train.replace("       5/", f"{number:8d}/") for number in range(1, 2000)))
    with subprocess.Popen(
        [sys.executable, "-m", "emitter", "replay", str(path), "--to", to, "--speed", "1e9"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        err = process.stderr.read().decode()
        assert process.wait(20) in (0, 1)
    assert "Traceback" not in err
    assert "Exception" not in err


@pytest.mark.live
def test_progress_on_a_terminal() -> None:
    """On a terminal a line now and then tells where the replay is."""
    pty = pytest.importorskip("pty")
    terminal, inner = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "emitter", "replay", str(DEMO), "--to", "scrape:0", "--speed", "20"],
        cwd=ROOT,
        stderr=inner,
    ) as process:
        os.close(inner)
        shown = b""
        deadline = time.monotonic() + 30
        while b"into the log" not in shown and time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 1000)
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    os.close(terminal)
    assert re.search(rb"replay: no iteration yet, 0:00:\d\d into the log\.", shown)
