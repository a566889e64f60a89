"""Which series a query selects: the spellings of a metric's name, the run filter, and who knows the run id."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from dashboards import promql
from dashboards.promql import Expr, Matcher
from emitter import catalog
from emitter.catalog import Kind, Metric

UNIT_SUFFIXES = {"ms": "_milliseconds", "s": "_seconds", "By": "_bytes", "1": "_ratio"}
"""What pipelines append for a declared unit; units in braces are dropped by all of them."""


@dataclass(frozen=True, kw_only=True)
class SeriesSettings:
    """How the series of a site are named and labelled.

    Raises: ValueError if a label is empty or used twice.
    """

    run_label: str = promql.plain_label(catalog.RUN_ID)
    """Label that carries the run id; a dotted one, such as nemo.run.id, needs Prometheus 3."""
    identity: str = "label"
    """`label`: every series has the run label. `target_info`: only target_info has it."""
    namespace: str = ""
    """Prefix that the site's pipeline puts before metric names, without the underscore."""
    labels: tuple[str, ...] = ()
    """Further labels to filter boards by, for example cluster; one dashboard variable each."""

    def __post_init__(self) -> None:
        if self.identity not in ("label", "target_info"):
            raise ValueError(f"identity must be 'label' or 'target_info' (got {self.identity!r})")
        taken = [self.run_label, *self.labels]
        if not all(taken) or len(set(map(promql.plain_label, taken))) < len(taken):
            raise ValueError(f"run_label and labels must be distinct and not empty (got {taken})")

    @property
    def run(self) -> str:
        """Label by which results name the run."""
        return promql.plain_label(self.run_label)


def spellings(metric: Metric, part: str = "", namespace: str = "") -> tuple[str, ...]:
    """Every name under which a metric can arrive, a closed list.

    part: `bucket`, `count` or `sum` of a classic histogram; empty for a native one and every other kind.
    """
    units = ("", UNIT_SUFFIXES[metric.otel_unit]) if metric.otel_unit in UNIT_SUFFIXES else ("",)
    totals = ("", "_total") if metric.kind is Kind.COUNTER else ("",)
    prefixes = ("", f"{namespace}_") if namespace else ("",)
    return tuple(
        prefix + metric.name.replace(".", separator) + unit + total + (f"_{part}" if part else "")
        for prefix, separator, unit, total in product(prefixes, "_.", units, totals)
    )


