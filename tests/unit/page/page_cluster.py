"""A cluster that a page asks: what it says, and whether it says it, is the test's to choose."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from spark_replication.client.asking.groups import GroupDescription
from spark_replication.client.asking.told_settings import Process
from spark_replication.client.reading.reader import Reader
from spark_replication.core.controller.describing import described
from spark_replication.errors import BrokerNotAvailable, ReplicationError
from spark_replication.messages.descriptions import Metadata, ReplicaSize, TableLag
from spark_replication.messages.mirroring import ToldEvent
from spark_replication.messages.observing import ToldSettings
from spark_replication.messages.requests import ToldAcls
from spark_replication.model import BrokerId, PartitionState, Registration
from tests.unit.core.stories import cluster_of, state, topic

CONTROLLER = "127.0.0.1:1"
GONE = BrokerNotAvailable("nobody answers: start a broker")
NO_READER = Reader(CONTROLLER, deadline_ms=100)  # nobody is there


def metadata_of(*live: BrokerId, states: Mapping[str, PartitionState] | None = None) -> Metadata:
    """foo has two partitions on 1, 2 and 3, bar one on 2 and 1. Brokers are at 127.0.0.1, each at its own port."""
    given = {
        "foo-0": state(1, [1, 2, 3]),
        "foo-1": state(2, [1, 2, 3]),
        "bar-0": state(2, [1, 2]),
        **(states or {}),
    }
    topics = {"foo": topic((1, 2, 3), (2, 3, 1)), "bar": topic((2, 1), name="bar")}
    found = described(cluster_of(*live, topics=topics, states=given), None, CONTROLLER)
    return replace(found, brokers={broker: _local(broker, known) for broker, known in found.brokers.items()})


def _local(broker: BrokerId, known: Registration) -> Registration:
    return replace(known, host="127.0.0.1", port=broker)


WELL = metadata_of(1, 2, 3)
WITHOUT_3 = metadata_of(1, 2, states={"foo-0": state(1, [1, 2], leader_epoch=5), "foo-1": state(2, [1, 2])})


def size(
    name: str,
    number: int,
    count: int,
    *,
    leads: bool = False,
    topic_id: str | None = None,
    log_start: int = 0,
    high_watermark: int = 0,
    log_end: int = 0,
    table: TableLag | None = None,
) -> ReplicaSize:
    return ReplicaSize(
        topic=name,
        partition=number,
        topic_id=topic_id or f"id-{name}",
        leads=leads,
        bytes=count,
        log_start=log_start,
        high_watermark=high_watermark,
        log_end=log_end,
        table=table,
    )


class PageCluster:
    """told: what it is; an error is raised. asked: how often that was asked for."""

    def __init__(self, told: Metadata | Exception = WELL) -> None:
        self.changed = threading.Condition()
        self.told = told
        self.sizes: dict[str, tuple[ReplicaSize, ...] | ReplicationError] = {}
        self.told_events: list[ToldEvent] | ReplicationError = []
        self.told_settings: Mapping[str, ToldSettings | ReplicationError] | ReplicationError = {}
        self.told_acls: ToldAcls | ReplicationError = ToldAcls(acls=(), super_users=())
        self.told_groups: list[GroupDescription] | ReplicationError = []
        self.asked_groups = 0
        self.asked_settings: list[tuple[Process, str | None]] = []
        self.asked = 0
        #: The answer that whoever asked last had before.
        self.known: Metadata | None = None
        self.asked_events: list[dict[str, Any]] = []

    def metrics(self, broker: int | None = None) -> str:
        if broker == 9:
            raise ReplicationError("there is no broker 9")
        return f"up{{broker={broker}}} 1\n"

    def group_metrics(self) -> str:
        return "lag 1\n"

    def settings(
        self, process: Process = None, *, topic: str | None = None
    ) -> Mapping[str, ToldSettings | ReplicationError]:
        self.asked_settings.append((process, topic))
        if isinstance(self.told_settings, ReplicationError):
            raise self.told_settings
        return self.told_settings

    def acls(self) -> ToldAcls:
        if isinstance(self.told_acls, ReplicationError):
            raise self.told_acls
        return self.told_acls

    def groups(self) -> list[GroupDescription]:
        self.asked_groups += 1
        if isinstance(self.told_groups, ReplicationError):
            raise self.told_groups
        return self.told_groups

    def metadata_since(self, before: Metadata | None) -> Metadata:
        with self.changed:
            self.asked += 1
            self.known = before
            self.changed.notify_all()
        if isinstance(self.told, Exception):
            raise self.told
        return self.told

    def sizes_on(self, address: str) -> tuple[ReplicaSize, ...]:
        found = self.sizes.get(address, ())
        if isinstance(found, ReplicationError):
            raise found
        return found

    def events(
        self,
        *,
        partitions: Sequence[str] = (),
        topics: Sequence[str] = (),
        brokers: Sequence[BrokerId] = (),
        cause: str | None = None,
        last: int = 50,
    ) -> list[ToldEvent]:
        asked = {"partitions": partitions, "topics": topics, "brokers": brokers, "cause": cause, "last": last}
        self.asked_events.append(asked)
        if isinstance(self.told_events, ReplicationError):
            raise self.told_events
        return self.told_events
