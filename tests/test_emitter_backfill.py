"""emitter.backfill: the samples of a log are those of a live run that was scraped at the log's own times."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from datetime import timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from emitter import catalog, replay, virtual
from emitter.backfill import ENDED_SCRAPES, STARTUP_S, History, Stamps, begin, timed
from emitter.catalog import Kind, Metric
from emitter.instruments import prepare
from emitter.log_run import Past
from emitter.openmetrics import family
from emitter.readers import reader
from emitter.records import Record
from emitter.virtual import Point, VirtualMeter

T = 1_699_999_200.0
"""A full hour, and the beginning of a block."""

LINE = (
    " [{stamp}] iteration {iteration:8d}/     100 | consumed samples: {samples:12d} | elapsed time per iteration (ms): "
    "{ms:.1f} | learning rate: 3.000E-04 | global batch size:    64 | lm loss: {loss:.6E} | loss scale: 1.0 | "
    "grad norm: 0.500 | number of skipped iterations:   {skipped} | number of nan iterations:   0 |\n"
)


def train(iteration: int, at_s: float | None = None, attempt: int = 0, **more: Any) -> tuple[float, Record]:
    """A training record and its time."""
    values = {catalog.ITERATION: iteration, catalog.LOSS: 10.0 - iteration, **more.pop("values", {})}
    return at_s or T, Record(kind="train", phase="train", attempt=attempt, values=values, **more)


def samples(of: Sequence[tuple[float, Record]], name: str, interval_s: float = 15) -> list[tuple[float, float]]:
    """Time from T on and value of each sample of the series that start so."""
    return numbers(text_of(of, interval_s), name)


def text_of(of: Sequence[tuple[float, Record]], interval_s: float = 15, **options: Any) -> str:
    history = History(interval_ms=int(interval_s * 1000), labels={"nemo_run_id": "r"}, **options)
    return "".join(text for piece in history.pieces(of) for text in piece)


def numbers(text: str, name: str) -> list[tuple[float, float]]:
    lines = [line.rsplit(" ", 2) for line in text.splitlines() if line.startswith(name)]
    return [(float(stamp) - T, float(value)) for _, value, stamp in lines]


def test_a_value_is_seen_by_every_scrape_from_its_record_to_the_next() -> None:
    """Records at 0, 20 and 70 s, scraped every 15 s: by hand."""
    found = samples([train(1), train(2, T + 20), train(3, T + 70)], "megatron_training_loss")
    assert found == [(0, 9), (15, 9), (30, 8), (45, 8), (60, 8), (75, 7)]


def test_a_run_is_seen_once_before_its_first_record() -> None:
    """Counters show 0 and the phase is startup, so that the first increase counts."""
    of = [train(1, T + 1, values={catalog.SKIPPED_ITERS: 2}), train(2, T + 16)]
    assert samples(of, "megatron_training_skipped_iters_total") == [(0, 0), (15, 2), (30, 2)]
    assert samples(of, 'megatron_run_phase{phase="startup"') == [(0, 1), (15, 0), (30, 0)]
    assert samples(of, 'megatron_run_phase{phase="train"') == [(0, 0), (15, 1), (30, 1)]
    assert samples(of, "megatron_training_loss") == [(15, 9), (30, 8)]


def test_a_run_that_logs_every_17_minutes_has_no_holes() -> None:
    """Five hours: a sample of every gauge at every scrape."""
    found = samples([train(i, T + i * 1020) for i in range(1, 19)], "megatron_training_iteration")
    assert [when for when, _ in found] == [float(when) for when in range(1020, 18 * 1020 + 1, 15)]
    assert dict(found)[1020 * 5] == 5
    assert dict(found)[1020 * 5 - 15] == 4


def test_time_is_booked_at_every_scrape() -> None:
    """Between two records too: a hang shows while it lasts."""
    steps = [train(i, T + i * 30, values={catalog.STEP_DURATION: 30_000}) for i in range(1, 5)]
    of = [*steps, train(5, T + 900, values={catalog.STEP_DURATION: 30_000})]
    productive = dict(samples(of, 'megatron_run_time_seconds_total{bucket="productive"'))
    stalled = dict(samples(of, 'megatron_run_time_seconds_total{bucket="stalled"'))
    assert (productive[120], productive[135], productive[210], productive[225]) == (90, 105, 180, 180)
    assert (stalled[210], stalled[225], stalled[900]) == (0, 15, 690)


def test_an_ended_run_is_seen_as_ended_for_some_scrapes() -> None:
    """Then there is nothing: an end is told from a death by the mark."""
    end = (T + 20, Record(kind="end", phase="ended"))
    found = samples([train(1), end], 'megatron_run_phase{phase="ended"')
    assert found == [(-15, 0), (0, 0), (15, 0), (30, 1), (45, 1), (60, 1), (75, 1)]
    assert len([value for _, value in found if value]) == ENDED_SCRAPES


def test_a_log_that_just_stops_is_a_run_that_vanished() -> None:
    """One scrape sees the last record, and none after it."""
    assert samples([train(1), train(2, T + 31)], 'megatron_run_phase{phase="train"')[-2:] == [(30, 1), (45, 1)]


def test_a_process_without_an_end_was_gone_when_the_next_one_starts() -> None:
    """A gap of two days between two attempts is a gap in the samples, of histograms too; then all are back."""
    day = 2 * 86_400.0
    again = (T + day, Record(kind="start", phase="startup", attempt=1))
    first = train(1, values={catalog.STEP_DURATION: 500})
    of = [first, train(2, T + 20, values={catalog.STEP_DURATION: 500}), again, train(1, T + day + 40, attempt=1)]
    assert samples(of, "megatron_training_loss") == [
        *((0, 9), (15, 9), (30, 8)),
        *((day, 8), (day + 15, 8), (day + 30, 8), (day + 45, 9)),
    ]
    assert samples(of, "megatron_run_attempt")[-5:] == [(30, 0), (day, 1), (day + 15, 1), (day + 30, 1), (day + 45, 1)]
    counts = samples(of, "megatron_training_step_duration_ms_milliseconds_count")
    assert [when for when, _ in counts] == [0, 15, 30, day, day + 15, day + 30, day + 45]


def test_an_end_before_another_attempt_is_seen_like_any_other() -> None:
    """The mark stays for its scrapes, or until the next process, whichever is first."""
    for pause_s, ended in ((3600.0, 4), (40.0, 2)):
        again = (T + 20 + pause_s, Record(kind="start", phase="startup", attempt=1))
        found = samples(
            [train(1), (T + 20, Record(kind="end", phase="ended")), again], 'megatron_run_phase{phase="ended"'
        )
        assert sum(value for _, value in found) == ended


def test_a_process_that_says_nothing_for_a_day_is_gone() -> None:
    """A clock that is set to another year makes no year of samples."""
    of = [train(1), train(2, T + 400 * 86_400)]
    found = samples(of, "megatron_training_loss", interval_s=3600)
    assert found == [*((i * 3600.0, 9) for i in range(24)), (400 * 86_400.0, 8)]


def test_a_nan_loss_is_counted_and_leaves_a_hole() -> None:
    """As live: the gauge is withdrawn until there is a loss again."""
    of = [train(1), train(2, T + 30, values={catalog.LOSS: math.nan}), train(3, T + 60)]
    assert samples(of, "megatron_training_loss") == [(0, 9), (15, 9), (60, 7)]
    nonfinite = dict(samples(of, 'megatron_training_nonfinite_total{signal="loss"'))
    assert (nonfinite[15], nonfinite[30], nonfinite[60]) == (0, 1, 1)


def test_pieces_begin_at_multiples_of_their_length() -> None:
    """No sample of a piece is outside of its two hours, and together they are the whole."""
    of = [train(i, T + i * 61.7) for i in range(1, 400)]
    history = History(interval_ms=15_000, labels={"nemo_run_id": "r"}, length_ms=7_200_000)
    pieces = ["".join(piece) for piece in history.pieces(of)]
    name = "megatron_training_loss"
    assert len(pieces) == 4
    for piece in pieces:
        assert piece.endswith("# EOF\n")
        assert len({(when + T) // 7200 for when, _ in numbers(piece, "megatron_")}) == 1
    whole = text_of(of)
    assert numbers("".join(pieces), name) == numbers(whole, name)
    assert history.samples.count == sum(not line.startswith("#") for line in whole.splitlines())


def test_nothing_is_no_history() -> None:
    """No record, no text."""
    assert text_of([]) == ""


EVENTS = st.lists(
    st.tuples(
        st.floats(0, 200),
        st.sampled_from(["train", "checkpoint", "validation", "end", "start", "hang", "timers"]),
        st.floats(0.1, 60_000),
    ),
    max_size=25,
)


def records(events: list[tuple[float, str, float]]) -> Iterator[tuple[float, Record]]:
    """Records of any kinds in any order."""
    at, attempt = T, 0
    phases = {"train": "train", "end": "ended", "start": "startup", "checkpoint": "checkpoint"}
    for iteration, (later, kind, number) in enumerate(events):
        at += later
        attempt += kind == "start"
        values: dict[Metric, float] = {}
        if kind == "train":
            values = {catalog.ITERATION: iteration, catalog.LOSS: number, catalog.STEP_DURATION: number}
        yield at, Record(kind=kind, phase=phases.get(kind), attempt=attempt, values=values)


@settings(max_examples=60)
@given(EVENTS)
def test_asking_only_the_counters_between_records_changes_nothing(events: list[tuple[float, str, float]]) -> None:
    """A scrape that asks every instrument each time finds the same."""

    class Thorough(VirtualMeter):
        def collect(self, *, time_only: bool = False) -> list[Point]:
            return super().collect()

    quick = text_of(list(records(events)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(virtual, "VirtualMeter", Thorough)
        assert text_of(list(records(events))) == quick


def live(of: Sequence[tuple[float, Record]], interval_s: float) -> dict[str, dict[float, float]]:
    """What the SDK's own meter shows of a replay at speed 1, collected at every interval, by series and time."""
    collected = InMemoryMetricReader()
    meter = MeterProvider(metric_readers=[collected], shutdown_on_exit=False).get_meter("live")
    prepare(meter)
    log_time = replay.LogTime(0)
    log_time.seconds = of[0][0]
    found: dict[str, dict[float, float]] = {}

    def collect(at_s: float) -> None:
        for metric in collected.get_metrics_data().resource_metrics[0].scope_metrics[0].metrics:  # type: ignore[union-attr]
            name = family(catalog.get(metric.name))
            for point in metric.data.data_points:
                labels = "".join(f'{key}="{value}",' for key, value in (point.attributes or {}).items())
                shown = {"_sum": point.sum, "_count": point.count} if hasattr(point, "sum") else {"": point.value}
                for suffix, value in shown.items():
                    total = "_total" if catalog.get(metric.name).kind is Kind.COUNTER else suffix
                    series = f'{name}{total}{{{labels}nemo_run_id="r"}}'
                    found.setdefault(series, {})[at_s - T] = value

    sink = replay.metrics(meter, log_time)
    collect((of[0][0] // interval_s) * interval_s)
    for at, record in of:
        while (scrape := (log_time.seconds // interval_s + 1) * interval_s) < at:
            log_time.seconds = scrape
            collect(scrape)
        log_time.seconds = at
        sink(record)
    return found


def test_the_samples_are_those_of_a_live_replay() -> None:
    """Every value that the SDK shows at a scrape is the sample of that time; up to the end there are no others."""
    kinds = ["run", "train", "train", "checkpoint", "train", "validation", "train", "hang", "train", "end", "train"]
    of = list(records([(20.3 + i * 1.01, kind, 900.0 + i * 10) for i, kind in enumerate(kinds)]))
    expected = live(of, 7.0)
    text = text_of(of, 7.0)
    last = max(max(points) for points in expected.values())
    ours: dict[str, dict[float, float]] = {}
    for line in text.splitlines():
        series, _, _ = line.rpartition("} ")
        if line.startswith("megatron_") and "_bucket{" not in line:
            when, value = numbers(line, "megatron_")[0]
            if when <= last:
                ours.setdefault(series + "}", {})[when] = value
    assert sum(map(len, expected.values())) > 500
    assert ours.keys() == expected.keys()
    for series, points in expected.items():
        assert ours[series] == pytest.approx(points), series


STAMPED = [
    LINE.format(stamp=f"2025-03-01 12:{i:02}:00", iteration=i, samples=i * 64, ms=60_000, loss=3 - i / 10, skipped=0)
    for i in range(1, 6)
]


def read(lines: Sequence[str]) -> list[Record]:
    log = reader()
    return [*log.feed("".join(lines).encode()), *log.close()]


def test_stamps_are_of_the_zone_that_is_named() -> None:
    """Noon in Shanghai is four o'clock UTC."""
    first_s, stamped = begin(read(STAMPED), ZoneInfo("Asia/Shanghai"), 0)
    assert (first_s, stamped) == (1_740_801_660.0, True)
    assert begin(read(STAMPED), timezone.utc, 0) == (1_740_830_460.0, True)
    times = [at for at, _ in timed(read(STAMPED), Stamps(ZoneInfo("Asia/Shanghai")), first_s)]
    assert times == [1_740_801_660.0 + 60 * i for i in range(5)]


@pytest.mark.parametrize("of", ["2025-03-01T12:{:02}:00Z", "2025-03-01 20:{:02}:00+08:00"])
def test_stamps_that_name_their_zone_are_of_that(of: str) -> None:
    """Whatever zone is named for those that do not."""
    lines = [f"{of.format(i)} {line.partition('] ')[2]}" for i, line in enumerate(STAMPED)]
    first_s, stamped = begin(read(lines), ZoneInfo("America/New_York"), 0)
    assert (first_s, stamped) == (1_740_830_400.0, True)
    times = [at - first_s for at, _ in timed(read(lines), Stamps(ZoneInfo("America/New_York")), first_s)]
    assert times == [0, 60, 120, 180, 240]


MIXED = [
    "2025-03-01T12:00:30.0Z using world size: 16, data-parallel size: 16\n",
    *(f"2025-03-01T12:{i:02}:00.0Z{line.replace(' 12:', ' 20:')}" for i, line in enumerate(STAMPED, 1)),
]
MIXED.insert(3, "2025-03-01T12:02:30.0Z successfully saved checkpoint at iteration       2 to there\n")
"""A launcher in front that is in UTC, a program whose clock is in Shanghai."""


def test_a_launchers_clock_in_another_zone_is_not_the_runs() -> None:
    """A start before the first result is in its own zone; then only the program's times move the clock."""
    zone = ZoneInfo("Asia/Shanghai")
    first_s, stamped = begin(read(MIXED), zone, 0)
    assert (first_s, stamped) == (1_740_830_430.0, True)
    stamps = Stamps(zone)
    found = [(at - first_s, record.kind) for at, record in timed(read(MIXED), stamps, first_s)]
    trained = [(30.0 + 60 * i, "train") for i in range(5)]
    assert found == [(0, "start"), (0, "run"), *trained[:2], (90, "checkpoint"), *trained[2:]]
    assert stamps.back == 0


def test_a_replay_does_not_wait_for_another_clock() -> None:
    """Where the program's own times take over from a launcher's, no hours pass, nor is the run hours old."""
    found = [(seconds, record.kind) for seconds, record in replay.timeline(read(MIXED))]
    assert [seconds for seconds, kind in found if kind == "train"] == [0, 60, 120, 180, 240]
    past = Past()
    for record in read(MIXED):
        past.take(record)
    assert past.moments(1000.0) == {catalog.RUN_START_TIME: 760.0}


def test_without_stamps_the_end_is_the_end_and_steps_are_counted_back() -> None:
    """Five lines of one step of a minute each: the first one is four minutes before the end."""
    lines = [line.partition("] ")[2] for line in STAMPED]
    first_s, stamped = begin(read(lines), timezone.utc, T)
    assert (first_s, stamped) == (T - 240, False)
    assert [at - T for at, _ in timed(read(lines), Stamps(timezone.utc), first_s)] == [-240, -180, -120, -60, 0]


def test_the_hour_that_a_clock_has_twice_is_told_apart() -> None:
    """When summer time ends in Berlin, 02:30 comes twice, an hour apart."""
    stamps = Stamps(ZoneInfo("Europe/Berlin"))
    summer = 1_761_438_600.0  # 2025-10-26 02:30 as the clock shows it, 00:30 UTC
    shown = summer - 1_761_438_600 % 86400 + 2.5 * 3600
    assert [stamps.unix(shown), stamps.unix(shown + 1700), stamps.unix(shown)] == [summer, summer + 1700, summer + 3600]
    assert stamps.back == 0


def test_a_line_that_comes_late_does_not_turn_the_clock_back() -> None:
    """Ranks print some seconds out of order: all later times stay as printed."""
    stamps = Stamps(timezone.utc)
    assert [stamps.unix(at) for at in (100, 90, 110, 60, 200)] == [100, 100, 110, 110, 200]
    assert stamps.back == 0


@pytest.mark.parametrize(("pause_s", "started_s"), [(300.0, 0.0), (3 * 86_400.0, 3 * 86_400.0 - STARTUP_S)])
def test_what_a_process_prints_before_its_first_time_was_shortly_before(pause_s: float, started_s: float) -> None:
    """Unlike the last word of the process before it, which may be days older."""
    records = [
        Record(kind="train", stamp_s=T),
        Record(kind="start", attempt=1),
        Record(kind="run", attempt=1),
        Record(kind="train", stamp_s=T + pause_s, attempt=1),
        Record(kind="timers", attempt=1),
        Record(kind="run", attempt=2),
    ]
    at = [at - T for at, _ in timed(records, Stamps(timezone.utc), T)]
    assert at == [0, started_s, started_s, pause_s, pause_s, pause_s]


def test_another_clock_is_noticed_and_time_goes_on() -> None:
    """An attempt on a node whose clock is an hour behind comes after the one before it."""
    records = [Record(kind="train", stamp_s=at) for at in (10_000, 10_060, 6_500, 6_560)]
    stamps = Stamps(timezone.utc)
    assert [at for at, _ in timed(records, stamps, 10_000)] == [10_000, 10_060, 10_060, 10_120]
    assert stamps.back == 1
