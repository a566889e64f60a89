"""Runs as the series that a scrape of them leaves behind: healthy, hung, diverged, restarted, renamed."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby

from dashboards.scope import spellings
from emitter import catalog
from emitter.catalog import Metric

SCRAPE_S = 15
NEVER = math.inf
STALE = "stale"
"""What a scrape writes when a series is gone: its end, at once, not five minutes later."""

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
Sample = float | str | None
Span = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process of a run. Times are seconds; its first log interval ends one cadence after `start`."""

    run: str
    cadence: float
    start: float = 0
    seen_from: float = 0
    """When it is scraped for the first time, if that is after its start."""
    stop: float = NEVER
    """When it is scraped for the last time."""
    gaps: tuple[Span, ...] = ()
    """When its scrapes fail."""
    works_until: float = NEVER
    """When it stops logging; alive all the same until `stop`."""
    pauses: tuple[tuple[float, float, str], ...] = ()
    """Begin, end and phase of the times without steps."""
    ends_at: float = NEVER
    """When it says phase `ended`, if it has phases."""
    signals: bool = True
    """Whether it has what unmodified Megatron-LM has not: phase, iteration, world size, the counter of NaN."""
    world_size: int = 64
    """GPUs that it exports, if it has signals; 0: it does not say."""
    first_iteration: int = 0
    log_interval: int = 10
    speed: tuple[Span, ...] = ()
    """From when on the speed is which share of the usual one."""
    ramp: Span = (NEVER, NEVER)
    """Begin and end of a batch-size ramp: the log interval grows to twice its length, tokens per second stay."""
    nan: Span = (NEVER, NEVER)
    """When loss and gradient norm are NaN."""
    sdk_drops_nan: bool = True
    """Whether a NaN leaves the last finite value in place, as in a current SDK, or is exported, as in an old one."""
    zero_loss: Span = (NEVER, NEVER)
    skips: tuple[tuple[float, int], ...] = ()
    """When how many iterations are skipped."""
    digits: int = 12
    """Decimals of the loss."""
    tokens: bool = True
    """Whether it exports tokens per second."""
    instance: str = ""
    """Its target; named after the run unless given."""
    run_label: str = "nemo_run_id"
    identity: str = "label"
    """`label`: every series has the run label; `target_info`: only target_info has it; `none`: nothing has it."""
    labels: Labels = ()
    """Further labels of every series; an empty value takes a label away."""
    namespace: str = ""
    """What the pipeline puts before names."""
    dots: bool = False
    suffixed: bool = True

    def renamed(self, at: float, **how: bool) -> tuple[Process, Process]:
        """The same process, exported under another spelling from `at` on."""
        return replace(self, stop=at), replace(self, seen_from=at, **how)

    def scraped(self, now: float) -> bool:
        """Whether a scrape finds it."""
        begin = max(self.start, self.seen_from)
        return begin <= now <= self.stop and not any(_within(now, gap) for gap in self.gaps)

    def speed_at(self, now: float) -> float:
        """Share of its usual speed."""
        share = 1.0
        for since, value in self.speed:
            if now >= since:
                share = value
        return share

    def interval_at(self, now: float) -> float:
        """Length of a log interval that begins now."""
        begin, end = self.ramp
        growth = 1 if now < begin else 2 if now >= end else 1 + (now - begin) / (end - begin)
        return self.cadence * growth / self.speed_at(now)

    def logs(self, until: float) -> Iterator[Span]:
        """Begin and end of each log interval, pauses included."""
        until = min(until, self.stop, self.works_until, self.ends_at)
        begin = self.start
        while (end := begin + self.interval_at(begin)) <= until:
            for pause, resume, _ in self.pauses:
                if begin <= pause < end:
                    end += resume - pause
            if end <= until:
                yield begin, end
            begin = end

    def phase(self, now: float, *, logged: bool) -> str:
        """What it says it is at."""
        if now >= self.ends_at:
            return "ended"
        for begin, end, phase in self.pauses:
            if begin <= now < end:
                return phase
        return "train" if logged else "startup"

    def key(self, metric: Metric, part: str = "", **attributes: str) -> Key:
        """Name and labels of a series of a metric."""
        run = {self.run_label: self.run} if self.identity == "label" else {}
        names = [name for name in spellings(metric, part) if ("." in name) == self.dots]
        return self._labeled(names[-1 if self.suffixed else 0], {**run, **attributes})

    def target_info(self) -> Key:
        """The series that names the run where the others do not."""
        return self._labeled("target_info", {self.run_label: self.run})

    def _labeled(self, name: str, labels: dict[str, str]) -> Key:
        every = {"job": "training", "instance": self.instance or f"{self.run}:9464", **labels, **dict(self.labels)}
        prefix = f"{self.namespace}_" if self.namespace else ""
        return prefix + name, tuple(sorted((label, value) for label, value in every.items() if value))


