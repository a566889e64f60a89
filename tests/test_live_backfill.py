"""A backfilled log in a real Prometheus: the same panels as of a live replay, loaded while the server runs."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from live import Asked, panels, site_bundle
from test_live_queries import replayed

from dashboards.ids import RunPanel
from provisioning.stack.prometheus import Prometheus

pytestmark = pytest.mark.live

CHECKOUT = Path(__file__).parent.parent
(BOARD,) = site_bundle().dashboards
PANELS = {RunPanel(panel.id): panel for panel in panels(BOARD)}

LOG_S = 80
"""Length of the log that is also replayed live: panels look at full minutes, so it is asked about after one."""

NEARBY_S = (-1.5, -1, -0.5, 0, 0.5, 1, 1.5)
"""One scrape interval to each side, and some for the way of a scrape."""

SLACK = 0.05
"""A replay moves its clock every two seconds: the times that it books are as much older, of the sixty in a window."""

NOT_IN_A_LOG = {
    *(RunPanel.FIRING_ALERTS, RunPanel.SPAN_TIME, RunPanel.TOKENS_PER_NODE),
    *(RunPanel.MFU, RunPanel.LOSS_MAX, RunPanel.MEMORY_SHARE, RunPanel.MEMORY_ERRORS),
    *(RunPanel.DATA_LOADING_SHARE, RunPanel.DATA_LOADING_TIME),
}
"""Nobody evaluated rules in the past; spans and the size of a node are in no log, the others not in Megatron-LM's."""

ARGUMENTS = """\
using world size: 16, data-parallel size: 16, tensor-model-parallel size: 1, pipeline-model-parallel size: 1
------------------------ arguments ------------------------
  global_batch_size ............................... 64
  log_interval .................................... 1
  seq_length ...................................... 4096
  train_iters ..................................... 40
  world_size ...................................... 16
-------------------- end of arguments ---------------------
"""


def line(stamp: datetime, iteration: int, of: int, step_s: float) -> str:
    """A training line of Megatron-LM, with the timers and the memory that follow it."""
    return (
        f" [{stamp}] iteration {iteration:8d}/{of:8d} | consumed samples: {iteration * 64:12d} | "
        f"elapsed time per iteration (ms): {step_s * 1000:.1f} | throughput per GPU (TFLOP/s/GPU): "
        f"{400 + iteration % 10:.1f} | learning rate: {3e-4 - iteration * 1e-6:.6E} | global batch size:    64 | "
        f"lm loss: {3 - iteration / 100:.6E} | loss scale: 1.0 | grad norm: {0.3 + iteration % 7 / 10:.3f} | "
        f"num zeros: {iteration} | params norm: {100 + iteration / 10:.3f} | "
        f"number of skipped iterations: {iteration % 5 == 0:3d} | number of nan iterations:   0 |\n"
        "(min, max) time across ranks (ms):\n"
        f"    forward-backward ...............................: ({step_s * 700:.2f}, {step_s * 800 + iteration:.2f})\n"
        f"    optimizer ......................................: ({step_s * 90:.2f}, {step_s * 100:.2f})\n"
        f"[Rank 0] (after {iteration} iterations) memory (MB) | allocated: {30_000 + iteration}.0 | "
        "max allocated: 47311.0 | reserved: 50126.0 | max reserved: 50126.0\n"
    )


def log(begin: datetime, lines: int, every_s: float, first: int = 1) -> str:
    """A log with a training line every so often, a checkpoint and a validation."""
    text = ARGUMENTS
    for number in range(1, lines + 1):
        text += line(begin + timedelta(seconds=number * every_s), first + number - 1, 100, every_s)
        if number == 5:
            saving, saved = (begin + timedelta(seconds=times * every_s) for times in (5.2, 5.6))
            text += (
                f"[{saving}] saving checkpoint at iteration {first + 4:7d} to /c\n"
                f"[{saved}]   successfully saved checkpoint from iteration {first + 4:7d} to /c\n"
                f" validation loss at iteration {first + 4} | lm loss value: 2.5E+00 | lm loss PPL: 1.218249E+01 | \n"
            )
    return text


def backfill(log: Path, *options: str) -> str:
    """What the command line says while it puts a log into a database."""
    command = [sys.executable, "-m", "emitter", "backfill", str(log), *options]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stderr


class At(Asked):
    """A Prometheus that is asked about one moment."""

    def __init__(self, url: str, time_s: float) -> None:
        super().__init__(url)
        self._time_s = time_s

    def query(self, text: str) -> list[dict[str, Any]]:
        """The series of an instant query at that moment."""
        return self._get("query", {"query": text, "time": f"{self._time_s:.3f}"})["result"]


@dataclass
class Loaded:
    """A server with the same log twice, live and backfilled, and other logs of the past."""

    url: str
    live_s: float
    past_s: float
    """When it begins."""


