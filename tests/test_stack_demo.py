"""The demo's verdict, and the demo itself on logs good and bad."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from live import panels, site_bundle

from emitter import catalog
from provisioning.online import Answer
from provisioning.stack.demo import EXPECTED_S, LONGEST_S, Seen

CHECKOUT = Path(__file__).parent.parent
PANEL = panels(site_bundle().dashboards[0])[0]


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "provisioning.stack.demo", *arguments)
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=200)


def seen(**fired_s: float) -> Seen:
    return Seen(answers=[Answer(panel=PANEL, series=1)], answered={PANEL.title}, fired_s=fired_s)


def in_time() -> dict[str, float]:
    return {name: latest for name, (_, latest) in EXPECTED_S.items()}


def test_what_is_expected_is_as_expected() -> None:
    """Every alert in its time and every panel with data: no problem."""
    assert seen(**in_time()).problems(EXPECTED_S, others_allowed=False) == []


def test_the_expected_fits_into_the_demo() -> None:
    """The demo does not end before what it waits for; with starting and stopping it takes less than 12 minutes."""
    assert max(latest for _, latest in EXPECTED_S.values()) < LONGEST_S <= 11 * 60 + 45


@pytest.mark.parametrize("name", EXPECTED_S)
def test_an_alert_that_is_missing_early_or_late_is_a_problem(name: str) -> None:
    """The verdict does not pass an alert by luck."""
    earliest, latest = EXPECTED_S[name]
    for at in (earliest - 1, latest + 1):
        (problem,) = seen(**{**in_time(), name: at}).problems(EXPECTED_S, others_allowed=False)
        assert name in problem
    others = {other: at for other, at in in_time().items() if other != name}
    (problem,) = seen(**others).problems(EXPECTED_S, others_allowed=False)
    assert f"{name}: must fire" in problem


def test_an_alert_that_nobody_expects_is_a_problem() -> None:
    """In our own log only; in a log of the user's it is what the demo is for."""
    fired = seen(**in_time(), LossZero=30)
    assert fired.problems(EXPECTED_S, others_allowed=True) == []
    (problem,) = fired.problems(EXPECTED_S, others_allowed=False)
    assert "LossZero: must stay silent" in problem


def test_a_panel_without_the_data_it_could_have_is_a_problem() -> None:
    """What the run does not export cannot be shown; everything else must be."""
    excused = Seen(answers=[Answer(panel=PANEL, series=0, missing=(catalog.LOSS,))], answered={"another"})
    assert excused.problems({}, others_allowed=True) == []
    blank = Seen(answers=[Answer(panel=PANEL, series=0)], answered={"another"})
    (problem,) = blank.problems({}, others_allowed=True)
    assert repr(PANEL.title) in problem
    assert Seen().problems({}, others_allowed=True) == ["panels: some must have data (got none)."]


@pytest.mark.live
@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "must be readable"),
        (b"", "empty file"),
        (b"\x1f\x8b\x00\x01" * 400, "binary data"),
        (b"hello\n" * 9, "training lines"),
    ],
    ids=["missing", "empty", "binary", "other text"],
)
def test_a_log_that_cannot_be_shown_is_one_clear_line(
    content: bytes | None, words: str, prometheus2: Path, tmp_path: Path
) -> None:
    """The emitter's own words, exit 1, no traceback."""
    log = tmp_path / "run.log"
    if content is not None:
        log.write_bytes(content)
    shown = demo(str(log))
    assert shown.returncode == 1
    assert words in shown.stderr
    assert shown.stderr.count("\n") == 1


@pytest.mark.live
def test_the_demo_shows_a_log_and_ends_by_itself(prometheus2: Path, tmp_path: Path) -> None:
    """Panels with data, the alert of the NaN, a verdict, exit 0; a log under a path of its own expects nothing."""
    log = tmp_path / "mine.log"
    log.write_bytes((CHECKOUT / "examples" / "demo.log").read_bytes())
    shown = demo(str(log), "--speed", "12")
    assert "Fired: LossNonFinite" in shown.stdout
    assert "without: MFU: needs megatron.training.mfu" in shown.stdout
    assert "As expected." in shown.stdout
    assert shown.returncode == 0
