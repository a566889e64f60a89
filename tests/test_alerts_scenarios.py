"""Every alert on simulated runs: what fires, when, for how long, and that nothing else does.

One table, run at three log intervals by the same rules, in both of their forms: Prometheus' recording and alerting
rules in promtool, and what Grafana asks, on a Prometheus with the same series as history.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import alert_timeline
import pytest
from alert_timeline import Firing
from conftest import SUITES, tool
from simulation import NEVER, Process

from provisioning.errors import ProvisioningError

pytestmark = pytest.mark.live

CADENCES = {"5s": 5, "60s": 60, "17min": 1020}

EARLY_S = 60
"""A cadence measured on ten log intervals, by looks a minute apart, is a little off."""

LATE_S = 150
"""A scrape, a look at the rules, and a moment that is known to the minute."""

LOOKBACK_S = 300
"""History has no staleness markers: there a series is seen for so long after its last sample."""

Duration = Callable[[float], float]
"""A duration in seconds, by the log interval."""


def intervals(count: float, at_least: float = 0, plus: float = 0) -> Duration:
    """Some log intervals, but at least so long."""
    return lambda cadence: max(count * cadence, at_least) + plus


AT_ONCE = intervals(0)
SOON = intervals(7, at_least=3600)
FOR_LONG: dict[str, Any] = {"after": intervals(12, at_least=7200, plus=600)}
FOR_HOURS: dict[str, Any] = {"logs_before": 24, "after": intervals(6, at_least=1800)}
"""Enough for a baseline at every log interval."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What a scenario is played on; called, it is a process of the run."""

    name: str
    cadence: float
    event: float
    """When it happens: also the end of a log interval."""

    def __call__(self, **how: object) -> Process:
        """A process of the run."""
        return Process(run=self.name, cadence=self.cadence, **how)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Fires:
    """One alert that has to fire; durations count from the event."""

    alert: str
    severity: str = "page"
    after: Duration = AT_ONCE
    within: Duration | None = None
    """When it fires at the latest, if not at once when it may."""
    lasts: Duration | None = None
    """When it is over; with None it lasts to the end."""
    loose: float = 0
    """Further seconds by which it may come late, or be over late."""


class Scenario:
    """What a run does, and everything that fires."""

    def __init__(
        self,
        name: str,
        does: Callable[[Run], Sequence[Process]],
        *fires: Fires,
        logs_before: int = 12,
        after: Duration = SOON,
    ) -> None:
        self.name = name
        self.fires = fires
        self._does = does
        self._logs_before = logs_before
        self._after = after

    def processes(self, cadence: float) -> Sequence[Process]:
        """The processes of the run."""
        return self._does(Run(name=self.name, cadence=cadence, event=self.event(cadence)))

    def event(self, cadence: float) -> float:
        """When it happens."""
        return max(2700, self._logs_before * cadence)

    def until(self, cadence: float) -> int:
        """When the simulation ends."""
        return int(self.event(cadence) + self._after(cadence)) // 60 * 60


# --- What runs do ---------------------------------------------------------------------------------------------------

CORE: dict[str, Any] = {"signals": False}
"""An emitter with the eight metrics of Megatron-LM."""


def healthy(run: Run, **how: object) -> list[Process]:
    """It trains."""
    return [run(**how)]


def hang(run: Run, **how: object) -> list[Process]:
    """It logs for the last time at the event."""
    return [run(works_until=run.event, **how)]


def hang_behind_gap(run: Run) -> list[Process]:
    """It hangs, and its scrapes fail for seven minutes: what comes back afterwards is no progress."""
    return [run(works_until=run.event, gaps=((run.event + 60, run.event + 480),))]


def hang_in_evaluation(run: Run) -> list[Process]:
    """It evaluates, and never comes back."""
    return [run(works_until=run.event, pauses=((run.event, NEVER, "evaluate"),))]


def pauses(run: Run, **how: object) -> list[Process]:
    """A long evaluation, and the checkpoint after it."""
    begin, saving, end = run.event, run.event + 720, run.event + 1020
    return [run(pauses=((begin, saving, "evaluate"), (saving, end, "checkpoint")), **how)]


def ends(run: Run, *, lingers: bool = False, **how: object) -> list[Process]:
    """It says that it has ended, and goes; or is exported for hours by a collector."""
    return [run(ends_at=run.event, stop=NEVER if lingers else run.event + 120, **how)]


