"""One log, however it was printed: prefixed, wrapped, interleaved, glued, cut. Every line is accounted for once."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from emitter import catalog
from emitter.readers import FAMILIES, primus, reader
from emitter.readers.log import PATIENCE, LogReader
from emitter.records import LineCounts, Record

PREFIXES = (
    "",
    "0: ",
    " 17: ",
    "[default7]:",
    "[rank3]: ",
    "[node12:3]: ",
    "(pretrain, pid=4711) ",
    "train_9b_x/0 ",
    "train_9b_x/0 [default0]:",
    "node250: ",
    "[1743] ",
    "> ",
    "2031-02-03T04:05:06.1234567Z ",
    "INFO [2031-02-03 04:05:06] >> ",
    "INFO:megatron.training:",
    "[20310203 04:05:06][rank-3/8][INFO ] [-----trainer.py:77] : ",
)


ONLY_A_TIME = re.compile(r" *[-\d]+ [:.\d]+ *")


def train(iteration: int, *, loss: str = "3.250000E+00", more: str = "", target: int = 9000) -> str:
    """A training line; `more` follows the counters, as in the forks."""
    return (
        f" [2031-05-06 07:{iteration // 60:02d}:{iteration % 60:02d}.000321] iteration {iteration:8d}/{target:8d} | "
        f"consumed samples: {iteration * 32:12d} | elapsed time per iteration (ms): 1000.0 | "
        "learning rate: 1.500000E-04 | global batch size:    32 | "
        f"lm loss: {loss} | loss scale: 65536.0 | grad norm: 0.875 | num zeros: 760881152.0 | params norm: 2731.402 | "
        f"number of skipped iterations:   0 | number of nan iterations:   0 |{more}"
    )


RUN = (
    "using world size: 48, data-parallel size: 6, context-parallel size: 1, tensor-model-parallel size: 8",
    "  successfully loaded checkpoint from /data/a/long/way/to/the/checkpoints [ t 1/8, p 1/4 ] at iteration 10",
    "building GPT model with a number of words that nobody needs: " + "these and those and others, " * 4,
    train(20),
    "time (ms) | forward-compute: 143.50 | backward-compute: 395.25 | optimizer: 85.75 | batch-generator: 2.50",
    train(30, loss="3.125000E+00"),
    "[Rank 0] (after 30 iterations) memory (MB) | allocated: 1024.5 | max allocated: 2048.0 | reserved: 3072.0 | "
    "max reserved: 4096.0",
    "-" * 95,
    " validation loss at iteration 30 | lm loss value: 3.500000E+00 | lm loss PPL: 3.311545E+01 | ",
    "-" * 95,
    "[2031-05-06 07:00:31.000001] saving checkpoint at iteration      30 to /data/c in torch_dist format",
    "  [2031-05-06 07:00:36.000001] successfully saved checkpoint from iteration      30 to /data/c [ t 1/8, p 1/4 ]",
    "",
    train(40, loss="nan"),
    "[exiting program at iteration 40] datetime: 2031-05-06 07:01:00.000000 ",
)


def read(text: str) -> tuple[list[Record], LineCounts]:
    log = reader()
    records = log.feed(text.encode()) + log.close()
    assert log.counts.total == len(text.encode().splitlines())
    return records, log.counts


def said(records: list[Record]) -> list[str]:
    """Records as text: two NaN are the same."""
    return [repr(record) for record in records]


def lines(*texts: str) -> str:
    return "".join(f"{text}\n" for text in texts)


def pieces(text: str, width: int) -> list[str]:
    return [text[at : at + width] for at in range(0, len(text), width)] or [""]


def test_run() -> None:
    """A run is told by these records."""
    records, _ = read(lines(*RUN))
    assert [(record.kind, record.phase) for record in records] == [
        ("start", "startup"),
        ("run", None),
        ("resume", None),
        ("train", "train"),
        ("timers", None),
        ("train", "train"),
        ("memory", None),
        ("validation", "train"),
        ("phase", "checkpoint"),
        ("checkpoint", "train"),
        ("train", "train"),
        ("end", "ended"),
    ]


@given(st.sampled_from(PREFIXES))
def test_any_prefix(prefix: str) -> None:
    """What a launcher puts in front changes nothing but the time of lines that have none of their own."""
    plain, prefixed = read(lines(*RUN))[0], read(lines(*(prefix + text for text in RUN)))[0]
    assert [(one.kind, said([one])[0].split("phase=")[0]) for one in plain] == [
        (one.kind, said([one])[0].split("phase=")[0]) for one in prefixed
    ]


@settings(max_examples=150)
@given(st.sampled_from(PREFIXES), st.integers(80, 420), st.booleans())
def test_any_width(prefix: str, width: int, prefixed_first: bool) -> None:
    """A log that was wrapped, inside words and numbers too, before or after the prefixes came, is the same log."""
    if prefixed_first:
        wrapped = [piece for text in RUN for piece in pieces(prefix + text, width)]
    else:
        wrapped = [prefix + piece for text in RUN for piece in pieces(text, width)]
    assume(not any(ONLY_A_TIME.fullmatch(piece) for piece in wrapped))  # which is a stamp
    assert said(read(lines(*wrapped))[0]) == said(read(lines(*(prefix + text for text in RUN)))[0])


@settings(max_examples=60)
@given(st.integers(80, 400))
def test_any_width_with_more_behind_the_counters(width: int) -> None:
    """Fields behind those that complete a line are not lost where the wrap falls in between."""
    run = [train(step, more=" samples per second: 19.474 | TFLOPs: 149.10 |") for step in (10, 20, 30)]
    wrapped = [piece for text in run for piece in pieces(text, width)]
    assert said(read(lines(*wrapped))[0]) == said(read(lines(*run))[0])


@given(st.randoms(use_true_random=False), st.integers(2, 4), st.one_of(st.none(), st.integers(80, 200)))
def test_any_interleaving(order: random.Random, ranks: int, width: int | None) -> None:
    """Several ranks that print the same are one run, in whatever order, also if one of them is wrapped."""
    training = [train(step) for step in (10, 20, 30, 40)]
    wrapped = [piece for text in training for piece in (pieces(text, width) if width else [text])]
    queues = [[f"0: {text}" for text in wrapped]]
    queues += [[f"{rank}: {text}" for text in training] for rank in range(1, ranks)]
    mixed = []
    while queues := [queue for queue in queues if queue]:
        mixed.append(order.choice(queues).pop(0))
    records, counts = read(lines(*mixed))
    assert said(records) == said(read(lines(*training))[0])
    assert counts.skipped == 0


def test_whole_lines_between_the_parts_of_a_record() -> None:
    """Lines without a source that stand between the parts of a wrapped record do not spoil it."""
    first, *rest = pieces(train(10), 100)
    noise = (
        "node7:8760:9309 [0] NCCL INFO comm 0x14 rank 15 nranks 16 cudaDev 0 busId 1a000 - Init COMPLETE, a long one"
    )
    memory = "[Rank 3] (after 10 iterations) memory (MB) | allocated: 1.0 | max allocated: 2048.0 | max reserved: 2.0"
    records, counts = read(lines(first, noise, rest[0], memory, *rest[1:]))
    assert [record.kind for record in records] == ["memory", "train"]
    assert records[1].values[catalog.GRAD_NORM] == 0.875
    assert counts == LineCounts(records=2 + len(rest), reasons={"unknown": 1})


def test_cut_last_line_waits() -> None:
    """A line that is being written is no record until it has its end; if it never gets one, it was cut."""
    log = reader()
    whole = lines(train(10), train(20), train(30)).encode()
    assert [record.values[catalog.ITERATION] for record in log.feed(whole[:-40])] == [10, 20]
    assert [record.values[catalog.ITERATION] for record in log.feed(whole[-40:])] == [30]
    assert log.feed(lines(train(40)).encode()[:-40]) + log.close() == []
    assert log.counts == LineCounts(records=3, reasons={"cut": 1})


def test_what_waits_for_what_may_follow() -> None:
    """The first record waits to see how long the lines are, unless the log stands still; the next ones do not."""
    log = reader()
    assert log.feed(lines(train(10)).encode()) == []
    assert len(log.settle()) == 1
    assert len(log.feed(lines(train(20)).encode())) == 1


def test_progress_bars() -> None:
    """Each state of a progress bar is a line; what stays on the screen is read."""
    bar = "\r 3%|3   | 15/500 [00:03<01:37, 1.20s/it]\r 4%|4   | 20/500 [00:04<01:36, 1.20s/it]\r"
    records, counts = read(bar + lines(train(10)))
    assert [record.kind for record in records] == ["train"]
    assert counts == LineCounts(records=1, recognized=2, reasons={"empty": 1})


@pytest.mark.parametrize("key", ["loss", "Loss", "LOSS"])
def test_an_unknown_layout_is_named(key: str) -> None:
    """A line that looks like training and is unknown is kept for the summary, the first one only."""
    log = reader()
    log.feed(f"[epoch 1] batch 7: my {key} = 0.5 at speed 3\nanother loss = 0.4\n".encode())
    assert log.summary.unlike == f"[epoch 1] batch 7: my {key} = 0.5 at speed 3"
    assert log.summary.format is None


@pytest.mark.parametrize("text", [train(20, loss="3.25x") + "\n", train(20)[:-60]])
def test_a_line_that_cannot_be_read_is_named(text: str) -> None:
    """A training line that is garbled or cut is the one that the summary names."""
    log = reader()
    assert len(log.feed(lines(train(10)).encode() + text.encode()) + log.close()) == 1
    assert log.summary.unlike is not None
    assert train(20).strip()[30:100] in log.summary.unlike


@pytest.mark.parametrize("width", [80, 100, 143, 200])
def test_prefix_before_and_behind_the_wrap(width: int) -> None:
    """A line whose own prefix stands in its first part alone, behind the launcher's in each, is whole again."""
    run = [primus.FAMILY.example.replace("120/", f"{step}/") for step in (120, 130, 140)]
    wrapped = [f"[rank3]: {piece}" for text in run for piece in pieces(text, width)]
    records, counts = read(lines(*wrapped))
    assert said(records) == said(read(lines(*(f"[rank3]: {text}" for text in run)))[0])
    assert counts == LineCounts(records=len(wrapped))


