"""A whole cluster of real processes, under acks=all load, while its parts are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.config import settings_from
from spark_replication.engine.guarding.leases import Lease
from spark_replication.live.broker.lease import holder_in
from spark_replication.live.guarding.broker_file import read_broker_file
from spark_replication.live.guarding.guardian import Assignment, Guardian
from spark_replication.process.logs import FILE_BYTES_MAX, kept
from spark_replication.storage.directory.broker_directory import probe
from spark_replication.transport.security.security import NO_SECURITY
from spark_replication.zk.operations import Create
from spark_replication.zk.paths import deletion_mark
from tests.live.cluster.faults import kill
from tests.live.cluster.history import SCHEMA, Load
from tests.live.cluster.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

PARTITIONS = 3
CONFIG = {"zookeeper.session.ms": 6_000, "replica.lag.time.ms": 5_000}


def test_a_second_start_in_the_directory_adopts_what_lives(tmp_path: Path) -> None:
    with sr.LocalCluster.start(brokers=2, directory=tmp_path / "cluster", config=CONFIG) as first:
        pids = {broker: info.pid for broker, info in first.brokers.items()}
        zookeepers, controller = first.zookeeper_pids, first.controller_pid
        second = sr.LocalCluster.start(brokers=2, directory=tmp_path / "cluster", config=CONFIG)
        assert {broker: info.pid for broker, info in second.brokers.items()} == pids
        assert second.zookeeper_pids == zookeepers
        assert second.controller_pid == controller
        second.stop()
        # The first one's guardians see the brokers end, and may not start them: the second's took over their lease.
    ended = (*pids.values(), *zookeepers)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ended), "all have ended")


def test_brokers_that_were_just_killed_are_not_healthy_whoever_has_noticed(cluster: sr.LocalCluster) -> None:
    for _ in range(3):
        kill(*[broker.pid for broker in cluster.brokers.values()])
        assert cluster.problems()
        cluster.wait_healthy()


def test_a_broker_that_is_asked_what_it_does_says_so_and_goes_on(cluster: sr.LocalCluster) -> None:
    cluster.wait_healthy()
    asked = cluster.brokers[1]
    os.kill(asked.pid, signal.SIGUSR2)
    eventually(lambda: "socket_loop.py" in (Path(asked.log_dir) / "broker.log").read_text(), "the loop's stack")
    cluster.wait_healthy()
    assert cluster.brokers[1].pid == asked.pid


def test_each_start_takes_the_lease_by_a_number_that_no_clock_tells(tmp_path: Path) -> None:
    for attempt in (1, 2):
        with sr.LocalCluster.start(brokers=1, directory=tmp_path / "cluster", config=CONFIG) as cluster:
            held = holder_in(Path(cluster.brokers[1].log_dir)).attempt
            assert held == attempt


def test_nothing_is_left_of_a_cluster_whose_process_was_killed_and_the_next_has_its_data(tmp_path: Path) -> None:
    """Brokers end with their lease, then the controller, which nobody needs, then ZooKeeper, which nobody asks."""
    directory, lease_ms = tmp_path / "cluster", 4_000
    starter = multiprocessing.get_context("spawn").Process(target=started_and_killed, args=(directory, lease_ms))
    starter.start()
    starter.join()
    assert starter.exitcode == -signal.SIGKILL
    eventually(lambda: not processes_of(directory), "all have ended")
    with sr.LocalCluster.start(brokers=2, directory=directory, config=CONFIG) as cluster:
        with sr.Reader(cluster.zookeeper) as reader:
            rows = [row for found in reader.read("orders", partition=0) for row in found.batch.column(0).to_pylist()]
        assert rows == [1, 2, 3]


def started_and_killed(directory: Path, lease_ms: int) -> None:
    cluster = sr.LocalCluster.start(brokers=2, directory=directory, config={**CONFIG, "broker.lease.ms": lease_ms})
    cluster.admin.create_topic("orders", SCHEMA, partitions=1, replication_factor=2)
    with sr.Producer(cluster.zookeeper) as producer:
        producer.send("orders", pa.record_batch([pa.array([1, 2, 3])], schema=SCHEMA), partition=0).result(60)
    os.kill(os.getpid(), signal.SIGKILL)


def processes_of(directory: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.fsencode(directory) in (path / "cmdline").read_bytes():
                found.append(int(path.name))
    return found


def test_two_guardians_on_one_host_never_run_two_brokers_in_one_directory(cluster: sr.LocalCluster) -> None:
    """Even if they were told to take the same one at the same time: the lock decides, and the other adopts."""
    address, _, _ = cluster.zookeeper.removeprefix("zk://").partition("/")
    cluster_id = cluster.admin.describe_cluster().cluster_id
    assignment = Assignment(
        log_directory=str(cluster.directory / "contested"),
        cluster_id=cluster_id,
        zookeeper=address,
        host="127.0.0.1",
        overrides={},
    )
    guardians = [
        Guardian(
            77,
            assignment,
            Lease(1_000, attempt),
            settings=settings_from(),
            security=NO_SECURITY,
            report=lambda died: None,
        )
        for attempt in (1, 2)
    ]
    served: list[int] = []
    failed: list[str] = []

    def start(guardian: Guardian) -> None:
        try:
            served.append(guardian.start().pid)
        except sr.errors.ReplicationError as error:
            failed.append(error.code)

    threads = [threading.Thread(target=start, args=(guardian,)) for guardian in guardians]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        file = read_broker_file(guardians[0].directory)
        assert file is not None
        assert probe(guardians[0].directory)
        assert set(served) == {file.pid}, "whoever has a broker has the same one"
        assert set(failed) <= {"STALE_LEASE"}
    finally:
        guardians[1].shut_down()
    assert not probe(guardians[0].directory)
    # A controller that has not noticed yet would place the next story's partitions on it, where they stay.
    eventually(lambda: 77 not in registered(cluster), "the controller knows that it is gone")


def registered(cluster: sr.LocalCluster) -> set[int]:
    return {broker.id for broker in cluster.admin.describe_cluster().brokers}


def test_what_brokers_hold_is_plain_arrow_and_alike(cluster: sr.LocalCluster, topic: str) -> None:
    with Load(cluster.zookeeper, topic, PARTITIONS) as load:
        load.wait_for_more(20)
    cluster.wait_healthy()
    (found,) = cluster.admin.describe_topics([topic])
    pattern = f"{topic}-0.{found.topic_id}/*.arrow"
    held = [[path.read_bytes() for path in sorted(Path(b.log_dir).glob(pattern))] for b in cluster.brokers.values()]
    assert held[0]
    assert held[0] == held[1] == held[2]
    assert msgspec.json.decode((Path(cluster.brokers[1].log_dir) / "meta.json").read_bytes())["broker_id"] == 1


def test_what_processes_say_does_not_fill_the_disk(cluster: sr.LocalCluster) -> None:
    """Also what a broker says without a log line, as native libraries do; both of its descriptors go along."""
    broker, controller = cluster.brokers[1], cluster.directory / "controller" / "log"
    said = Path(broker.log_dir) / "broker.log"
    os.truncate(said, FILE_BYTES_MAX)
    eventually(kept(said).exists, "the broker's is begun anew")
    os.kill(broker.pid, signal.SIGUSR2)
    eventually(lambda: "most recent call first" in said.read_text(), "it goes on in that")
    os.truncate(controller, FILE_BYTES_MAX)
    session = cluster._connect()
    session.commit_now((Create(deletion_mark("none"), b""),))
    session.close()
    eventually(kept(controller).exists, "the controller's is begun anew, since it has something to say")
    kept(controller).unlink()
    os.truncate(controller, FILE_BYTES_MAX)
    kill(cluster.controller_pid)
    eventually(kept(controller).exists, "so it is before it is started again")
    cluster.wait_healthy()
