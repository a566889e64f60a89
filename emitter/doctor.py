"""`python -m emitter doctor`: what the environment asks for, what each rank would do, and whether a test arrives.

The report is plain text that fits into a ticket: there is no secret in it.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar
from urllib.parse import unquote

from . import identity, ranks, spans, trial
from .destinations import Scrape, destination
from .plain import utf8
from .ranks import Place
from .run_config import safe_text
from .sampling import sampler_factory
from .settings import DEFAULT, PREFIXES, Settings, add_cli_arguments, explain, read_settings
from .setup import ways_out

HELP = "the settings in effect, what each rank would do, and a test export"

DESCRIPTION = """Print the settings in effect with the source of each, what each rank of the run would do, and make a
test export by each way out, under a run id of its own. Start it as the training program is started: on the same
machine, with the same environment; telemetry may be off. Exit 0 if all of them arrived, 1 if not, or if a setting is
wrong."""

PACKAGES = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "opentelemetry-exporter-otlp-proto-grpc")

NOT_SEEN = "If the program registers it, all is well: the doctor cannot see that."
"""Said of a strategy that is none of the emitter's."""

RUNS_SHOWN = 8
"""How many ranges a list of ranks shows before it is cut short."""

_Found = TypeVar("_Found")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The doctor's flags, and those of a training program."""
    parser.add_argument(
        "--world-size", type=_count, metavar="N", help="ranks of the run (default: as the launcher's variables say)"
    )
    parser.add_argument(
        "--local-world-size", type=_count, metavar="N", help="ranks of a node (default: as those say, or all)"
    )
    add_cli_arguments(parser)
    parser.set_defaults(run=doctor)


def _count(text: str) -> int:
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise argparse.ArgumentTypeError(f"a number of ranks is 1 or more (got {text!r})")


