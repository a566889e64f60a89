"""What an installation may decide: `site.yaml`, validated, in the settings classes of the packages.

Every key has a default that works. What is wrong is refused at once and together, each problem with its key.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
import reprlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from dashboards import promql
from dashboards.dashboard import BoardSettings, Engine
from dashboards.scope import Scope, SeriesSettings, panel_scope, rule_scope
from emitter import catalog
from provisioning.errors import ProvisioningError

BOARD_FOLDER = "Training"
BOARD_FOLDER_UID = "training"
ALERT_FOLDER = "Training alerts"
"""Two titles: from Grafana 12 on, rules and boards of one title would get two folders."""

SAMPLES = 4
"""Every range must hold this many samples, or one lost scrape empties it."""

EVALUATION_STEP_S = 10
"""Grafana evaluates rule groups at multiples of this."""

LONGEST_LOOK_S = 60
"""Rules compare what is with what was a minute ago, and ranges of minutes hold four scrapes."""

TAKEN_LABELS = {"le", "alertname", "alertstate", "severity", "signals", "spelling", "datasource", "window"} | {
    attribute for metric in catalog.METRICS for attribute in metric.attributes
}
"""Labels that the queries, the alerts or the boards use for something else."""


class SiteError(ProvisioningError):
    """A site.yaml that cannot be used; one line a problem."""


def _duration(text: str) -> str:
    promql.seconds(text)
    return text


def _url(text: str) -> str:
    if not text.startswith(("http://", "https://")) or any(c.isspace() for c in text):
        raise ValueError(f"must be a URL that begins with http:// or https:// (got {text!r})")
    return text.rstrip("/")


def _uid(text: str) -> str:
    if not (0 < len(text) <= 40 and all(c.isascii() and (c.isalnum() or c in "-_") for c in text)):
        raise ValueError(f"must be 1 to 40 letters, digits, '-' or '_' (got {text!r})")
    return text


def _word(text: str) -> str:
    if not text or not text.isprintable() or text != text.strip():
        raise ValueError(f"must be a printable text without blanks around it (got {text!r})")
    return text


def _version(text: str) -> str:
    if text and not re.fullmatch(r"[0-9]+(\.[0-9]+)*", text):
        raise ValueError(f"must be a version like '3.5.0' (got {text!r})")
    return text


Duration = Annotated[str, AfterValidator(_duration)]
Url = Annotated[str, AfterValidator(_url)]
Uid = Annotated[str, AfterValidator(_uid)]
Word = Annotated[str, AfterValidator(_word)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RunSettings(_Section):
    """What holds for every run of the site."""

    world_size: int | None = Field(default=None, gt=0)


class Severities(_Section):
    """The site's word for each severity."""

    page: Word = "page"
    ticket: Word = "ticket"
    note: Word = "note"

    @model_validator(mode="after")
    def _distinct(self) -> Severities:
        words = [self.page, self.ticket, self.note]
        if len(set(words)) < len(words):
            raise ValueError(f"page, ticket and note must be three different words (got {words})")
        return self


class AlertingSettings(_Section):
    """Who evaluates the rules, how often, and how alerts are labelled."""

    engine: Engine = "grafana"
    interval: Duration = "1m"
    runbook_url: Annotated[str, AfterValidator(lambda text: text and _url(text))] = ""
    severities: Severities = Severities()

    @field_validator("interval")
    @classmethod
    def _tick(cls, interval: str) -> str:
        length_s = promql.seconds(interval)
        if length_s % EVALUATION_STEP_S or length_s > LONGEST_LOOK_S:
            raise ValueError(
                f"must be a multiple of {EVALUATION_STEP_S}s and at most {LONGEST_LOOK_S}s: rules compare a run with "
                f"itself a minute ago (got {interval!r})"
            )
        return interval


class DatasourceSettings(_Section):
    """The Prometheus that Grafana asks."""

    name: Word = "Training metrics"
    uid: Uid = "training-metrics"
    url: Url = "http://localhost:9090"
    prometheus_version: Annotated[str, AfterValidator(_version)] = ""


class GrafanaSettings(_Section):
    """The Grafana that shows the boards."""

    url: Url = "http://localhost:3000"
    datasource: DatasourceSettings = DatasourceSettings()
    dashboards_path: Word = "$GF_PATHS_PROVISIONING/../dashboards"


