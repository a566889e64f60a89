"""emitter.openmetrics and emitter.virtual: what a scrape would find, as text that promtool and any parser takes."""

from __future__ import annotations

import re
import urllib.request
from collections.abc import Iterable, Mapping

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as scraped_families

from emitter import catalog, record, start
from emitter.catalog import Kind
from emitter.instruments import prepare
from emitter.openmetrics import Samples
from emitter.virtual import VirtualMeter

ODD = 'a "quoted" \\ back\nslash'

Series = tuple[str, tuple[tuple[str, str], ...]]


def series(name: str, labels: Mapping[str, str]) -> Series:
    """A series, whatever the spelling of a bound, without what names the exporter and without empty labels."""
    kept = {key: value for key, value in labels.items() if value and not key.startswith("otel_scope_")}
    if "le" in kept:
        kept["le"] = str(float(kept["le"]))
    return name, tuple(sorted(kept.items()))


def written(samples: Samples, until: int) -> str:
    return "".join(samples.write(until))


def gauge(value: float) -> tuple[catalog.Metric, tuple[()], tuple[float]]:
    return catalog.LOSS, (), (value,)


def numbers(text: str, name: str) -> list[tuple[float, float]]:
    """Time and value of each sample of a series that starts so."""
    lines = [line.rsplit(" ", 2) for line in text.splitlines() if line.startswith(name)]
    return [(float(stamp), float(value)) for _, value, stamp in lines]


def check(text: str) -> None:
    """What OpenMetrics demands of a text: one stretch for each family and metric, times that rise, an end."""
    assert text.endswith("# EOF\n")
    assert text.count("# EOF") == 1
    seen: set[str] = set()
    ended: set[str] = set()
    family, metric, last = "", "", -1.0
    suffixes: Iterable[str] = ()
    for line in text.removesuffix("# EOF\n").splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            assert family not in seen, family
            seen.add(family)
            suffixes = {"gauge": ("",), "counter": ("_total",), "histogram": ("_bucket", "_count", "_sum")}[kind]
            continue
        match = re.fullmatch(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\S+) (\d+(?:\.\d{3})?)', line)
        assert match, line
        assert match[1] in [family + suffix for suffix in suffixes]
        labels = family + re.sub(r'le="[^"]*",', "", match[2])
        if labels != metric:
            assert labels not in ended, "the samples of a metric stand together"
            ended.add(metric)
            metric, last = labels, -1.0
        assert float(match[4]) >= last, line
        last = float(match[4])
        float(match[3])


def everything(meter: object) -> None:
    """Record two values of every entry of the catalog."""
    for metric in catalog.METRICS:
        for value in (1, 700.25):
            record(meter, metric, value, dict.fromkeys(metric.attributes, ODD))  # type: ignore[arg-type]