def doctor(options: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> int:
    """Print the report; 0 if every test export arrived, 1 if one did not or a setting is wrong."""
    wrong: list[str] = []
    not_seen: list[str] = []
    with trial.heard() as warnings:
        settings = _judged(wrong, lambda: read_settings(options, _as_if_on(environ)))
        place = _judged(wrong, lambda: ranks.place(environ)) or Place()
        _table("Versions", [("Python", platform.python_version()), *((name, _version(name)) for name in PACKAGES)])
        if settings is None:
            return _refuse(wrong)
        asked = _judged(wrong, lambda: read_settings(options, environ))  # with the switch as it is
        if asked is None:
            return _refuse(wrong)
        _table("Settings", [(row.name, row.value, row.source) for row in explain(asked)])
        # Rank 0 warns, and has the same id.
        run_id = identity.cleaned(identity.run_id(settings, replace(place, rank=0), environ))
        _table("This process", _process(settings, place, run_id, environ))
        _table("Resource attributes", _resource(settings, place, run_id, environ))
        ours = settings.rank_strategy in ranks.rank_strategies()
        job = _judged(wrong if ours else not_seen, lambda: _job(settings, place, options))
        _table("Ranks", job or [])
        groups = _judged(wrong, lambda: spans.resolve(settings.span_groups)) if settings.traces_enabled else None
        _table("Span groups", [(", ".join(sorted(groups or ())) or "none",)])
        _judged(not_seen, lambda: sampler_factory(settings.sampling_strategy))
        ways = _judged(wrong, lambda: _ways(settings, place, environ)) or []
    warnings += [f"{line} {NOT_SEEN}" for line in not_seen]
    _table("Warnings", [(warning,) for warning in dict.fromkeys(warnings)])
    if wrong:
        return _refuse(wrong)
    if not asked.enabled:
        print(f"Telemetry is off: set {PREFIXES[0]}ENABLED=1. The test export is made as if it were on.\n")
    run_id = f"doctor-{os.urandom(6).hex()}"
    attributes = identity.resource(settings, place, run_id, environ)
    return _try(ways, trial.Sender(run_id=run_id, place=place, settings=settings, attributes=attributes))


def _as_if_on(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment with telemetry on, of rank 0: the one that warns."""
    numbers = {launcher.rank for launcher in ranks.LAUNCHERS}
    return {name: value for name, value in environ.items() if name not in numbers} | {f"{PREFIXES[0]}ENABLED": "1"}


def _judged(wrong: list[str], judge: Callable[[], _Found]) -> _Found | None:
    """What is found; or nothing, and what is wrong."""
    try:
        return judge()
    except ValueError as error:
        wrong.extend(line for line in str(error).splitlines() if line not in wrong)
        return None


def _refuse(wrong: list[str]) -> int:
    _table("Wrong settings", [(line,) for line in wrong])
    print("Nothing was exported. Set these right first.")
    return 1


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing: install megatron-watch[otlp]"


def _table(title: str, rows: Iterable[tuple[str, ...]]) -> None:
    """A title and rows with aligned columns; nothing where there are no rows."""
    lines = [tuple(utf8(cell) or "-" for cell in row) for row in rows]
    if not lines:
        return
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    print(title)
    for line in lines:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    print()


def _process(settings: Settings, place: Place, run_id: str, environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    launcher = _launcher(environ) or DEFAULT
    counters = ", ".join(name for name in identity.RESTART_COUNTERS if environ.get(name))
    on_node = "" if place.local_world_size is None else f" of {place.local_world_size}"
    return [
        ("run id", run_id, _source_of_id(settings, environ, run_id)),
        ("attempt", str(identity.attempt(environ)), counters or DEFAULT),
        ("rank", f"{place.rank} of {place.world_size}", launcher),
        ("local rank", f"{place.local_rank}{on_node}", launcher),
    ]


def _launcher(environ: Mapping[str, str]) -> str:
    """The variables that say which rank this is."""
    launcher = ranks.launcher_of(environ)
    return ", ".join(name for name in launcher.variables if environ.get(name)) if launcher else ""


def _source_of_id(settings: Settings, environ: Mapping[str, str], run_id: str) -> str:
    if settings.run_id:
        return settings.sources["run_id"]
    for name in ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", *identity.JOB_VARIABLES):
        if environ.get(name) == run_id:
            return name
    if environ.get("MASTER_ADDR") and environ.get("MASTER_PORT"):
        return "the rendezvous: the same on every rank"
    return "random: another one at each start"


def _resource(settings: Settings, place: Place, run_id: str, environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    attributes = identity.resource(settings, place, run_id, environ)
    pairs = [pair.partition("=") for pair in environ.get("OTEL_RESOURCE_ATTRIBUTES", "").split(",") if "=" in pair]
    given = {name.strip(): safe_text(unquote(value.strip())) or "(not shown)" for name, _, value in pairs}
    stable = {"service.name": Settings.service_name, **given, **attributes.stable}
    return [
        *((name, str(value), "on everything") for name, value in stable.items()),
        *((name, str(value), "on spans and logs") for name, value in attributes.volatile.items()),
    ]


def _job(settings: Settings, place: Place, options: argparse.Namespace) -> list[tuple[str, str]]:
    """What each rank of the run would do."""
    size = options.world_size or place.world_size
    per_node = min(options.local_world_size or place.local_world_size or size, size)
    all_ranks = [
        Place(rank=rank, world_size=size, local_rank=rank % per_node, local_world_size=per_node) for rank in range(size)
    ]
    exporting = [each for each in all_ranks if ranks.exports(each, settings)]
    numbers = [each.rank for each in exporting]
    rows = [
        ("in all", f"{size}, {per_node} on each node"),
        ("export", _ranges(numbers)),
        ("do nothing", _ranges(sorted(set(range(size)) - set(numbers)))),
    ]
    ports = {where.port for each in exporting for where in _scrapes(settings, each)}
    return [*rows, ("scrape ports", _ranges(sorted(ports)))] if ports else rows


def _scrapes(settings: Settings, place: Place) -> list[Scrape]:
    wheres = [destination(text) for text in ways_out(settings, place)]
    return [where for where in wheres if isinstance(where, Scrape)]


def _ranges(numbers: list[int]) -> str:
    """Numbers in ascending order, those next to each other as a range."""
    if not numbers:
        return "none"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs]
    if len(shown) > RUNS_SHOWN:
        shown = [*shown[: RUNS_SHOWN - 2], "…", shown[-1]]
    return f"{', '.join(shown)} ({len(numbers)})" if len(numbers) > 1 else shown[0]


def _ways(settings: Settings, place: Place, environ: Mapping[str, str]) -> list[trial.Way]:
    """Ways out of this process, with what of it can be judged without opening them."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        raise ValueError(
            "OTEL_SDK_DISABLED: must not be true where something is to be exported (got 'true'). Unset it."
        )
    ways = trial.ways(ways_out(settings, place), settings, environ)
    if not ways:
        raise ValueError(f"{PREFIXES[0]}EXPORTER: must take what is enabled (got nothing to export). Enable metrics.")
    return ways


def _try(ways: list[trial.Way], sender: trial.Sender) -> int:
    rows: list[tuple[str, ...]] = []
    failures = []
    for way in ways:
        begin = time.monotonic()
        obstacle = trial.attempt(way, sender)
        result = "NOT ARRIVED" if obstacle else f"arrived in {time.monotonic() - begin:.1f} s"
        name = str(destination(way.to))
        rows.append((name, way.signal, way.protocol, way.endpoint, result))
        failures += [(f"{name}, {way.signal}: {obstacle}",)] if obstacle else []
    _table(f"Test export, as run {sender.run_id}", rows)
    _table("What stopped it", failures)
    print(f"{len(ways) - len(failures)} of {len(ways)} arrived.")
    return 1 if failures else 0
