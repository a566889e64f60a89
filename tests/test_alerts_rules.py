"""alerts: what every alert owes its readers, and what the model refuses."""

from __future__ import annotations

import re
from pathlib import Path
from string import Formatter
from typing import Any

import pytest
import yaml

from alerts.registry import RULE_GROUPS
from alerts.rule import FIELDS, AlertRule, RuleGroup, Severity, Text
from dashboards import ids, signals
from dashboards.queries import learning, progress, speed
from dashboards.scope import SeriesSettings, rule_scope
from provisioning.bundle import collect
from provisioning.site import parse

CHECKOUT = Path(__file__).parent.parent
RULES = [rule for group in RULE_GROUPS for rule in group.rules]
PAGE, TICKET, NOTE = Severity.PAGE, Severity.TICKET, Severity.NOTE

MODULES = (learning, progress, speed, signals)
"""Where the thresholds of alerts are."""

SEVERITIES = {
    "TrainingHung": (PAGE, None),
    "TrainingVanished": (PAGE, TICKET),
    "LossNonFinite": (PAGE, None),
    "LossFrozen": (PAGE, None),
    "LossZero": (PAGE, None),
    "IterationsSkipped": (TICKET, None),
    "ThroughputCollapse": (PAGE, None),
    "Watchdog": (NOTE, None),
}
"""Who hears of what, and who of it where the emitter cannot tell; in the order of the registry."""

each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
each_group = pytest.mark.parametrize("group", RULE_GROUPS, ids=lambda group: group.name)


# --- Every alert ----------------------------------------------------------------------------------------------------


def test_the_registry_is_the_files() -> None:
    """No file of alerts is forgotten in the registry."""
    files = {file.stem for file in (CHECKOUT / "alerts").glob("*.py")}
    assert sorted(group.name for group in RULE_GROUPS) == sorted(files - {"__init__", "registry", "rule"})


def test_alerts_wake_whom_they_should() -> None:
    """The names and severities that people route by are these, and no other."""
    assert {rule.name: (rule.severity, rule.severity_without_signals) for rule in RULES} == SEVERITIES


def test_names_are_unique() -> None:
    """A name is one alert: silences, routes and the runbook rely on it."""
    assert len({rule.name for rule in RULES}) == len(RULES)


def test_the_runbook_has_a_page_for_each_alert_and_no_other() -> None:
    """The runbook's headings are the alerts, in the order of the registry."""
    headings = re.findall(r"^## (.*)$", (CHECKOUT / "alerts" / "runbook.md").read_text(), re.MULTILINE)
    assert headings == [rule.name for rule in RULES]


def in_words(name: str, value: float) -> str:
    """A constant as the runbook says it."""
    if name.endswith("_RATIO"):
        return f"{value:.0%}".replace("%", " %")
    if not name.endswith("_S"):
        return f"{value:g}"
    return f"{value / 3600:g} h" if value % 3600 == 0 else f"{value / 60:g} min" if value % 60 == 0 else f"{value:g} s"


def test_the_runbook_says_the_numbers_of_the_constants() -> None:
    """A number in the runbook is that of a constant of the queries or signals, which stands behind it."""
    text = " ".join((CHECKOUT / "alerts" / "runbook.md").read_text().split())
    names = re.findall(r"`([A-Z][A-Z_]+[A-Z])`", text)
    assert names
    for name in names:
        (value,) = {getattr(module, name) for module in MODULES if hasattr(module, name)}
        assert text.count(f"`{name}`") == text.count(f"{in_words(name, value)} (`{name}`)"), name


