"""dashboards.scope: the spellings of a name are a closed list, and every query filters by run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import promql_parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alerts.registry import RULE_GROUPS
from dashboards import promql, signals
from dashboards.promql import Expr
from dashboards.queries import progress
from dashboards.scope import Scope, SeriesSettings, name_pattern, panel_scope, rule_scope, spellings
from emitter import catalog
from emitter.catalog import Kind, Metric

NAMES = [
    (metric, part)
    for metric in catalog.METRICS
    for part in (("", "bucket", "count", "sum") if metric.kind is Kind.HISTOGRAM else ("",))
]
"""Every metric, and every part of a histogram, that a query can ask for."""

NAMESPACES = ("", "acme")
each_name = pytest.mark.parametrize(("metric", "part"), NAMES, ids=lambda item: getattr(item, "name", item))
each_namespace = pytest.mark.parametrize("namespace", NAMESPACES)

LABEL = SeriesSettings()
DOTS = SeriesSettings(run_label="nemo.run.id")
TARGETS = SeriesSettings(identity="target_info")
DOTTED_TARGETS = SeriesSettings(run_label="nemo.run.id", identity="target_info")
SITES = {"label": LABEL, "dots": DOTS, "target_info": TARGETS, "dots, target_info": DOTTED_TARGETS}


# --- Spellings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metric", "part", "names"),
    [
        (catalog.LOSS, "", {"megatron_training_loss", "megatron.training.loss"}),
        (
            catalog.STEP_DURATION,
            "count",
            {
                "megatron_training_step_duration_ms_count",
                "megatron_training_step_duration_ms_milliseconds_count",
                "megatron.training.step_duration_ms_count",
                "megatron.training.step_duration_ms_milliseconds_count",
            },
        ),
        (
            catalog.SKIPPED_ITERS,
            "",
            {
                "megatron_training_skipped_iters",
                "megatron_training_skipped_iters_total",
                "megatron.training.skipped_iters",
                "megatron.training.skipped_iters_total",
            },
        ),
        (
            catalog.DATA_LOADING_TIME,
            "",
            {
                "megatron_training_data_loading_time",
                "megatron_training_data_loading_time_seconds",
                "megatron.training.data_loading_time",
                "megatron.training.data_loading_time_seconds",
            },
        ),
        (
            catalog.MFU,
            "",
            {
                "megatron_training_mfu",
                "megatron_training_mfu_ratio",
                "megatron.training.mfu",
                "megatron.training.mfu_ratio",
            },
        ),
        (
            catalog.RUN_TIME,
            "",
            {
                f"megatron{dot}run{dot}time{unit}{total}"
                for dot in "_."
                for unit in ("", "_seconds")
                for total in ("", "_total")
            },
        ),
        # Units in braces are dropped by every pipeline.
        (catalog.CONSUMED_TOKENS, "", {"megatron_training_consumed_tokens", "megatron.training.consumed_tokens"}),
    ],
    ids=lambda item: getattr(item, "name", ""),
)
def test_the_spellings_of_a_name(metric: Metric, part: str, names: set[str]) -> None:
    """A metric arrives under these names, and no other."""
    found = spellings(metric, part)
    assert set(found) == names
    assert len(found) == len(names)


def test_a_namespace_may_be_there_or_not() -> None:
    """A site with a prefix still sees the pipelines that put none."""
    assert set(spellings(catalog.LOSS, namespace="acme")) == {
        "megatron_training_loss",
        "megatron.training.loss",
        "acme_megatron_training_loss",
        "acme_megatron.training.loss",
    }


@each_namespace
@each_name
def test_a_pattern_matches_its_spellings_and_no_others(metric: Metric, part: str, namespace: str) -> None:
    """The pattern of a metric takes each of its spellings, and none of any other metric or part."""
    pattern = re.compile(name_pattern(metric, part, namespace))
    own = set(spellings(metric, part, namespace))
    every = {name for other, which in NAMES for name in spellings(other, which, "acme")} | own
    assert {name for name in every if pattern.fullmatch(name)} == own


@each_namespace
def test_no_name_is_two_metrics(namespace: str) -> None:
    """A series is one metric's, whatever pipeline it came through."""
    for (one, part), (other, which) in combinations(NAMES, 2):
        assert not set(spellings(one, part, namespace)) & set(spellings(other, which, namespace))