def ends_at_once(run: Run) -> list[Process]:
    """It says that it has ended, and one scrape later it is gone."""
    return [run(ends_at=run.event, stop=run.event)]


def ends_and_goes_on(run: Run) -> list[Process]:
    """It says so, and soon its next attempt is at work elsewhere."""
    again = run(start=run.event + 100, first_iteration=100, instance="elsewhere:9464")
    return [*ends_at_once(run), again]


def killed(run: Run, **how: object) -> list[Process]:
    """It is gone from one scrape to the next."""
    return [run(stop=run.event, **how)]


def restart(run: Run, **how: object) -> list[Process]:
    """It is killed and comes back elsewhere."""
    again = {"start": run.event + 400, "first_iteration": 100, "instance": "elsewhere:9464"}
    return [run(stop=run.event, **how), run(**again, **how)]


def restart_then_hang(run: Run, **how: object) -> list[Process]:
    """It comes back elsewhere, works for five log intervals and hangs."""
    begin = run.event - 5 * run.cadence
    again = {"start": begin, "first_iteration": 100, "instance": "elsewhere:9464"}
    return [run(stop=begin - 400, **how), run(**again, works_until=run.event, **how)]


def restart_in_place(run: Run, **how: object) -> list[Process]:
    """It comes back on the same target, with half the batch: slower in tokens, and meant to be."""
    begin = run.event + 400
    again = {"start": begin, "first_iteration": 100, "speed": ((begin, 0.6),)}
    return [run(stop=run.event, **how), run(**again, **how)]


def lingers(run: Run, **how: object) -> list[Process]:
    """It is restarted, while a collector goes on to export its dead process."""
    again = {"start": run.event + 100, "first_iteration": 100, "instance": "elsewhere:9464"}
    return [run(works_until=run.event, **how), run(**again, **how)]


def nan(run: Run, logs: float = NEVER, **how: object) -> list[Process]:
    """Loss and gradient norm are NaN for some log intervals."""
    return [run(nan=(run.event, run.event + logs * run.cadence), **how)]


def zero_loss(run: Run, **how: object) -> list[Process]:
    """All iterations of three log intervals are skipped."""
    return [run(zero_loss=(run.event, run.event + 3 * run.cadence), **how)]


def warm_up(run: Run, **how: object) -> list[Process]:
    """Its first iterations are skipped, until the loss scale is found."""
    first, second = run.cadence, 2 * run.cadence
    return [run(zero_loss=(0, second + 1), skips=((first, 10), (second, 10)), **how)]


def skip(run: Run, early: int = 0, **how: object) -> list[Process]:
    """One iteration is skipped; some were, in the warm-up."""
    return [run(skips=((run.cadence, early), (run.event, 1)), **how)]


def slower(run: Run, share: float, logs: float = NEVER, **how: object) -> list[Process]:
    """It runs at a share of its speed, for ever or for some log intervals."""
    back = run.event + logs * run.cadence / share
    return [run(speed=((run.event, share), (back, 1.0)), **how)]


def slow_start(run: Run, **how: object) -> list[Process]:
    """Its first three log intervals, with the compilation in them, take ten times as long."""
    return [run(start=run.event, speed=((0, 0.1), (run.event + 30 * run.cadence, 1.0)), **how)]


def ramp(run: Run, **how: object) -> list[Process]:
    """Its batch size, and with it its log interval, doubles within an hour."""
    return [run(ramp=(run.event, run.event + 3600), **how)]


def switch(run: Run, **how: object) -> Sequence[Process]:
    """The pipeline drops the suffixes of names."""
    return run(**how).renamed(run.event, suffixed=False)


def switch_then_hang(run: Run, **how: object) -> Sequence[Process]:
    """The pipeline changes the names, and two log intervals later the run hangs."""
    return run(works_until=run.event, **how).renamed(run.event - 2 * run.cadence, suffixed=False)


def both_spellings(run: Run, *, hangs: bool = False, **how: object) -> list[Process]:
    """Two pipelines deliver it, under two spellings."""
    until = run.event if hangs else NEVER
    return [run(works_until=until, **how), run(works_until=until, suffixed=False, **how)]


def _calm(run: Run) -> float:
    """When a NaN and a skip at the event are old news."""
    return run.event + max(3 * run.cadence, 600) + 600


