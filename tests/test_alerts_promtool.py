"""The hand-written cases of every alert, run by the promtool of each Prometheus we serve."""

from __future__ import annotations

import shutil
from pathlib import Path

import alert_timeline
import pytest

from alerts.registry import RULE_GROUPS
from provisioning.errors import ProvisioningError
from provisioning.stack.prometheus import promtool

pytestmark = pytest.mark.live

CASES = Path(__file__).parent / "promtool"
RULES = "deploy/prometheus/rules"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cases, and the rules of a site with default settings, where the cases expect them."""
    root = tmp_path_factory.mktemp("checkout")
    shutil.copytree(CASES, root / "tests" / "promtool")
    (root / RULES).mkdir(parents=True)
    for name, text in alert_timeline.rule_files(alert_timeline.rules_of()).items():
        (root / RULES / name).write_text(text)
    return root


@pytest.mark.parametrize("group", [group.name for group in RULE_GROUPS])
def test_the_cases_of_a_group_hold(group: str, checkout: Path, promtool_binary: Path) -> None:
    """Each alert is silent one evaluation before it fires, fires with exact labels and texts, and rests otherwise."""
    promtool("test", "rules", str(checkout / "tests" / "promtool" / f"{group}.yaml"), binary=promtool_binary)


def test_the_rules_are_in_order(checkout: Path, promtool_binary: Path) -> None:
    """Promtool finds nothing to object to in the rule files."""
    promtool("check", "rules", *map(str, sorted((checkout / RULES).iterdir())), binary=promtool_binary)


def test_a_broken_rule_is_noticed(checkout: Path, promtool_binary: Path, tmp_path: Path) -> None:
    """A case fails when its rule is another one, so that green means something."""
    root = tmp_path / "checkout"
    shutil.copytree(checkout, root)
    file = root / RULES / "telemetry.yaml"
    file.write_text(file.read_text().replace("vector(1)", "vector(1) > 1"))
    with pytest.raises(ProvisioningError, match="Watchdog"):
        promtool("test", "rules", str(root / "tests" / "promtool" / "telemetry.yaml"), binary=promtool_binary)
