"""Broker processes on a real ZooKeeper, and just enough of a controller to give them partitions."""

from __future__ import annotations

import base64
import os
import queue
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pyarrow as pa
from pyarrow import flight

from spark_replication.config import settings_from
from spark_replication.core.law.writes import BrokerRemoval, GroupAnswer, PartitionWrite, Stored, TopicWrite
from spark_replication.live.guarding.broker_file import BrokerFile, read_broker_file
from spark_replication.messages.actions import LEADER_AND_ISR, METADATA, UPDATE_METADATA
from spark_replication.messages.commands import LeaderAndIsr, PartitionCommand, UpdateMetadata
from spark_replication.messages.descriptions import GetMetadata, Metadata
from spark_replication.model import PartitionState, TopicConfig, TopicPartition, TopicState
from spark_replication.transport.flight.actions import call
from spark_replication.transport.proofs.flight_client import KnownClient
from spark_replication.transport.security.security import NO_SECURITY
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.controller.store import ZooKeeperControllerStore
from spark_replication.zk.session import Session
from tests.waiting import eventually

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("name", pa.utf8())])
TIMEOUT_S = 30.0


class Cluster:
    def __init__(self, zookeeper: str, chroot: str, directory: Path, settings: dict[str, object]) -> None:
        self.zookeeper = zookeeper
        self.chroot = chroot
        self.directory = directory
        self.settings = settings
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._session = self._connect()
        # Wins, so that the base of the layout is there; it never watches or elects.
        self._answers = ThreadPoolExecutor(1)
        self._controller = ZooKeeperControllerStore(
            self._session, settings_from(settings), self._answers.submit, lambda reason: None
        )
        loaded = self._controller.campaign("test", "127.0.0.1", 1)
        assert loaded is not None
        self.cluster_id = loaded.cluster_id
        self.controller_epoch = loaded.controller_epoch
        self._told = 0  # how often all brokers were told of a topic
        self.store = BrokerStore(self._connect)

    def _connect(self) -> Session:
        return Session.connect(self.zookeeper, self.chroot, session_timeout_ms=10_000, request_timeout_ms=10_000)

    # Processes.

    def log_dir(self, broker: int) -> Path:
        return self.directory / f"broker-{broker}"

    def spawn(
        self,
        broker: int,
        *,
        lease: str = "1,0",
        cluster_id: str | None = None,
        log_dir: Path | None = None,
        host: str = "127.0.0.1",
    ) -> subprocess.Popen[bytes]:
        directory = log_dir or self.log_dir(broker)
        self.directory.mkdir(parents=True, exist_ok=True)
        arguments = {
            "--directory": directory,
            "--zookeeper": f"{self.zookeeper}{self.chroot}",
            "--broker-id": broker,
            "--cluster-id": cluster_id or self.cluster_id,
            "--host": host,
            "--settings": msgspec.json.encode(self.settings).decode(),
            "--lease": lease,
        }
        flat = [str(part) for pair in arguments.items() for part in pair]
        with (self.directory / f"broker-{broker}.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "spark_replication.live.broker.process", *flat],
                stdout=log,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )

    def start(self, broker: int, *, lease: str = "1,0", host: str = "127.0.0.1") -> BrokerFile:
        process = self.processes[broker] = self.spawn(broker, lease=lease, host=host)
        eventually(lambda: process.poll() is not None or self._serves(broker, process.pid), f"broker {broker} serves")
        if process.returncode is not None:
            assert process.stderr is not None
            raise AssertionError(f"broker {broker} ended: {process.stderr.read().decode()}\n{self.log(broker)}")
        return self.file(broker)

    def _serves(self, broker: int, pid: int) -> bool:
        found = read_broker_file(self.log_dir(broker))
        return found is not None and found.pid == pid

    def file(self, broker: int) -> BrokerFile:
        found = read_broker_file(self.log_dir(broker))
        assert found is not None
        return found

    def log(self, broker: int) -> str:
        return (self.directory / f"broker-{broker}.log").read_text()

    def kill(self, broker: int) -> None:
        process = self.processes.pop(broker)
        os.kill(process.pid, signal.SIGKILL)
        process.wait(TIMEOUT_S)

    def stop(self, broker: int) -> int:
        process = self.processes.pop(broker)
        process.terminate()
        return process.wait(TIMEOUT_S)

    def close_processes(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait(TIMEOUT_S)

    def close(self) -> None:
        self.close_processes()
        self.store.close()
        self._controller.resign()
        self._answers.shutdown()

    # A controller's deeds.

    def create_topic(
        self,
        topic: str,
        replicas: tuple[int, ...],
        *,
        schema: pa.Schema | bytes = SCHEMA,
        min_isr: int = 2,
        unmade: int = 0,
    ) -> PartitionCommand:
        """One partition, led by the first replica, all in its ISR: stored, and told to all brokers. unmade: how many
        more are assigned."""
        assignment = TopicState(topic_id=f"{topic}Id", partitions=dict.fromkeys(range(1 + unmade), replicas))
        message = schema if isinstance(schema, bytes) else bytes(schema.serialize())
        config = TopicConfig(schema=base64.b64encode(message).decode())
        self._commit(TopicWrite(topic=topic, state=assignment, config=config))
        epochs = self.store.read_brokers().broker_epochs
        state = PartitionState(
            leader=replicas[0],
            leader_epoch=0,
            isr=frozenset(replicas),
            min_isr=min_isr,
            epochs={broker: epochs[broker].epoch for broker in replicas},
            controller_epoch=self.controller_epoch,
        )
        self._commit(PartitionWrite(partition=TopicPartition(topic, 0), state=state))
        return self.tell(topic)

    def lead(self, topic: str, leader: int) -> PartitionCommand:
        """The next leader epoch, with whatever ISR is stored."""
        present = self.stored(topic)
        state = msgspec.structs.replace(present.state, leader=leader, leader_epoch=present.state.leader_epoch + 1)
        write = PartitionWrite(partition=present.topic_partition, state=state, version=present.partition_epoch)
        self._commit(write)
        return self.tell(topic)

    def remove_registration(self, broker: int) -> None:
        epoch = self.store.read_brokers().broker_epochs[broker].epoch
        self._commit(BrokerRemoval(broker=broker, epoch=epoch))

    def stored(self, topic: str) -> PartitionCommand:
        (found,) = [known for known in self.store.read_all().partitions if known.topic == topic]
        return found

    def tell(self, topic: str) -> PartitionCommand:
        command = self.stored(topic)
        read = self.store.read_all()
        told = LeaderAndIsr(
            controller_epoch=self.controller_epoch,
            partitions=(command,),
            topics={topic: read.topics[topic]},
            brokers=read.brokers.brokers,
        )
        self._told += 1
        announced = UpdateMetadata(
            controller_epoch=self.controller_epoch,
            number=self._told,
            partitions=(command,),
            brokers=read.brokers.brokers,
            topics={topic: read.topics[topic]},
        )
        for broker in sorted(self.processes):
            answer = call(self.client(broker), LEADER_AND_ISR, told, 10_000)
            assert set(answer.errors.values()) <= {"NONE"}, answer
            call(self.client(broker), UPDATE_METADATA, announced, 10_000)
        return command

    def _commit(self, write: TopicWrite | PartitionWrite | BrokerRemoval) -> None:
        answers: queue.SimpleQueue[list[GroupAnswer]] = queue.SimpleQueue()
        self._answers.submit(self._controller.commit, [(write,)], answers.put)
        (answer,) = answers.get(timeout=TIMEOUT_S)
        assert isinstance(answer, Stored), answer

    # Clients.

    def client(self, broker: int) -> KnownClient:
        return NO_SECURITY.client(f"127.0.0.1:{self.file(broker).port}")

    def metadata(self, broker: int) -> Metadata:
        return call(self.client(broker), METADATA, GetMetadata(), 10_000)

    def data_files(self, broker: int, topic: str) -> dict[str, bytes]:
        """All that must be the same on every replica."""
        folder = self.log_dir(broker) / f"{topic}-0.{topic}Id"
        return {
            path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in (".arrow", ".index")
        }


def rows(first: int, count: int) -> pa.RecordBatch:
    ids = list(range(first, first + count))
    return pa.record_batch([pa.array(ids), pa.array([f"row {i}" for i in ids])], schema=SCHEMA)


class Put:
    """A plain DoPut stream."""

    def __init__(self, client: flight.FlightClient, topic: str, schema: pa.Schema = SCHEMA, partition: int = 0) -> None:
        self._writer, self._answers = client.do_put(flight.FlightDescriptor.for_path(topic, str(partition)), schema)

    def send(self, batch: pa.RecordBatch, metadata: bytes | None = None) -> None:
        if metadata is None:
            self._writer.write_batch(batch)
        else:
            self._writer.write_with_metadata(batch, metadata)

    def answer(self) -> dict[str, object]:
        found: dict[str, object] = msgspec.json.decode(self._answers.read().to_pybytes())
        return found

    def close(self) -> None:
        self._writer.done_writing()
        self._writer.close()


def read(client: flight.FlightClient, **ticket: object) -> list[tuple[dict[str, object], pa.RecordBatch]]:
    stream = client.do_get(flight.Ticket(msgspec.json.encode({"partition": 0, **ticket})))
    return [(msgspec.json.decode(chunk.app_metadata.to_pybytes()), chunk.data) for chunk in stream]
