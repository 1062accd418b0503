"""A simulated controller's write whose answer is lost: what became of it is read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_replication.core.law.partition_change import with_isr
from spark_replication.core.law.writes import (
    Group,
    GroupAnswer,
    PartitionWrite,
    Refused,
    Stored,
    StoredPartition,
    TopicWrite,
)
from spark_replication.model import TopicPartition, encode
from spark_replication.sim.cast.cluster import TOPIC, SimulatedCluster
from spark_replication.sim.world.world import World
from spark_replication.sim.world.zookeeper import Taken
from spark_replication.zk import paths
from spark_replication.zk.operations import Committed, SetData

ORDERS = TopicPartition(TOPIC, 0)
STARTED_MS = 2_000
ARRIVED_MS = 4
ANSWERED_MS = 500


class Story:
    """A cluster whose topic is there, and what its controller is answered."""

    def __init__(self, seed: int = 1) -> None:
        self.cluster = SimulatedCluster(World(seed), brokers=3, candidates=1, settings={})
        self.cluster.start()
        self.cluster.world.run(STARTED_MS)
        self.answers: list[GroupAnswer] = []

    def commit(self, groups: list[Group], taken: Taken, meanwhile: Callable[[], object] = lambda: None) -> None:
        """meanwhile: after the write has come or gone, and before anybody reads."""
        controller, world = self.cluster.controller(), self.cluster.world
        assert controller is not None
        assert controller.commanding is not None
        self.cluster.zookeeper.take_next("controller writes", taken)
        controller.commanding.commit(groups, self.answers.extend)
        world.run(world.now_ms + ARRIVED_MS)
        assert not self.answers
        meanwhile()
        world.run(world.now_ms + ANSWERED_MS)

    @property
    def stored(self) -> StoredPartition:
        return self.cluster.store.partitions[ORDERS]

    def assigned_again(self, times: int = 1) -> list[TopicWrite]:
        known = self.cluster.store.topics[TOPIC]
        return [TopicWrite(topic=TOPIC, state=known.state, version=known.version + number) for number in range(times)]

    def written_again(self) -> PartitionWrite:
        return PartitionWrite(partition=ORDERS, state=self.stored.state, version=self.stored.version)

    def leader_writes(self) -> None:
        leader = self.stored.state.leader
        assert leader is not None
        alone = with_isr(self.stored.state, frozenset({leader}), joined={})
        path = paths.leader_and_isr(ORDERS)
        assert isinstance(self.cluster.zookeeper.multi([SetData(path, encode(alone), self.stored.version)]), Committed)


@pytest.mark.parametrize("taken", Taken)
def test_a_write_is_stored_once_whatever_was_lost(taken: Taken) -> None:
    story = Story()
    version = story.stored.version
    story.commit([(story.written_again(),)], taken)
    (answer,) = story.answers
    assert isinstance(answer, Stored)
    assert (answer.made[0].version, answer.made[0].zxid, answer.newer) == (version + 1, story.stored.zxid, {})
    assert story.stored.version == version + 1


def test_a_group_is_stored_though_a_leader_has_written_since() -> None:
    story = Story()
    version, (assigned,) = story.stored.version, story.assigned_again()
    story.commit([(assigned, story.written_again())], Taken.ANSWER, meanwhile=story.leader_writes)
    (answer,) = story.answers
    assert isinstance(answer, Stored)
    assert [made.version for made in answer.made] == [assigned.version + 1, version + 1]
    assert answer.newer == {ORDERS: story.stored}
    assert story.stored.version == version + 2


def test_a_group_that_never_came_is_refused_if_a_leader_was_faster() -> None:
    story = Story()
    (assigned,) = story.assigned_again()
    story.commit([(assigned, story.written_again())], Taken.REQUEST, meanwhile=story.leader_writes)
    (answer,) = story.answers
    assert isinstance(answer, Refused)
    assert answer.current == {ORDERS: story.stored}
    assert story.cluster.store.topics[TOPIC].version == assigned.version


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("taken", Taken)
def test_groups_of_one_topic_do_not_hide_each_other(taken: Taken, seed: int) -> None:
    story = Story(seed)
    again = story.assigned_again(times=3)
    story.commit([(write,) for write in again], taken)
    versions = [answer.made[0].version for answer in story.answers if isinstance(answer, Stored)]
    assert versions == [write.version + 1 for write in again]
