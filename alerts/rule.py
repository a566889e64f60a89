"""The model of an alert rule and of its texts, in no target's format."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from string import Formatter

from dashboards.signals import Query

_NAME = re.compile(r"([A-Z][a-z]+){1,4}")
_GROUP = re.compile(r"[a-z]+")
_DURATION = re.compile(r"0s|[1-9][0-9]*[smh]")

FIELDS = {"run": ("",), "value": ("", "duration", "percentage"), "gpus": ("",)}
"""Fields that a text may name, and how each may be shown."""


class Severity(Enum):
    """Who hears of it: wake someone, look today, annotation only."""

    PAGE = "page"
    TICKET = "ticket"
    NOTE = "note"


@dataclass(frozen=True)
class Text:
    """A text with fields in braces: `{run}`, `{value:duration}`, `{gpus}`; a target puts its own templates in.

    Raises: ValueError if a field or its form is not known.
    """

    template: str

    def __post_init__(self) -> None:
        if not self.template.strip():
            raise ValueError("alerts.rule: a text must say something (got none)")
        for _, name, form, conversion in Formatter().parse(self.template):
            if name is not None and (conversion or form not in FIELDS.get(name, ())):
                raise ValueError(f"alerts.rule: a text may use {FIELDS} (got {{{name}:{form}}} in {self.template!r})")

    def fill(self, field: Callable[[str, str], str]) -> str:
        """The text with each field, given as name and form, replaced."""
        parts = Formatter().parse(self.template)
        return "".join(text + (field(name, form or "") if name else "") for text, name, form, _ in parts)


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """One alert: when it is true, who hears of it, and what the person reads.

    Raises: ValueError if a name, a duration or a text is not fit for every target.
    """

    name: str
    expr: Query
    """True for the runs it returns; its value is the number shown."""
    hold: str = "0s"
    """How long it must be true before it fires."""
    severity: Severity
    severity_without_signals: Severity | None = None
    """Where the expression says label signals="no": an emitter from which the cause cannot be told."""
    summary: Text
    description: Text
    panel: tuple[str, int]
    """UID of the dashboard and number of the panel that shows it."""
    no_data: str
    """What happens when the expression finds nothing, and which other alert covers that."""
    per_run: bool = True
    """Whether the result names a run."""

    def __post_init__(self) -> None:
        where = f"alerts.{self.name}"
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"{where}: a name is CamelCase, symptom with subject first (got {self.name!r})")
        if not _DURATION.fullmatch(self.hold):
            raise ValueError(f"{where}: hold must be like '0s' or '2m' (got {self.hold!r})")
        if not self.panel[0] or self.panel[1] < 1:
            raise ValueError(f"{where}: panel must be a dashboard's UID and a panel's number (got {self.panel})")
        if not self.no_data:
            raise ValueError(f"{where}: no_data must say what happens without data")


@dataclass(frozen=True, kw_only=True)
class RuleGroup:
    """The alerts of one symptom; its name is the module's and the file's.

    Raises: ValueError if it is empty or names an alert twice.
    """

    name: str
    rules: tuple[AlertRule, ...]

    def __post_init__(self) -> None:
        if not _GROUP.fullmatch(self.name):
            raise ValueError(f"alerts.{self.name}: a group is named like its module (got {self.name!r})")
        names = [rule.name for rule in self.rules]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"alerts.{self.name}: a group has alerts, each once (got {names})")
