"""The settings of an emitter: flags over environment over default. Standard library only."""

from __future__ import annotations

import argparse
import difflib
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from .destinations import FORMS, LOOPBACK, Scrape, destination
from .ranks import place

PREFIXES = ("MEGATRON_OTEL_", "NEMO_LENS_")
"""What a variable's name begins with; the first that is set counts."""

DEFAULT = "default"
"""Source of a setting that nobody gave."""

SCRAPE_HOST = "OTEL_EXPORTER_PROMETHEUS_HOST"
SCRAPE_PORT = "OTEL_EXPORTER_PROMETHEUS_PORT"
SCRAPE_DEFAULT_PORT = 9464

SWITCH = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
"""Words of a switch, in any case."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What an emitter is asked to do, the same on every rank of a run.

    Names of strategies and span groups are judged where they are looked up: one's own may be registered later.

    Raises: ValueError if the sample rate is no share or there is no exporter.
    """

    enabled: bool = False
    service_name: str = "megatron-lm"
    rank_strategy: str = "single_rank"
    export_rank: int = -1
    export_sample_rate: float = 1.0
    sampling_strategy: str = ""
    traces_enabled: bool = True
    metrics_enabled: bool = True
    logs_enabled: bool = False
    span_groups: str = "default"
    exporter: tuple[str, ...] = field(default=("otlp",), repr=False)  # a URL may hold a password
    run_id: str = ""
    user_id: str = ""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Where each setting is from: a variable, a flag or `default`."""

    def __post_init__(self) -> None:
        if not 0 <= self.export_sample_rate <= 1:
            raise ValueError(
                f"emitter.settings: export_sample_rate must be 0.0 to 1.0 (got {self.export_sample_rate!r}). "
                "Write 0.25 for a quarter."
            )
        if not self.exporter:
            raise ValueError("emitter.settings: exporter must name a destination (got none). Write 'otlp'.")

    @property
    def signals(self) -> tuple[str, ...]:
        """What is exported, in OpenTelemetry's words: `metrics`, `traces`, `logs` or some of them."""
        on = {"metrics": self.metrics_enabled, "traces": self.traces_enabled, "logs": self.logs_enabled}
        return tuple(signal for signal, enabled in on.items() if enabled)


class _WrongError(Exception):
    """A value cannot be read; the message is what must hold, what came and what to do."""


_Environment = Mapping[str, str]


def _text(value: str, _environ: _Environment) -> str:
    return value


def _switch(value: str, _environ: _Environment) -> bool:
    if (word := value.lower()) in SWITCH:
        return SWITCH[word]
    near = difflib.get_close_matches(word, SWITCH, 1)
    hint = f"Did you mean {near[0]!r}?" if near else "Write 1 or 0."
    raise _WrongError(f"must be one of {', '.join(SWITCH)} (got {value!r}). {hint}")


def _whole(value: str, _environ: _Environment) -> int:
    try:
        return int(value)
    except ValueError:
        raise _WrongError(f"must be a whole number (got {value!r}). Write -1 for the last rank.") from None


def _share(value: str, _environ: _Environment) -> float:
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:  # NaN is not either
        raise _WrongError(f"must be a number from 0.0 to 1.0 (got {value!r}). Write 0.25 for a quarter.")
    return share


def _exporter(value: str, environ: _Environment) -> tuple[str, ...]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    if not names:
        raise _WrongError(f"must name a destination (got {value!r}). Write otlp, console or scrape.")
    wrong: list[str] = []
    texts: list[str] = []
    for name in names:
        try:
            texts.append(_scrape(environ) if name == "scrape" else _known(name))
        except _WrongError as error:
            wrong.append(str(error))
    if wrong:
        raise _WrongError("\n".join(wrong))
    return tuple(dict.fromkeys(texts))


def _known(name: str) -> str:
    try:
        destination(name, ("scrape", *FORMS))
    except ValueError as error:
        raise _WrongError(str(error).removeprefix("emitter: ")) from None
    return name


def _scrape(environ: _Environment) -> str:
    """The scrape endpoint where the standard variables put it."""
    host, port = environ.get(SCRAPE_HOST, "").strip() or LOOPBACK, environ.get(SCRAPE_PORT, "").strip()
    if port and not (port.isdecimal() and int(port) <= 65535):
        raise _WrongError(f"{SCRAPE_PORT} must be a port, 0 to 65535 (got {port!r}). Write {SCRAPE_DEFAULT_PORT}.")
    text = str(Scrape(host=host, port=int(port or SCRAPE_DEFAULT_PORT)))
    try:
        destination(text)
    except ValueError:
        raise _WrongError(f"{SCRAPE_HOST} must be a host name or address (got {host!r}). Write {LOOPBACK}.") from None
    return text


class _Setting(NamedTuple):
    """How a setting is given: its field, its variables without prefix or whole, its reader, its flag."""

    name: str
    variables: tuple[str, ...]
    read: Callable[[str, _Environment], Any]
    flag: str = ""
    prefixes: tuple[str, ...] = PREFIXES

    def given(self, environ: _Environment) -> list[tuple[str, str]]:
        """Variables that are set behind the first prefix that has any, with their values."""
        for prefix in self.prefixes:
            names = [prefix + variable for variable in self.variables]
            if found := [(name, environ[name].strip()) for name in names if environ.get(name, "").strip()]:
                return found
        return []


