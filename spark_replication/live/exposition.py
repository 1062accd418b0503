"""Metrics as text that Prometheus reads, and the series that each of our processes has.

A registry lives for one scrape. Several brokers and controllers may share a process, and none uses the library's global
registry. Users rely on the names and helps: `conf/alerts.yml` and `conf/grafana.json` use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from spark_replication.transport.meter import BOUNDS_S, Meter, Traffic, durations_of, moved_in_all
from spark_replication.transport.security.quotas import Quotas

PREFIX = "spark_replication_"
Of = TypeVar("Of", bound=Sequence[str])


class _Once(Collector):
    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


def exposition(found: Iterable[Metric]) -> str:
    """The text of these families, and of the metrics of the process itself."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(found))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


def gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, meaning, value)


def gauges(name: str, meaning: str, labels: Sequence[str], values: Mapping[Of, float]) -> Metric:
    """A gauge with labels. `values` has a value for each tuple of label values."""
    family = GaugeMetricFamily(PREFIX + name, meaning, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def counter(name: str, meaning: str, value: float) -> Metric:
    """A counter. The name of its series ends in _total."""
    return CounterMetricFamily(PREFIX + name, meaning, value)


def counters(name: str, meaning: str, labels: Sequence[str], values: Mapping[Of, float]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, meaning, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def counter_named_by_kip(name: str, meaning: str, value: float) -> Metric:
    """A counter of KIP-966 whose name does not end in _total. It has no type, and rate() accepts it."""
    family = Metric(PREFIX + name, meaning, "unknown")
    family.add_sample(PREFIX + name, {}, value)
    return family


def requests(*meters: Meter) -> Iterator[Metric]:
    """The durations and refusals of requests, as if one meter had counted all of them."""
    took = HistogramMetricFamily(
        PREFIX + "request_seconds",
        "How long requests took, by kind: an action, put (a batch until it is answered) or get (a read until its first "
        "look).",
        labels=["request"],
    )
    refused: Counter[tuple[str, str]] = Counter()
    for meter in meters:
        refused.update(meter.refusals())
    for kind, durations in durations_of(meters).items():
        below = accumulate(durations.counts)
        bounds = (*map(str, BOUNDS_S), "+Inf")
        took.add_metric([kind], list(zip(bounds, map(float, below), strict=True)), sum_value=durations.sum_s)
    yield took
    yield counters(
        "refused_requests",
        "Requests that were refused, by kind and error code; of put each batch.",
        ["request", "code"],
        refused,
    )


def secrets_refused(trouble: str) -> Metric:
    return gauge(
        "secrets_refused",
        "1 while a file of tokens, certificates or keys of this process cannot be used as it is: whom it let in before "
        "is refused, or soon will be. health says which.",
        bool(trouble),
    )


def throttled(quotas: Quotas) -> Metric:
    return counters(
        "throttled_seconds",
        "How long clients were told to wait because they took more than their quota, by quota.",
        ["quota"],
        quotas.throttled_s(),
    )


def traffic(name: str, meaning: str, *moved: Traffic) -> Iterator[Metric]:
    """Counters of batches, records and bytes. `meaning` is what they did."""
    so_far = moved_in_all(moved)
    yield counter(f"{name}_batches", f"Batches that {meaning}.", so_far.batches)
    yield counter(f"{name}_records", f"Records that {meaning}.", so_far.records)
    yield counter(f"{name}_bytes", f"Bytes of batches that {meaning}, as they are stored.", so_far.bytes)
