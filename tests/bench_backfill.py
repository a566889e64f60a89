"""Cost of a backfill: linear in the log, and little beside promtool's; `make bench` prints it.

The log is of a run that prints a line every 20 s, with nine others that say nothing in between.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

from bench_emitter import Result

from emitter import blocks
from emitter.backfill import History, Stamps, begin, timed
from emitter.readers import reader
from emitter.records import Record
from provisioning.stack import tools
from provisioning.stack.prometheus import promtool

RECORDS = 1_500
LINE_S = 20
GROWTH = 4
GROWTH_LIMIT = 4.4  # linear, and a tenth for the machine
PROMTOOL_LIMIT = 2.0  # against promtool that is given the same pieces, one after the other
ROUNDS = 3


def _log(path: Path, records: int) -> Path:
    lines = [
        "  global_batch_size ............................... 256",
        "  seq_length ...................................... 4096",
    ]
    now = datetime(2025, 3, 1, 9, 0, 7, 250_000)
    for number in range(1, records + 1):
        now += timedelta(seconds=LINE_S)
        lines += ["data loader: shard 17 of 900 is open"] * 9
        lines.append(
            f" [{now}] iteration {number * 5:8d}/ {records * 5:8d} | consumed samples: {number * 1280:12d} | "
            f"elapsed time per iteration (ms): {4000 + number % 17:.1f} | throughput per GPU (TFLOP/s/GPU): "
            f"{400 + number % 10:.1f} | learning rate: {3e-4 - number * 1e-9:.6E} | global batch size:   256 | "
            f"lm loss: {2 + number % 100 / 100:.6E} | loss scale: 1.0 | grad norm: {0.3 + number % 7 / 10:.3f} | "
            "number of skipped iterations:   0 | number of nan iterations:   0 |"
        )
    path.write_text("\n".join(lines) + "\n")
    return path


def _records(log: Path) -> Iterator[Record]:
    reading = reader()
    with log.open("rb") as file:
        while data := file.read(1 << 18):
            yield from reading.feed(data)
    yield from reading.close()


def _pieces(log: Path) -> Iterator[Iterator[str]]:
    begin_s, _ = begin(_records(log), timezone.utc, 0.0)
    labels = {"nemo_run_id": "bench", "job": "training", "instance": "backfill"}
    history = History(interval_ms=15_000, labels=labels, length_ms=blocks.BLOCK_MS)
    return history.pieces(timed(_records(log), Stamps(timezone.utc), begin_s))


def _seconds(call: Callable[[Path], object]) -> float:
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        call(Path(folder))
        return time.perf_counter() - start


def results() -> list[Result]:
    """Every measurement."""
    program = tools.find("promtool")
    with tempfile.TemporaryDirectory() as folder:
        short, long = (_log(Path(folder) / f"{times}.log", RECORDS * times) for times in (1, GROWTH))
        files = []
        for number, piece in enumerate(_pieces(long)):
            files.append(Path(folder) / f"{number}.om")
            files[-1].write_text("".join(piece))

        def ours(log: Path) -> Callable[[Path], object]:
            return lambda out: blocks.write(_pieces(log), out, str(program), lambda: None)

        def theirs(out: Path) -> None:
            for file in files:
                promtool("tsdb", "create-blocks-from", "openmetrics", str(file), str(out / file.stem), binary=program)

        rounds = [(_seconds(ours(short)), _seconds(ours(long)), _seconds(theirs)) for _ in range(ROUNDS)]
    first, grown, alone = (min(times) for times in zip(*rounds, strict=True))
    return [
        (f"backfill of {GROWTH} times the records", grown / first, GROWTH_LIMIT),
        ("backfill / promtool on the same pieces", grown / alone, PROMTOOL_LIMIT),
    ]
