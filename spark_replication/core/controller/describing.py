"""The controller's descriptions of topics, newer than those of any broker. Cost: a look at each partition described."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.settling import waiting
from spark_replication.core.topic_pages import page_of
from spark_replication.messages.descriptions import Awaited, DescribeTopics, Metadata, TopicMetadata, TopicPage
from spark_replication.model import shortened

REASONS_MAX = 100
# What changes in ClusterState though nothing that is described does: the time, and what is remembered of the rest.
_BESIDE = frozenset({"now_ms", "_settings_of"})


def described(cluster: ClusterState, topics: Sequence[str] | None, controller: str | None) -> Metadata:
    """The description of these topics (None for all), without those that do not exist."""
    wanted = sorted(cluster.topics) if topics is None else [name for name in topics if name in cluster.topics]
    return Metadata(
        cluster_id=cluster.cluster_id,
        brokers=dict(cluster.registered),
        controller=controller,
        unreadable=_unreadable(cluster.reasons),
        notes=cluster.notes,
        topics=tuple(_topic(cluster, name) for name in wanted),
    )


def is_described_alike(before: ClusterState, now: ClusterState) -> bool:
    """Whether nothing differs between two snapshots. Cost: 0.6 ms for 10,000 partitions, if they share what has not
    changed."""
    kept, found = vars(before), vars(now)
    return kept.keys() == found.keys() and all(
        kept[name] == value for name, value in found.items() if name not in _BESIDE
    )


def described_page(cluster: ClusterState, asked: DescribeTopics) -> TopicPage:
    partitions = {name: len(topic.state.partitions) for name, topic in cluster.topics.items()}
    return page_of(asked, partitions, lambda names: [_topic(cluster, name) for name in names])


def _topic(cluster: ClusterState, name: str) -> TopicMetadata:
    topic, partitions = cluster.topics[name], cluster.all_partitions(name)
    in_trouble = partitions if cluster.has_disk_trouble else ()
    return TopicMetadata(
        name=name,
        topic_id=topic.state.topic_id,
        config=topic.config,
        partitions=tuple(cluster.command(p) for p in partitions if p in cluster.partitions),
        waiting={
            p.partition: Awaited(reason=awaited.reason, required=awaited.required)
            for p in partitions
            if p in cluster.leaderless and (awaited := waiting(cluster, p)) is not None
        },
        refused={p.partition: by for p in in_trouble if (by := cluster.refused_by(p))},
        damaged={p.partition: on for p in in_trouble if (on := cluster.damaged_on(p))},
    )


def _unreadable(reasons: Mapping[str, str]) -> tuple[str, ...]:
    """The first reasons, each in one line that a terminal can show."""
    told = [f"{shortened(path)} cannot be read: {shortened(why)}" for path, why in islice(reasons.items(), REASONS_MAX)]
    if len(reasons) > REASONS_MAX:
        told.append(f"{len(reasons) - REASONS_MAX} more nodes cannot be read")
    return tuple(told)