@settings(deadline=None)
@given(st.sampled_from(NAMES), st.data())
def test_a_pattern_is_closed(name: tuple[Metric, str], data: st.DataObject) -> None:
    """A name with a letter more, less or changed is matched only if it is a spelling itself."""
    metric, part = name
    own = spellings(metric, part)
    spelling = data.draw(st.sampled_from(own))
    place = data.draw(st.integers(0, len(spelling)))
    cut = data.draw(st.integers(0, 3))
    other = spelling[:place] + data.draw(st.text("_.:abcdelmost", max_size=6)) + spelling[place + cut :]
    assert bool(re.fullmatch(name_pattern(metric, part), other)) == (other in own)


@each_namespace
def test_loss_is_not_the_loss_scale(namespace: str) -> None:
    """The loss never matches another metric whose name begins or ends with it."""
    for other in ("loss_scale", "loss_max", "validation_loss", "xloss", "loss_ratio", "lossy", "loss_total"):
        for dot in "_.":
            name = f"megatron{dot}training{dot}{other}"
            assert not re.fullmatch(name_pattern(catalog.LOSS, "", namespace), name)
    assert not re.fullmatch(name_pattern(catalog.LOSS), "megatronXtrainingXloss")


def test_a_namespace_is_no_pattern() -> None:
    """A prefix is taken letter by letter."""
    assert not re.fullmatch(name_pattern(catalog.LOSS, "", "a.e"), "abe_megatron_training_loss")
    assert re.fullmatch(name_pattern(catalog.LOSS, "", "a.e"), "a.e_megatron_training_loss")


# --- Settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"identity": "labels"}, "identity must be"),
        ({"identity": ""}, "identity must be"),
        ({"run_label": ""}, "distinct and not empty"),
        ({"labels": ("",)}, "distinct and not empty"),
        ({"labels": ("cluster", "cluster")}, "distinct and not empty"),
        ({"run_label": "run", "labels": ("run",)}, "distinct and not empty"),
        ({"run_label": "nemo.run.id", "labels": ("nemo_run_id",)}, "distinct and not empty"),
        ({"labels": ("k8s.pod", "k8s_pod")}, "distinct and not empty"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, Any], message: str) -> None:
    """Labels that are empty, or one in their plain form, are refused."""
    with pytest.raises(ValueError, match=message):
        SeriesSettings(**wrong)


# --- Selecting ------------------------------------------------------------------------------------------------------

LOSS_NAMES = '__name__=~"(megatron_training_|megatron[.]training[.])loss"'


def rule(series: SeriesSettings = LABEL, *, recorded: bool = False) -> Scope:
    """The scope of a rule."""
    return rule_scope(series, recorded=recorded)


def test_a_rule_takes_every_run() -> None:
    """A rule's selector takes all spellings of a name and every series that names a run."""
    assert str(rule().select(catalog.LOSS)) == f'{{{LOSS_NAMES},nemo_run_id!=""}}'


def test_a_panel_takes_the_chosen_runs() -> None:
    """A panel's selector filters by the run variable and by each of the site's further labels."""
    series = SeriesSettings(labels=("cluster", "k8s.namespace"))
    assert str(panel_scope(series).select(catalog.LOSS)) == (
        f"{{{LOSS_NAMES},nemo_run_id=~`${{run:regex}}`,cluster=~`${{cluster:regex}}`,"
        '"k8s.namespace"=~`${k8s_namespace:regex}`}'
    )


