"""Megatron-LM's log: every line counted once, no result invented, none reported twice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emitter import catalog
from emitter.readers import reader
from emitter.readers.megatron import FIELDS
from emitter.readers.table import squeezed
from emitter.records import LineCounts, Record

DEMO = Path(__file__).resolve().parent.parent / "examples" / "demo.log"


def line(
    iteration: int,
    *,
    stamp: str | None = "2031-05-06 07:08:09.000321",
    target: int = 9000,
    ms: float = 2000.0,
    loss: str | None = "3.250000E+00",
    grad: str | None = "0.875",
    skipped: int = 0,
    nan: int = 0,
    more: str = "",
) -> str:
    """A training line in the present layout."""
    parts = [
        f"iteration {iteration:8d}/{target:8d}",
        f"consumed samples: {iteration * 32:12d}",
        f"elapsed time per iteration (ms): {ms:.1f}",
        "throughput per GPU (TFLOP/s/GPU): 222.5",
        "learning rate: 1.500000E-04",
        "global batch size:    32",
        *([f"lm loss: {loss}"] if loss else []),
        "loss scale: 65536.0",
        *([f"grad norm: {grad}"] if grad else []),
        f"{more}number of skipped iterations: {skipped:3d}",
        f"number of nan iterations: {nan:3d}",
    ]
    return (f" [{stamp}] " if stamp else " ") + " | ".join(parts) + " |"


LINE_2021 = (
    " iteration       30/     500 | consumed samples:          480 | elapsed time per iteration (ms): 812.4 | "
    "learning rate: 2.500E-05 | global batch size:    16 | lm loss: 9.876543E+00 | loss scale: 4096.0 | "
    "grad norm: 12.500 | number of skipped iterations:   2 | number of nan iterations:   0 |"
)

ARGUMENTS = """\
using world size: 48, data-parallel size: 6, context-parallel size: 1, tensor-model-parallel size: 8
------------------------ arguments ------------------------
  global_batch_size ............................... 32
  log_interval .................................... 10
  retriever_seq_length ............................ 256
  seq_length ...................................... 2048
  train_iters ..................................... 9000
  vocab_file ...................................... None
  world_size ...................................... 48
