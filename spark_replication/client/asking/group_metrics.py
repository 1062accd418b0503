"""How far consumer groups are behind, as text that Prometheus reads.

No process of the cluster knows this: coordinators have the positions, and leaders the ends of logs. Whoever asks both
puts them together, so that the command tells it, and the page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from spark_replication.client.asking.groups import GroupDescription

PREFIX = "spark_replication_"
SERIES_MAX = 10_000  # of each metric


class TopicLag(NamedTuple):
    """How far a group is behind in a topic."""

    group: str
    topic: str
    records: int
    ms: int


def group_exposition(groups: Iterable[GroupDescription]) -> str:
    found = sorted(_lags(groups), key=lambda each: (-each.records, each))[:SERIES_MAX]
    told = (
        gauges(
            "group_lag_records",
            "Records of a topic that a group has not committed, of the 10,000 that are most behind. What a leader does "
            "not say is left out.",
            ["group", "topic"],
            {(each.group, each.topic): each.records for each in found},
        ),
        gauges(
            "group_lag_seconds",
            "For how long the first record of a topic has been there that a group has not committed, of the same.",
            ["group", "topic"],
            {(each.group, each.topic): each.ms / 1000 for each in found},
        ),
    )
    return "".join(told)


def _lags(groups: Iterable[GroupDescription]) -> Iterable[TopicLag]:
    for group in groups:
        for topic, of_topic in groupby(group.partitions, key=lambda each: each.topic):
            partitions = [*of_topic]
            records = [each.lag for each in partitions if each.lag is not None]
            waits_ms = [each.lag_ms for each in partitions if each.lag_ms is not None]
            if len(records) == len(waits_ms) == len(partitions):
                yield TopicLag(group.group, topic, sum(records), max(waits_ms))


def gauges(name: str, meaning: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> str:
    """As live.exposition writes them, which takes a library that comes with a server alone. The names of groups and
    topics have no character that has to be escaped."""
    lines = [f"# HELP {PREFIX}{name} {meaning}", f"# TYPE {PREFIX}{name} gauge"]
    for of, value in values.items():
        named = ",".join(f'{label}="{each}"' for label, each in zip(labels, of, strict=True))
        lines.append(f"{PREFIX}{name}{{{named}}} {value}")
    return "".join(f"{line}\n" for line in lines)
