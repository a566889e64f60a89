"""Telemetry of this process as its environment asks for it: on exporting ranks a meter, elsewhere nothing at all.

telemetry = set_up(args)  # Megatron-LM's arguments, or nothing
record_training_metrics(telemetry.meter, loss=2.5)
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from . import catalog, identity, spans
from .closing import CLOSING_TIME_S, all_within
from .destinations import LAST_PORT, Scrape, destination, otlp_protocol
from .errors import EmitterError
from .instruments import record
from .ranks import Place, exports, several_per_node
from .ranks import place as place_of
from .repeats import Once
from .run_config import Options, as_mapping, run_config
from .sampling import sampler_factory
from .settings import DEFAULT, Settings, read_settings

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from .export import Export
    from .tracing import Tracing

_log = logging.getLogger(__name__)
_once = Once(__name__)


class Telemetry:
    """What `set_up` made of the environment. A context manager that ends with a shutdown."""

    def __init__(self, *, settings: Settings, place: Place, run_id: str, attempt: int, exporting: bool) -> None:
        self.settings = settings
        self.place = place
        self.run_id = run_id
        """The same on every rank; empty while telemetry is off."""
        self.attempt = attempt
        self.exporting = exporting
        """Whether this rank exports."""
        self.meter: Meter | None = None
        """What to record into; None where nothing is exported, which every recording function takes."""
        self._export: Export | None = None
        self._closers: list[Callable[[], None]] = []

    @property
    def addresses(self) -> tuple[tuple[str, int], ...]:
        """Host and port of each scrape destination, as bound."""
        return () if self._export is None else self._export.addresses

    def flush(self) -> bool:
        """Push the present values; whether all arrived in time."""
        return self._export is None or self._export.flush()

    def await_scrape(self, timeout_s: float) -> None:
        """Wait until whoever scrapes has the present values."""
        if self._export is not None:
            self._export.await_scrape(timeout_s)

    def shutdown(self) -> None:
        """Push the last values and close every way out."""
        closers, self._closers = self._closers, []
        all_within(2 * CLOSING_TIME_S, [_untimed(close) for close in closers])

    def __enter__(self) -> Telemetry:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def set_up(
    arguments: argparse.Namespace | None = None,
    *,
    run_id: str | None = None,
    to: str | Iterable[str] | None = None,
    options: Options | None = None,
    attempt: int | None = None,
    interval_s: float | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Telemetry:
    """Open the ways out that flags and environment ask for, on the ranks that they name. Call it on every rank.

    `arguments` are parsed flags, `options` the run's settings for resource, `run.info` and `run.config` (default: the
    arguments). `run_id` and `to` are for programs that name these themselves; with `to` telemetry is on unless the
    environment says that it is off. A way out that cannot be opened is a warning; training goes on.

    Raises: ValueError if a flag, a variable or an argument cannot be.
    """
    settings = read_settings(arguments, environ)
    if not (settings.enabled or (to is not None and settings.sources["enabled"] == DEFAULT)):
        first = False
        with suppress(ValueError):  # a strange launcher does not matter where nothing is exported
            first = place_of(environ).rank == 0
        if settings.sources["enabled"] == DEFAULT and first:
            _once.warn("off", "emitter: telemetry is off. Set MEGATRON_OTEL_ENABLED=1, or name a way out in `to`.")
        return Telemetry(settings=settings, place=Place(), run_id="", attempt=0, exporting=False)
    place = place_of(environ)
    # What is wrong is wrong on every rank: one that raises alone would leave the others waiting for it.
    groups = spans.resolve(settings.span_groups) if settings.traces_enabled else frozenset[str]()
    sampler_factory(settings.sampling_strategy)
    telemetry = Telemetry(
        settings=settings,
        place=place,
        run_id=identity.cleaned(identity.run_id(settings, place, environ) if run_id is None else run_id),
        attempt=identity.attempt(environ, attempt),
        exporting=exports(place, settings),
    )
    to = ways_out(settings, place, to)
    _check(to, settings, interval_s, environ)
    given = _readable(arguments if options is None else options)
    if not telemetry.exporting:
        return telemetry
    try:
        _open(telemetry, to, groups, given, interval_s, environ)
    except BaseException:
        telemetry.shutdown()
        raise
    return telemetry


def _check(to: tuple[str, ...], settings: Settings, interval_s: float | None, environ: Mapping[str, str]) -> None:
    if not to:
        raise ValueError("emitter.set_up: telemetry goes somewhere (got no destination). Name one in `to`.")
    if interval_s is not None and not 0 < interval_s < inf:
        raise ValueError(f"emitter.set_up: interval_s must be above 0 (got {interval_s!r}). Leave it out for 60 s.")
    for signal in settings.signals if "otlp" in to else ():
        otlp_protocol(signal, environ)


def _readable(options: Options | None) -> dict[str, object]:
    """The options as far as they can be read: in a configuration that is not filled in some may raise."""
    try:
        named = as_mapping(options)
        names = [name for name in named if isinstance(name, str)]
    except Exception as error:
        raise ValueError(
            f"emitter.set_up: options must be a mapping or parsed arguments (got {type(options).__name__}). "
            "Give a dictionary of them."
        ) from error
    given: dict[str, object] = {}
    for name in names:
        with suppress(Exception):
            given[name] = named[name]
    return given


def ways_out(settings: Settings, place: Place, to: str | Iterable[str] | None = None) -> tuple[str, ...]:
    """Where a rank's telemetry goes: where several ranks of a node export, each listens on a port of its own.

    Raises: ValueError if one is no destination, or the ports do not reach for every rank of the node.
    """
    wanted = settings.exporter if to is None else (to,) if isinstance(to, str) else tuple(to)
    return tuple(_of_rank(text, place) if several_per_node(settings) else _checked(text) for text in wanted)


def _checked(text: str) -> str:
    destination(text)
    return text


def _of_rank(text: str, place: Place) -> str:
    where = destination(text)
    if not isinstance(where, Scrape) or where.port == 0:
        return text
    last = where.port + max(place.local_rank, (place.local_world_size or 1) - 1)
    if last > LAST_PORT:
        raise ValueError(
            f"{text}: each rank of a node takes a port, the last one {LAST_PORT} or less (got {last}). Begin lower."
        )
    return str(replace(where, port=where.port + place.local_rank))


def _open(
    telemetry: Telemetry,
    to: tuple[str, ...],
    groups: frozenset[str],
    options: dict[str, object],
    interval_s: float | None,
    environ: Mapping[str, str],
) -> None:
    place = telemetry.place
    attributes = identity.resource(telemetry.settings, place, telemetry.run_id, environ, options)
    everything = {**attributes.stable, **attributes.volatile}

    def metrics() -> None:
        from . import start  # this loads the SDK when it is called, or says what to install

        export = start(
            telemetry.run_id, to, resource=attributes.stable, rank=place.rank, interval_s=interval_s, strict=False
        )
        telemetry._export = export
        telemetry.meter = export.meter
        telemetry._closers.append(export.shutdown)
        _describe(export.meter, telemetry, options)

    def logs() -> None:
        from . import log_bridge

        telemetry._closers.append(log_bridge.start(telemetry.run_id, to, place=place, resource=everything).shutdown)

    def traces() -> None:
        from . import tracing

        settings, meter = telemetry.settings, telemetry.meter
        tracer = tracing.start(telemetry.run_id, to, resource=everything, place=place, settings=settings, meter=meter)
        spans.enable(groups, tracer.tracer)
        telemetry._closers.append(partial(_close_tracing, tracer))

    # Metrics before traces, which they measure.
    for signal, open_it in {"metrics": metrics, "logs": logs, "traces": traces}.items():
        if signal in telemetry.settings.signals:
            _or_without(signal, open_it)


def _or_without(signal: str, open_it: Callable[[], None]) -> None:
    try:
        open_it()
    except EmitterError as error:
        _log.warning("%s Training goes on without.", error)
    except Exception as error:  # the SDK's, of a variable of its own
        _log.warning(
            "emitter.set_up: %s must leave (got %r). Check the OTEL_* variables. Training goes on without.",
            signal,
            error,
        )


def _close_tracing(tracing: Tracing) -> None:
    spans.disable(tracing.tracer)
    tracing.shutdown()


def _untimed(close: Callable[[], None]) -> Callable[..., None]:
    """For `all_within`, which names a limit: each of ours looks after its own time."""
    return lambda timeout_millis: close()


def _describe(meter: Meter, telemetry: Telemetry, options: Options) -> None:
    place = telemetry.place
    record(meter, catalog.WORLD_SIZE, place.world_size)
    record(meter, catalog.GPUS_PER_NODE, place.local_world_size)
    record(meter, catalog.RUN_ATTEMPT, telemetry.attempt)
    record(meter, catalog.RUN_INFO, 1, identity.run_info(options, telemetry.attempt))
    for option, value in run_config(options).items():
        record(meter, catalog.RUN_CONFIG, 1, {"option": option, "value": value})