-------------------- end of arguments ---------------------
"""


def read(text: str | bytes) -> tuple[list[Record], LineCounts]:
    """Records of a whole log, and what became of its lines."""
    log = reader()
    data = text.encode() if isinstance(text, str) else text
    found = log.feed(data) + log.close()
    return found, log.counts


def results(text: str | bytes, kind: str = "train") -> list[dict[str, Any]]:
    """Values of the results by short name."""
    return [
        {metric.short: value for metric, value in record.values.items()}
        for record in read(text)[0]
        if record.kind == kind
    ]


def phases(text: str) -> list[str]:
    """The phases that a log goes through, without repetitions."""
    found: list[str] = []
    for record in read(text)[0]:
        if record.phase and found[-1:] != [record.phase]:
            found.append(record.phase)
    return found


def test_present_layout() -> None:
    """Every field of the present line becomes its metric; what is printed as an integer stays one."""
    (values,) = results(line(120, more="num zeros: 760881152.0 | params norm: 2731.402 | "))
    assert values == {
        "iteration": 120,
        "target_iteration": 9000,
        "consumed_samples": 3840,
        "step_duration_ms": 2000.0,
        "throughput_tflops": 222.5,
        "learning_rate": 1.5e-4,
        "global_batch_size": 32,
        "loss": 3.25,
        "loss_scale": 65536.0,
        "grad_norm": 0.875,
        "num_zeros": 760881152.0,
        "params_norm": 2731.402,
        "skipped_iters": 0,
    }
    integers = ("iteration", "target_iteration", "consumed_samples", "global_batch_size", "skipped_iters")
    assert all(isinstance(values[name], int) for name in integers)


def test_layout_of_2021() -> None:
    """So does the line of 2021, which has neither a stamp nor a throughput."""
    (values,) = results(LINE_2021)
    assert values == {
        "iteration": 30,
        "target_iteration": 500,
        "consumed_samples": 480,
        "step_duration_ms": 812.4,
        "learning_rate": 2.5e-5,
        "global_batch_size": 16,
        "loss": 9.876543,
        "loss_scale": 4096.0,
        "grad_norm": 12.5,
        "skipped_iters": 2,
    }


def test_seconds_are_converted() -> None:
    """A step duration in seconds becomes milliseconds."""
    (values,) = results(line(10).replace("(ms): 2000.0", "(s): 105.25"))
    assert values["step_duration_ms"] == 105_250.0


@pytest.mark.parametrize("prefix", ["0: ", "  7:", "[default7]:", "[rank0]: ", "node12: ", "(run, pid=41) ", "> "])
def test_launcher_prefixes(prefix: str) -> None:
    """What a launcher puts in front of a line does not matter."""
    assert results(prefix + line(10)) == results(line(10))


@pytest.mark.parametrize(
    "decorate",
    [
        lambda text: text + "\r\n",
        lambda text: "\ufeff" + text,
        lambda text: "\0\0\0" + text,
        lambda text: "\x1b[32m" + text.replace("lm loss", "\x1b[1mlm loss\x1b[0m"),
        lambda text: "\r 3%|3   | 15/500 [00:03<01:37, 1.20s/it]\r" + text,
        lambda text: text + "WARNING: another process printed here",
    ],
)
def test_dirt(decorate: Any) -> None:
    """Line ends, byte order marks, NULs, colors, progress bars and neighbours do not change a value."""
    assert results(decorate(line(10))) == results(line(10))


def test_glued_numbers() -> None:
    """A number too wide for its column is read where it touches the slash."""
    (values,) = results(line(25, target=73242187))
    assert (values["iteration"], values["target_iteration"]) == (25, 73242187)


def test_two_lines_on_one() -> None:
    """Two lines that ran together are two records of one physical line; a cut one before a whole one is none."""
    both = line(10) + line(20, stamp="2031-05-06 07:08:29.000321")
    records, counts = read(both)
    assert [record.values[catalog.ITERATION] for record in records] == [10, 20]
    assert [record.length_s for record in records][1] == 20.0
    assert counts == LineCounts(records=1)
    assert [values["iteration"] for values in results(line(10)[:150] + line(20))] == [20]


@pytest.mark.parametrize("cut", [len(line(10)) - 1, 250, 150, 40])
def test_cut_line_is_no_record(cut: int) -> None:
    """A line that was cut reports nothing: a loss that is missing there is no NaN."""
    records, counts = read(line(10) + "\n" + line(20)[:cut])
    assert len(records) == 1
    assert (counts.records, counts.skipped) == (1, 1)


def test_cut_behind_a_pipe_is_no_record() -> None:
    """Wherever the cut is, even right behind a field, there is no record."""
    whole = line(20)
    for end in range(len(whole)):
        assert results(whole[:end]) == []


def test_garbled_value_is_no_record() -> None:
    """A line with a value that is no number is skipped as a whole."""
    records, counts = read(line(10).replace("3.250000E+00", "3.25[Rank 3]"))
    assert (records, counts) == ([], LineCounts(reasons={"garbled": 1}))


def test_infinite_loss_and_nan_norm() -> None:
    """Infinite and NaN values are values."""
    (values,) = results(line(10, loss="INF", grad="nan"))
    assert values["loss"] == math.inf
    assert math.isnan(values["grad_norm"])


def test_loss_that_is_not_printed_is_nan() -> None:
    """A line without a loss, of whose iterations not all were skipped, reports a NaN."""
    first, second = results(line(10) + "\n" + line(20, loss=None, skipped=9))
    assert first["loss"] == 3.25
    assert math.isnan(second["loss"])


@pytest.mark.parametrize("printed", [None, "0.000000E+00"])
def test_loss_of_a_wholly_skipped_interval_is_absent(printed: str | None) -> None:
    """Where every iteration was skipped there is no loss, neither a NaN nor a 0."""
    _, second = results(line(10) + "\n" + line(20, loss=printed, grad=None, skipped=10))
    assert "loss" not in second
    assert "grad_norm" not in second
    assert second["skipped_iters"] == 10


def test_zero_loss_is_a_loss() -> None:
    """A 0 is a value where not everything was skipped."""
    _, second = results(line(10) + "\n" + line(20, loss="0.000000E+00", skipped=9))
    assert second["loss"] == 0.0


def test_first_interval_by_the_argument() -> None:
    """A first line knows its length from log_interval: ten skipped of ten are all."""
    (values,) = results(ARGUMENTS + line(10, stamp=None, loss=None, grad=None, skipped=10))
    assert "loss" not in values
    (values,) = results(ARGUMENTS + line(10, stamp=None, loss=None, grad=None, skipped=9))
    assert math.isnan(values["loss"])


def test_first_interval_by_the_start() -> None:
    """Without that argument the first line of a process is as long as its iterations."""
    (values,) = results("using world size: 8, x\n" + line(10, stamp=None, loss=None, grad=None, skipped=9))
    assert math.isnan(values["loss"])
    (values,) = results(
        "successfully loaded checkpoint from /data/c at iteration 100\n" + line(110, loss=None, skipped=9)
    )
    assert math.isnan(values["loss"])


def test_first_line_of_unknown_length_is_not_called_nan() -> None:
    """A first line without a loss but with skips, in a log that does not tell its interval, is no alarm."""
    (values,) = results(line(510, loss=None, skipped=3))
    assert "loss" not in values
    (values,) = results(line(510, loss=None, skipped=0))
    assert math.isnan(values["loss"])


def skips(*lines: str) -> list[int]:
    return [values["skipped_iters"] for values in results("\n".join(lines))]


OLD = "2031-05-06 07:08:09"


def test_first_iteration_alone_is_not_counted_twice() -> None:
    """Core 0.16 prints iteration 1 alone and again in the next line: its skip counts once."""
    assert skips(line(1, skipped=1), line(10, skipped=3), line(20, skipped=1)) == [1, 2, 1]


def test_first_iteration_alone_with_an_interval_of_one() -> None:
    """With every iteration logged, the microseconds tell that the first line is repeated."""
    assert skips(line(1, skipped=1), line(2, skipped=1), line(3, skipped=1)) == [1, 0, 1]
    first, second, third = results(
        "\n".join([line(1, loss=None, skipped=1), line(2, skipped=1), line(3, loss="0.000000E+00", skipped=1)])
    )
    assert "loss" not in first
    assert second["loss"] == 3.25
    assert "loss" not in third


def test_old_layouts_repeat_nothing() -> None:
    """Before core 0.16 each line stands for itself."""
    for stamp in (OLD, None):
        one = [line(number, stamp=stamp, skipped=1) for number in (1, 2, 3)]
        assert skips(*one) == [1, 1, 1]
        ten = [line(number, stamp=stamp, skipped=1) for number in (10, 20, 30)]
        assert skips(*ten) == [1, 1, 1]


def test_first_iteration_after_a_resume() -> None:
    """The first iteration after a checkpoint is alone too, also where it happens to be a multiple of the interval."""
    loaded = "  successfully loaded checkpoint from /data/c [ t 1/8, p 1/4 ] at iteration {}"
    assert skips(loaded.format(1000), line(1001, skipped=1), line(1010, skipped=2)) == [1, 1]
    assert skips(ARGUMENTS + loaded.format(1009), line(1010, skipped=1), line(1020, skipped=1)) == [1, 0]


def test_tail_of_a_log() -> None:
    """A log that begins in the middle of a run has no first iteration: nothing is taken off."""
    assert skips(line(110, skipped=2), line(120, skipped=3)) == [2, 3]


def test_restart_in_the_same_file() -> None:
    """Where the iterations go back, a new process has begun."""
    loaded = "successfully loaded checkpoint from /data/c at iteration 100"
    text = [line(110), line(120, skipped=2), loaded, line(101, skipped=1), line(110, skipped=1), line(120, skipped=1)]
    assert skips(*text) == [0, 2, 1, 0, 1]


def test_arguments() -> None:
    """The arguments give what the line does not say: size of the run, target, tokens."""
    runs = results(ARGUMENTS, kind="run")
    assert {key: value for values in runs for key, value in values.items()} == {
        "run_world_size": 48,
        "target_iteration": 9000,
        "global_batch_size": 32,
    }
    (values,) = results(ARGUMENTS + line(10))
    assert values["tokens_per_sec"] == 32 * 2048 / 2.0
    assert values["consumed_tokens"] == 320 * 2048
    (values,) = results(line(10))
    assert not {"tokens_per_sec", "consumed_tokens"} & set(values)


def test_validation() -> None:
    """A validation line reports its loss; of several sets the first, and never the test set."""
    text = [
        " validation loss at iteration 100 | lm loss value: 8.5E+00 | lm loss PPL: 4.9E+03 | ",
        " validation-0 loss at iteration 200 | lm loss value: 7.5E+00 | lm loss PPL: 1.8E+03 | ",
        " validation-code loss at iteration 200 | lm loss value: 1.5E+00 | lm loss PPL: 4.4E+00 | ",
        " validation loss at iteration 300 on validation set | lm loss value: 6.5E+00 | lm loss PPL: 6.6E+02 | ",
        " validation loss at iteration 300 on test set | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | ",
    ]
    assert results("\n".join(text), kind="validation") == [
        {"iteration": 100, "validation_loss": 8.5},
        {"iteration": 200, "validation_loss": 7.5},
        {"iteration": 300, "validation_loss": 6.5},
    ]
    assert read("\n".join(text))[1] == LineCounts(records=3, recognized=2)


STARTED = "[before the start of training step] datetime: 2031-05-06 07:00:00.500000 "


def test_phases_of_a_whole_run() -> None:
    """Start-up, training, checkpoint, evaluation and end are told by their lines."""
    text = [
        "using world size: 8, data-parallel size: 8",
        "[after dataloaders are built] datetime: 2031-05-06 06:59:00.000000 ",
        "training ...",
        STARTED,
        line(10),
        "[2031-05-06 07:09:00.000000] saving checkpoint at iteration      10 to /data/c in torch_dist format",
        "  [2031-05-06 07:09:05.000000] successfully saved checkpoint from iteration      10 to /data/c",
        "Evaluating on 320 samples",
        "Evaluating iter 1/10",
        " validation loss at iteration 10 | lm loss value: 8.5E+00 | lm loss PPL: 4.9E+03 | ",
        line(20),
        "[after training is done] datetime: 2031-05-06 07:10:00.000000 ",
        "Evaluating on 320 samples",
        " validation loss at iteration 20 on test set | lm loss value: 8.5E+00 | lm loss PPL: 4.9E+03 | ",
        "saving checkpoint at iteration      20 to /data/c",
    ]
    assert phases("\n".join(text)) == ["startup", "train", "checkpoint", "train", "evaluate", "train", "ended"]
    assert [record.phase for record in read("\n".join(text))[0] if record.kind == "validation"] == ["train"]


@pytest.mark.parametrize(
    "end",
    [
        "[exiting program at iteration 20] datetime: 2031-05-06 07:10:00.000000 ",
        "[exiting program after 235.0 minutes] datetime: 2031-05-06 07:10:00 ",
        "[after training is done] datetime: 2031-05-06 07:10:00 ",
        "slurmstepd: error: *** STEP 77.0 ON node3 CANCELLED AT 2031-05-06T07:10:00 ***",
        "slurmstepd: error: *** JOB 77 ON node3 CANCELLED AT 2031-05-06T07:10:00 DUE TO TIME LIMIT ***",
    ],
)
def test_ends(end: str) -> None:
    """A run ends when Megatron says so or the scheduler stops it, at the time of that line."""
    records, _ = read(line(20) + "\n" + end)
    assert records[-1].phase == "ended"
    assert records[-1].stamp_s is not None
    assert records[0].stamp_s is not None
    assert records[-1].stamp_s - records[0].stamp_s == pytest.approx(111, abs=1)


@pytest.mark.parametrize(
    "crash",
    [
        "slurmstepd: error: *** JOB 77 ON node3 CANCELLED AT 2031-05-06T07:10:00 DUE TO NODE FAILURE, SEE LOG ***",
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "",
    ],
)
def test_what_is_no_end(crash: str) -> None:
    """A failed node, a crash or nothing at all leaves the run in training, as its watchers see it."""
    assert phases(line(20) + "\n" + crash) == ["train"]


def test_training_after_the_end_is_training() -> None:
    """A second run in the same file begins where its first line says so."""
    end = "[exiting program at iteration 20] datetime: 2031-05-06 07:10:00 "
    assert phases("\n".join([line(20), end, "using world size: 8, x", line(10)])) == [
        "train",
        "ended",
        "startup",
        "train",
    ]


def test_lengths_without_a_clock() -> None:
    """Without stamps an interval is as long as its iterations; the one printed twice is taken off."""
    old = [record.length_s for record in read(line(10, stamp=None) + "\n" + line(20, stamp=None))[0]]
    assert old == [None, 20.0]
    first, second = read(ARGUMENTS + line(1, stamp=None, ms=30_000) + "\n" + line(10, stamp=None, ms=4500))[0][-2:]
    assert (first.length_s, second.length_s) == (30.0, 15.0)


def test_every_line_is_counted_once() -> None:
    """Results, known lines and the rest add up to the lines of the file."""
    text = (
        ARGUMENTS
        + STARTED
        + "\nhello\n\n"
        + line(10)
        + "\n"
        + line(20)
        + "\ntime (ms) | optimizer: 1.00\n"
        + line(30)[:99]
    )
    _, counts = read(text)
    assert counts == LineCounts(records=3, recognized=11, reasons={"unknown": 1, "empty": 1, "cut": 1})
    assert counts.total == len(text.splitlines())


def test_demo_log() -> None:
    """The demonstration trains for minutes, has one NaN, recovers and then just stops."""
    records, counts = read(DEMO.read_bytes())
    train = [record for record in records if record.kind == "train"]
    losses = [record.values[catalog.LOSS] for record in train]
    assert counts.total == len(DEMO.read_bytes().splitlines())
    assert [index for index, loss in enumerate(losses) if math.isnan(loss)] == [len(losses) - 8]
    assert math.isnan(train[-8].values[catalog.GRAD_NORM])
    assert records[-1] is train[-1]
    assert train[-1].stamp_s is not None
    stamps = [record.stamp_s for record in records if record.stamp_s is not None]
    assert 210 <= stamps[-1] - stamps[0] <= 240
    assert 14 <= train[0].stamp_s - stamps[0] <= 17  # type: ignore[operator]
    assert {"run_world_size", "target_iteration"} <= {m.short for r in records for m in r.values}
    assert catalog.TOKENS_PER_SEC in train[0].values


def test_table_of_fields() -> None:
    """The table names no key twice."""
    keys = [squeezed(key) for field in FIELDS for key in field.keys]
    assert len(keys) == len(set(keys))


@given(st.binary(max_size=400))
def test_random_bytes(data: bytes) -> None:
    """Whatever the bytes, nothing is raised and nothing reported."""
    log = reader()
    assert log.feed(data) + log.close() == []
    assert log.counts.total == len(data.splitlines())


@given(st.integers(0, 330), st.binary(max_size=20), st.integers(0, 30))
def test_damaged_line(position: int, junk: bytes, length: int) -> None:
    """A line with a hole and junk in it never raises, and reports known metrics or nothing."""
    whole = line(1234567).encode()
    damaged = whole[:position] + junk.replace(b"\n", b"") + whole[position + length :]
    for values in results(damaged):
        assert set(values) <= {metric.short for metric in catalog.METRICS}


@pytest.mark.parametrize(("kind", "phase"), [("trian", None), ("train", "running")])
def test_records_are_checked(kind: str, phase: str | None) -> None:
    """A record of no kind, or of no phase, is refused."""
    with pytest.raises(ValueError, match=r"emitter\.records"):
        Record(kind=kind, phase=phase)
