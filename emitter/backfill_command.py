"""The verb `backfill` of the command line: the log of a run that is over, as blocks, OpenMetrics text or JSON lines."""

from __future__ import annotations

import argparse
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime, timezone, tzinfo
from io import BufferedIOBase
from pathlib import Path
from types import FrameType
from zoneinfo import ZoneInfo

from . import blocks, replay
from .backfill import ENDED_SCRAPES, YEARS_S, Clock, History, Stamps, begin, timed
from .errors import EmitterError
from .identity import cleaned
from .log_options import chunks, name_in_messages, opened, readable, reader_of, run_id_option, run_name
from .narration import PROGRESS_S, say, sum_up
from .readers import LogReader, reader
from .records import Record
from .spool import copied

BACKFILL = """Turn the log of a run that is over into the history that it would have left, had it been scraped, at
the log's own times. blocks:DIR makes blocks of a Prometheus' database by promtool. DIR may be the data directory of a
running server, which loads them within minutes and drops what is older than its --storage.tsdb.retention.time."""

RETENTION_S = 15 * 86_400
"""What Prometheus keeps unless told otherwise."""

HEAD_S = 3 * 3600
"""What a running Prometheus may not have written into blocks of its own."""

VERB = "backfill"

TARGET = {"job": "training", "instance": "backfill"}
"""What a scrape adds to a series; the job's name is that of the scrape configuration we render."""

_LIVE = ("scrape", "otlp", "console", "http", "https", "remote-write", "remote_write")
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_LONGEST_MS = 24 * _UNITS_MS["h"]


