"""Lines that nobody means to print: junk where numbers stand, and one character without end."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emitter.readers import FAMILIES, Family, reader

NUMBER = re.compile(r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")

OTHERS = (
    "using world size: 64, data-parallel size: 8",
    "  seq_length ...................................... 4096",
    " validation loss at iteration 120 | lm loss value: 3.25 | lm loss PPL: 25.79 |",
    "  successfully loaded checkpoint from /c [ t 0, p 0 ] at iteration 120",
    "Unexpected result nan on rank 3 at iteration #121! (message='found NaN in local grad norm')",
    "Step Time : 2.50s GPU utilization: 222.5MODEL_TFLOP/s/GPU",
    "[Rank 3] (after 20 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | max reserved: 3.0",
    "    time (ms) | forward-compute: 1.0 | optimizer: 2.0",
    "OVERFLOW! Rank 0 Skipping step. Attempted loss scale: 65536, reducing to 32768",
    "step=120, skipped=1, lr=[0.00015], mom=[(0.9, 0.95)]",
    "epoch=0/micro_step=120/global_step=120, RunningAvgSamplesPerSec=1.5, MaxMemAllocated=24.5GB",
    "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=8, cp=1, tp=1",
    "Building 2-D device mesh with ['pp', 'tp'], [2, 4]",
    "Training starts at step 121, global batch size 64, sequence length 4096, total steps 9000",
    "[Rank 0] 3 CUDA memory allocation retries.",
    " 12%|##        | 120/1000 [05:00<36:40,  2.50s/it]",
    "  Total optimization steps = 1,000",
    "All distributed processes registered. Starting with 64 processes",
)
"""Lines with numbers, of no family in particular."""

JUNK = st.one_of(
    st.sampled_from(["nan", "inf", "-inf", "", "n/a", "-1", "0", "1e400", "1e300", "9" * 400, "9" * 5000, "½"]),
    st.integers(min_value=-(10**40), max_value=10**40).map(str),
    st.floats().map(str),
    st.text(max_size=8),
)

HOSTILE = ("a", " ", "1", "a a=", "a:", "-")
"""What a line repeats."""

each = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


def junked(data: st.DataObject, line: str) -> str:
    """A line with junk in place of some of its numbers."""
    return NUMBER.sub(lambda match: data.draw(JUNK) if data.draw(st.booleans()) else match[0], line)


@each
@settings(max_examples=30)
@given(data=st.data())
def test_junk_numbers(family: Family, data: st.DataObject) -> None:
    """Whatever stands where a number should, no reader raises."""
    log = reader(family.name)
    for _ in range(3):
        log.feed(f"{junked(data, family.example)}\n".encode("utf-8", "replace"))
        other = junked(data, data.draw(st.sampled_from(OTHERS)))
        log.feed(f"{other}\n".encode("utf-8", "replace"))
    log.close()


@each
@pytest.mark.parametrize("digits", ["9" * 400, "9" * 5000, "1e300"], ids=len)
def test_endless_numbers(family: Family, digits: str) -> None:
    """A number too long for any type is no reason to raise, whichever it is."""
    log = reader(family.name)
    for line in (family.example, *OTHERS):
        for match in NUMBER.finditer(line):
            log.feed(f"{line}\n{line[: match.start()]}{digits}{line[match.end() :]}\n{line}\n".encode())
    log.close()


@each
def test_endless_lines(family: Family) -> None:
    """A line of 60 kB is read in well under a second, whatever it repeats behind whatever it begins with."""
    words = {word for layout in (*family.training, *family.others) for word in layout.words}
    example = family.example
    beginnings = {*words, "time (ms) | a: 1", example[: len(example) // 3], example[:-40]}
    for beginning in sorted(beginnings):
        for filler in HOSTILE:
            line = beginning + filler * (60_000 // len(filler))
            log = reader(family.name)
            begin = time.process_time()
            log.feed(f"{line}\n".encode())
            log.close()
            assert time.process_time() - begin < 2, (beginning, filler)
