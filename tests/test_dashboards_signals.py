"""dashboards.signals: one definition, two forms; a recording rule remembers, a query in place looks back."""

from __future__ import annotations

import re

import pytest

from alerts.registry import RULE_GROUPS
from alerts.rule import AlertRule
from dashboards import signals
from dashboards.promql import Expr
from dashboards.scope import Scope, SeriesSettings, rule_scope
from dashboards.signals import SIGNALS, Signal

RECORDED = rule_scope(SeriesSettings(), recorded=True)
IN_PLACE = rule_scope(SeriesSettings(), recorded=False)
RECORDING = re.compile(r"\b(?:run|process):\w+:\w+")

each_signal = pytest.mark.parametrize("signal", SIGNALS, ids=lambda signal: signal.name)


def names(expr: Expr) -> set[str]:
    """The recording rules that an expression reads."""
    return set(RECORDING.findall(expr.text))


def test_every_signal_is_recorded_once() -> None:
    """No signal is left out of the recording rules, and none has the name of another."""
    defined = [value for value in vars(signals).values() if isinstance(value, Signal)]
    assert {signal.name for signal in defined} == {signal.name for signal in SIGNALS}
    assert len({signal.name for signal in SIGNALS}) == len(SIGNALS) == len(defined)


@each_signal
def test_a_signal_is_named_by_level_metric_and_operation(signal: Signal) -> None:
    """A recording rule has a name of the usual form, under which Prometheus accepts it."""
    assert re.fullmatch(r"(run|process):megatron_[a-z_]+:[a-z]+", signal.name)


@each_signal
def test_a_rule_stands_only_on_those_before_it(signal: Signal) -> None:
    """Rules of a group run in order: one that read a later one would see the minute before."""
    place = SIGNALS.index(signal)
    before = {other.name for other in SIGNALS[: place + (signal.keep is not None)]}
    assert names(signal.rule(RECORDED)) <= before


@each_signal
def test_a_recorded_signal_is_its_name(signal: Signal) -> None:
    """Where rules are recorded, whoever asks reads the recording."""
    assert str(signal(RECORDED)) == signal.name
    assert str(signal(RECORDED.before("5m"))) == f"{signal.name} offset 5m"


@each_signal
def test_in_place_a_signal_reads_no_recording(signal: Signal) -> None:
    """Grafana's rules stand on what runs export and on nothing else."""
    assert names(signal(IN_PLACE)) == set()


@pytest.mark.parametrize("rule", [rule for group in RULE_GROUPS for rule in group.rules], ids=lambda rule: rule.name)
def test_an_alert_reads_recordings_or_none(rule: AlertRule) -> None:
    """An alert's recorded form reads only recordings that exist, its form for Grafana reads none."""
    assert names(rule.expr(RECORDED)) <= {signal.name for signal in SIGNALS}
    assert names(rule.expr(IN_PLACE)) == set()


def test_every_signal_is_read() -> None:
    """No recording rule is evaluated for nothing."""
    alerts = [rule.expr(RECORDED) for group in RULE_GROUPS for rule in group.rules]
    others = [(signal.name, signal.rule(RECORDED)) for signal in SIGNALS]
    for signal in SIGNALS:
        read = any(signal.name in names(expr) for expr in alerts)
        assert read or any(signal.name in names(expr) for name, expr in others if name != signal.name), signal.name


# --- The forms ------------------------------------------------------------------------------------------------------


def event(scope: Scope) -> Expr:
    """Something that is true now and then."""
    return scope.record("run:event:now")


def test_a_moment_is_remembered_for_a_week() -> None:
    """A recording rule carries a moment forward by its own last value, and forgets it in the end."""
    moment = signals.moment("run:event:time", event)
    assert str(moment.rule(RECORDED)) == (
        f"run:event:now * 0 + time() or last_over_time(run:event:time[10m]) > time() - {7 * 86_400}"
    )


def test_a_moment_is_sought_over_the_span() -> None:
    """In place, a moment is the latest look back at which the event was true."""
    moment = signals.moment("run:event:time", event)
    assert str(moment(IN_PLACE)) == "max_over_time((run:event:now * 0 + time())[6h:1m])"


def test_a_signal_without_a_memory_is_what_is_true_now() -> None:
    """A plain value has one form: it is recorded as it is and read in place as it is."""
    plain = Signal(name="run:event:max", now=event)
    assert str(plain.rule(RECORDED)) == str(plain(IN_PLACE)) == "run:event:now"


def test_what_changed_is_what_grew_or_is_new() -> None:
    """A sample that was there a minute ago, or paused for less than ten, with the same value, has not changed."""
    assert str(signals.changed(event, RECORDED)) == (
        "run:event:now unless run:event:now == last_over_time(run:event:now[10m] offset 1m)"
    )


def test_the_logs_of_a_process() -> None:
    """The heartbeat is one series a process: labels that tell processes apart stay, spellings fold into one."""
    assert str(signals.LOGS.rule(RECORDED)) == (
        'max without () ({__name__=~"(megatron_training_|megatron[.]training[.])step_duration_ms(_milliseconds)?'
        '_count",nemo_run_id!=""})'
    )


def test_the_last_log_of_a_run() -> None:
    """The first rule that remembers, in full."""
    logs = "process:megatron_training_logs:max"
    assert str(signals.LAST_LOG.rule(RECORDED)) == (
        f"max by (nemo_run_id) ({logs} unless {logs} == last_over_time({logs}[10m] offset 1m)) * 0 + time() "
        "or last_over_time(run:megatron_training_last_log:time[10m]) > time() - 604800"
    )


def test_an_end_is_over_when_a_later_process_works() -> None:
    """Who says `ended` is heard for minutes, and who is at work only while it is there: the next attempt goes on."""
    said, _, at_work = str(signals.ended(RECORDED)).partition(" unless on (nemo_run_id) ")
    assert re.search(r'last_over_time\(.*phase=~"ended".*\[3m\]\) == 1', said)
    assert re.search(r'phase=~"startup\|train\|evaluate\|checkpoint".*\} == 1', at_work)
    assert "over_time" not in at_work
