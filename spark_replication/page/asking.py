"""The questions that the page asks a cluster (client.asking.admin.Admin is one), and the sizes of logs as it keeps
them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, Protocol

from spark_replication.client.asking.groups import GroupDescription
from spark_replication.client.asking.told_settings import Process
from spark_replication.errors import ReplicationError
from spark_replication.messages.descriptions import Metadata, ReplicaSize, TableLag
from spark_replication.messages.mirroring import ToldEvent
from spark_replication.messages.observing import ToldSettings
from spark_replication.messages.requests import ToldAcls
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.page.history import Measure

ASKED_AT_ONCE_MAX = 8  # brokers


class Cluster(Protocol):
    def metadata_since(self, before: Metadata | None) -> Metadata: ...

    def sizes_on(self, address: str) -> tuple[ReplicaSize, ...]: ...

    def events(
        self,
        *,
        partitions: Sequence[str] = (),
        topics: Sequence[str] = (),
        brokers: Sequence[BrokerId] = (),
        cause: str | None = None,
        last: int = 50,
    ) -> list[ToldEvent]: ...

    def settings(
        self, process: Process = None, *, topic: str | None = None
    ) -> Mapping[str, ToldSettings | ReplicationError]: ...

    def acls(self) -> ToldAcls: ...

    def groups(self) -> list[GroupDescription]: ...

    def metrics(self, broker: BrokerId | None = None) -> str: ...

    def group_metrics(self) -> str: ...


class Replica(NamedTuple):
    leads: bool
    topic_id: str
    bytes: int
    #: Where the log begins, the high watermark and the log end, as this replica has them; None if unknown.
    start: int | None = None
    high_watermark: int | None = None
    end: int | None = None
    #: How many records it lacks, as its leader sees it; None if unknown.
    lag: int | None = None
    #: How far the topic's table is behind, as this replica tells if it leads, and the topic is a table.
    table: TableLag | None = None


class Sizes(NamedTuple):
    at_ms: int
    #: The replicas of each broker that answered.
    told: Mapping[BrokerId, Mapping[TopicPartition, Replica]]
    leaders: Mapping[TopicPartition, ReplicaSize]
    #: Why each of the others did not answer.
    errors: Mapping[BrokerId, str]

    def of(self, partition: TopicPartition, topic_id: str, broker: BrokerId) -> Replica | None:
        """None, too, if what the broker has is left of an earlier topic of that name."""
        found = self.told.get(broker, {}).get(partition)
        return found if found is not None and found.topic_id == topic_id else None

    def measures(self) -> dict[TopicPartition, Measure]:
        """The measure of each partition, as its leader tells it; without one, as its largest replica does."""
        best: dict[TopicPartition, Replica] = {}
        for replicas in self.told.values():
            for partition, found in replicas.items():
                known = best.get(partition)
                if known is None or (known.leads, known.bytes) < (found.leads, found.bytes):
                    best[partition] = found
        return {
            partition: Measure(found.bytes, found.end, self._largest_lag(partition))
            for partition, found in best.items()
        }

    def _largest_lag(self, partition: TopicPartition) -> int | None:
        """The largest lag of a follower, in records; None if unknown."""
        leader = self.leaders.get(partition)
        known = [] if leader is None else [lag.records for lag in leader.lags.values() if lag.records is not None]
        return max(known, default=None if leader is None or leader.lags else 0)

    def bytes_on(self) -> dict[BrokerId, int]:
        return {broker: sum(each.bytes for each in found.values()) for broker, found in self.told.items()}


NO_SIZES = Sizes(0, {}, {}, {})


def asked_sizes(cluster: Cluster, addresses: Mapping[BrokerId, str], at_ms: int) -> Sizes:
    """Ask brokers for their sizes, ASKED_AT_ONCE_MAX at a time, so that silent brokers are waited for together."""

    def ask(address: str) -> tuple[ReplicaSize, ...] | ReplicationError:
        try:
            return cluster.sizes_on(address)
        except ReplicationError as error:
            return error

    with ThreadPoolExecutor(ASKED_AT_ONCE_MAX, thread_name_prefix="page-sizes-of") as together:
        answers = dict(zip(addresses, together.map(ask, addresses.values()), strict=True))
    told = {broker: answer for broker, answer in answers.items() if not isinstance(answer, ReplicationError)}
    return Sizes(
        at_ms=at_ms,
        told=_replicas(told),
        leaders={each.topic_partition: each for found in told.values() for each in found if each.leads},
        errors={broker: str(answer) for broker, answer in answers.items() if isinstance(answer, ReplicationError)},
    )


def _replicas(told: Mapping[BrokerId, Iterable[ReplicaSize]]) -> dict[BrokerId, dict[TopicPartition, Replica]]:
    lags = {
        (each.topic_partition, each.topic_id, broker): lag.records
        for found in told.values()
        for each in found
        for broker, lag in each.lags.items()
    }

    def replica(broker: BrokerId, each: ReplicaSize) -> Replica:
        lag = 0 if each.leads else lags.get((each.topic_partition, each.topic_id, broker))
        return Replica(
            leads=each.leads,
            topic_id=each.topic_id,
            bytes=each.bytes,
            start=each.log_start,
            high_watermark=each.high_watermark,
            end=each.log_end,
            lag=lag,
            table=each.table,
        )

    return {broker: {each.topic_partition: replica(broker, each) for each in found} for broker, found in told.items()}
