"""A Prometheus that is asked as Grafana would ask it."""

from __future__ import annotations

import pytest
from live import site_bundle

from provisioning.errors import ProvisioningError
from provisioning.online import Online
from provisioning.stack.prometheus import free_port


def test_a_prometheus_that_is_away_is_one_clear_error() -> None:
    """Nobody listens: the address, and no traceback of the HTTP client."""
    everything = site_bundle()
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ProvisioningError, match=rf"online: {url} must answer") as caught:
        list(Online(url, everything.site).answers(everything.dashboards[0], "r1"))
    assert "\n" not in str(caught.value)
