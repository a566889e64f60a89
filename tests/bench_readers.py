"""Cost of reading a log, as a ratio measured in one run. `python tests/bench_readers.py` prints a table.

The other side is the least that any reader does: read the file, and look into each line for the counters.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from emitter.readers import FAMILIES, reader

LINES = 100_000
ROUNDS = 7
LIMIT = 10.0  # a log of a million lines is read in seconds
PIECE = 65_536

COUNTERS = re.compile(r"iteration\s+(\d+)\s*/\s*(\d+)")
NOISE = (
    "node7:8760:9309 [0] NCCL INFO comm 0x14da8c001060 rank 15 nranks 16 cudaDev 0 busId 1a000 - Init COMPLETE",
    "WARNING:root:a warning that nobody needs to see is printed by every rank, again and again, and is rather long",
    "[2031-05-06 07:08:09,123] [INFO] [logging.py:96:log_dist] something was set to something else",
    "> building indices for the data set ...",
    "/usr/lib/python3/site-packages/torch/x.py:12: UserWarning: this is deprecated and will go away some day",
    "",
)

Result = tuple[str, float, float]
"""What was measured, its ratio, the limit of the ratio."""


def log(path: Path) -> None:
    """One training line in ten; the rest is noise, whose digits are never the same."""
    order = random.Random(1)

    def other(_: re.Match[str]) -> str:
        return str(order.randrange(10))

    example = next(family.example for family in FAMILIES if family.name == "megatron")
    with path.open("w") as file:
        for step in range(1, LINES // 10 + 1):
            loss = f"lm loss: {order.uniform(2, 9):.6E}"
            line = re.sub(r"iteration +\d+/ *\d+", f"iteration {step:8d}/{LINES:8d}", example)
            file.write(re.sub(r"lm loss: \S+", loss, line) + "\n")
            file.writelines(re.sub(r"\d", other, order.choice(NOISE)) + "\n" for _ in range(9))


def searched(path: Path) -> int:
    """Lines with counters."""
    with path.open(encoding="utf-8") as file:
        return sum(1 for line in file if COUNTERS.search(line))


def read(path: Path) -> int:
    """Training records."""
    log = reader()
    with path.open("rb") as file:
        while data := file.read(PIECE):
            log.feed(data)
    log.close()
    return log.summary.results


def _seconds(call: Callable[[Path], int], path: Path) -> float:
    start = time.process_time()
    if call(path) != LINES // 10:
        raise AssertionError(f"{call.__name__}: every record must be found")
    return time.process_time() - start


def results() -> list[Result]:
    """The ratio, the rounds taken in turns, the fastest of each compared."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "training.log"
        log(path)
        rounds = [(_seconds(read, path), _seconds(searched, path)) for _ in range(ROUNDS)]
    ratio = min(mine for mine, _ in rounds) / min(other for _, other in rounds)
    return [("reading a log / searching its lines", ratio, LIMIT)]


if __name__ == "__main__":
    for name, ratio, limit in results():
        print(f"{name}: {ratio:.1f} (limit {limit:g})")
