"""What an outage adds to a recording, and what importing the emitter costs. `python tests/bench_robust.py` prints it.

Ratios, since seconds on a shared machine mean nothing: the sides are timed in turns.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench_emitter import VALUES, Result, show
from collectors import SICK, Hazard, over_grpc, over_http

from emitter import record_training_metrics
from emitter.export import start

CHECKOUT = Path(__file__).resolve().parent.parent
OUTAGE_LIMIT = 3.0
IMPORT_LIMIT = 1.2
WELL: dict[str, Hazard] = {"http": over_http, "grpc": over_grpc}
DEAD = ("refusing", "hanging")

ROUNDS = 7
STEPS = 9_000
"""Of a round: its p99.9 is the ninth slowest call, not a single accident. More would fill the queue of the histogram,
which at the pace of training never happens: an outage holds up collections for ten seconds, the queue half a day."""

BURST = 100
PAUSE_S = 0.004
"""A round is spread over some four tenths of a second, so that exports happen during it, and in pieces too short for
the scheduler to interrupt."""
EXPORTS_EVERY_S = 0.05

IMPORT_ROUNDS = 15
OURS = "import emitter"
THEIRS = "import opentelemetry.metrics, opentelemetry.trace"


def _p999_s(collector: Hazard) -> float:
    """Time that one recording in a thousand exceeds, with that collector."""
    clock, times = time.perf_counter, []
    with collector() as at:
        export = start("bench", [at.to], interval_s=EXPORTS_EVERY_S)
        meter = export.meter
        for step in range(STEPS):
            if step % BURST == 0:
                time.sleep(PAUSE_S)
            begun = clock()
            record_training_metrics(meter, *VALUES)
            times.append(clock() - begun)
        export.shutdown(0.1)
    times.sort()
    return times[-(STEPS // 1000)]


def outages() -> list[Result]:
    """The slowest thousandth of recordings while a collector refuses or hangs, against one that is well."""
    logging.disable(logging.ERROR)  # and leave it so: what hangs complains when all is over
    results = []
    for scheme, well in WELL.items():
        sides = {"well": well, **{name: SICK[f"{scheme} {name}"] for name in DEAD}}
        rounds = [{name: _p999_s(collector) for name, collector in sides.items()} for _ in range(ROUNDS)]
        p999 = {name: median(of_round[name] for of_round in rounds) for name in sides}
        for name in DEAD:
            what = f"p99.9 of a recording, {scheme} collector {name} / well"
            results.append((what, p999[name] / p999["well"], OUTAGE_LIMIT))
    return results


def _seconds(code: str) -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], cwd=CHECKOUT, check=True)
    return time.perf_counter() - begun


def imports() -> Result:
    """Importing the emitter / importing the OpenTelemetry API, in fresh interpreters."""
    rounds = [(_seconds(OURS), _seconds(THEIRS)) for _ in range(IMPORT_ROUNDS)]
    ratio = min(mine for mine, _ in rounds) / min(other for _, other in rounds)
    return f"{OURS} / {THEIRS}", ratio, IMPORT_LIMIT


def results() -> list[Result]:
    """Every measurement."""
    return [*outages(), imports()]


if __name__ == "__main__":
    sys.exit(show(results()))
