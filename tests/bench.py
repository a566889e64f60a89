"""`make bench`: every speed target, as a ratio measured in this run. Exit 1 if one is missed.

Ratios, since seconds on a shared machine mean nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import bench_backfill
import bench_emitter
import bench_readers
import bench_robust
import bench_spans
from rich.console import Console
from rich.table import Table

CHECKOUT = Path(__file__).resolve().parent.parent
ROUNDS = 7
PROVISION_LIMIT = 3.0
IMPORTS = "import grafanalib.core, yaml, jinja2, pydantic"


def _seconds(command: Sequence[str]) -> float:
    start = time.perf_counter()
    subprocess.run(command, cwd=CHECKOUT, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def provision() -> bench_emitter.Result:
    """Rendering and checking everything / importing the libraries that it needs, whole processes, taken in turns."""
    with tempfile.TemporaryDirectory() as out:
        ours = (sys.executable, "-m", "provisioning", "render", "--check", "--out", out)
        theirs = (sys.executable, "-c", IMPORTS)
        rounds = [(_seconds(ours), _seconds(theirs)) for _ in range(ROUNDS)]
    ratio = min(mine for mine, _ in rounds) / min(other for _, other in rounds)
    return f"render --check / {IMPORTS}", ratio, PROVISION_LIMIT


def main() -> int:
    """Print what was measured; 1 if a target is missed."""
    table = Table("Measured", box=None, pad_edge=False)
    table.add_column("Ratio", justify="right")
    table.add_column("Limit", justify="right")
    results = [
        *bench_emitter.results(),
        *bench_spans.results(),
        *bench_robust.results(),
        *bench_readers.results(),
        provision(),
        *bench_backfill.results(),
    ]
    for name, ratio, limit in results:
        table.add_row(name, f"{ratio:.3f}", f"{limit:g}", style="red" if ratio > limit else None)
    Console().print(table)
    return int(any(ratio > limit for _, ratio, limit in results))


if __name__ == "__main__":
    sys.exit(main())