def test_another_run_label_is_kept() -> None:
    """Results name the run by the site's own label."""
    scope = rule(SeriesSettings(run_label="exported_run"))
    assert scope.run == "exported_run"
    assert str(scope.select(catalog.LOSS)) == f'{{{LOSS_NAMES},exported_run!=""}}'


def test_several_names_are_one_alternation() -> None:
    """A question about presence asks once."""
    parts = ((catalog.LOSS, ""), (catalog.STEP_DURATION, "count"))
    assert str(rule().select_any(*parts)) == (
        '{__name__=~"(megatron_training_|megatron[.]training[.])loss|'
        '(megatron_training_|megatron[.]training[.])step_duration_ms(_milliseconds)?_count",nemo_run_id!=""}'
    )


def test_before_is_an_offset_or_a_memory() -> None:
    """The past is an offset; with a memory, the last value before it."""
    selector = f'{{{LOSS_NAMES},nemo_run_id!=""}}'
    assert str(rule().before("5m").select(catalog.LOSS)) == f"{selector} offset 5m"
    assert str(rule().before("1m", memory="1h").select(catalog.LOSS)) == (f"last_over_time({selector}[1h] offset 1m)")
    assert str(rule().before("", memory="3m").select(catalog.LOSS)) == f"last_over_time({selector}[3m])"
    assert str(rule(recorded=True).before("5m").record("run:x:y")) == "run:x:y offset 5m"


def test_each_spelling_is_aggregated_on_its_own() -> None:
    """A range function sees one spelling at a time; they are tagged before they are joined, then the largest counts."""
    found = rule().by_spelling(catalog.LOSS, lambda s: promql.call("max_over_time", s.range("5m")))
    assert str(found) == (
        "max by (nemo_run_id) ("
        'label_replace(max by (nemo_run_id) (max_over_time({__name__="megatron_training_loss",nemo_run_id!=""}[5m])), '
        '"spelling", "0", "spelling", "") or '
        'label_replace(max by (nemo_run_id) (max_over_time({__name__="megatron.training.loss",nemo_run_id!=""}[5m])), '
        '"spelling", "1", "spelling", ""))'
    )


def test_by_spelling_keeps_further_labels() -> None:
    """Buckets stay apart, and processes are added up, where that is asked for."""
    found = rule().by_spelling(
        catalog.STEP_DURATION, lambda s: promql.call("rate", s.range("5m")), combine="sum", by=("le",), part="bucket"
    )
    assert str(found).startswith("max by (nemo_run_id, le) (label_replace(sum by (nemo_run_id, le) (rate(")
    assert str(found).count("_bucket") == len(spellings(catalog.STEP_DURATION, "bucket"))


def test_a_dotted_label_is_renamed_at_once() -> None:
    """A vector has the run label in its plain form as soon as it exists."""
    assert str(rule(DOTS).select(catalog.LOSS)) == (
        f'label_replace({{{LOSS_NAMES},"nemo.run.id"!=""}}, "nemo_run_id", "$1", "nemo.run.id", "(.+)")'
    )


def test_target_info_is_joined() -> None:
    """Where only target_info names the run, each sample gets the run that its target claimed last."""
    claim = 'timestamp({__name__="target_info",nemo_run_id!=""})'
    by = "max by (job, instance, nemo_run_id)"
    assert str(rule(TARGETS).select(catalog.LOSS)) == (
        f"max without () ({{{LOSS_NAMES}}}) * on (job, instance) group_left (nemo_run_id) "
        f"(({by} (topk by (job, instance) (1, {claim})) and {by} ({claim})) * 0 + 1)"
    )


def test_target_info_has_the_namespace_too() -> None:
    """A pipeline that puts a prefix before names puts it before target_info, or does not."""
    text = str(rule(SeriesSettings(identity="target_info", namespace="acme")).select(catalog.LOSS))
    assert 'timestamp({__name__="target_info",nemo_run_id!=""}) or timestamp({__name__="acme_target_info"' in text