@pytest.fixture(scope="module")
def loaded(prometheus2: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loaded]:
    """Everything at once: a running server looks for new blocks once a minute."""
    folder = tmp_path_factory.mktemp("logs")
    logs = {
        "live": log(datetime(2025, 3, 1), LOG_S // 2, 2),
        "slow": log(datetime(2025, 3, 3), 5 * 60 // 17, 17 * 60),
        "twice": log(datetime(2025, 3, 5), 30, 20)
        + log(datetime(2025, 3, 8), 30, 20, 31)
        + "[after training is done] x\n",
    }
    for name, text in logs.items():
        (folder / f"{name}.log").write_text(text)
    with ExitStack() as running:
        target = running.enter_context(replayed(folder / "live.log", "live", 1))
        server = running.enter_context(Prometheus(prometheus2, targets=[target]))
        with urllib.request.urlopen(f"{server.url}/api/v1/status/flags") as answer:
            data = json.load(answer)["data"]["storage.tsdb.path"]
        (Path(data) / ".backfill-killed" / "0" / "01JN8Z0000000000000000000").mkdir(parents=True)
        promtool = f"--promtool={prometheus2.with_name('promtool')}"
        backfill(folder / "slow.log", f"--to=blocks:{data}", promtool)
        backfill(folder / "twice.log", f"--to=blocks:{data}", "--scrape-interval=1s", promtool)
        asked = Asked(server.url)
        asked.until(lambda: asked.query('megatron_run_start_time_seconds{nemo_run_id="live"}'))
        (start,) = asked.query('megatron_run_start_time_seconds{nemo_run_id="live"}')
        live_s = float(start["value"][1])
        past_s = live_s - 30 * 86_400  # the same second of a minute, since panels look at full minutes
        past = log(datetime.fromtimestamp(past_s - 2, timezone.utc).replace(tzinfo=None), LOG_S // 2, 2)
        (folder / "past.log").write_text(past)
        backfill(folder / "past.log", f"--to=blocks:{data}", "--scrape-interval=1s", promtool)
        asked.until(lambda: asked.query('megatron_training_iteration{nemo_run_id="live"} == 40'), seconds=LOG_S + 60)
        asked.until(lambda: asked.query('last_over_time(megatron_training_iteration{nemo_run_id="slow"}[10y])'), 150)
        yield Loaded(url=server.url, live_s=live_s, past_s=past_s)


def shown(asked: Asked, panel: RunPanel, run: str) -> dict[str, float]:
    """Each series of a panel and its value."""
    return {
        " ".join(
            f"{key}={value}" for key, value in sorted(series["metric"].items()) if value not in (run, "backfill")
        ): float(series["value"][1])
        for series in asked.panel(PANELS[panel], run)
    }


@pytest.mark.parametrize("after_s", [66.5, 77.5])
def test_every_panel_shows_what_it_showed_of_the_live_run(after_s: float, loaded: Loaded) -> None:
    """The same series, and values that the live run had within one scrape interval."""
    compared = 0
    for panel in PANELS:
        was = [shown(At(loaded.url, loaded.live_s + after_s + by), panel, "live") for by in NEARBY_S]
        now = shown(At(loaded.url, loaded.past_s + after_s), panel, "past")
        assert set().union(*was) >= now.keys() >= set.intersection(*map(set, was)), panel
        for series, value in now.items():
            values = [before[series] for before in was if series in before]
            slack = SLACK * max(map(abs, values))
            assert min(values) - slack <= value <= max(values) + slack, (panel, series)
            compared += 1
    assert compared > 30


def test_every_panel_that_a_log_has_the_numbers_for_has_data(loaded: Loaded) -> None:
    """A run of two processes with a checkpoint and a validation: no panel is empty but for what no line says."""
    at = At(loaded.url, datetime(2025, 3, 8, 0, 2, 30, tzinfo=timezone.utc).timestamp())
    missing = {panel for panel in PANELS if not at.panel(PANELS[panel], "twice")}
    assert missing == NOT_IN_A_LOG


def test_a_run_that_logs_every_17_minutes_has_no_holes(loaded: Loaded) -> None:
    """Five hours with a sample of every gauge every 15 s."""
    end = datetime(2025, 3, 3, 4, 45, tzinfo=timezone.utc).timestamp()
    (counted,) = At(loaded.url, end).query('count_over_time(megatron_training_loss{nemo_run_id="slow"}[4h])')
    assert float(counted["value"][1]) == pytest.approx(4 * 3600 / 15, abs=1)


def test_between_two_processes_there_is_nothing(loaded: Loaded) -> None:
    """Three days of a dead run are three days without samples; before and after there are."""

    def there(moment: datetime) -> bool:
        asked = At(loaded.url, moment.replace(tzinfo=timezone.utc).timestamp())
        return bool(asked.query('megatron_run_attempt{nemo_run_id="twice"}'))

    hours = [datetime(2025, 3, 5, 0, 5), datetime(2025, 3, 6), datetime(2025, 3, 7, 23), datetime(2025, 3, 8, 0, 5)]
    assert [there(hour) for hour in hours] == [True, False, False, True]