@each_group
def test_every_alert_has_cases(group: RuleGroup) -> None:
    """No alert goes without a case of promtool in which it fires and one in which it does not."""
    tests = yaml.safe_load((CHECKOUT / "tests" / "promtool" / f"{group.name}.yaml").read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    names = {rule.name for rule in group.rules}
    assert {case["alertname"] for case in cases if case.get("exp_alerts")} == names
    assert {case["alertname"] for case in cases if not case.get("exp_alerts")} == names - {"Watchdog"}


@each_rule
def test_its_panel_exists(rule: AlertRule) -> None:
    """The link of an alert leads to a panel."""
    boards = collect(parse("", "site.yaml")).dashboards
    assert rule.panel in {(board.uid, panel.id) for board in boards for panel in board.panels}


@each_rule
def test_it_says_what_happens_without_data(rule: AlertRule) -> None:
    """An alert that is silent without data says so, and names an alert that exists when another one takes over."""
    assert rule.no_data.startswith(("silent; ", "cannot happen; "))
    named = set(re.findall(r"\b[A-Z][a-z]+[A-Z]\w+", rule.no_data)) - {"NaN", "SDK"}
    assert named - {other.name for other in RULES if other is not rule} == set()


@each_rule
def test_its_texts_name_the_run(rule: AlertRule) -> None:
    """Whoever is woken reads which run it is, in the first line."""
    fields = {name for _, name, _, _ in Formatter().parse(rule.summary.template)}
    assert ("run" in fields) == rule.per_run


@each_rule
def test_it_has_the_fields_of_its_texts(rule: AlertRule) -> None:
    """What the texts and the severity rest on is a label of the expression, in both of its forms."""
    texts = rule.summary.template + rule.description.template
    for recorded in (True, False):
        expression = str(rule.expr(rule_scope(SeriesSettings(), recorded=recorded)))
        assert ("{gpus}" in texts) == ('"gpus"' in expression)
        assert (rule.severity_without_signals is not None) == ('"signals", "no"' in expression)


@each_rule
def test_what_is_one_sentence_is_short(rule: AlertRule) -> None:
    """A summary fits a telephone: one sentence, under 80 characters without the values."""
    assert re.fullmatch(r"[A-Z].*[^.]\.", rule.summary.template)
    assert len(rule.summary.template) < 80


# --- What the model refuses -----------------------------------------------------------------------------------------


def rule(**changes: Any) -> AlertRule:
    """A rule that is in order, but for the changes."""
    given: dict[str, Any] = {
        "name": "TrainingHung",
        "expr": progress.hung,
        "severity": PAGE,
        "summary": Text("Run {run} hangs."),
        "description": Text("For {value:duration}."),
        "panel": (ids.RUN, ids.RunPanel.STATE),
        "no_data": "silent",
    }
    return AlertRule(**{**given, **changes})


@pytest.mark.parametrize(
    "name", ["", "trainingHung", "Training Hung", "training_hung", "TrainingHung!", "NaN", "LossNaN", "A", "Loss1"]
)
def test_a_name_is_camel_case(name: str) -> None:
    """A name that some target would refuse or people would misread is refused."""
    with pytest.raises(ValueError, match="CamelCase"):
        rule(name=name)


@pytest.mark.parametrize("hold", ["", "0", "5", "m", "0m", "05m", "1h30m", "-5m", "5 m", "5ms", "5d", "1.5m"])
def test_a_hold_is_a_plain_duration(hold: str) -> None:
    """A hold that some target would refuse is refused."""
    with pytest.raises(ValueError, match="hold must be like"):
        rule(hold=hold)


@pytest.mark.parametrize("hold", ["0s", "30s", "5m", "12h"])
def test_a_good_hold_is_taken(hold: str) -> None:
    """Seconds, minutes and hours hold an alert back."""
    assert rule(hold=hold).hold == hold


def test_silence_is_explained() -> None:
    """An alert that does not say what happens without data is refused."""
    with pytest.raises(ValueError, match="no_data must say"):
        rule(no_data="")


@pytest.mark.parametrize(
    "text",
    [
        "{rn} hangs",
        "{run:duration}",
        "{value:percent}",
        "{gpus:duration}",
        "{}",
        "{0}",
        "{value.real}",
        "{labels[run]}",
        "{run!r}",
        "{run",
        "run}",
    ],
)
def test_a_text_names_only_known_fields(text: str) -> None:
    """A field that no target can fill is refused, and so are braces that name none."""
    with pytest.raises(ValueError, match=r"a text may use|[{}]"):
        Text(text)


def test_a_text_says_something() -> None:
    """An empty text is a forgotten one."""
    with pytest.raises(ValueError, match="must say something"):
        Text(" ")


@pytest.mark.parametrize("panel", [("", 1), ("training-run", 0)])
def test_a_panel_is_named_and_numbered(panel: tuple[str, int]) -> None:
    """A link without a dashboard or a panel leads nowhere."""
    with pytest.raises(ValueError, match="panel must be"):
        rule(panel=panel)


@pytest.mark.parametrize("name", ["", "Progress", "a-b", "a b", "../x"])
def test_a_group_is_named_like_its_module(name: str) -> None:
    """Its name becomes a file's."""
    with pytest.raises(ValueError, match="named like its module"):
        RuleGroup(name=name, rules=(rule(),))


@pytest.mark.parametrize(("name", "form"), [(name, form) for name, forms in FIELDS.items() for form in forms])
def test_a_text_is_filled(name: str, form: str) -> None:
    """Every known field, in every known form, reaches the target that fills it."""
    field = f"{{{name}:{form}}}" if form else f"{{{name}}}"
    assert Text(f"a {field} b {{{{c}}}} {field}").fill(lambda *which: str(which)) == (
        f"a {(name, form)} b {{c}} {(name, form)}"
    )


@pytest.mark.parametrize("rules", [(), (rule(), rule()), (rule(), rule(name="LossZero"), rule(hold="5m"))])
def test_a_group_has_alerts_each_once(rules: tuple[AlertRule, ...]) -> None:
    """An empty group is a typo, and so is an alert that is in it twice."""
    with pytest.raises(ValueError, match="each once"):
        RuleGroup(name="progress", rules=rules)
