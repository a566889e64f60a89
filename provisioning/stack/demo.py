"""`python -m provisioning.stack.demo [LOG]`: a training log as a live run, a Prometheus with the rules, and a verdict.

Everything runs on loopback and ends with the demo. Exit 0 if what was expected came, 1 if not.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from provisioning import bundle
from provisioning.errors import ProvisioningError
from provisioning.online import Answer, Online
from provisioning.site import parse
from provisioning.stack.prometheus import Prometheus, free_port
from provisioning.targets import prometheus as rules

CHECKOUT = Path(__file__).resolve().parents[2]
SHOW = CHECKOUT / "examples" / "demo.log"

Windows = Mapping[str, tuple[float, float]]
"""Earliest and latest moment of each alert, in seconds since the start."""

EXPECTED_S: Windows = {"LossNonFinite": (180, 270), "TrainingHung": (516, 630)}
"""When each alert of examples/demo.log may fire at the earliest and the latest: the NaN is 3:01 into the log; the log
stops at 3:36, and a run with phases may be silent for 5 minutes, seen with a minute's grain."""

LONGEST_S = 700.0
LOOK_EVERY_S = 5.0
READY_S = 30.0
AFTER_THE_LOG_S = 60.0

SITE = "{scrape_interval: 5s, dashboards: {min_window: 1m}, alerting: {engine: prometheus, interval: 10s}}"
"""A site that looks more often than the default, so that the demo is short."""


@dataclass(kw_only=True)
class Seen:
    """What the demo has seen so far."""

    answered: set[str] = field(default_factory=set)
    answers: list[Answer] = field(default_factory=list)
    pending: set[str] = field(default_factory=set)
    fired_s: dict[str, float] = field(default_factory=dict)

    def problems(self, expected_s: Windows, *, others_allowed: bool) -> list[str]:
        """What is not as expected, a line each."""
        lines = []
        for name, (earliest, latest) in expected_s.items():
            at = self.fired_s.get(name)
            if at is None or not earliest <= at <= latest:
                when = "it did not" if at is None else _clock(at)
                lines.append(f"{name}: must fire between {_clock(earliest)} and {_clock(latest)} (got {when}).")
        for name in sorted(self.fired_s.keys() - expected_s.keys()):
            if not others_allowed:
                lines.append(f"{name}: must stay silent (got firing at {_clock(self.fired_s[name])}).")
        for answer in self.answers:
            can_have = answer.panel.needs and not answer.missing  # a panel without needs shows alerts, if any
            if can_have and answer.panel.title not in self.answered:
                lines.append(f"panel {answer.panel.title!r}: must have data, the run exports what it needs (got none).")
        if not self.answered:
            lines.append("panels: some must have data (got none).")
        return lines


