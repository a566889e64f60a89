"""The verbs of the command line that read a log: `replay`, `follow` and `formats`."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from . import replay
from .destinations import FORMS, LOOPBACK, destination
from .errors import EmitterError
from .follow import LINGER_S as FOLLOW_LINGER_S
from .follow import Follower
from .identity import attempt
from .log_options import chunks, name_in_messages, opened, readable, reader_of, run_id_option, run_name
from .log_run import LoggedRun, Past
from .loop import LINGER_S as SCRAPE_S
from .narration import nothing_yet, place_in_log, say, share_read, sum_up
from .place import State, StateFile
from .readers import FAMILIES, LogReader, reader
from .records import Record
from .tail import Pipe, Source, Tail

if TYPE_CHECKING:
    from .export import Export

PUSH_S = 5.0
"""Time between two pushes; a replay is watched, so it is shorter than a run's."""

REPLAY_LINGER_S = 60.0
"""Time that the last values are served by default: four scrapes at Prometheus' usual 15 s."""

REPLAY = """Replay a training log in its own rhythm: metrics come out as they did when the run was live.
A log that ends without saying so leaves its run hanging, which is what it looked like."""

FOLLOW = """Follow the log of a run that is live, through rotation, truncation and restarts, beside the job that writes
it. What the log holds already gives the present values; counters start at 0. When the log says that the run has ended
and is silent from then on, follow stops. A log that falls silent without a word is a run that hangs, as far as can be
told from it. A signal stops follow and does not end the run."""


def add_replay(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `replay`."""
    parser.add_argument("log", metavar="LOG", help="the file, or - for standard input")
    parser.add_argument(
        "--speed", type=_speed, default=1.0, metavar="N", help="N times as fast as the run was (default 1)"
    )
    _add_common(parser, run_id="the file's name without its suffix")
    parser.add_argument(
        "--linger",
        type=_seconds,
        metavar="SECONDS",
        help="how long the last values stay after the end of the log "
        f"(default {REPLAY_LINGER_S:g} with scrape, else 0)",
    )
    parser.set_defaults(run=_replay)


def add_follow(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `follow`."""
    parser.add_argument(
        "logs",
        metavar="LOG",
        nargs="+",
        help="a file, which may be missing yet, a directory or a pattern of the files of several ranks; "
        "or - for standard input",
    )
    _add_common(parser, run_id="the name of the file or directory, without suffix")
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="keep the place there, and go on from it after a restart"
    )
    parser.add_argument(
        "--linger",
        type=_seconds,
        default=FOLLOW_LINGER_S,
        metavar="SECONDS",
        help="silence after the run has ended until follow stops (default %(default)g)",
    )
    parser.set_defaults(run=_follow)