class Site(BaseModel):
    """One installation."""

    # The config reaches into the dataclasses of the lower packages, which know nothing of pydantic.
    model_config = ConfigDict(extra="forbid", frozen=True)

    series: SeriesSettings = SeriesSettings()
    scrape_interval: Duration = "15s"
    run: RunSettings = RunSettings()
    dashboards: BoardSettings = BoardSettings()
    alerting: AlertingSettings = AlertingSettings()
    grafana: GrafanaSettings = GrafanaSettings()

    @field_validator("series")
    @classmethod
    def _labels(cls, series: SeriesSettings) -> SeriesSettings:
        for label in (series.run_label, *series.labels):
            # `run` is the variable that chooses runs and the label of alerts: only the run label may be called so.
            taken = TAKEN_LABELS if label == series.run_label else {*TAKEN_LABELS, "run"}
            if label.startswith("__") or promql.plain_label(label) in taken or not label.isprintable():
                raise ValueError(f"run_label and labels must be labels of no other meaning (got {label!r})")
        if not re.fullmatch(r"([a-zA-Z_][a-zA-Z0-9_]*)?", series.namespace):
            raise ValueError(f"namespace must be letters, digits and '_' (got {series.namespace!r})")
        return series

    @field_validator("scrape_interval")
    @classmethod
    def _often(cls, interval: str) -> str:
        if promql.seconds(interval) > LONGEST_LOOK_S:
            raise ValueError(f"must be at most {LONGEST_LOOK_S}s: rules look back by minutes (got {interval!r})")
        return interval

    @model_validator(mode="after")
    def _enough_samples(self) -> Site:
        least_s = SAMPLES * promql.seconds(self.scrape_interval)
        if promql.seconds(self.dashboards.min_window) < least_s:
            raise ValueError(
                f"dashboards.min_window must be at least {SAMPLES} times scrape_interval, {least_s}s "
                f"(got {self.dashboards.min_window!r})"
            )
        return self

    @property
    def panel_scope(self) -> Scope:
        """The scope of every panel query."""
        return panel_scope(self.series, self.run.world_size or 0)

    @property
    def recorded_scope(self) -> Scope:
        """The scope of rules that stand on recording rules."""
        return rule_scope(self.series, self.run.world_size or 0, recorded=True)

    @property
    def in_place_scope(self) -> Scope:
        """The scope of rules that compute everything themselves."""
        return rule_scope(self.series, self.run.world_size or 0, recorded=False)


def parse(text: str, name: str) -> Site:
    """The site described by a YAML text; `name` is the file it came from.

    Raises: SiteError that lists every problem.
    """
    try:
        content = yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise SiteError(f"{name}{line}: must be YAML (got this: {error.problem}).") from error
    except yaml.YAMLError as error:
        raise SiteError(f"{name}: must be YAML (got this: {str(error).splitlines()[0]}).") from error
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise SiteError(f"{name}: must be a mapping of settings (got {content!r}).")
    try:
        return Site.model_validate(_without_blanks(content, Site))
    except ValidationError as error:
        raise SiteError("\n".join(sorted({_problem(name, item) for item in error.errors()}))) from error


_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]  # which of two it is, the build of PyYAML decides
    """A loader that refuses a key given twice, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping of a node."""
        seen = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key in seen:
                problem = f"key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep)
        return mapping


def _fields(section: Any) -> dict[str, Any]:
    """The keys of a settings class and their types; none for anything else."""
    if dataclasses.is_dataclass(section):
        return {field.name: field.type for field in dataclasses.fields(section)}
    if isinstance(section, type) and issubclass(section, BaseModel):
        return {key: field.annotation for key, field in section.model_fields.items()}
    return {}


def _without_blanks(content: Mapping[Any, Any], section: Any) -> dict[Any, Any]:
    """The content without the known keys that have no value: they keep their default."""
    fields = _fields(section)
    return {
        key: _without_blanks(value, fields[key]) if isinstance(value, dict) and key in fields else value
        for key, value in content.items()
        if value is not None or key not in fields
    }


_CHOICES = re.compile("'([a-z_]{3,})'")

# By the first word of pydantic's error type.
_MUST = {
    "dataclass": "must be a mapping of settings",
    "greater": "must be greater than 0",
    "int": "must be a whole number",
    "model": "must be a mapping of settings",
    "string": "must be text",
    "tuple": "must be a list",
}


def _problem(name: str, item: Mapping[str, Any]) -> str:
    """One line about one of pydantic's errors: file, key path, what must hold, what came, near miss."""
    path = [str(part) for part in item["loc"]]
    got, kind = reprlib.repr(item["input"]), item["type"]
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        known = list(_fields(_section(path[:-1])))
        return f"{name}: {'.'.join(path)}: no such key{_near(path[-1], known)}. Keys here: {', '.join(known)}."
    if kind == "invalid_key":
        path, must = path[:-1], "a key must be text"
    elif kind == "value_error":
        must = str(item["ctx"]["error"])
        subject, _, rest = must.partition(" ")
        if subject in _fields(_section(path)) and rest.startswith("must "):
            # The settings classes of the lower packages know their keys, not where those stand.
            path, must = [*path, subject], rest
        must, _, came = must.partition(" (got ")
        got = came[:-1] or got
    elif kind == "literal_error":
        must = f"must be {item['ctx']['expected']}"
    else:
        must = _MUST.get(kind.split("_")[0], item["msg"].lower())
    where = ": ".join(part for part in (name, ".".join(path)) if part)
    near = _near(got.strip("'"), _CHOICES.findall(must))
    return f"{where}: {must} (got {got}){near}."


def _section(loc: Sequence[str]) -> Any:
    section: Any = Site
    for key in loc:
        section = _fields(section).get(key)
    return section


def _near(word: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(word, known, 1, 0.5)
    return f" (did you mean {near[0]!r}?)" if near else ""