class Replay:
    """The emitter in a process of its own, serving the run of a log.

    Raises: ProvisioningError, with the emitter's own words, if it ends by itself.
    """

    def __init__(self, log: Path, run: str, speed: float) -> None:
        self.target = f"127.0.0.1:{free_port()}"
        command = (sys.executable, "-m", "emitter", "replay", str(log), "--run-id", run, "--speed", f"{speed:g}")
        self._process = subprocess.Popen(
            (*command, "--to", f"scrape:{self.target}", "--linger", f"{2 * LONGEST_S:g}"),
            cwd=CHECKOUT,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.words: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        self.words.extend(line.rstrip() for line in self._process.stderr)

    @property
    def over(self) -> bool:
        """Whether the log has been replayed to its end."""
        return any("log is over" in line for line in self.words)

    def begin(self) -> None:
        """Wait until it serves the run."""
        end = time.monotonic() + READY_S
        while not self.words and time.monotonic() < end:
            self.check()
            time.sleep(0.05)

    def check(self) -> None:
        """See that it still runs."""
        if self._process.poll() is not None:
            self._reader.join(1)
            raise ProvisioningError(self.words[-1] if self.words else "emitter: must run (got an end without a word).")

    def stop(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait()
        self._reader.join(1)


def show(log: Path, speed: float, console: Console) -> list[str]:
    """Replay the log and watch; what was not as expected."""
    ours = log.samefile(SHOW) if log.exists() else False
    expected_s = EXPECTED_S if ours and speed == 1 else {}
    site = parse(SITE, "demo")
    everything = bundle.collect(site)
    run = log.stem
    with tempfile.TemporaryDirectory(prefix="megatron-watch-demo-") as folder:
        files = []
        for path, text in rules.render(everything).items():
            files.append(Path(folder) / Path(path).name)
            files[-1].write_text(text, encoding="utf-8")
        replay = Replay(log, run, speed)
        try:
            replay.begin()
            console.print("Starting Prometheus …")
            with Prometheus(
                targets=[replay.target],
                rule_files=files,
                scrape_interval=site.scrape_interval,
                evaluation_interval="10s",
            ) as server:
                seen = _watch(Online(server.url, site), everything, run, replay, expected_s, console)
        finally:
            replay.stop()
    _summary(seen, replay, console)
    return seen.problems(expected_s, others_allowed=not expected_s)


def _watch(
    online: Online,
    everything: bundle.Bundle,
    run: str,
    replay: Replay,
    expected_s: Windows,
    console: Console,
) -> Seen:
    begin, over_at = time.monotonic(), None
    seen, last = Seen(), ""
    with Live(console=console, refresh_per_second=2, transient=False, auto_refresh=console.is_terminal) as live:
        while (now := time.monotonic() - begin) < LONGEST_S:
            replay.check()
            _look(seen, online, everything, run, now)
            if console.is_terminal:
                live.update(_picture(seen, now, expected_s))
            elif (line := _line(seen)) != last:
                console.print(f"{_clock(now)} {line}", soft_wrap=True)
                last = line
            over_at = over_at or (now if replay.over else None)
            enough = expected_s.keys() <= seen.fired_s.keys() if expected_s else False
            if over_at is not None and (enough if expected_s else now - over_at > AFTER_THE_LOG_S):
                break
            time.sleep(LOOK_EVERY_S)
    return seen


def _look(seen: Seen, online: Online, everything: bundle.Bundle, run: str, now: float) -> None:
    for board in everything.dashboards:
        seen.answers = list(online.answers(board, run))
    seen.answered |= {answer.panel.title for answer in seen.answers if answer.series}
    alerts = [series["metric"] for series in online.ask('ALERTS{alertname!="Watchdog"}')]
    seen.pending = {labels["alertname"] for labels in alerts if labels["alertstate"] == "pending"}
    for labels in alerts:
        if labels["alertstate"] == "firing":
            seen.fired_s.setdefault(labels["alertname"], now)


def _picture(seen: Seen, now: float, expected_s: Windows) -> Group:
    alerts = Table("Alert", "State", "Expected", title=f"{_clock(now)} since the start", title_justify="left")
    for name in dict.fromkeys((*expected_s, *seen.fired_s, *sorted(seen.pending))):
        fired = seen.fired_s.get(name)
        state = (
            f"[red]fired at {_clock(fired)}" if fired is not None else "pending" if name in seen.pending else "silent"
        )
        expected = f"{_clock(expected_s[name][0])} to {_clock(expected_s[name][1])}" if name in expected_s else ""
        alerts.add_row(name, state, expected)
    panels = Table("Panel", "Series now", "")
    for answer in seen.answers:
        panels.add_row(answer.panel.title, str(answer.series), _why(answer))
    return Group(alerts, panels)


def _line(seen: Seen) -> str:
    with_data = sum(bool(answer.series) for answer in seen.answers)
    fired = ", ".join(f"{name} since {_clock(at)}" for name, at in seen.fired_s.items()) or "none"
    pending = f"; pending: {', '.join(sorted(seen.pending))}" if seen.pending else ""
    return f"{with_data} of {len(seen.answers)} panels with data; firing: {fired}{pending}"


def _why(answer: Answer) -> str:
    if answer.series:
        return ""
    return f"needs {', '.join(metric.name for metric in answer.missing)}" if answer.missing else "nothing to show now"


def _summary(seen: Seen, replay: Replay, console: Console) -> None:
    for words in replay.words:
        console.print(words, style="dim", soft_wrap=True, markup=False, highlight=False)
    console.print(f"Panels with data: {len(seen.answered)} of {len(seen.answers)}.")
    for answer in seen.answers:
        if answer.panel.title not in seen.answered:
            console.print(f"  without: {answer.panel.title}: {_why(answer)}")
    for name, at in seen.fired_s.items():
        console.print(f"Fired: {name}, at {_clock(at)}.")


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("log", type=click.Path(path_type=Path), default=SHOW)
@click.option("--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, help="Times as fast as the run was.")
def main(log: Path, speed: float) -> None:
    """Replay LOG into a Prometheus of this machine and watch the panels and alerts; at most 12 minutes."""
    console = Console()
    try:
        problems = show(log, speed, console)
    except ProvisioningError as error:
        click.echo(str(error), err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("demo: stopped.", err=True)
        sys.exit(130)
    for line in problems:
        click.echo(line)
    console.print("[red]Not as expected." if problems else "[green]As expected.")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
