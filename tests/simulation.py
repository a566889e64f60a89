"""Runs as the series that a scrape of them leaves behind: healthy, hung, diverged, restarted, renamed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from dashboards.scope import spellings
from emitter import catalog
from emitter.catalog import Metric

SCRAPE_S = 15
STALE = "stale"

Labels = tuple[tuple[str, str], ...]


@dataclass
class Process:
    """One process of a run. Times are seconds; its first log interval ends one cadence after `start`."""

    run: str
    cadence: float
    start: float = 0
    stop: float = math.inf
    """When it is scraped for the last time."""
    works_until: float = math.inf
    """When it stops logging; alive all the same until `stop`."""
    pauses: tuple[tuple[float, float, str], ...] = ()
    """Begin, end and phase of the times without steps."""
    ends_at: float = math.inf
    """When it says phase `ended`, if it has phases."""
    signals: bool = True
    """Whether it has what unmodified Megatron-LM has not: phase, iteration, world size, the counter of NaN."""
    instance: str = "a:1"
    first_iteration: int = 0
    log_interval: int = 10
    labels: Labels = ()
    dots: bool = False
    suffixed: bool = True
    speed: tuple[tuple[float, float], ...] = ()
    """From when on the speed is which share of the usual one."""
    nan_from: float = math.inf
    nan_until: float = math.inf
    zero_loss: tuple[float, float] = (math.inf, math.inf)
    skips: tuple[tuple[float, int], ...] = ()
    digits: int = 12
    tokens: bool = True
    logs: list[float] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        at = self.start
        while at < min(self.stop, self.works_until, self.ends_at) and len(self.logs) < 20_000:
            step = self.cadence / self._speed(at)
            at += step
            for begin, end, _ in self.pauses:
                if begin <= at - step < end or at - step < begin < at:
                    at += end - max(begin, at - step)
            if at < min(self.stop, self.works_until, self.ends_at):
                self.logs.append(at)

    def _speed(self, at: float) -> float:
        share = 1.0
        for since, value in self.speed:
            if at >= since:
                share = value
        return share

    def renamed(self, at: float, **how: bool) -> tuple[Process, Process]:
        """The same process, exported under another spelling from `at` on."""
        return replace(self, stop=at), _Later.of(replace(self, **how), at)

    def scraped_from(self) -> float:
        return self.start

    def series(self, until: float) -> dict[tuple[str, Labels], list[str]]:
        """Samples by name and labels, one every SCRAPE_S from 0 on; `_` is none."""
        out: dict[tuple[str, Labels], list[str]] = {}
        first, last = self.scraped_from(), min(self.stop, until)
        ticks = range(0, int(until) + 1, SCRAPE_S)
        gone = next((t for t in ticks if t > last), None)
        for tick in ticks:
            if first <= tick <= last:
                for key, value in self._sample(tick):
                    out.setdefault(key, ["_"] * (tick // SCRAPE_S)).append(_text(value))
            for values in out.values():
                if len(values) == tick // SCRAPE_S:
                    values.append(STALE if tick == gone else "_")
        return out

    def _sample(self, now: float) -> Iterable[tuple[tuple[str, Labels], float]]:
        done = [at for at in self.logs if at <= now]
        count = len(done)
        if self.signals:
            for phase in catalog.PHASES:
                yield self._key(catalog.RUN_PHASE, phase=phase), float(phase == self._phase(now, count))
            yield self._key(catalog.WORLD_SIZE), 64
            for signal in catalog.SIGNALS:
                bad = sum(self.nan_from <= at < self.nan_until for at in done)
                yield self._key(catalog.NONFINITE, signal=signal), bad
        skipped = sum(number for at, number in self.skips if at <= now)
        if self.signals or skipped:
            yield self._key(catalog.SKIPPED_ITERS), skipped
        if not count:
            return
        spent = [1000 * self.cadence / self.log_interval / self._speed(at) for at in done]
        yield self._key(catalog.STEP_DURATION, part="count"), count
        yield self._key(catalog.STEP_DURATION, part="sum"), sum(spent)
        if self.signals:
            yield self._key(catalog.ITERATION), self.first_iteration + count * self.log_interval
        learned = sum(not self.nan_from <= at < self.nan_until for at in done)
        loss = round(2 + 8 / (1 + learned / 50) + 0.01 * math.sin(learned * 7), self.digits)
        diverged = self.nan_from <= done[-1] < self.nan_until
        if self.zero_loss[0] <= done[-1] < self.zero_loss[1]:
            loss = 0.0
        if not (diverged and self.signals):
            yield self._key(catalog.LOSS), loss
            yield self._key(catalog.GRAD_NORM), 1 + 0.1 * math.sin(learned * 3)
        if self.tokens:
            yield self._key(catalog.TOKENS_PER_SEC), 1e6 * self._speed(done[-1]) * (1 + 0.001 * math.sin(count))

    def _phase(self, now: float, count: int) -> str:
        if now >= self.ends_at:
            return "ended"
        for begin, end, phase in self.pauses:
            if begin <= now < end:
                return phase
        return "train" if count else "startup"

    def _key(self, metric: Metric, part: str = "", **attributes: str) -> tuple[str, Labels]:
        names = [name for name in spellings(metric, part) if ("." in name) == self.dots]
        labels = {
            "nemo_run_id": self.run,
            "job": "training",
            "instance": self.instance,
            **attributes,
            **dict(self.labels),
        }
        return names[-1 if self.suffixed else 0], tuple(sorted(labels.items()))


class _Later(Process):
    """A process that is scraped only from some time on, though it worked before."""

    since: float = 0

    @classmethod
    def of(cls, process: Process, since: float) -> _Later:
        fields = {name: getattr(process, name) for name in process.__dataclass_fields__ if name != "logs"}
        later = cls(**fields)
        later.since = since
        return later

    def scraped_from(self) -> float:
        return self.since


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else repr(value)


def input_series(processes: Iterable[Process], until: float) -> list[dict[str, str]]:
    """The series of all processes in the notation of promtool's tests."""
    merged: dict[tuple[str, Labels], list[str]] = {}
    for process in processes:
        for key, values in process.series(until).items():
            if key in merged:
                values = [new if new != "_" else old for old, new in zip(merged[key], values, strict=True)]
            merged[key] = values
    return [
        {"series": _selector(name, labels), "values": _runs(values)}
        for (name, labels), values in sorted(merged.items())
    ]


def _selector(name: str, labels: Labels) -> str:
    inside = ",".join(f'{label}="{value}"' for label, value in (("__name__", name), *labels))
    return f"{{{inside}}}"


def _runs(values: list[str]) -> str:
    """The values with repetitions written as `1x20`."""
    out, position = [], 0
    while position < len(values):
        again = position
        while again + 1 < len(values) and values[again + 1] == values[position]:
            again += 1
        times = again - position
        if times and values[position] != STALE:
            out.append(f"{values[position]}x{times + (values[position] == '_')}")
        else:
            out.extend([values[position]] * (times + 1))
        position = again + 1
    return " ".join(out)
