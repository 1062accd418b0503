"""One broker's Flight server over real logs, without a ZooKeeper: it leads orders-0 alone."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from spark_replication.config import Settings, settings_from
from spark_replication.core.replica.replica import Me
from spark_replication.engine.broker.broker_loop import BrokerLoop
from spark_replication.engine.replica.partition import Partition
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.messages.commands import BrokerNotes, PartitionCommand
from spark_replication.messages.envelope import Done, to_json
from spark_replication.messages.groups import DeleteGroup, DescribedGroups, DescribeGroups, ResetGroup
from spark_replication.messages.guarding import LeaseAnswer, RenewLease, Shutdown
from spark_replication.messages.observing import DescribeSettings, GetMetrics, MetricsText, ToldSettings
from spark_replication.messages.ranges import ReplicaFolder
from spark_replication.messages.records import ProducerId, ReadTicket
from spark_replication.model import TopicConfig, TopicPartition
from spark_replication.storage.directory.local_files import LocalLogs
from spark_replication.storage.directory.replica_folder import replica_folder
from spark_replication.storage.disk.files import LocalFiles
from spark_replication.storage.disk.flush_threads import FlushAtOnce
from spark_replication.storage.log.segment_memory import SegmentMemory
from spark_replication.transport.flight.flight import BrokerFlightServer
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import NO_SECURITY, Security
from spark_replication.transport.sockets.socket_loop import SocketLoop
from tests.unit.core.stories import command, registration, state
from tests.unit.engine.ports_in_memory import Failures, IsrWrites, Links

ORDERS = TopicPartition("orders", 0)
NOTES = BrokerNotes(clock_ahead_ms=600_000)


class NoServices:
    """A broker that nobody guards."""

    def __init__(self, logs: LocalLogs) -> None:
        self._logs = logs

    def folder(self, partition: TopicPartition, topic_id: str) -> ReplicaFolder | None:
        return replica_folder(self._logs.folder(partition, topic_id))

    def controller_address(self) -> str | None:
        return None

    def new_producer(self) -> ProducerId:
        return ProducerId(producer=1, epoch=0)

    def renew_lease(self, request: RenewLease) -> LeaseAnswer:
        raise AssertionError(request)

    def shut_down(self, request: Shutdown) -> None: ...

    def metrics(self, request: GetMetrics) -> MetricsText:
        raise AssertionError(request)

    def settings(self, request: DescribeSettings) -> ToldSettings:
        raise AssertionError(request)

    def initialized(self, told: Iterable[PartitionCommand]) -> None: ...

    def describe_groups(self, request: DescribeGroups) -> DescribedGroups:
        return DescribedGroups(groups=())

    def change_group(self, request: ResetGroup | DeleteGroup) -> Done:
        return Done()

    def notes(self) -> BrokerNotes:
        return NOTES


class FlightBroker:
    """settings: by name."""

    def __init__(
        self, directory: Path, schema: pa.Schema, *, security: Security = NO_SECURITY, **settings: Any
    ) -> None:
        self.settings: Settings = settings_from({name.replace("_", "."): value for name, value in settings.items()})
        self.quotas = ""
        self._logs = LocalLogs(
            directory,
            files=LocalFiles(open_files_max=100),
            memory=SegmentMemory(index_bytes_max=1 << 20, batch_bytes_max=1 << 20),
            now_ms=lambda: 0,
            before_cut=lambda: None,
            distrust=lambda: None,
        )
        self._logs.recover()
        self.sockets = SocketLoop("broker-loop")
        self.sockets.start()
        self._loop = BrokerLoop(
            "cluster",
            logs=self._logs,
            isr_store=IsrWrites(),
            links=Links(),
            flusher=FlushAtOnce(),
            failures=Failures(),
            settings=self.settings,
            locks=threading.Lock,
            post=self.sockets.post,
            now_ms=lambda: 0,
        )
        led = command(state(1, [1], min_isr=1), replicas=(1,), partition=ORDERS, topic_id="id-orders")
        config = TopicConfig(schema=base64.b64encode(bytes(schema.serialize())).decode())
        me = Me(1, 0, 0)
        self._loop.registered(me, [led], {"orders": config}, {1: registration(1)}, settings={}, controller_epoch=-1)
        self.server = BrokerFlightServer(
            "127.0.0.1",
            self._loop,
            NoServices(self._logs),
            settings=self.settings,
            rights=Rights(security, quotas=lambda: self.quotas),
            now_ms=lambda: 0,
        )

    @property
    def partition(self) -> Partition:
        return self._loop.partition(ORDERS)

    @property
    def replica(self) -> ReplicaLoop:
        return self.partition.unguarded

    def client(self, *options: tuple[str, int | str], security: Security = NO_SECURITY) -> flight.FlightClient:
        return security.client(f"127.0.0.1:{self.server.port}", options)

    def waiters(self) -> int:
        """Reads that wait for what comes next."""
        return len(self.replica.progress._waiting)

    def close(self) -> None:
        self.server.stop(1)
        self.sockets.stop(10)
        self.replica.log.close()


def get(client: flight.FlightClient, **ticket: Any) -> flight.FlightStreamReader:
    asked = ReadTicket(**{"topic": "orders", "partition": 0, **ticket})
    return client.do_get(flight.Ticket(to_json(asked)))


def written(client: flight.FlightClient, batch: pa.RecordBatch) -> bytes:
    """The answer, as it was said."""
    path = flight.FlightDescriptor.for_path("orders", "0")
    writer, reader = client.do_put(path, batch.schema)
    writer.write_batch(batch)
    answer = reader.read()
    writer.close()  # of a stream that was refused this says why
    return bytes(answer)
