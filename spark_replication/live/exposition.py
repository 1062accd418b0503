"""Metrics as text that Prometheus reads, and the series that every process of ours has.

A registry lives for one scrape: several brokers and controllers may share a process, and none of them the library's
global one. Names and helps are part of what users rely on: `conf/alerts.yml` and `conf/grafana.json` use them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from spark_replication.transport.meter import BOUNDS_S, Meter, Traffic

PREFIX = "spark_replication_"
Of = TypeVar("Of", bound=Sequence[str])


class _Once(Collector):
    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


def exposition(found: Iterable[Metric]) -> str:
    """These families, and how the process itself is."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Once(found))
    ProcessCollector(registry=registry)
    return generate_latest(registry).decode()


def gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, meaning, value)


def gauges(name: str, meaning: str, labels: Sequence[str], values: Mapping[Of, float]) -> Metric:
    """values: by the values of these labels."""
    family = GaugeMetricFamily(PREFIX + name, meaning, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def counter(name: str, meaning: str, value: float) -> Metric:
    """Its series ends in _total."""
    return CounterMetricFamily(PREFIX + name, meaning, value)


def counters(name: str, meaning: str, labels: Sequence[str], values: Mapping[Of, float]) -> Metric:
    family = CounterMetricFamily(PREFIX + name, meaning, labels=labels)
    for of, value in values.items():
        family.add_metric(of, value)
    return family


def counter_named_by_kip(name: str, meaning: str, value: float) -> Metric:
    """KIP-966 has a counter whose name does not end in _total: it is told without a type, and rate() takes it."""
    family = Metric(PREFIX + name, meaning, "unknown")
    family.add_sample(PREFIX + name, {}, value)
    return family


def requests(*meters: Meter) -> Iterator[Metric]:
    """meters: of servers whose kinds of requests are different."""
    took = HistogramMetricFamily(
        PREFIX + "request_seconds",
        "How long requests took, by kind: an action, put (a batch until it is answered) or get (a read until its first "
        "look).",
        labels=["request"],
    )
    refused: dict[tuple[str, str], int] = {}
    for meter in meters:
        for kind, durations in meter.durations().items():
            below = accumulate(durations.counts)
            bounds = (*map(str, BOUNDS_S), "+Inf")
            took.add_metric([kind], list(zip(bounds, map(float, below), strict=True)), sum_value=durations.sum_s)
        refused.update(meter.refusals())
    yield took
    yield counters(
        "refused_requests",
        "Requests that were refused, by kind and error code; of put each batch.",
        ["request", "code"],
        refused,
    )


def traffic(name: str, meaning: str, moved: Traffic) -> Iterator[Metric]:
    """meaning: what batches, records and bytes did."""
    so_far = moved.so_far
    yield counter(f"{name}_batches", f"Batches that {meaning}.", so_far.batches)
    yield counter(f"{name}_records", f"Records that {meaning}.", so_far.records)
    yield counter(f"{name}_bytes", f"Bytes of batches that {meaning}, as they are stored.", so_far.bytes)