class _Played:
    """A process with all that it has logged, and what a scrape finds at a time."""

    def __init__(self, process: Process, until: float) -> None:
        self._process = process
        self._logs, self._spent_ms, self._diverged = [process.start], [0.0], [0]
        for begin, end in process.logs(until):
            self._logs.append(end)
            self._spent_ms.append(self._spent_ms[-1] + 1000 * process.interval_at(begin) / process.log_interval)
            self._diverged.append(self._diverged[-1] + _within(end, process.nan))
        pauses = [time for begin, end, _ in process.pauses for time in (begin, end)]
        skips = [at for at, _ in process.skips]
        self._changes = sorted([process.ends_at, *pauses, *skips, *self._logs])
        self._key = cache(process.key)

    def version(self, now: float) -> int:
        """Number of changes so far: while it stays, so does the sample."""
        return bisect_right(self._changes, now)

    def sample(self, now: float) -> Iterator[tuple[Key, float]]:
        """The series that a scrape finds, and their values."""
        process, key = self._process, self._key
        count = bisect_right(self._logs, now) - 1
        if process.identity == "target_info":
            yield process.target_info(), 1
        if process.signals:
            now_in = process.phase(now, logged=count > 0)
            for phase in catalog.PHASES:
                yield key(catalog.RUN_PHASE, phase=phase), int(phase == now_in)
            for signal in catalog.SIGNALS:
                yield key(catalog.NONFINITE, signal=signal), self._diverged[count]
            if process.world_size:
                yield key(catalog.WORLD_SIZE), process.world_size
        skipped = sum(number for at, number in process.skips if at <= now)
        if process.signals or skipped:
            yield key(catalog.SKIPPED_ITERS), skipped
        if count:
            yield from self._logged(count)

    def _logged(self, count: int) -> Iterator[tuple[Key, float]]:
        """What is there after the first log interval."""
        process, key, last = self._process, self._key, self._logs[count]
        yield key(catalog.STEP_DURATION, part="count"), count
        yield key(catalog.STEP_DURATION, part="sum"), self._spent_ms[count]
        if process.signals:
            yield key(catalog.ITERATION), process.first_iteration + count * process.log_interval
        if process.tokens:
            speed = process.speed_at(self._logs[count - 1])
            yield key(catalog.TOKENS_PER_SEC), 1e6 * speed * (1 + 0.001 * math.sin(count))
        learned = count - self._diverged[count]
        loss = round(2 + 8 / (1 + learned / 50) + 0.01 * math.sin(learned * 7), process.digits)
        grad_norm = 1 + 0.1 * math.sin(learned * 3)
        if _within(last, process.zero_loss):
            loss = 0.0
        if _within(last, process.nan):
            if process.signals:
                return  # our emitter withdraws what is not finite
            if not process.sdk_drops_nan:
                loss = grad_norm = math.nan
        yield key(catalog.LOSS), loss
        yield key(catalog.GRAD_NORM), grad_norm


@cache
def _series(process: Process, until: float) -> dict[Key, list[Sample]]:
    """Samples by name and labels, one every SCRAPE_S from 0 on; None where there is none."""
    played = _Played(process, until)
    out: dict[Key, list[Sample]] = {}
    present: dict[Key, float] = {}
    version = -1
    ticks = range(0, int(until) + 1, SCRAPE_S)
    for place, tick in enumerate(ticks):
        before = present
        if not process.scraped(tick):
            present, version = {}, -1
        elif (now := played.version(tick)) != version:
            present, version = dict(played.sample(tick)), now
        for key, value in present.items():
            values = out.setdefault(key, [])
            values.extend([None] * (place - len(values)))
            values.append(value)
        if before is not present:
            for key in before.keys() - present.keys():
                out[key].append(STALE)
    for values in out.values():
        values.extend([None] * (len(ticks) - len(values)))
    return out


def _within(time: float, span: Span) -> bool:
    return span[0] <= time < span[1]


def _merged(processes: Iterable[Process], until: float) -> dict[Key, list[Sample]]:
    """The series of all processes; where two have one series, a number counts more than its end or its absence."""
    merged: dict[Key, list[Sample]] = {}
    for process in processes:
        for key, values in _series(process, until).items():
            if key in merged:
                values = [_stronger(old, new) for old, new in zip(merged[key], values, strict=True)]
            merged[key] = values
    return merged


def _stronger(old: Sample, new: Sample) -> Sample:
    return old if new is None or (new == STALE and old is not None) else new


def promtool_series(processes: Iterable[Process], until: float) -> list[dict[str, str]]:
    """The series of all processes in the notation of promtool's tests."""
    return [
        {"series": _text(name, labels), "values": _runs(values)}
        for (name, labels), values in sorted(_merged(processes, until).items())
    ]


def openmetrics(processes: Iterable[Process], until: float, begin: int) -> str:
    """The series of all processes as OpenMetrics text, the first scrape at Unix time `begin`.

    The format has no mark for the end of a series: what is gone is seen for five more minutes.
    """
    lines = []
    by_name: Callable[[tuple[Key, list[Sample]]], str] = lambda item: item[0][0]  # noqa: E731
    for name, series in groupby(sorted(_merged(processes, until).items(), key=lambda item: item[0]), by_name):
        lines.append(f"# TYPE {_bare(name)} unknown")
        for (_, labels), values in series:
            text = _text(name, labels)
            lines.extend(
                f"{text} {_number(value)} {begin + place * SCRAPE_S}"
                for place, value in enumerate(values)
                if value is not None and value != STALE
            )
    return "\n".join([*lines, "# EOF", ""])


def _bare(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else json.dumps(name)


def _text(name: str, labels: Labels) -> str:
    """A series in the classic notation where that can name it, else in that of Prometheus 3."""
    inside = ",".join(f"{_bare(label)}={json.dumps(value, ensure_ascii=False)}" for label, value in labels)
    bare = _bare(name)
    return f"{{{bare}{',' if inside else ''}{inside}}}" if bare != name else f"{name}{{{inside}}}"


def _number(value: Sample) -> str:
    return "NaN" if value != value else str(value)


def _runs(values: list[Sample]) -> str:
    """The values with repetitions written as `1x20`."""
    out = []
    for text, group in groupby("_" if value is None else _number(value) for value in values):
        times = len(list(group))
        if times == 1 or text in (STALE, "NaN"):  # what promtool 2.42 does not repeat
            out.extend([text] * times)
        else:
            out.append(f"{text}x{times if text == '_' else times - 1}")
    return " ".join(out)
