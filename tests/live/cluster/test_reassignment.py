"""Many partitions move under load, held up by a throttle, while the controller is killed and some are taken back."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.client.asking.replica_sizes import ReassignmentDescription
from spark_replication.errors import InvalidReplicaAssignment, NoReassignmentInProgress, StalePlan
from tests.live.cluster.history import SCHEMA, Acknowledged, Load
from tests.live.cluster.replica_folders import replica_folders
from tests.live.cluster.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(300)]

DEADLINE_S = 120.0
PARTITIONS = 50
ROWS = 12_500  # 100 kB of each partition before anything moves
BYTES_PER_SECOND = 40_000  # of each of four brokers: all that there is to copy takes half a minute
SEND_INTERVAL_S = 0.5  # of each partition's load, far below that
CONFIG = {
    "zookeeper.session.ms": 6_000,
    "replica.lag.time.ms": 5_000,
    "log.delete.delay.ms": 0,
    "log.unassigned.delay.ms": 0,
}


class SharedLoad(Load):
    """One producer for all partitions, each of which sends at a pace below the throttle's."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(bootstrap, topic, partitions)
        self._producer = sr.Producer(bootstrap)

    def _produce(self, partition: int) -> None:
        number = 0
        try:
            while not self._stopping.wait(SEND_INTERVAL_S):
                batch = pa.record_batch([pa.array([number])], schema=SCHEMA)
                ack = self._producer.send(self._topic, batch, partition=partition).result(DEADLINE_S)
                with self._progress:
                    self.acknowledged.append(Acknowledged(partition, number, ack.base_offset, time.monotonic()))
                    self._progress.notify_all()
                number += 1
        except Exception as error:  # noqa: BLE001 (told to the test's thread)
            with self._progress:
                self.errors.append(error)
                self._progress.notify_all()


@pytest.fixture(scope="module")
def cluster() -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=4, config=CONFIG) as cluster:
        yield cluster


def assignment(cluster: sr.LocalCluster, topic: str) -> dict[str, tuple[int, ...]]:
    (found,) = cluster.admin.describe_topics([topic])
    return {f"{topic}-{each.partition}": each.replicas for each in found.partitions}


def fill(cluster: sr.LocalCluster, topic: str, partitions: int) -> None:
    """With numbers below those of a load."""
    batch = pa.record_batch([pa.array(range(-ROWS, 0))], schema=SCHEMA)
    with sr.Producer(cluster.bootstrap) as producer:
        for sent in [producer.send(topic, batch, partition=number) for number in range(partitions)]:
            sent.result(DEADLINE_S)


def stored(cluster: sr.LocalCluster, partition: str) -> list[dict[str, bytes]]:
    """By replica, all that must be the same; none as long as one is left that is to go."""
    folders = replica_folders(cluster, f"{partition}.*")
    if len(folders) != 3:
        return []
    return [
        {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in (".arrow", ".index")}
        for folder in folders
    ]


class Watch:
    """What people see of it: how much is left, and that nothing is below min ISR for it."""

    def __init__(self, cluster: sr.LocalCluster, topic: str) -> None:
        self._cluster = cluster
        self._topic = topic
        self.seen: list[list[ReassignmentDescription]] = []

    def look(self) -> list[ReassignmentDescription]:
        (topic,) = self._cluster.admin.describe_topics([self._topic])
        below = [(p.partition, p.isr, p.elr) for p in topic.partitions if len(p.isr) < p.min_isr]
        assert not below, f"below min ISR: {below}"
        self.seen.append(self._cluster.admin.reassignments())
        return self.seen[-1]

    def until(self, holds: Callable[[list[ReassignmentDescription]], bool], what: str) -> list[ReassignmentDescription]:
        eventually(lambda: holds(self.look()), what)
        return self.seen[-1]


def bytes_left(moving: list[ReassignmentDescription]) -> int | None:
    """None, as long as it is unknown of one of them."""
    known = [each.bytes_left for each in moving if each.bytes_left is not None]
    return sum(known) if len(known) == len(moving) else None