def add_formats(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `formats`."""
    parser.set_defaults(run=_formats)


def _add_common(parser: argparse.ArgumentParser, *, run_id: str) -> None:
    parser.add_argument(
        "--to",
        action="append",
        type=_to,
        metavar="DESTINATION",
        help="scrape:PORT or scrape:HOST:PORT (default scrape:9464), otlp:URL, console, jsonl; may be repeated. "
        "A replay to jsonl alone does not wait",
    )
    parser.add_argument("--run-id", type=run_id_option, metavar="ID", help=f"default: {run_id}")
    parser.add_argument(
        "--format",
        dest="reader",
        type=reader_of,
        metavar="NAME",
        help="what `formats` lists (default: found from the lines)",
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


def _to(text: str) -> str:
    try:
        if text != "jsonl":
            destination(text, (*FORMS, "jsonl"))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("emitter: ")) from error
    return text


def _formats(options: argparse.Namespace) -> int:
    for family in FAMILIES:
        print(f"{family.name}: {family.title}\n    {family.example.strip()}")
    return 0


def _replay(options: argparse.Namespace) -> int:
    ways_out, sinks = _destinations(options)
    log = options.reader or reader()
    with ExitStack() as closing:
        name = name_in_messages(options.log)
        with readable(name):
            file = closing.enter_context(opened(options.log))
        records = replay.records(name, chunks(file, name), log)
        if not ways_out:
            _play(log, records, sinks, replay.LogTime(0.0), speed=math.inf)
            return 0
        export = _start(options.run_id or run_name(options.log), ways_out, "replay", closing)
        log_time = replay.LogTime(time.time())
        sinks.append(replay.metrics(export.meter, log_time, time.time))
        _play(log, records, sinks, log_time, speed=options.speed)
        linger_s = options.linger if options.linger is not None else REPLAY_LINGER_S if export.addresses else 0.0
        if linger_s > 0:
            say(f"the log is over; its last values stay for {linger_s:g} s, or until Ctrl-C", "replay")
            time.sleep(linger_s)
        if not export.flush():
            export.shutdown(0)
            raise EmitterError("replay: the last values must arrive (got no consent). Does the collector answer?")
    return 0


def _follow(options: argparse.Namespace) -> int:
    ways_out, sinks = _destinations(options)
    log = options.reader or reader()
    stop = threading.Event()
    _on_signals(lambda *_: stop.set())
    state_file = StateFile(options.state) if options.state else None
    with ExitStack() as closing:
        if state_file and not closing.enter_context(state_file.alone()):
            print(
                f"{options.state}: a state file must be of one follow (got another that runs). "
                "Name another file, or end that one first.",
                file=sys.stderr,
            )
            return 2
        saved = state_file.load() if state_file else None
        source = _source(options, state_file, saved, closing)
        export = _start(options.run_id or run_name(options.logs[0]), ways_out, "follow", closing) if ways_out else None

        def begin(past: Past) -> Sequence[replay.Sink]:
            return [*map(_or_without, sinks), LoggedRun(export.meter, time.time, past=past)] if export else sinks

        follower = Follower(
            source,
            log,
            begin,
            saved=saved,
            state_file=state_file,
            first_attempt=attempt(os.environ),
            linger_s=options.linger,
            progress=share_read(),
            nothing_yet=lambda: say(nothing_yet(log.summary), "follow"),
        )
        follower.run(source.wait, stop.is_set, time.monotonic)
        _on_signals(signal.default_int_handler)  # from now on a signal means at once
        sum_up(log.summary, "follow")
        say("the run has ended" if follower.ended else "stopped; the run has not ended", "follow")
        if export:
            export.flush()
            if follower.ended or source.over:
                export.await_scrape(SCRAPE_S)
    return 0


def _or_without(sink: replay.Sink) -> replay.Sink:
    """A sink beside the metrics: if it fails, the disk under it full or its reader gone, they go on."""
    gone = False

    def take(record: Record) -> None:
        nonlocal gone
        try:
            if not gone:
                sink(record)
        except OSError as error:
            gone = True
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left of the output goes there
            say(f"standard output takes no more ({error.strerror}); the metrics go on", "follow")

    return take


def _source(
    options: argparse.Namespace, state_file: StateFile | None, saved: State | None, closing: ExitStack
) -> Source:
    if "-" in options.logs:
        if len(options.logs) > 1 or options.state:
            raise EmitterError(
                "follow: standard input is followed alone and has no place to go on from (got LOG or --state, too). "
                "Leave it out."
            )
        return Pipe(sys.stdin.fileno())
    ours = state_file.has if state_file else lambda path: False
    tail = Tail(options.logs, saved.positions if saved else None, ours=ours)
    closing.callback(tail.close)
    return tail


def _on_signals(handler: Callable[[int, FrameType | None], object]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handler)


def _destinations(options: argparse.Namespace) -> tuple[list[str], list[replay.Sink]]:
    """Ways out for metrics, and sinks of records."""
    to: list[str] = options.to or ["scrape:9464"]
    return [text for text in to if text != "jsonl"], [replay.jsonl(sys.stdout)] if "jsonl" in to else []


def _start(run_id: str, ways_out: list[str], verb: str, closing: ExitStack) -> Export:
    from . import start  # this loads the SDK, or says what to install

    export = closing.enter_context(start(run_id, ways_out, interval_s=PUSH_S))
    addresses = [f"http://{_host(host)}:{port}/metrics" for host, port in export.addresses]
    say(f"run {export.run_id!r} at {' and '.join(addresses or ways_out)}", verb)
    return export


def _play(
    log: LogReader, records: Iterable[Record], sinks: list[replay.Sink], log_time: replay.LogTime, *, speed: float
) -> None:
    try:
        replay.replay(
            replay.timeline(records),
            sinks,
            speed=speed,
            clock=time.monotonic,
            sleep=time.sleep,
            log_time=log_time,
            progress=place_in_log(),
        )
    finally:
        sum_up(log.summary, "replay")


def _host(host: str) -> str:
    if host in ("0.0.0.0", "::"):
        return LOOPBACK
    return f"[{host}]" if ":" in host else host
