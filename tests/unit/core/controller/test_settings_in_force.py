"""What a controller tells of the settings that it has in force."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.config import Settings
from spark_replication.core.controller.cluster import ClusterState
from spark_replication.core.controller.describing import settings_in_force
from spark_replication.core.law.unreadable import ALL_READ
from spark_replication.core.settings_in_force import all_shown
from spark_replication.errors import UnknownTopicOrPartition
from spark_replication.model import ClusterSettings, Scalar, TopicConfig
from tests.unit.core.stories import cluster_of, state, topic

STARTED_WITH = Settings(retention_ms=4, request_timeout_ms=7, security_token_file="/etc/secret", flush_threads=4)
ORIGINS = {"retention.ms": "--set", "security.token.file": "environment A", "flush.threads": "file a"}
NAMES = (*ORIGINS, "request.timeout.ms", "min.insync.replicas", "disk.retry.ms")


def told(cluster: ClusterState, of_topic: str | None = None) -> dict[str, tuple[Scalar, str]]:
    found = settings_in_force(cluster, of_topic, STARTED_WITH, ORIGINS)
    return {each.name: (each.value, each.origin) for each in found if each.name in NAMES}


def known() -> ClusterState:
    cluster = cluster_of(1, topics={"foo": topic((1,))}, states={"foo-0": state(1, [1])})
    config = TopicConfig(settings={"min.insync.replicas": 1, "retention.ms": 9})
    cluster.topics["foo"] = replace(cluster.topics["foo"], config=config)
    return cluster


def test_a_later_layer_lies_over_an_earlier_one_where_the_controller_applies_it() -> None:
    cluster = known()
    cluster.apply_settings(ClusterSettings(settings={"retention.ms": 5, "request.timeout.ms": 6, "disk.retry.ms": 8}))
    in_general = {
        "retention.ms": (5, "cluster"),
        "security.token.file": ("(set)", "environment A"),
        "flush.threads": (4, "file a"),
        "request.timeout.ms": (7, "program"),  # it is read as the process starts: the cluster's is not in force
        "min.insync.replicas": (2, "default"),
        "disk.retry.ms": (8, "cluster"),
    }
    assert told(cluster) == in_general
    of_foo = {"min.insync.replicas": (1, "topic"), "retention.ms": (9, "topic")}
    assert told(cluster, "foo") == in_general | of_foo
    with pytest.raises(UnknownTopicOrPartition, match="no topic bar"):
        told(cluster, "bar")


def test_while_the_clusters_cannot_be_read_those_hold_that_lose_nothing() -> None:
    cluster = known()
    cluster.unreadable = replace(ALL_READ, settings=True)
    cluster.apply_settings(ClusterSettings(settings={"retention.ms": 5}))
    assert told(cluster)["retention.ms"] == (-1, "caution")


def test_of_a_setting_that_names_a_file_only_that_is_shown() -> None:
    assert all_shown({"security.token.file": "/etc/secret", "retention.ms": 1, "mirror.storage.file": ""}) == {
        "mirror.storage.file": "",
        "retention.ms": 1,
        "security.token.file": "(set)",
    }
