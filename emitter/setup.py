"""Telemetry of this process as its environment asks for it: on exporting ranks a meter, elsewhere nothing at all.

telemetry = set_up(args)  # Megatron-LM's arguments, or nothing
record_training_metrics(telemetry.meter, loss=2.5)
"""

from __future__ import annotations

import argparse
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from . import catalog, identity, spans
from .closing import CLOSING_TIME_S, all_within
from .destinations import otlp_protocol
from .errors import EmitterError
from .instruments import record
from .ranks import Place, exports, several_per_node
from .ranks import place as place_of
from .run_config import Options, run_config
from .sampling import sampler_factory
from .settings import DEFAULT, Settings, read_settings

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from .export import Export

_log = logging.getLogger(__name__)


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
    to = _destinations(settings, place, to)
    _check_protocols(to, settings, environ)
    if not telemetry.exporting:
        return telemetry
    options = arguments if options is None else options
    try:
        _open(telemetry, to, groups, options, interval_s, environ)
    except BaseException as error:
        telemetry.shutdown()
        if not isinstance(error, EmitterError):
            raise
        _log.warning("%s Training goes on without.", error)
    return telemetry


def _check_protocols(to: tuple[str, ...], settings: Settings, environ: Mapping[str, str]) -> None:
    on = {"metrics": settings.metrics_enabled, "traces": settings.traces_enabled, "logs": settings.logs_enabled}
    for signal in (signal for signal, enabled in on.items() if enabled and "otlp" in to):
        otlp_protocol(signal, environ)


def _destinations(settings: Settings, place: Place, to: str | Iterable[str] | None) -> tuple[str, ...]:
    """Where this rank's telemetry goes: ranks of one node that scrape listens on take a port each."""
    wanted = settings.exporter if to is None else (to,) if isinstance(to, str) else tuple(to)
    if not several_per_node(settings) or not place.local_rank:
        return wanted
    return tuple(_next_port(text, place.local_rank) for text in wanted)


def _next_port(text: str, local_rank: int) -> str:
    head, _, port = text.rpartition(":")
    return f"{head}:{int(port) + local_rank}" if text.startswith("scrape:") and port != "0" else text


def _open(
    telemetry: Telemetry,
    to: tuple[str, ...],
    groups: frozenset[str],
    options: Options | None,
    interval_s: float | None,
    environ: Mapping[str, str],
) -> None:
    from . import start  # this loads the SDK when it is called, or says what to install

    settings, place = telemetry.settings, telemetry.place
    attributes = identity.resource(settings, place, telemetry.run_id, environ, options)
    if settings.metrics_enabled:
        export = start(
            telemetry.run_id, to, resource=attributes.stable, rank=place.rank, interval_s=interval_s, strict=False
        )
        telemetry._closers.append(export.shutdown)
        telemetry._export = export
        telemetry.meter = export.meter
        _describe(export.meter, telemetry, options)
    if settings.logs_enabled:
        from . import log_bridge

        bridge = log_bridge.start(
            telemetry.run_id, to, place=place, resource={**attributes.stable, **attributes.volatile}
        )
        telemetry._closers.append(bridge.shutdown)
    if groups:
        from . import tracing

        tracer = tracing.start(
            telemetry.run_id,
            to,
            resource={**attributes.stable, **attributes.volatile},
            place=place,
            settings=settings,
            meter=telemetry.meter,
        )
        spans.enable(groups, tracer.tracer)
        telemetry._closers.append(partial(_close_tracing, tracer.shutdown))


def _close_tracing(shutdown: Callable[[], None]) -> None:
    spans.disable()
    shutdown()


def _untimed(close: Callable[[], None]) -> Callable[..., None]:
    """For `all_within`, which names a limit: each of ours looks after its own time."""
    return lambda timeout_millis: close()


def _describe(meter: Meter, telemetry: Telemetry, options: Options | None) -> None:
    place = telemetry.place
    record(meter, catalog.WORLD_SIZE, place.world_size)
    record(meter, catalog.GPUS_PER_NODE, place.local_world_size)
    record(meter, catalog.RUN_ATTEMPT, telemetry.attempt)
    record(meter, catalog.RUN_INFO, 1, identity.run_info(options, telemetry.attempt))
    for option, value in run_config(options or {}).items():
        record(meter, catalog.RUN_CONFIG, 1, {"option": option, "value": value})
