"""What a Prometheus answers to a dashboard: which panels have data, and why the others have none."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_api_client import PrometheusConnect
from prometheus_api_client.exceptions import PrometheusApiClientException
from requests.exceptions import RequestException

from dashboards import promql
from dashboards.dashboard import Dashboard, Panel
from dashboards.scope import name_pattern
from emitter.catalog import Kind, Metric
from provisioning.errors import ProvisioningError
from provisioning.expressions import as_asked
from provisioning.site import Site


@dataclass(frozen=True, kw_only=True)
class Answer:
    """How a panel looks for one run, now."""

    panel: Panel
    series: int
    missing: tuple[Metric, ...] = ()
    """Catalogue entries that the panel needs and that the run does not export."""


class Online:
    """A Prometheus that is asked as Grafana would ask it.

    Raises: ProvisioningError if it cannot be reached, or refuses a query: that would be a silent, empty panel.
    """

    def __init__(self, url: str, site: Site) -> None:
        self._url = url
        self._site = site
        self._client = PrometheusConnect(url=url)

    def ask(self, expr: str) -> list[dict[str, dict[str, str]]]:
        """The series of an instant query, now."""
        try:
            result: list[dict[str, dict[str, str]]] = self._client.custom_query(expr)
        except (PrometheusApiClientException, RequestException) as error:
            raise ProvisioningError(f"online: {self._url} must answer {expr[:120]!r} (got {error}).") from error
        return result

    def answers(self, board: Dashboard, run: str, *, time_range: str = "1h") -> Iterator[Answer]:
        """Every panel of a board that has queries, for one run."""
        for panel in board.panels:
            if panel.queries:
                texts = [
                    as_asked(str(query.expr), self._site, run=run, time_range=time_range) for query in panel.queries
                ]
                series = sum(len(self.ask(text)) for text in texts)
                missing = () if series else tuple(metric for metric in panel.needs if not self._exports(metric, run))
                yield Answer(panel=panel, series=series, missing=missing)

    def _exports(self, metric: Metric, run: str) -> bool:
        part = "count" if metric.kind is Kind.HISTOGRAM else ""
        names = promql.matching("__name__", name_pattern(metric, part, self._site.series.namespace))
        matchers = [names]
        if self._site.series.identity == "label":
            matchers.append(promql.equal(self._site.series.run_label, run))
        return bool(self.ask(str(promql.selector(matchers))))
