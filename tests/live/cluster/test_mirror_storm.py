"""The tables beside ZooKeeper after a thousand events under load, three take-overs and two controllers at once."""

from __future__ import annotations

import random
import resource
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.config import settings_from
from spark_replication.errors import ReplicationError
from spark_replication.live.controller.host import ControllerHost
from spark_replication.mirror.asking.load import read_events
from spark_replication.transport.security.security import NO_SECURITY
from tests.live.cluster.faults import kill, stopped
from tests.live.cluster.history import SCHEMA as NUMBERS
from tests.live.cluster.history import Load
from tests.live.cluster.mirror_checks import assert_agrees, assert_chains, commands_after, shown
from tests.live.cluster.waiting import eventually

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.timeout(400)]

BROKERS = 3
CONFIG = {"zookeeper.session.ms": 6_000}
SCHEMA = pa.schema([("id", pa.int64())])
EVENTS = 1_000
SEED = 20_261_123


class Storm:
    """What administrators and crashes do to a cluster, one after the other, by a seed."""

    def __init__(self, cluster: sr.LocalCluster, name: str) -> None:
        self.done: Counter[str] = Counter()
        self.errors: list[Exception] = []
        self._cluster = cluster
        self._name = name
        self._rng = random.Random(SEED)
        self._topics: dict[str, int] = {}
        self._made = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Storm:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()

    def wait_for_more(self, changes: int) -> None:
        wanted = self.done.total() + changes
        eventually(lambda: bool(self.errors) or self.done.total() >= wanted, f"{changes} more changes are made")
        assert not self.errors, self.errors

    def _run(self) -> None:
        changes: list[Callable[[], None]] = [
            *[self._create] * 4,
            *[self._delete] * 2,
            *[self._widen] * 2,
            *[self._configure] * 2,
            *[self._move] * 2,
            self._elect,
            self._kill,
        ]
        while not self._stopping.is_set():
            change = self._rng.choice(changes)
            try:
                change()
                self.done[change.__name__.strip("_")] += 1
            except ReplicationError as error:
                self.done[error.code] += 1  # such as a topic that is being made again, or too few live brokers
            except Exception as error:  # noqa: BLE001 (the test raises it)
                self.errors.append(error)
                return

    def _create(self) -> None:
        self._made += 1
        topic, partitions = f"{self._name}-{self._made % 12}", self._rng.randint(1, 12)
        self._cluster.admin.create_topic(
            topic, SCHEMA, partitions=partitions, replication_factor=self._rng.randint(1, BROKERS)
        )
        self._topics[topic] = partitions

    def _delete(self) -> None:
        topic = self._any()
        self._topics.pop(topic)
        self._cluster.admin.delete_topic(topic)

    def _widen(self) -> None:
        topic = self._any()
        self._topics[topic] += 2
        self._cluster.admin.add_partitions(topic, self._topics[topic])

    def _configure(self) -> None:
        self._cluster.admin.configure(self._any(), {"retention.ms": self._rng.randint(60_000, 600_000)})

    def _move(self) -> None:
        topic = self._any()
        brokers = list(self._cluster.brokers)
        self._rng.shuffle(brokers)
        self._cluster.admin.reassign({f"{topic}-0": brokers[: self._rng.randint(1, BROKERS)]})

    def _elect(self) -> None:
        self._cluster.admin.elect_leaders("preferred")

    def _kill(self) -> None:
        broker = self._rng.choice(sorted(self._cluster.brokers))
        with suppress(ProcessLookupError):  # it is being started again
            kill(self._cluster.brokers[broker].pid)

    def _any(self) -> str:
        if not self._topics:
            self._create()
        return self._rng.choice(sorted(self._topics))


@contextmanager
def standby(cluster: sr.LocalCluster, directory: Path) -> Iterator[ControllerHost]:
    address, _, chroot = cluster.zookeeper.removeprefix("zk://").partition("/")
    host = ControllerHost(
        address,
        name="standby",
        host="127.0.0.1",
        settings=settings_from({"zk.chroot": f"/{chroot}", **CONFIG}),
        security=NO_SECURITY,
        seat=directory / "seat",
        mirror_path=cluster.mirror_path,
    )
    host.start()
    try:
        yield host
    finally:
        host.close()


def test_a_thousand_events_and_three_take_overs_leave_tables_that_agree(
    cluster: sr.LocalCluster, name: str, tmp_path: Path
) -> None:
    cluster.admin.create_topic("load", NUMBERS, partitions=2)
    cluster.wait_healthy()
    with Load(cluster.zookeeper, "load", 2) as load, Storm(cluster, name) as storm:
        storm.wait_for_more(40)
        first = cluster.controller_pid
        kill(first)
        storm.wait_for_more(40)
        second = cluster.controller_pid
        with standby(cluster, tmp_path) as other:
            with stopped(second):
                other.wait_active()
                storm.wait_for_more(40)
            # Two that believe that they command, for as long as the first has not heard of the other.
            storm.wait_for_more(40)
        eventually(lambda: told_events(cluster) >= EVENTS, f"{EVENTS} events are told")
        load.wait_for_more(5)
    assert set(storm.done) >= {"create", "delete", "widen", "configure", "move", "elect", "kill"}
    eventually(partial(commands_after, cluster, 0), "it is healthy")
    assert_agrees(cluster)
    assert_chains(cluster, name)
    load.check_history()


def told_events(cluster: sr.LocalCluster) -> int:
    return len(read_events(cluster.mirror_path))


def test_a_topic_that_went_while_no_table_could_be_written_is_gone_after_a_take_over(
    cluster: sr.LocalCluster, name: str
) -> None:
    cluster.admin.create_topic(name, SCHEMA, partitions=4, replication_factor=1)
    eventually(lambda: shown(cluster, name) == 4, "its partitions are shown")
    pid = cluster.controller_pid
    assert pid is not None
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    cluster.admin.delete_topic(name)
    eventually(lambda: any("mirror" in problem for problem in cluster.problems()), "it cannot be written")
    assert shown(cluster, name) == 4
    kill(pid)
    eventually(partial(commands_after, cluster, pid), "another commands")
    assert_agrees(cluster)
    assert shown(cluster, name) == 0
