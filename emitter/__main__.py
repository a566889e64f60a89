"""The command line: `python -m emitter`, or `python -m megatron_watch` where the wheel is installed."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from . import catalog, replay
from .destinations import FORMS, LOOPBACK, destination
from .errors import EmitterError
from .readers import LogReader, reader
from .records import Record

PROGRESS_S = 3.0
"""Time between two lines of progress on a terminal."""

PUSH_S = 5.0
"""Time between two pushes; a replay is watched, so it is shorter than a run's."""

LINGER_S = 60.0
"""Time that the last values are served by default: four scrapes at Prometheus' usual 15 s."""


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong."""

    def error(self, message: str) -> NoReturn:
        """One line, exit 2."""
        self.exit(2, f"{self.prog}: {message.rstrip('.')}. Try --help.\n")


def main(arguments: list[str] | None = None) -> int:
    """Run a verb; 0 if all is well, 1 if the work failed, 2 if it was asked for wrongly."""
    parser = _Parser(prog=f"python -m {__package__}", description="Metrics of training runs.")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=_Parser)
    _add_replay(verbs.add_parser("replay", help="a training log as if the run were live", description=_REPLAY))
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _replay(options)
        sys.stdout.flush()
    except EmitterError as error:
        print(error, file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read the output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        print("replay: stopped.", file=sys.stderr)
    return 0


_REPLAY = """Replay a training log in its own rhythm: metrics come out as they did when the run was live.
A log that ends without saying so leaves its run hanging, which is what it looked like."""


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", metavar="LOG", help="the file, or - for standard input")
    parser.add_argument(
        "--speed", type=_speed, default=1.0, metavar="N", help="N times as fast as the run was (default 1)"
    )
    parser.add_argument(
        "--to",
        action="append",
        type=_to,
        metavar="DESTINATION",
        help="scrape:PORT or scrape:HOST:PORT (default scrape:9464), otlp:URL, console, jsonl; may be repeated. "
        "jsonl alone does not wait",
    )
    parser.add_argument("--run-id", type=_run_id, metavar="ID", help="default: the file's name without its suffix")
    parser.add_argument(
        "--linger",
        type=_seconds,
        metavar="SECONDS",
        help=f"how long the last values stay after the end of the log (default {LINGER_S:g} with scrape, else 0)",
    )


def _speed(text: str) -> float:
    with suppress(ValueError):
        if 0 < (speed := float(text)) < math.inf:
            return speed
    raise argparse.ArgumentTypeError(f"a speed is a number above 0 (got {text!r}). Use 1 for real time.")


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) < math.inf:
            return seconds
    raise argparse.ArgumentTypeError(f"seconds are a number from 0 on (got {text!r}).")


def _run_id(text: str) -> str:
    if text.strip():
        return text
    raise argparse.ArgumentTypeError(f"a run has an id (got {text!r}). Leave it out to use the file's name.")


def _to(text: str) -> str:
    try:
        if text != "jsonl":
            destination(text, (*FORMS, "jsonl"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("emitter: ")) from error
    return text


def _replay(options: argparse.Namespace) -> None:
    to: list[str] = options.to or ["scrape:9464"]
    ways_out = [text for text in to if text != "jsonl"]
    sinks = [replay.jsonl(sys.stdout)] if "jsonl" in to else []
    with ExitStack() as closing:
        lines = _lines(options.log)
        closing.callback(lines.close)
        log = reader()
        records = replay.records("standard input" if options.log == "-" else options.log, lines, log)
        if not ways_out:
            _run(log, records, sinks, speed=math.inf)
            return
        from . import start  # this loads the SDK, or says what to install

        run_id = options.run_id or ("stdin" if options.log == "-" else Path(options.log).stem)
        export = closing.enter_context(start(run_id, ways_out, interval_s=PUSH_S))
        sinks.append(replay.metrics(export.meter, time.time()))
        addresses = [f"http://{_host(host)}:{port}/metrics" for host, port in export.addresses]
        _say(f"run {export.run_id!r} at {' and '.join(addresses or ways_out)}")
        _run(log, records, sinks, speed=options.speed)
        linger_s = options.linger if options.linger is not None else LINGER_S if addresses else 0.0
        if linger_s > 0:
            _say(f"the log is over; its last values stay for {linger_s:g} s, or until Ctrl-C")
            time.sleep(linger_s)
        if not export.flush():
            export.shutdown(0)
            raise EmitterError("replay: the last values must arrive (got no consent). Does the collector answer?")


def _run(log: LogReader, records: Iterable[Record], sinks: list[replay.Sink], *, speed: float) -> None:
    try:
        replay.replay(
            replay.timeline(records),
            sinks,
            speed=speed,
            clock=time.monotonic,
            sleep=time.sleep,
            progress=_progress() if speed < math.inf and sys.stderr.isatty() else lambda seconds, record: None,
        )
    finally:
        counts = log.counts
        _say(
            f"{counts.total} lines read: {counts.records} with results, {counts.recognized} recognized, "
            f"{counts.skipped} skipped"
        )


def _lines(name: str) -> Generator[bytes, None, None]:
    try:
        if name == "-":
            yield from sys.stdin.buffer
        else:
            with open(name, "rb") as file:
                yield from file
    except IsADirectoryError:
        raise EmitterError(f"{name}: a log is a file (got a directory). Name a file in it.") from None
    except OSError as error:
        raise EmitterError(f"{name}: a log must be readable (got {error.strerror}). Check the path.") from error


def _host(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return LOOPBACK
    return f"[{host}]" if ":" in host else host


def _progress() -> Callable[[float, Record | None], None]:
    shown = -math.inf

    def progress(seconds: float, record: Record | None) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - shown < PROGRESS_S:
            return
        shown = now
        where = "no iteration yet"
        if record:
            values = record.values
            where = f"iteration {values[catalog.ITERATION]}/{values.get(catalog.TARGET_ITERATION, '?')}"
        _say(f"{where}, {timedelta(seconds=round(seconds))} into the log")

    return progress


def _say(message: str) -> None:
    print(f"replay: {message}.", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