def name_pattern(metric: Metric, part: str = "", namespace: str = "") -> str:
    """The regular expression that matches exactly the `spellings` of a metric: an alternation, never a wildcard."""
    *head, tail = metric.name.split(".")
    unit = UNIT_SUFFIXES.get(metric.otel_unit)
    pieces = (
        f"({re.escape(namespace)}_)?" if namespace else "",
        "(" + "|".join("".join(word + separator for word in head) for separator in ("_", "[.]")) + ")",
        tail,
        f"({unit})?" if unit else "",
        "(_total)?" if metric.kind is Kind.COUNTER else "",
        f"_{part}" if part else "",
    )
    return "".join(pieces)


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a query sees: one query, used by a panel and by a rule, cannot disagree with itself.

    A panel's scope filters by the chosen runs over `$window`; a rule's scope takes every run over fixed windows.
    """

    series: SeriesSettings = field(default_factory=SeriesSettings)
    run_matcher: Matcher
    matchers: tuple[Matcher, ...] = ()
    window: str
    span: str
    """How far back a question about the whole run looks."""
    recorded: bool = False
    """Whether named signals are read from recording rules, or computed in place."""
    world_size: int = 0
    """GPUs of a run whose emitter does not say; 0 if the site does not say either."""
    back: str = ""
    memory: str = ""

    @property
    def run(self) -> str:
        """Label by which results name the run."""
        return self.series.run

    def before(self, back: str, *, memory: str = "") -> Scope:
        """The same scope `back` ago; with memory, a series that paused for less than that is still seen."""
        return replace(self, back=back, memory=memory)

    def select(self, metric: Metric, *matchers: Matcher, part: str = "") -> Expr:
        """Instant vector of a metric under all spellings, each sample with its run.

        Shape: one sample per series, metric names kept where the run id is a label.
        """
        return self.select_any((metric, part), matchers=matchers)

    def select_any(self, *parts: tuple[Metric, str], matchers: Sequence[Matcher] = ()) -> Expr:
        """Instant vector of several metrics at once; for questions about their presence alone."""
        names = "|".join(name_pattern(metric, part, self.series.namespace) for metric, part in parts)
        vector = self._instant(promql.selector([promql.matching("__name__", names), *matchers, *self._filter()]))
        if self.series.identity == "target_info":
            vector = promql.without_name(vector)  # the join would stop on a series that arrives twice
        return self._identify(vector)

    def by_spelling(
        self,
        metric: Metric,
        build: Callable[[Expr], Expr],
        *matchers: Matcher,
        combine: str = "max",
        by: Sequence[str] = (),
        part: str = "",
    ) -> Expr:
        """A range function over a metric, right also while two spellings of it coexist.

        Each spelling is aggregated on its own by run, tagged and joined; then the largest counts. A bare `or` would
        let the flat tail of an old spelling hide the new one.
        """
        labels = (self.run, *by)
        tagged = [
            promql.set_label(
                promql.aggregate(combine, self._identify(build(self._exact(name, matchers))), labels),
                "spelling",
                str(place),
            )
            for place, name in enumerate(spellings(metric, part, self.series.namespace))
        ]
        return promql.aggregate("max", promql.any_of(*tagged), labels)

    def record(self, name: str) -> Expr:
        """Instant vector of a recording rule; every recording has the run label already."""
        return self._instant(promql.selector([], name))

    def _exact(self, name: str, matchers: Sequence[Matcher]) -> Expr:
        return promql.selector([promql.equal("__name__", name), *matchers, *self._filter()])

    def _filter(self) -> tuple[Matcher, ...]:
        return self.matchers if self.series.identity == "target_info" else (self.run_matcher, *self.matchers)

    def _instant(self, selector: Expr) -> Expr:
        if self.memory:
            return promql.call("last_over_time", selector.range(self.memory, offset=self.back))
        return promql.offset(selector, self.back) if self.back else selector

    def _identify(self, vector: Expr) -> Expr:
        """The vector with the run label in its plain form."""
        if self.series.identity == "target_info":
            return vector.times(self._owners(), on=("job", "instance"), group_left=(self.run,))
        if self.run != self.series.run_label:
            return promql.copy_label(vector, self.series.run_label, self.run)
        return vector

    def _owners(self) -> Expr:
        """The run of each target, by target_info; of two that claim one, the newer, else the first by its labels."""

        def claims(matcher: Matcher) -> Expr:
            """When each run last claimed each target."""
            names = [f"{prefix}target_info" for prefix in ("", self.series.namespace and f"{self.series.namespace}_")]
            selectors = [promql.selector([promql.equal("__name__", n), matcher]) for n in dict.fromkeys(names)]
            seen = promql.any_of(*(promql.call("timestamp", self._instant(selector)) for selector in selectors))
            if self.run != self.series.run_label:
                seen = promql.copy_label(seen, self.series.run_label, self.run)
            return seen

        def owners(claims: Expr) -> Expr:
            return promql.aggregate("max", claims, ("job", "instance", self.run))

        # Straight from the selector, whose order is that of the labels: an aggregation's order is random before
        # Prometheus 3, and so would be the winner among equals.
        newest = promql.largest(claims(promql.not_equal(self.series.run_label, "")), ("job", "instance"))
        return owners(newest).and_(owners(claims(self.run_matcher))) * 0 + 1


def panel_scope(series: SeriesSettings, world_size: int = 0) -> Scope:
    """The scope of a panel: the chosen runs, and the chosen values of the site's further labels."""
    return Scope(
        series=series,
        run_matcher=promql.variable(series.run_label, "run"),
        matchers=tuple(promql.variable(label, promql.plain_label(label)) for label in series.labels),
        window="$window",
        span="1d",
        world_size=world_size,
    )


def rule_scope(series: SeriesSettings, world_size: int = 0, *, recorded: bool) -> Scope:
    """The scope of a rule: every run, fixed windows."""
    return Scope(
        series=series,
        run_matcher=promql.not_equal(series.run_label, ""),
        window="5m",
        span="6h",
        recorded=recorded,
        world_size=world_size,
    )