def test_a_virtual_scrape_finds_what_a_real_one_finds() -> None:
    """Every entry of the catalog: the same series, under the same names, with the same values as our endpoint's."""
    with start(ODD, ["scrape:0"]) as export:
        everything(export.meter)
        host, port = export.addresses[0]
        page = urllib.request.urlopen(f"http://{host}:{port}/metrics").read().decode()
    real = {
        series(sample.name, sample.labels): sample.value
        for family in scraped_families(page)
        for sample in family.samples
        if family.name != "target_info"
    }
    meter = VirtualMeter()
    prepare(meter)
    everything(meter)
    samples = Samples(1000, {"nemo_run_id": export.run_id})
    samples.take(7, meter.collect(), complete=True)
    text = written(samples, 8)
    check(text)
    ours = {
        series(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert ours == real
    assert len(ours) == samples.series == samples.count > 150


def test_an_unchanged_value_is_repeated_until_it_changes() -> None:
    """A gauge has a sample at every scrape, each with the value that it had then."""
    samples = Samples(15_000, {"job": "training"})
    for scrape, value in ((100, 2.5), (101, 2.5), (104, 0.1)):
        samples.take(scrape, [gauge(value)], complete=True)
    text = written(samples, 106)
    check(text)
    assert text == (
        "# TYPE megatron_training_loss gauge\n"
        'megatron_training_loss{job="training"} 2.5 1500\n'
        'megatron_training_loss{job="training"} 2.5 1515\n'
        'megatron_training_loss{job="training"} 2.5 1530\n'
        'megatron_training_loss{job="training"} 2.5 1545\n'
        'megatron_training_loss{job="training"} 0.1 1560\n'
        'megatron_training_loss{job="training"} 0.1 1575\n'
        "# EOF\n"
    )
    assert (samples.count, samples.series) == (6, 1)


def test_a_withdrawn_point_has_no_samples_until_it_is_back() -> None:
    """Absent is absent: a complete scrape that lacks a point ends it, an incomplete one does not."""
    samples = Samples(1000, {"job": "training"})
    samples.take(1, [gauge(2.0)], complete=True)
    samples.take(2, [], complete=False)
    samples.take(3, [], complete=True)
    samples.take(5, [gauge(2.0)], complete=True)
    assert numbers(written(samples, 6), "megatron_training_loss") == [(1, 2), (2, 2), (5, 2)]


def test_a_pause_leaves_a_hole_in_every_series() -> None:
    """Where nobody is there to be scraped there are no samples, of histograms neither."""
    meter = VirtualMeter()
    record(meter, catalog.STEP_DURATION, 30)
    record(meter, catalog.LOSS, 2)
    samples = Samples(1000, {"job": "training"})
    samples.take(1, meter.collect(), complete=True)
    samples.pause(3)
    samples.take(1000, meter.collect(), complete=True)
    text = written(samples, 1001)
    check(text)
    for name in ("megatron_training_loss", "megatron_training_step_duration_ms_milliseconds_count"):
        assert [when for when, _ in numbers(text, name)] == [1, 2, 1000]


def test_pieces_together_are_the_whole() -> None:
    """Cut anywhere, also inside a pause, the samples are those of one piece; an empty piece has no text."""
    found = [[gauge(float(scrape // 3))] if scrape % 10 < 6 else [] for scrape in range(40)]
    whole = Samples(1000, {"job": "training"})
    parts = Samples(1000, {"job": "training"})
    text = ""
    for scrape, points in enumerate(found):
        if scrape % 7 == 0:
            text += written(parts, scrape)
        whole.take(scrape, points, complete=True)
        parts.take(scrape, points, complete=True)
    text += written(parts, 40)
    name = "megatron_training_loss"
    assert numbers(text, name) == numbers(written(whole, 40), name)
    assert parts.count == whole.count == 24
    parts.pause(40)
    written(parts, 40)
    assert written(parts, 50) == ""


def test_a_histogram_counts_what_is_below_each_bound() -> None:
    """A value on a bound belongs to it; a bucket holds all values below, the last one all there are."""
    meter = VirtualMeter()
    for value in (10, 10.5, 1e9):
        record(meter, catalog.STEP_DURATION, value)
    samples = Samples(500, {"job": "training"})
    samples.take(3, meter.collect(), complete=True)
    text = written(samples, 5)
    check(text)
    name = "megatron_training_step_duration_ms_milliseconds"
    for bound, count in (("5.0", 0), ("10.0", 1), ("20.0", 2), ("1.8e+06", 2), ("+Inf", 3)):
        assert numbers(text, f'{name}_bucket{{le="{bound}"') == [(1.5, count), (2, count)]
    assert numbers(text, f"{name}_sum") == [(1.5, 1e9 + 20.5), (2, 1e9 + 20.5)]


def test_a_bound_is_spelt_as_openmetrics_wants_it() -> None:
    """Every bound of the catalog is a float that reads back as itself."""
    for metric in catalog.METRICS:
        if metric.kind is Kind.HISTOGRAM:
            meter = VirtualMeter()
            record(meter, metric, 0, dict.fromkeys(metric.attributes, "x"))
            samples = Samples(1000, {"job": "training"})
            samples.take(1, meter.collect(), complete=True)
            bounds = re.findall(r'le="([^"]+)"', written(samples, 2))
            assert [float(bound) for bound in bounds[:-1]] == list(metric.bounds)
            assert all("." in bound or "e" in bound for bound in bounds[:-1])


def test_time_alone_moves_counters_only() -> None:
    """Between two records a scrape asks the counters, which a hook books time into."""
    meter = VirtualMeter()
    record(meter, catalog.LOSS, 2)
    record(meter, catalog.STEP_DURATION, 2)
    assert {metric.kind for metric, _, _ in meter.collect(time_only=True)} == {Kind.COUNTER}
    assert {metric.kind for metric, _, _ in meter.collect()} == set(Kind)


def test_only_catalog_entries_are_known() -> None:
    """An instrument that is in no catalog has no name in Prometheus."""
    with pytest.raises(ValueError, match=r"no metric 'megatron\.training\.los'"):
        VirtualMeter().create_observable_gauge("megatron.training.los", [])