def test_many_partitions_move_under_load_while_the_controller_dies_and_some_go_back(cluster: sr.LocalCluster) -> None:
    admin = cluster.admin
    admin.create_topic("orders", SCHEMA, partitions=PARTITIONS)
    fill(cluster, "orders", PARTITIONS)
    before = assignment(cluster, "orders")
    targets = {name: (*({1, 2, 3, 4} - set(replicas)), *replicas[1:]) for name, replicas in before.items()}
    plan = admin.plan_reassignment(targets)
    assert [len(move.adding) for move in plan.moves] == [1] * PARTITIONS
    assert plan.unknown == ()
    assert all(move.bytes is not None and move.bytes >= ROWS * 8 for move in plan.moves)
    admin.configure(None, {"reassignment.bytes.per.second": BYTES_PER_SECOND})

    watch = Watch(cluster, "orders")
    with SharedLoad(cluster.zookeeper, "orders", PARTITIONS) as load:
        load.wait_for_more(2)
        began_s = time.monotonic()
        assert admin.apply(sr.Plan.from_json(plan.to_json())) == {}
        first = watch.until(lambda moving: bytes_left(moving) is not None, "how much is left is known")
        assert len(first) > PARTITIONS // 2

        controller = cluster.controller_pid
        assert controller is not None
        os.kill(controller, signal.SIGKILL)
        middle = watch.until(
            lambda moving: (
                cluster.controller_pid not in (None, controller) and any(each.time_left_ms for each in moving)
            ),
            "the next controller goes on, and a pace is known",
        )
        assert len(middle) > 10, "it is in the middle of it"
        left_first = bytes_left(first)
        assert left_first is not None
        watch.until(lambda moving: (bytes_left(moving) or left_first) < left_first, "less is left than at first")

        named = [each.partition for each in middle][-10:]
        refused = admin.cancel_reassignment(named)
        assert all(isinstance(error, NoReassignmentInProgress) for error in refused.values()), refused
        back = set(named) - refused.keys()
        assert back, "none of them had ended yet"
        later = watch.until(lambda moving: len(moving) < len(middle) - len(back), "it goes on, throttled")
        ended = PARTITIONS - len(later) - len(back)
        # Each broker may begin with a second's worth, and end with a batch that it has not made up for.
        allowed = 4 * (BYTES_PER_SECOND * (time.monotonic() - began_s + 1) + ROWS * 8)
        assert ended * ROWS * 8 <= allowed, "the throttle holds"

        admin.configure(None, {"reassignment.bytes.per.second": None})
        watch.until(lambda moving: not moving, "all of it has ended")
        load.wait_for_more(2)
    load.check_history()
    expected = {name: before[name] if name in back else targets[name] for name in before}
    assert assignment(cluster, "orders") == expected
    cluster.wait_healthy()
    for name in expected:
        eventually(
            lambda name=name: bool(found := stored(cluster, name)) and found[0] == found[1] == found[2],  # type: ignore[misc]
            f"the replicas of {name} are the same, and no other is left",
        )
        assert sum(map(len, stored(cluster, name)[0].values())) > ROWS * 8


def test_a_broker_is_drained_and_a_plan_from_before_that_is_stale(cluster: sr.LocalCluster) -> None:
    admin = cluster.admin
    admin.create_topic("small", SCHEMA, partitions=4)
    fill(cluster, "small", 4)
    stale = admin.plan_reassignment(over=[2, 3, 4], topics=["small"])
    assert {broker for move in stale.moves for broker in move.removing} == {1}
    plan = admin.drain_broker(1)
    admin.wait_reassigned([move.partition for move in plan.moves], DEADLINE_S)
    eventually(
        lambda: not any(1 in each.replicas for t in admin.describe_topics() for each in t.partitions),
        "nothing is left on broker 1",
    )
    refused = admin.apply(stale)
    there = assignment(cluster, "small")
    # One that went where the plan wanted it is no longer to be moved.
    assert set(refused) == {move.partition for move in stale.moves if move.target != there[move.partition]}
    assert all(isinstance(error, StalePlan) for error in refused.values())
    with pytest.raises(InvalidReplicaAssignment, match="only 2 live"):
        admin.plan_reassignment(without=[2, 3])
    eventually(lambda: not list((cluster.directory / "logs" / "broker-1").glob("small-*")), "its folders go")
    with sr.Producer(cluster.bootstrap) as producer:
        producer.send("small", pa.record_batch([pa.array([0])], schema=SCHEMA), partition=0).result(DEADLINE_S)