def add_backfill(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `backfill`."""
    parser.add_argument("log", metavar="LOG", help="the file, or - for standard input")
    parser.add_argument(
        "--to",
        required=True,
        type=_to,
        metavar="DESTINATION",
        help="blocks:DIR, or openmetrics or jsonl on standard output",
    )
    parser.add_argument(
        "--run-id", type=run_id_option, metavar="ID", help="default: the file's name without its suffix"
    )
    parser.add_argument(
        "--timezone",
        type=_zone,
        default=timezone.utc,
        metavar="ZONE",
        help="where the log's times are from that do not say it: UTC (default), Asia/Shanghai, …, or local",
    )
    parser.add_argument(
        "--end",
        metavar="TIME",
        help="when a log without times ended, as 2026-01-31T18:00 (default: when the file was last changed)",
    )
    parser.add_argument(
        "--scrape-interval",
        type=_milliseconds,
        default=15_000,
        metavar="DURATION",
        help="time between two samples, as 15s (default) or 1m: that of the Prometheus which will show them",
    )
    parser.add_argument(
        "--format", type=_format, metavar="NAME", help="what `formats` lists (default: found from the lines)"
    )
    parser.add_argument("--promtool", metavar="PATH", help="default: PROMTOOL, else the one on PATH")
    parser.set_defaults(run=_backfill)


def _backfill(options: argparse.Namespace) -> int:
    kind, _, folder = options.to.partition(":")
    promtool = blocks.find_promtool(options.promtool, os.environ) if kind == "blocks" else ""
    name = name_in_messages(options.log)
    stamps = Stamps(options.timezone)
    history = History(
        interval_ms=options.scrape_interval,
        labels={"nemo_run_id": cleaned(options.run_id or run_name(options.log)), **TARGET},
        length_ms=blocks.BLOCK_MS if kind == "blocks" else None,
    )
    made = None
    with _stopped_once(), ExitStack() as closing:
        closing.callback(history.samples.close)
        file, changed_s = _opened(options.log, name, closing)
        end_s = changed_s if options.end is None else _time_s(options.end, options.timezone)
        begin_s, stamped = begin(_records(reader(options.format), file, name), options.timezone, end_s or 0.0)
        if not stamped and end_s is None:
            raise EmitterError(f"{name}: a log without times ended at some time (got none). Give it with --end.")
        log = reader(options.format)
        told = timed(_records(log, file, name), stamps, begin_s)
        if kind == "jsonl":
            clock = Clock()
            sink = replay.jsonl(sys.stdout, clock)
            for at_s, record in told:
                clock.now_s = at_s
                sink(record)
        elif kind == "blocks":
            made = blocks.write(history.pieces(told), Path(folder), promtool, _progress(history))
        else:
            for piece in history.pieces(told):
                sys.stdout.writelines(piece)
    sum_up(log.summary, VERB)
    _say_whence(options, stamped, end_s, stamps)
    _say_what(history, made, options.scrape_interval / 1000)
    return 0


@contextmanager
def _stopped_once() -> Iterator[None]:
    """Where a signal ends the work, and those that follow it do not end the clearing up."""
    heard = [number for number in blocks.STOPS if signal.getsignal(number) is not signal.SIG_IGN]  # as by nohup

    def stop(number: int, frame: FrameType | None) -> None:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = [(number, signal.signal(number, stop)) for number in heard]
    try:
        yield
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _say_what(history: History, made: int | None, interval_s: float) -> None:
    if history.first_s is None or history.last_s is None:
        return
    samples = history.samples
    where = "" if made is None else f" in {made} block{'' if made == 1 else 's'}"
    _say(
        f"{samples.count} samples of {samples.series} series{where}, {_utc(history.first_s)} to {_utc(history.last_s)}"
    )
    _say_cautions(history.last_s, time.time(), interval_s, to_blocks=made is not None)


def _say_whence(options: argparse.Namespace, stamped: bool, end_s: float | None, stamps: Stamps) -> None:
    """Where the times are from: what had to be assumed is said."""
    if stamped:
        if stamps.assumed:
            _say(f"the log's times are taken for {options.timezone or 'local time'}; --timezone says otherwise")
        else:
            _say("the log's times name their zone")
        if options.end is not None:
            _say("--end is for logs without times; this one has its own")
    elif end_s is not None:
        whence = "--end" if options.end is not None else "when the file was last changed; --end says otherwise"
        _say(f"the log has no times; they are counted back from {_utc(end_s)}, {whence}")
    if stamps.back:
        times = "once" if stamps.back == 1 else f"{stamps.back} times"
        _say(f"the log's clock went back {times}; what follows is shown as much later as it went back")


def _say_cautions(last_s: float, now_s: float, interval_s: float, *, to_blocks: bool) -> None:
    if last_s > now_s + ENDED_SCRAPES * interval_s:
        _say("the last samples are in the future; is --timezone right?")
    if not to_blocks:
        return
    if last_s < now_s - RETENTION_S:
        _say(
            "all samples are older than the 15 days that Prometheus keeps by default: it drops such blocks at once "
            "unless --storage.tsdb.retention.time reaches back to them"
        )
    elif last_s > now_s - HEAD_S:
        _say("the last samples are less than 3 hours old: give them to a server only that did not run at that time")


def _records(log: LogReader, file: BufferedIOBase, name: str) -> Iterator[Record]:
    """The records of the whole log."""
    file.seek(0)
    return replay.records(name, chunks(file, name), log)


def _opened(log: str, name: str, closing: ExitStack) -> tuple[BufferedIOBase, float | None]:
    """The log, so that it can be read twice, and when it was last changed; what is no file is copied into one."""
    with readable(name):
        file = closing.enter_context(opened(log))
        if file.seekable():
            return file, os.stat(file.fileno()).st_mtime
    return closing.enter_context(copied(chunks(file, name))), None


def _progress(history: History) -> Callable[[], None]:
    if not sys.stderr.isatty():
        return lambda: None
    shown = time.monotonic()

    def progress() -> None:
        nonlocal shown
        if time.monotonic() - shown >= PROGRESS_S and history.last_s is not None:
            shown = time.monotonic()
            _say(f"{_utc(history.last_s)} reached, {history.samples.count} samples")

    return progress


def _to(text: str) -> str:
    kind, _, rest = text.partition(":")
    if text in ("openmetrics", "jsonl") or (kind == "blocks" and rest):
        return text
    if kind in _LIVE:
        raise argparse.ArgumentTypeError(
            f"history does not go to a live server (got {kind!r}), which refuses samples as old and gives what "
            "it scrapes its own time. Make blocks:DIR and let a Prometheus load them, or use replay"
        )
    raise argparse.ArgumentTypeError(f"a destination is blocks:DIR, openmetrics or jsonl (got {kind!r})")


def _format(name: str) -> str:
    reader_of(name)
    return name


def _zone(text: str) -> tzinfo | None:
    if text == "local":
        return None
    if text == "UTC":
        return timezone.utc
    with suppress(ValueError, OSError, KeyError):  # not found is a KeyError
        return ZoneInfo(text)
    raise argparse.ArgumentTypeError(
        f"a zone is UTC, local or a name of the tz database, as Asia/Shanghai (got {text!r}). "
        "If the name is right, install tzdata"
    )


def _time_s(text: str, zone: tzinfo | None) -> float:
    with suppress(ValueError, OverflowError):  # what is no time, and what is out of range in its zone
        moment = datetime.fromisoformat(f"{text[:-1]}+00:00" if text.endswith("Z") else text)
        unix_s = (moment if moment.tzinfo else moment.replace(tzinfo=zone)).timestamp()
        if YEARS_S[0] <= unix_s < YEARS_S[1]:
            return unix_s
    raise EmitterError(f"--end: a time is as 2026-01-31T18:00, from 1970 to 2100 (got {text!r}). Correct it.")


def _milliseconds(text: str) -> int:
    match = re.fullmatch(r"(\d{1,6})(ms|s|m|h)", text, re.ASCII)
    if match and 0 < (number := int(match[1]) * _UNITS_MS[match[2]]) <= _LONGEST_MS:
        return number
    raise argparse.ArgumentTypeError(f"a duration is a number with ms, s, m or h, as 15s, up to 24h (got {text!r})")


def _utc(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _say(message: str) -> None:
    say(message, VERB)