_SETTINGS = (
    _Setting("enabled", ("ENABLED",), _switch, "--otel-enabled"),
    _Setting("service_name", ("OTEL_SERVICE_NAME",), _text, "--otel-service-name", prefixes=("",)),
    _Setting("rank_strategy", ("RANK_STRATEGY", "EXPORT_STRATEGY"), _text),
    _Setting("export_rank", ("EXPORT_RANK",), _whole),
    _Setting("export_sample_rate", ("EXPORT_SAMPLE_RATE",), _share),
    _Setting("sampling_strategy", ("SAMPLING_STRATEGY",), _text),
    _Setting("traces_enabled", ("TRACES_ENABLED",), _switch),
    _Setting("metrics_enabled", ("METRICS_ENABLED",), _switch),
    _Setting("logs_enabled", ("LOGS_ENABLED",), _switch),
    _Setting("span_groups", ("SPAN_GROUPS",), _text, "--otel-span-groups"),
    _Setting("exporter", ("EXPORTER",), _exporter),
    _Setting("run_id", ("NEMO_LENS_RUN_ID",), _text, prefixes=("",)),
    _Setting("user_id", ("NEMO_LENS_USER_ID",), _text, prefixes=("",)),
)


def read_settings(arguments: argparse.Namespace | None = None, environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings of this process. An empty variable counts as not set.

    What is doubtful is a warning of rank 0. Where telemetry is switched off in so many words, nothing else is
    judged: what cannot be read is the default.

    Raises: ValueError that names every wrong value, one a line.
    """
    values: dict[str, Any] = {}
    sources = dict.fromkeys((setting.name for setting in _SETTINGS), DEFAULT)
    wrong: list[str] = []
    warnings: list[str] = []
    for setting in _SETTINGS:
        given = setting.given(environ)
        flag = _flag(setting, arguments)
        if flag is not None:
            values[setting.name], sources[setting.name] = flag, setting.flag
        elif given:
            variable, text = given[0]
            warnings.extend(
                f"{variable}: must agree with {other} (got {text!r} and {differing!r}). {text!r} is taken."
                for other, differing in given[1:]
                if differing != text
            )
            try:
                values[setting.name] = setting.read(text, environ)
                sources[setting.name] = variable
            except _WrongError as error:
                wrong.extend(f"{variable}: {line}" for line in str(error).splitlines())
    on = values.get("enabled", True)  # nobody said otherwise; a program may switch telemetry on by itself
    if wrong and on:
        raise ValueError("\n".join(wrong))
    warnings.extend(_unknown(environ))
    if warnings and on and _is_first(environ):
        for warning in warnings:
            _log.warning("%s", warning)
    return Settings(**values, sources=sources)


def _is_first(environ: Mapping[str, str]) -> bool:
    """Whether this is rank 0; a launcher that cannot be understood is left to whoever needs the place."""
    try:
        return place(environ).rank == 0
    except ValueError:
        return True


def _flag(setting: _Setting, arguments: argparse.Namespace | None) -> Any:
    """What the command line gives; an absent attribute, None, False and "" are nothing."""
    return (setting.flag and getattr(arguments, setting.flag.removeprefix("--").replace("-", "_"), None)) or None


def _unknown(environ: Mapping[str, str]) -> list[str]:
    """A warning for each variable of ours that sets nothing: a misspelling would else go unnoticed."""
    prefix, fallback = PREFIXES
    known = {  # without what a name begins with, which all have in common: MEGATRON_OTEL_RUN_ID means NEMO_LENS_RUN_ID
        variable.removeprefix(fallback).removeprefix("OTEL_"): setting.prefixes[0] + variable
        for setting in _SETTINGS
        for variable in setting.variables
    }
    warnings = []
    for name in sorted(name for name in environ if name.startswith(prefix) and name not in known.values()):
        near = difflib.get_close_matches(name.removeprefix(prefix), known, 1)
        hint = f"Did you mean {known[near[0]]}?" if near else "Unset it."
        warnings.append(f"{name}: must be a known setting (got another name). {hint}")
    return warnings


def add_cli_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that `read_settings` knows, in a group of their own; those that are there already stay."""
    there = parser._option_string_actions  # no public way to ask; adding one twice is an error
    flags: dict[str, dict[str, Any]] = {
        "--otel-enabled": {
            "action": "store_true",
            "help": f"export traces and metrics (variable {PREFIXES[0]}ENABLED; default: off)",
        },
        "--otel-service-name": {
            "metavar": "NAME",
            "help": f"service.name of what is exported (variable OTEL_SERVICE_NAME; default: {Settings.service_name})",
        },
        "--otel-span-groups": {
            "metavar": "SPEC",
            "help": "spans to make: a preset, a group or a comma-separated mix "
            f"(variable {PREFIXES[0]}SPAN_GROUPS; default: {Settings.span_groups})",
        },
    }
    missing = {flag: how for flag, how in flags.items() if flag not in there}
    if missing:
        group = parser.add_argument_group("OpenTelemetry")
        for flag, how in missing.items():
            group.add_argument(flag, **how)


class Row(NamedTuple):
    """A setting as it is told to a person."""

    name: str
    value: str
    source: str


def explain(settings: Settings) -> list[Row]:
    """Every setting with its value and where it is from; passwords in URLs are left out."""
    return [
        Row(of.name, _shown(getattr(settings, of.name)), settings.sources.get(of.name, DEFAULT))
        for of in fields(settings)
        if of.name != "sources"
    ]


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(str(destination(text)) for text in value)
    return str(int(value)) if isinstance(value, bool) else str(value)
