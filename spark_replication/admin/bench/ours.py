"""Our cluster as a side: a LocalCluster, and programs that use the public clients."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from spark_replication.admin.bench import consuming, moving, sending
from spark_replication.admin.bench.losses import BrokerLoss
from spark_replication.admin.bench.probes import memory_kb
from spark_replication.admin.bench.programs import command_of
from spark_replication.admin.bench.side import BROKERS, Door, Led, Rows
from spark_replication.admin.bench.viewers import viewers
from spark_replication.admin.bench.zookeeper_view import HEALTHY_TIMEOUT_S
from spark_replication.client.asking.admin import Admin
from spark_replication.config import SecurityMode
from spark_replication.live.local_cluster import LocalCluster
from spark_replication.model import Scalar
from spark_replication.process.certificates import ca_in, host_certificate
from spark_replication.process.files import make_secret

HOST = "127.0.0.1"
CERTIFICATE_DAYS = 1


class Ours:
    def __init__(
        self, cluster: LocalCluster, admin: Admin, *, name: str = "ours", security: Mapping[str, Scalar], pages: int = 0
    ) -> None:
        """admin: with the time that 10,000 partitions take. security: settings. pages: so many are open while it is
        looked at."""
        self.name = name
        self.cluster = cluster
        self._admin = admin
        self._security = security
        self._pages = pages
        #: The memory of each process before there was a partition: units of 1,024 bytes.
        self.empty_kb = {process: memory_kb(pid) for process, pid in self.processes().items()}

    def with_pages(self, pages: int) -> Ours:
        """The same cluster, with so many pages open."""
        name = f"{self.name}, {pages} pages"
        return Ours(self.cluster, self._admin, name=name, security=self._security, pages=pages)

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(broker.pid for broker in self.cluster.brokers.values())

    def processes(self) -> dict[str, int]:
        """The pid of each broker, and of the controller."""
        assert self.cluster.controller_pid is not None, "a healthy cluster has a controller"
        brokers = {f"broker {broker.id}": broker.pid for broker in self.cluster.brokers.values()}
        return {**brokers, "controller": self.cluster.controller_pid}

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar], replicas: int = BROKERS) -> None:
        self._admin.create_topic(
            topic, sending.SCHEMA, partitions=partitions, replication_factor=replicas, config=config
        )
        self.cluster.wait_healthy(HEALTHY_TIMEOUT_S)

    def delete(self, topic: str) -> None:
        self._admin.delete_topic(topic)

    def sender(self, topic: str, of: Rows, *, joins: bool = False) -> list[str]:
        work = sending.Work(
            bootstrap=self.bootstrap,
            security=self._security,
            topic=topic,
            partitions=of.partitions,
            row_bytes=of.row_bytes,
            rows=of.rows_a_batch,
            joins=joins,
        )
        return command_of(sending.__name__, work)

    def consumer(self, topic: str, of: Rows, rows: int, door: Door, *, looks: bool) -> list[str]:
        work = consuming.Work(
            bootstrap=self.bootstrap,
            security=self._security,
            topic=topic,
            partitions=of.partitions,
            rows=rows,
            row_bytes=of.row_bytes,
            door=door,
            looks=looks,
            folders=[self._folder(topic, number) for number in range(of.partitions)] if door == "files" else (),
        )
        return command_of(consuming.__name__, work)

    def _folder(self, topic: str, partition: int) -> str:
        """The folder of one replica: all have the same files."""
        logs = (Path(broker.log_dir) for broker in self.cluster.brokers.values())
        return next(str(path) for log_dir in logs for path in log_dir.glob(f"{topic}-{partition}.*"))

    def mover(self, topic: str) -> list[str]:
        return command_of(moving.__name__, moving.Work(bootstrap=self.bootstrap, security=self._security, topic=topic))

    def leader(self, topic: str) -> Led:
        """The leader of partition 0."""
        (found,) = self._admin.describe_topics([topic])
        leaders = {each.partition: each.leader for each in found.partitions}
        broker = leaders[0]
        assert broker is not None, "a healthy cluster's partitions are led"
        return Led(broker, [partition for partition, leader in leaders.items() if leader == broker])

    def lose(self, topic: str, led: Led, *, silently: bool) -> BrokerLoss:
        return BrokerLoss(self.cluster, topic, led, silently=silently)

    def restore(self, topic: str, led: Led, *, was_silent: bool) -> None:
        if was_silent:
            self.cluster.kill_broker(led.broker)
        self.cluster.restart_broker(led.broker)
        self.cluster.wait_healthy(HEALTHY_TIMEOUT_S)
        self._admin.elect_leaders("preferred")
        self.cluster.wait_healthy(HEALTHY_TIMEOUT_S)

    def looked_at(self) -> AbstractContextManager[None]:
        return viewers(self.cluster.page if self._pages else None, self._pages)


@contextmanager
def our_cluster(config: Mapping[str, Scalar], *, name: str = "ours", security: Mapping[str, Scalar]) -> Iterator[Ours]:
    """Three brokers. The records of a measurement are deleted while it runs, and with its topic."""
    given = {"log.delete.delay.ms": 0, "log.retention.check.interval.ms": 100, **config, **security}
    with ExitStack() as running:
        cluster = running.enter_context(LocalCluster.start(brokers=BROKERS, config=given))
        admin = Admin(cluster.zookeeper, security=cluster.security, deadline_ms=int(1_000 * HEALTHY_TIMEOUT_S))
        yield Ours(cluster, running.enter_context(admin), name=name, security=security)


def settings_of_modes(directory: Path) -> Mapping[SecurityMode, Mapping[str, Scalar]]:
    """What a cluster of each mode is started with, and its clients. Secrets are made in this directory."""
    token = directory / "token"
    make_secret(token, secrets.token_urlsafe(32))
    ca, (ca_file, _) = ca_in(directory, "a measurement's CA")
    certificate, key = host_certificate(directory, ca, [HOST], CERTIFICATE_DAYS)
    return {
        "none": {},
        "token": {"security.mode": "token", "security.token.file": str(token)},
        "tls": {
            "security.mode": "tls",
            "security.tls.ca.file": str(ca_file),
            "security.tls.certificate.file": str(certificate),
            "security.tls.key.file": str(key),
            "security.tls.mutual": True,
        },
    }