def old_totals_then_switch(run: Run, **how: object) -> Sequence[Process]:
    """A NaN and a skip; and when both are old news, the names change."""
    return run(nan=(run.event, run.event + 1), skips=((run.event, 1),), **how).renamed(_calm(run), suffixed=False)


def old_totals_then_gap(run: Run, **how: object) -> list[Process]:
    """A NaN and a skip; and when both are old news, scrapes fail for seven minutes."""
    gap = (_calm(run), _calm(run) + 420)
    return [run(nan=(run.event, run.event + 1), skips=((run.event, 1),), gaps=(gap,), **how)]


HUNG = Fires("TrainingHung", after=intervals(3, at_least=300))
# The cadence is measured over few log intervals, and the first ones of the second process are in no difference.
HUNG_RESTARTED = Fires("TrainingHung", after=HUNG.after, within=intervals(4, at_least=300))
HUNG_BEHIND_GAP = Fires("TrainingHung", after=intervals(3, at_least=480))
HUNG_CORE = Fires("TrainingHung", after=intervals(3, at_least=1200))
# The phase excuses all but the usual five minutes of two hours; what is left counts as in any other hang.
HUNG_IN_EVALUATION = Fires("TrainingHung", after=intervals(3, at_least=300, plus=6900))
GONE = Fires("TrainingVanished", after=intervals(3, at_least=900), loose=LOOKBACK_S)
GONE_CORE = Fires("TrainingVanished", severity="ticket", after=intervals(3, at_least=2700), loose=LOOKBACK_S)
NAN = Fires("LossNonFinite")
ONE_NAN = Fires("LossNonFinite", lasts=intervals(3, at_least=600))
FROZEN = Fires("LossFrozen", after=intervals(10, at_least=600), within=intervals(11, at_least=600))
ZERO = Fires("LossZero", lasts=intervals(3, plus=60), loose=60)
SKIPS = Fires("IterationsSkipped", severity="ticket", lasts=intervals(2, at_least=600))
# Half of the short window has to be slow, and the first slow log interval has to end.
COLLAPSE = Fires(
    "ThroughputCollapse",
    after=intervals(1),
    within=lambda cadence: (1800 if cadence > 90 else 150) + 2 * cadence,
    loose=180,
)

SCENARIOS = (
    Scenario("evaluation, then checkpoint", pauses),
    Scenario("evaluation, then checkpoint, core", partial(pauses, **CORE)),
    Scenario("hang", hang, HUNG),
    Scenario("hang, core", partial(hang, **CORE), HUNG_CORE),
    Scenario("hang behind a scrape gap", hang_behind_gap, HUNG_BEHIND_GAP),
    Scenario("hang in an evaluation", hang_in_evaluation, HUNG_IN_EVALUATION, **FOR_LONG),
    Scenario("end", ends),
    Scenario("end, exported for hours", partial(ends, lingers=True)),
    Scenario("end, scraped once", ends_at_once),
    Scenario("end of an attempt, then the next", ends_and_goes_on),
    Scenario("end, core", partial(killed, **CORE), GONE_CORE),
    Scenario("killed", killed, GONE),
    Scenario("restart", restart),
    Scenario("restart, core", partial(restart, **CORE)),
    Scenario("restart on the same target, slower", restart_in_place, **FOR_HOURS),
    Scenario("restart, then hang", restart_then_hang, HUNG_RESTARTED),
    Scenario("lingering predecessor", lingers),
    Scenario("lingering predecessor, core", partial(lingers, **CORE)),
    Scenario("one NaN, counted", partial(nan, logs=1), ONE_NAN),
    Scenario("diverged, counted", nan, NAN),
    Scenario("diverged, dropped by the SDK, core", partial(nan, **CORE), FROZEN, **FOR_LONG),
    Scenario("diverged, exported as it is, core", partial(nan, sdk_drops_nan=False, **CORE), NAN),
    Scenario("few digits", partial(healthy, digits=1)),
    Scenario("few digits, core", partial(healthy, digits=1, **CORE)),
    Scenario("zero loss", zero_loss, ZERO),
    Scenario("zero loss, core", partial(zero_loss, **CORE), ZERO),
    Scenario("warm-up", warm_up),
    Scenario("warm-up, core", partial(warm_up, **CORE)),
    Scenario("first skip", skip, SKIPS),
    Scenario("first skip, core", partial(skip, **CORE), SKIPS),
    Scenario("skip after those of the warm-up, core", partial(skip, early=9, **CORE), SKIPS),
    Scenario("batch-size ramp", ramp),
    Scenario("batch-size ramp, core", partial(ramp, **CORE)),
    Scenario("switch of names", switch),
    Scenario("switch of names, core", partial(switch, **CORE)),
    Scenario("switch of names, then hang", switch_then_hang, HUNG),
    Scenario("switch of names, then hang, core", partial(switch_then_hang, **CORE), HUNG_CORE),
    Scenario("both spellings", both_spellings),
    Scenario("both spellings, hang", partial(both_spellings, hangs=True), HUNG),
    Scenario("old NaN and skip, switch of names", old_totals_then_switch, ONE_NAN, SKIPS),
    Scenario("old skip, switch of names, core", partial(old_totals_then_switch, **CORE), SKIPS),
    Scenario("old NaN and skip, scrape gap", old_totals_then_gap, ONE_NAN, SKIPS),
    Scenario("old skip, scrape gap, core", partial(old_totals_then_gap, **CORE), SKIPS),
    Scenario("healthy", healthy, **FOR_HOURS),
    Scenario("healthy, core", partial(healthy, **CORE), **FOR_HOURS),
    Scenario("collapse", partial(slower, share=0.66), COLLAPSE, **FOR_HOURS),
    Scenario(
        "collapse, without tokens, core", partial(slower, share=0.66, tokens=False, **CORE), COLLAPSE, **FOR_HOURS
    ),
    Scenario("10 % slower", partial(slower, share=0.9), **FOR_HOURS),
    Scenario("a quarter slower, without tokens", partial(slower, share=0.75, tokens=False), **FOR_HOURS),
    Scenario("one slow interval", partial(slower, share=0.4, logs=1), **FOR_HOURS),
    Scenario("slow start", slow_start, **FOR_HOURS),
)


