"""Broker to broker: both sides of replication, as the engine sees them (ports.FollowerLinks). Producers and readers
connect to the same port, and are served by the same loop (`lane`, `reads`).

There is one TCP connection from each follower broker to each leader broker, for all partitions. The fetch of an idle
partition waits at the leader and costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple, TypeVar

from spark_replication.config import Settings
from spark_replication.engine.groups.coordinator import GroupGauges
from spark_replication.engine.groups.coordinators import Coordinators, KnownPartitions
from spark_replication.engine.groups.group_log import Soon
from spark_replication.engine.replica.partition import FindPartition, Partition
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import InvalidConfig, RequestTimedOut
from spark_replication.messages.envelope import Done
from spark_replication.messages.groups import DeleteGroup, DescribedGroups, DescribeGroups, ResetGroup
from spark_replication.model import BrokerId, TopicPartition
from spark_replication.storage.format.batches import TopicSchema
from spark_replication.storage.format.group_rows import StoredGroupRows
from spark_replication.transport.frames.producer_connection import ProducerShared
from spark_replication.transport.frames.reader_connection import Reads
from spark_replication.transport.frames.replication_client import Address, AddressOf, ReplicationClient
from spark_replication.transport.frames.replication_server import ReplicationServer
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.sockets.aside import Aside
from spark_replication.transport.sockets.socket_loop import SocketLoop, loop_ms

__all__ = ["Address", "AddressOf", "Replication", "ReplicationClient", "ReplicationServer"]

CLOSE_TIMEOUT_S = 3.0
ASIDE_THREADS = 2
READ_THREADS = 4  # they wait for disks, each for one reader
HEADER_BYTES_MAX = 1 << 20  # of the frame of one fetched partition, or of a thousand fetches


Answered = TypeVar("Answered")


class ServedBroker(NamedTuple):
    """What a broker has, and lets others have."""

    find: FindPartition
    #: Finds the schema of a topic.
    schema_of: Callable[[str], TopicSchema]
    #: Those that are here.
    replicas: Callable[[], dict[TopicPartition, Partition]]
    known_partitions: KnownPartitions


class Replication:
    """Listens on `port` from birth; serves from `start` on; follows once `registered` was called."""

    def __init__(
        self,
        host: str,
        loop: SocketLoop,
        served: ServedBroker,
        *,
        cluster_id: str,
        broker: BrokerId,
        settings: Settings,
        rights: Rights,
        address_of: AddressOf,
        now_ms: Callable[[], int],
    ) -> None:
        frame_bytes_max = settings.replication_frame_bytes_max
        # A frame holds at least one batch, and an index entry for each batch: never more than twice the data.
        needed = 2 * max(settings.replica_fetch_bytes_max, settings.batch_bytes_max) + HEADER_BYTES_MAX
        if frame_bytes_max < needed:
            raise InvalidConfig(
                f"replication.frame.bytes.max={frame_bytes_max} is too small for replica.fetch.bytes.max and "
                f"batch.bytes.max: {needed} at least"
            )
        find, schema_of = served.find, served.schema_of
        self._aside = Aside(loop, ASIDE_THREADS, name="replication-aside")
        self._put_aside = Aside(loop, ASIDE_THREADS, name="put-aside")
        self.lane = ProducerShared(loop, self._put_aside, find, schema_of, settings, now_ms=now_ms)
        self._read_aside = Aside(loop, READ_THREADS, name="read-aside")
        self.reads = Reads(loop, self._read_aside, find, schema_of, room_bytes_max=settings.flight_read_bytes_max)
        self._coordinators = _coordinators(served, loop, self._read_aside, settings)
        self._server = ReplicationServer(
            host,
            loop,
            self._aside,
            cluster_id=cluster_id,
            rights=rights,
            frame_bytes_max=frame_bytes_max,
            lane=self.lane,
            reads=self.reads,
            coordinators=self._coordinators,
            now_ms=now_ms,
        )
        self._client = ReplicationClient(
            loop,
            self._aside,
            cluster_id=cluster_id,
            broker=broker,
            security=rights.security,
            find=find,
            address_of=address_of,
            frame_bytes_max=frame_bytes_max,
            silence_ms=settings.replica_lag_time_ms,
        )
        self.port = self._server.port
        self.loop = loop
        self._timeout_s = settings.request_timeout_ms / 1000
        self.meter = self._server.meter
        self.asked_of_groups = self._server.asked_of_groups
        self.sent, self.received = self._server.sent, self._client.received

    def start(self) -> None:
        self._aside.start()
        self._put_aside.start()
        self._read_aside.start()
        self._server.start()

    def registered(self, broker_epoch: int) -> None:
        """Fetches belong to this life of the broker from now on. Call it before BrokerLoop.registered."""
        self._client.registered(broker_epoch)

    def describe_groups(self, asked: DescribeGroups) -> DescribedGroups:
        """The groups that this broker coordinates. Waits until what is told is committed."""
        found: DescribedGroups = self._asked(partial(self._coordinators.describe, asked.groups))
        return found

    def group_gauges(self, positions_max: int, timeout_s: float) -> list[GroupGauges]:
        """What metrics tell of the groups that this broker coordinates. Raises RequestTimedOut."""
        found: list[GroupGauges] = self._asked(partial(self._coordinators.gauges, positions_max), timeout_s)
        return found

    def change_group(self, asked: ResetGroup | DeleteGroup) -> Done:
        """Waits until it is committed."""
        error = self._asked(partial(self._coordinators.change, asked))
        if error is not None:
            raise error
        return Done()

    def _asked(self, ask: Callable[[Callable[[Answered], None]], None], timeout_s: float | None = None) -> Answered:
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        answer: Future[Answered] = Future()

        def told(found: Answered) -> None:
            if not answer.done():
                answer.set_result(found)

        self.loop.post(lambda: ask(told))
        try:
            return answer.result(timeout_s)
        except TimeoutError as error:
            raise RequestTimedOut(
                f"the groups' log has not taken it within {timeout_s:.0f} s: see `spark-replication health`",
                maybe_written=True,
            ) from error

    def coordinate(self) -> None:
        """Give time to the coordinators of groups, soon; from any thread."""
        self.loop.post(self._coordinators.tick)

    def close(self) -> None:
        self._client.close()
        self._server.close()
        self._aside.stop(CLOSE_TIMEOUT_S)
        self._put_aside.stop(CLOSE_TIMEOUT_S)
        self._read_aside.stop(CLOSE_TIMEOUT_S)

    # ports.FollowerLinks

    def ready(self, follower: BrokerId, partition: TopicPartition) -> None:
        self._server.ready(follower, partition)

    def follow(self, partition: TopicPartition, leader: BrokerId) -> None:
        self._client.follow(partition, leader)

    def unfollow(self, partition: TopicPartition) -> None:
        self._client.unfollow(partition)

    def together(self) -> AbstractContextManager[None]:
        return self._client.loop.together()


def _coordinators(served: ServedBroker, loop: SocketLoop, aside: Aside, settings: Settings) -> Coordinators:
    return Coordinators(
        served.replicas,
        served.known_partitions,
        StoredGroupRows(settings.batch_bytes_max),
        aside.do_alone,
        soon_at=partial(_soon_at, loop),
        retention_ms=settings.group_retention_ms,
    )


def _soon_at(loop: SocketLoop, partition: Partition) -> Soon:
    def soon(call: Callable[[ReplicaLoop], None], in_ms: float) -> None:
        if in_ms:
            loop.at(loop_ms() + in_ms, partial(partition.do, call))
        else:
            partition.post(call)

    return soon
