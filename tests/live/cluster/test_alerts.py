"""conf/alerts.yml on a running cluster: each alert fires once its cause is there, and none before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import spark_replication as sr
from spark_replication.client.asking.admin import PartitionDescription
from spark_replication.errors import ReplicationError
from spark_replication.messages.actions import METADATA, METRICS
from spark_replication.messages.observing import GetMetrics
from spark_replication.transport.flight.actions import call
from spark_replication.zk import paths
from spark_replication.zk.operations import EXISTS, Create, Delete
from spark_replication.zk.session import Session
from tests.alert_rules import METRIC, firing, rules
from tests.live.cluster.faults import full_disk, stopped
from tests.live.cluster.history import SCHEMA
from tests.live.cluster.waiting import eventually
from tests.scrapes import Scrape

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SCRAPE_MS = 3_000
REFUSED = 200  # within the time of a scrape or two: far more than one a second
DEADLINE_S = 60.0
CONFIG = {
    "zookeeper.session.ms": 6_000,
    "replica.lag.time.ms": 2_000,
    "broker.lease.ms": 60_000,  # half of it is waited for, and on a busy machine the broker is to live on
    "disk.retry.ms": 2_000,
    "recovery.trust.page.cache": False,  # who was killed has lost its place in the ISR
}
DASHBOARD = Path(__file__).parents[3] / "conf" / "grafana.json"


class Watch:
    """Scrapes the controller and every broker; who does not answer has no samples, as in Prometheus. What `rate` looks
    at begins with the watch."""

    def __init__(self, cluster: sr.LocalCluster) -> None:
        self._cluster = cluster
        self._controller: str | None = None  # as last heard: it may live when nobody can say so
        self._before = self.scrape()
        self.until()

    def scrape(self, *, per_partition: bool = False) -> Scrape:
        security = self._cluster.security
        texts: dict[str, str] = {}
        with (
            suppress(ReplicationError),
            sr.Admin(self._cluster.bootstrap, security=security, deadline_ms=SCRAPE_MS) as admin,
        ):
            self._controller = admin.describe_cluster().controller or self._controller
            texts["groups"] = admin.group_metrics()
        addresses = {f"broker {id_}": f"{found.host}:{found.port}" for id_, found in self._cluster.brokers.items()}
        if self._controller is not None:
            addresses["controller"] = self._controller
        for instance, address in addresses.items():
            with suppress(ReplicationError), self._cluster.security.client(address) as client:
                texts[instance] = call(client, METRICS, GetMetrics(per_partition=per_partition), SCRAPE_MS).text
        return Scrape.of(texts)

    def firing(self) -> set[str]:
        return firing(self._before, self.scrape())

    def until(self, *alerts: str) -> None:
        """Exactly these fire."""
        seen: set[str] = set()

        def fire() -> bool:
            seen.clear()
            seen.update(self.firing())
            return seen == set(alerts)

        try:
            eventually(fire, f"{sorted(alerts)} fire")
        except AssertionError as error:
            raise AssertionError(f"{error}; these do: {sorted(seen)}") from error


@pytest.fixture
def watch(cluster: sr.LocalCluster, topic: str) -> Watch:
    """Of a cluster that is well, with a topic of one partition on all of its brokers: nothing fires."""
    cluster.wait_healthy()
    return Watch(cluster)


PARTITIONS = 1


def partition(cluster: sr.LocalCluster, topic: str) -> PartitionDescription:
    return cluster.admin.describe_topics([topic])[0].partitions[0]


def test_what_alerts_and_dashboard_name_is_told(watch: Watch) -> None:
    told = watch.scrape()
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = {metric for panel in panels for target in panel["targets"] for metric in METRIC.findall(target["expr"])}
    alerting = {metric for rule in rules() for metric in rule.metrics}
    # Of refusals, groups and tables there is no series before the first.
    later = {
        "spark_replication_refused_requests_total",
        "spark_replication_group_lag_seconds",
        "spark_replication_table_seconds_behind",
        "spark_replication_table_held_back_bytes",
    }
    assert shown | alerting <= told.names | later
    assert {frozenset(rule.annotations) for rule in rules()} == {frozenset({"summary", "description", "command"})}
    assert [sample.value for sample in told.named("spark_replication_active_controller")] == [1]


def test_series_of_partitions_are_told_on_request_alone(watch: Watch, topic: str) -> None:
    assert not [name for name in watch.scrape().names if "replication_partition_" in name]
    assert watch.scrape(per_partition=True).value("partition_isr_size", topic=topic, partition="0") == 3


def test_the_command_prints_what_prometheus_reads(cluster: sr.LocalCluster, watch: Watch) -> None:
    command = [sys.executable, "-m", "spark_replication", "metrics", "-b", cluster.bootstrap]
    for options, series in (([], "active_controller"), (["--broker", "1", "--per-partition"], "partition_led")):
        said = subprocess.run([*command, *options], capture_output=True, text=True, check=True).stdout
        assert Scrape.of({"": said}).named(f"spark_replication_{series}")


def test_a_group_leaves_records_unread(cluster: sr.LocalCluster, watch: Watch, topic: str) -> None:
    with sr.Producer(cluster.bootstrap) as producer:
        producer.send(topic, pa.record_batch([pa.array([1], pa.int64())], schema=SCHEMA), partition=0).result(60)
    cluster.admin.reset_group("etl", topic, to="earliest")
    watch.until("GroupBehind")
    cluster.admin.reset_group("etl", to="latest")
    watch.until()
    cluster.admin.delete_group("etl")


def test_brokers_die_until_nobody_leads(cluster: sr.LocalCluster, watch: Watch) -> None:
    cluster.kill_broker(1)
    watch.until("BrokersMissing", "UnderReplicated", "FollowerLags")
    cluster.kill_broker(2)
    watch.until("BrokersMissing", "UnderReplicated", "FollowerLags", "UnderMinIsr")
    cluster.kill_broker(3)
    # Who would say that they lag is dead, too.
    watch.until("BrokersMissing", "UnderReplicated", "UnderMinIsr", "PartitionsOffline")
    for broker in (1, 2, 3):
        cluster.restart_broker(broker)
    cluster.wait_healthy()
    watch.until("UncleanElection", "PossibleLoss")  # by the longest log: nobody kept its place
    assert cluster.controller_pid is not None
    os.kill(cluster.controller_pid, signal.SIGKILL)
    watch.until("PossibleLoss")  # the counters of the next controller begin anew
    assert cluster.admin.acknowledge_loss() == {}
    watch.until()


def test_a_partition_waits_for_a_person_who_elects_whom_there_is(cluster: sr.LocalCluster, watch: Watch) -> None:
    manual = {"unclean.recovery.strategy": "manual"}
    cluster.admin.create_topic("alone", SCHEMA, partitions=1, replication_factor=1, config=manual)
    (broker,) = partition(cluster, "alone").replicas
    cluster.kill_broker(broker)
    eventually(lambda: "PartitionsOffline" in watch.firing(), "nobody leads it")
    assert "ManualElectionRequired" not in watch.firing()
    cluster.restart_broker(broker)
    watch.until("PartitionsOffline", "UnderMinIsr", "UnderReplicated", "ManualElectionRequired")
    assert cluster.admin.elect_leaders("unclean", ["alone-0"]) == {}
    watch.until("UncleanElection", "PossibleLoss")
    cluster.admin.delete_topic("alone")
    watch.until("UncleanElection")


def test_a_controller_hangs(cluster: sr.LocalCluster, watch: Watch) -> None:
    with stopped(cluster.controller_pid):
        watch.until("NoActiveController")
    watch.until()


def test_zookeeper_is_gone(cluster: sr.LocalCluster, watch: Watch) -> None:
    cluster.kill_zookeeper()
    eventually(lambda: "ControllerWithoutZooKeeper" in watch.firing(), "ten seconds pass")
    # Whether it still commands then is for its session to say.
    assert watch.firing() <= {"ControllerWithoutZooKeeper", "NoActiveController"}
    cluster.restart_zookeeper()
    watch.until()


def test_the_tables_cannot_be_written(cluster: sr.LocalCluster, watch: Watch) -> None:
    pid = cluster.controller_pid
    assert pid is not None
    with full_disk(pid, 0):
        cluster.admin.create_topic("unseen", SCHEMA, partitions=1)
        watch.until("MirrorLags")
    watch.until()


def test_a_disk_refuses(cluster: sr.LocalCluster, watch: Watch, topic: str) -> None:
    follower = partition(cluster, topic).replicas[-1]
    with full_disk(cluster.brokers[follower].pid, 0), sr.Producer(cluster.bootstrap) as producer:
        producer.send(topic, pa.record_batch([pa.array([1])], schema=SCHEMA), 0).result(DEADLINE_S)
        watch.until("DiskRefuses", "UnderReplicated")
    watch.until()


def test_requests_are_refused(cluster: sr.LocalCluster, watch: Watch) -> None:
    with flight.connect(f"grpc://{cluster.bootstrap.partition(',')[0]}") as client:
        ask_in_vain(client, times=1)  # of a series that begins no rate is known
        watch = Watch(cluster)
        ask_in_vain(client, times=REFUSED)
    watch.until("RequestsRefused")


def ask_in_vain(client: flight.FlightClient, *, times: int) -> None:
    for _ in range(times):
        with pytest.raises(flight.FlightServerError, match="INVALID_REQUEST"):
            list(client.do_action((METADATA.name, b"[]")))


def test_a_file_of_tokens_cannot_be_trusted(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("the-secret-of-all-clients\n")
    secured = {"security.mode": "token", "security.token.file": str(token)}
    with sr.LocalCluster.start(brokers=1, directory=tmp_path / "cluster", config={**CONFIG, **secured}) as cluster:
        cluster.wait_healthy()
        watch = Watch(cluster)
        token.chmod(0o644)
        watch.until("SecretsRefused")
        token.chmod(0o600)
        watch.until()


def test_nobody_renews_a_lease(cluster: sr.LocalCluster, watch: Watch) -> None:
    cluster._guardians[1].stop()
    watch.until("LeaseNearItsEnd")
    cluster.restart_broker(1)
    watch.until()


def test_a_node_cannot_be_read(cluster: sr.LocalCluster, watch: Watch, truth: Session) -> None:
    note = f"{paths.BROKER_IDS}/note"
    truth.commit_now((Create(note, b"a note"),))
    watch.until("ZooKeeperUnreadable")
    truth.commit_now((Delete(note, EXISTS),))
    watch.until()
