"""Guardians that cannot start their broker, and those that keep one from elsewhere."""

from __future__ import annotations

import queue
import subprocess
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from spark_replication.config import Settings, settings_from
from spark_replication.engine.guarding.leases import Lease
from spark_replication.errors import StaleLease
from spark_replication.live.guarding.guardian import DIRECTORY, Assignment, Guardian
from spark_replication.live.guarding.lease_keeper import LeaseKeeper
from spark_replication.messages.guarding import BrokerDied, Kept
from spark_replication.model import DirectoryIdentity
from spark_replication.spark.guardian_task import Posting, _new_id
from spark_replication.storage.directory.broker_directory import read_identity, write_identity
from spark_replication.transport.security.security import NO_SECURITY
from tests.live.broker.brokers import TIMEOUT_S
from tests.live.broker.conftest import StartCluster
from tests.live.cluster.faults import stopped
from tests.waiting import eventually

pytestmark = pytest.mark.live

LEASE_MS = 5_000


def test_another_clusters_directory_is_not_taken_and_the_guardian_says_so(tmp_path: Path) -> None:
    """It goes on: it must not end the stage of all the others."""
    directory = tmp_path / DIRECTORY.format(1)
    directory.mkdir()
    theirs = DirectoryIdentity(cluster_id="theirs", broker_id=1)
    write_identity(directory, theirs)
    assignment = Assignment(
        log_directory=str(tmp_path), cluster_id="ours", zookeeper="127.0.0.1:1", host="127.0.0.1", overrides={}
    )
    guardian = Guardian(
        1, assignment, Lease(1, 0), settings=Settings(), security=NO_SECURITY, report=lambda _died: None
    )
    thread = threading.Thread(target=guardian.guard)
    thread.start()
    try:
        eventually(lambda: "belongs to broker 1 of cluster theirs" in guardian.trouble, "it says why")
        assert thread.is_alive()
        assert not guardian.adopted
    finally:
        guardian.stop()
        thread.join()
    assert read_identity(directory) == theirs


def test_no_broker_is_begun_for_a_driver_that_commands_no_more(start_cluster: StartCluster, tmp_path: Path) -> None:
    cluster = start_cluster(brokers=0)
    assignment = Assignment(
        log_directory=str(tmp_path),
        cluster_id=cluster.cluster_id,
        zookeeper=cluster.zookeeper,
        host="127.0.0.1",
        overrides={},
    )
    settings = settings_from({"zk.chroot": cluster.chroot})
    posting = Posting(assignment=assignment, controller_epoch=cluster.controller_epoch, driver="", loopback="")
    assert _new_id(posting, settings, NO_SECURITY) == 1
    with pytest.raises(StaleLease, match=f"controller epoch {cluster.controller_epoch} commands"):
        _new_id(replace(posting, controller_epoch=cluster.controller_epoch - 1), settings, NO_SECURITY)


def test_a_broker_is_kept_from_elsewhere_and_its_death_is_reported(start_cluster: StartCluster) -> None:
    cluster = start_cluster(brokers=2)
    kept = {
        broker: Kept(broker_id=broker, address=found.address, incarnation=found.incarnation)
        for broker, found in cluster.store.read_brokers().brokers.items()
    }
    died: queue.SimpleQueue[BrokerDied] = queue.SimpleQueue()
    keeper = LeaseKeeper(Lease(1, 0), LEASE_MS, security=NO_SECURITY, report=died.put)
    try:
        keeper.keep(tuple(kept.values()))
        with pytest.raises(subprocess.TimeoutExpired):
            cluster.processes[1].wait(2 * LEASE_MS / 1_000)
        assert died.empty()
        cluster.kill(2)
        assert died.get(timeout=TIMEOUT_S) == BrokerDied(broker_id=2, incarnation=kept[2].incarnation)
        keeper.keep(())
        assert cluster.processes[1].wait(TIMEOUT_S) == 0, "the lease of one that nobody keeps runs out"
    finally:
        keeper.stop()


def test_a_broker_that_stood_still_for_longer_than_its_lease_lives_on_with_its_guardian(
    start_cluster: StartCluster,
) -> None:
    cluster = start_cluster(brokers=1, settings={"broker.lease.ms": LEASE_MS})
    found = cluster.store.read_brokers().brokers[1]
    keeper = LeaseKeeper(Lease(1, 0), LEASE_MS, security=NO_SECURITY, report=lambda _died: None)
    try:
        keeper.keep((Kept(broker_id=1, address=found.address, incarnation=found.incarnation),))
        with stopped(cluster.processes[1].pid), pytest.raises(subprocess.TimeoutExpired):
            cluster.processes[1].wait(2 * LEASE_MS / 1_000)
        with pytest.raises(subprocess.TimeoutExpired):
            cluster.processes[1].wait(2 * LEASE_MS / 1_000)
    finally:
        keeper.stop()


def test_a_guardian_that_is_near_takes_over_who_was_kept(start_cluster: StartCluster) -> None:
    """Its lease is of the same submission, and no earlier."""
    cluster = start_cluster(brokers=1, settings={"broker.lease.ms": 60_000})
    found = cluster.store.read_brokers().brokers[1]
    keeper = LeaseKeeper(Lease(1, 4), 60_000, security=NO_SECURITY, report=lambda _died: None)
    assignment = Assignment(
        log_directory=str(cluster.directory),
        cluster_id=cluster.cluster_id,
        zookeeper=f"{cluster.zookeeper}{cluster.chroot}",
        host="127.0.0.1",
        overrides={},
    )
    try:
        keeper.keep((Kept(broker_id=1, address=found.address, incarnation=found.incarnation),))
        eventually(lambda: '"attempt":4' in (cluster.log_dir(1) / "lease.json").read_text(), "it is kept")
        for attempt in (4, 5):
            guardian = Guardian(
                1,
                assignment,
                Lease(1, attempt),
                settings=Settings(),
                security=NO_SECURITY,
                report=lambda _died: None,
            )
            assert guardian.start().incarnation == found.incarnation
            assert guardian.adopted
    finally:
        keeper.stop()