# --- What fires -----------------------------------------------------------------------------------------------------


@cache
def played(form: str, cadence: float) -> dict[str, list[Firing]] | ProvisioningError | AssertionError:
    """Everything that fires at one log interval, by run; or why that cannot be said, to be found out only once."""
    try:
        return _played(form, cadence)
    except (ProvisioningError, AssertionError) as error:
        return error


def _played(form: str, cadence: float) -> dict[str, list[Firing]]:
    together: dict[int, list[Process]] = defaultdict(list)
    for scenario in SCENARIOS:
        together[scenario.until(cadence)].extend(scenario.processes(cadence))
    found: dict[str, list[Firing]] = defaultdict(list)
    for until, processes in together.items():
        for firing in FORMS[form](processes, until):
            found[firing.run].append(firing)
    return found


def _in_promtool(processes: Sequence[Process], until: int) -> list[Firing]:
    return alert_timeline.in_promtool(tool("promtool", SUITES["prometheus2"]), RULES, processes, until)


def _for_grafana(processes: Sequence[Process], until: int) -> list[Firing]:
    return alert_timeline.on_prometheus(tool("prometheus", SUITES["prometheus3"]), RULES, processes, until)


RULES = alert_timeline.rules_of()
FORMS = {"prometheus": _in_promtool, "grafana": _for_grafana}
"""One on the oldest Prometheus we serve, the other on the newest."""


@pytest.mark.parametrize("cadence", CADENCES)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_what_fires(scenario: Scenario, form: str, cadence: str) -> None:
    """Exactly the alerts of the scenario fire, each once, without a gap, in its time."""
    interval = CADENCES[cadence]
    everything = played(form, interval)
    if isinstance(everything, Exception):
        raise everything
    firings = everything[scenario.name]
    found = sorted((firing.alert, firing.severity, firing.gaps) for firing in firings)
    assert found == sorted((fires.alert, fires.severity, 0) for fires in scenario.fires), firings
    for fires, firing in zip(
        sorted(scenario.fires, key=lambda fires: fires.alert),
        sorted(firings, key=lambda firing: firing.alert),
        strict=True,
    ):
        event, end = scenario.event(interval), scenario.until(interval)
        earliest = fires.after(interval)
        latest = (fires.within or fires.after)(interval) + LATE_S + fires.loose
        assert earliest - EARLY_S <= firing.first - event <= latest, firing
        if fires.lasts is None:
            assert firing.last > end - 60, firing
        else:
            over = fires.lasts(interval)
            assert over - EARLY_S - fires.loose <= firing.last - event <= over + LATE_S + fires.loose, firing