@pytest.mark.parametrize(("between", "results"), [(PATIENCE, 1), (PATIENCE + 1, 0)])
def test_a_beginning_does_not_wait_for_ever(between: int, results: int) -> None:
    """A beginning whose end is not behind a thousand other lines is given up: it was cut."""
    log = reader()
    log.feed(lines(train(10), train(20)).encode())
    first, *rest = pieces(train(30), 150)
    log.feed(lines(f"7: {first}").encode())
    log.feed(lines("some other line that nobody knows").encode() * between)
    assert len(log.feed(lines(*(f"7: {piece}" for piece in rest)).encode()) + log.close()) == results
    assert log.counts.reasons.get("cut", 0) == 1 - results


def test_a_beginning_does_not_wait_for_a_silent_source() -> None:
    """It is given up as well if its source prints nothing more, so that other lines are not looked at because of it."""
    log = reader()
    log.feed(lines(train(10), train(20), f"7: {train(30)[:150]}").encode())
    log.feed(lines("0: some other line that nobody knows").encode() * (PATIENCE + 2))
    assert log.counts == LineCounts(records=2, reasons={"cut": 1, "unknown": PATIENCE + 2})


def test_few_beginnings_wait() -> None:
    """However many sources begin a line and never end it, no more of them are kept than there may be lines between."""
    log = reader()
    for rank in range(PATIENCE + 52):
        log.feed(lines(f"{rank}: {train(10)[:150]}").encode())
    assert log.counts == LineCounts(reasons={"cut": 50})


