"""Cost of reading a log, as a ratio measured in one run. `python tests/bench_readers.py` prints a table.

The other side is the least that any reader does: read the file, and look into each line for the counters.

One line in ten is a training line. Of the others one in twenty differs in more than its digits from all before: in some
thirty public logs of Megatron-LM, torchtitan and NeMo with 20,000 lines and more it was one to seven in a hundred, most
of them while the run started. A fifth of a million lines has the ratio of a million and leaves `make bench` short.
"""

from __future__ import annotations

import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from emitter.readers import FAMILIES, reader

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo.log"

LINES = 200_000
ROUNDS = 5
LIMIT = 10.0  # a log of a million lines is read in seconds
PIECE = 65_536
NEW = 0.05
"""Share of the noise that is like no line before."""

COUNTERS = re.compile(r"iteration\s+(\d+)\s*/\s*(\d+)")
FAMILY_COUNTERS = {
    "megatron": r"(?<=iteration )[ \d]+(?=/)",
    "torchtitan": r"(?<=step: )\d+",
    "hugging-face": r"(?<=max_steps': ')\d+",
    "nemo2": r"(?<=global_step: )\d+",
}
"""Families that are measured, each with where its example line counts."""

WARNINGS = (
    "node7:8760:9309 [0] NCCL INFO comm 0x14da8c001060 rank 15 nranks 16 cudaDev 0 busId 1a000 - Init COMPLETE",
    "WARNING:root:a warning that nobody needs to see is printed by every rank, again and again, and is rather long",
    "[2031-05-06 07:08:09,123] [INFO] [logging.py:96:log_dist] something was set to something else",
    "> building indices for the data set ...",
    "/usr/lib/python3/site-packages/torch/x.py:12: UserWarning: this is deprecated and will go away some day",
    "",
)
"""What libraries print. Noise is this, or of the demo's log, or words of both in an order that is always new."""

Result = tuple[str, float, float]
"""What was measured, its ratio, the limit of the ratio."""


def printed() -> list[str]:
    """Lines of the demo's log that say nothing to a reader."""
    log = reader()
    found = []
    for line in DEMO.read_text(encoding="utf-8").splitlines():
        before = log.counts.skipped
        log.feed(f"{line}\n".encode())
        if log.counts.skipped > before:
            found.append(line)
    return found


def log(path: Path, family: str) -> None:
    """One training line in ten; the rest is noise, whose digits are always other ones."""
    order = random.Random(1)
    known = printed()
    words = sorted({word for line in (*WARNINGS, *known) for word in line.split()})

    def noise() -> str:
        new = order.random() < NEW
        line = " ".join(order.choices(words, k=12)) if new else order.choice(order.choice((WARNINGS, known)))
        return re.sub(r"\d", lambda _: str(order.randrange(10)), line) + "\n"

    example = next(one.example for one in FAMILIES if one.name == family)
    with path.open("w", encoding="utf-8") as file:
        for step in range(1, LINES // 10 + 1):
            line = re.sub(FAMILY_COUNTERS[family], f"{step:8d}" if family == "megatron" else str(step), example)
            file.write(line.replace("3.25", f"{order.uniform(2, 9):.2f}") + "\n")
            file.writelines(noise() for _ in range(9))


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


def _seconds(call: Callable[[Path], int], path: Path, found: Sequence[int]) -> float:
    start = time.process_time()
    if call(path) not in found:
        raise AssertionError(f"{call.__name__}: every record must be found")
    return time.process_time() - start


def _ratio(family: str) -> float:
    """Rounds taken in turns, the fastest of each compared."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "training.log"
        log(path, family)
        every = LINES // 10
        rounds = [(_seconds(read, path, [every]), _seconds(searched, path, [0, every])) for _ in range(ROUNDS)]
    return min(mine for mine, _ in rounds) / min(other for _, other in rounds)


def results() -> list[Result]:
    """The ratio for each family."""
    return [(f"reading a log of {family} / searching its lines", _ratio(family), LIMIT) for family in FAMILY_COUNTERS]


if __name__ == "__main__":
    for name, ratio, limit in results():
        print(f"{name}: {ratio:.1f} (limit {limit:g})")