def test_a_panel_that_joins_sees_only_the_chosen_runs() -> None:
    """The newest claim is sought among all runs, the chosen ones are filtered from it: a panel shows no predecessor."""
    text = str(panel_scope(TARGETS).select(catalog.LOSS))
    every = 'timestamp({__name__="target_info",nemo_run_id!=""})'
    assert f"topk by (job, instance) (1, {every})) and" in text
    assert text.count("${run:regex}") == 1


# --- Every rule -----------------------------------------------------------------------------------------------------


def expressions(series: SeriesSettings) -> Iterator[Expr]:
    """Every expression of the rules, in both of their forms."""
    recorded = rule(series, recorded=True)
    yield from (signal.rule(recorded) for signal in signals.SIGNALS)
    for scope in (recorded, rule(series)):
        yield from (alert.expr(scope) for group in RULE_GROUPS for alert in group.rules)


def selectors(node: Any) -> Iterator[Any]:
    """Every vector selector of a syntax tree."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    elif isinstance(node, promql_parser.MatrixSelector):
        yield node.vector_selector
    else:
        children = [getattr(node, name, None) for name in ("expr", "lhs", "rhs", "param")]
        for child in [*children, *getattr(node, "args", [])]:
            if hasattr(child, "prettify"):
                yield from selectors(child)


@pytest.mark.parametrize("series", SITES.values(), ids=SITES)
def test_every_rule_filters_by_run(series: SeriesSettings) -> None:
    """No rule sees a series that names no run, except through the join, where target_info must name one."""
    seen = 0
    for expr in expressions(series):
        for selector in selectors(promql_parser.parse(expr.text)):
            matchers = {matcher.name: (str(matcher.op), matcher.value) for matcher in selector.matchers.matchers}
            name = matchers.get("__name__", ("", ""))[1]
            if name and (series.identity == "label" or name.endswith("target_info")):
                assert matchers[series.run_label] == ("MatchOp.NotEqual", "")
                seen += 1
    assert seen > 50


@pytest.mark.parametrize("series", [DOTS, DOTTED_TARGETS], ids=["dots", "dots, target_info"])
def test_no_quoted_label_gets_into_a_matching(series: SeriesSettings) -> None:
    """Prometheus 3 evaluates no rule that has a quoted label in on, ignoring or group_left."""
    seen = 0
    for expr in expressions(series):
        assert not re.search(r'\b(on|ignoring|group_left|group_right|by|without) \([^()]*"', expr.text)
        rest = expr.text.replace('"nemo.run.id"!=""', "").replace('"$1", "nemo.run.id", "(.+)"', "")
        assert "nemo.run.id" not in rest
        seen += expr.text.count('"nemo_run_id", "$1", "nemo.run.id", "(.+)"')
    assert seen > 50


@pytest.mark.parametrize("series", SITES.values(), ids=SITES)
def test_no_name_pattern_is_under_a_range(series: SeriesSettings) -> None:
    """A range function drops the name, and fails where two spellings coexist: only last_over_time keeps it."""
    for expr in expressions(series):
        for function in re.findall(r"(\w+)\(\{__name__=~[^{}]*\}\[", expr.text):
            assert function == "last_over_time"


def test_a_panel_looks_over_the_window() -> None:
    """A panel's windows follow the dashboard, a rule's are fixed and have no variable of Grafana."""
    assert panel_scope(LABEL).window == "$window"
    for expr in expressions(LABEL):
        assert "$" not in expr.text.replace('"$1"', "")


def test_the_site_says_how_many_gpus_where_the_emitter_does_not() -> None:
    """A run without a number of GPUs gets the site's, one that exports it keeps its own."""
    text = str(progress.world_size(rule_scope(LABEL, 64, recorded=True)))
    assert text.endswith("* 0 + 64")
    assert "world_size" in text
    assert "64" not in str(progress.world_size(rule_scope(LABEL, recorded=True)))