def test_a_layout_that_nobody_has_seen() -> None:
    """Keys more, less, in another order and spacing, and a unit that is spelt anew, leave what can be read."""
    text = (
        "iteration 10/ 90 | LM  loss:2.5|flux capacity: 1.21 | grad_norm : 0.5 | elapsed time per iteration (min): 3 | "
        "number of  nan iterations: 0 | number of skipped iterations: 1|\n"
    )
    log = reader()
    (record,) = log.feed(text.encode()) + log.close()
    assert {metric.short: value for metric, value in record.values.items()} == {
        "iteration": 10,
        "target_iteration": 90,
        "loss": 2.5,
        "grad_norm": 0.5,
        "skipped_iters": 1,
    }
    assert log.summary.unread == ("flux capacity", "elapsed time per iteration (min)")


def test_absent_values_are_counted() -> None:
    """The summary tells how often a value that others have is missing."""
    log = reader()
    log.feed(lines(train(10), train(20), train(30).replace("grad norm: 0.875 | ", "")).encode())
    log.close()
    summary = log.summary
    assert (summary.results, summary.attempts, summary.first_iteration, summary.last_iteration) == (3, 1, 10, 30)
    assert summary.absent == {"grad_norm": 1}


def test_a_statement_that_never_comes_whole() -> None:
    """The beginning of a statement whose end does not come is counted with the unknown lines, once."""
    log = reader("gpt-neox")
    log.feed(lines("validation results at iteration 10 | something".ljust(90), "and noise").encode())
    assert log.close() == []
    assert log.counts == LineCounts(reasons={"unknown": 2})


def test_random_bytes() -> None:
    """A million random bytes raise nothing and say nothing."""
    data = random.Random(7).randbytes(1_000_000)
    log = reader()
    assert [record for at in range(0, len(data), 4096) for record in log.feed(data[at : at + 4096])] + log.close() == []
    assert log.counts.total == len(data.splitlines())


@pytest.mark.parametrize("name", [family.name for family in FAMILIES])
def test_random_bytes_with_each_format(name: str) -> None:
    """Nor do they if a format is forced, even where its own words are between them."""
    order = random.Random(9)
    (family,) = (family for family in FAMILIES if family.name == name)
    words = [word for layout in (*family.training, *family.others) for word in layout.words]
    log = reader(name)
    records = []
    for _ in range(300):
        records += log.feed(order.randbytes(40) + order.choice(words).encode() + order.randbytes(40) + b"\n")
    assert [record for record in records + log.close() if record.kind == "train"] == []


def test_formats_have_names() -> None:
    """A format that does not exist is refused with the nearest name."""
    assert isinstance(reader("megatron"), LogReader)
    with pytest.raises(ValueError, match=r"got 'megatrn'.*Did you mean 'megatron'\?"):
        reader("megatrn")
