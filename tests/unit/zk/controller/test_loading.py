"""What a controller knows once it has loaded what is stored."""

from __future__ import annotations

import pytest

from spark_replication.config import Settings
from spark_replication.errors import NotController
from spark_replication.model import PartitionState, TopicConfig, TopicPartition, TopicState, encode
from spark_replication.sim.world.znodes import Znodes
from spark_replication.zk import paths
from spark_replication.zk.controller.loading import load
from spark_replication.zk.operations import Committed, Create

STATE = PartitionState(leader=1, leader_epoch=7, isr=frozenset({1}), min_isr=1, epochs={1: 0})


def tree_with(assigned: int, states: int, folders: int = 0, *, controlled: bool = True) -> Znodes:
    """A topic that is assigned so many partitions; these have a state, these a folder without one."""
    tree = Znodes(paths.BASE)
    topic = TopicState(topic_id="id", partitions=dict.fromkeys(range(assigned), (1,)))
    operations = [
        Create(paths.topic("orders"), encode(topic)),
        Create(paths.topic_id("id")),
        Create(paths.topic_config("orders"), encode(TopicConfig())),
    ]
    for number in range(max(states, folders)):
        partition = TopicPartition("orders", number)
        operations.append(Create(paths.partition(partition)))
        if number < states:
            operations.append(Create(paths.leader_and_isr(partition), encode(STATE)))
    if controlled:
        operations.append(Create(paths.CONTROLLER, b"{}"))
    assert isinstance(tree.multi(operations), Committed)
    return tree


@pytest.mark.parametrize("assigned", [2, 1])
def test_the_state_of_a_partition_that_was_removed_is_kept_for_when_it_is_added_again(assigned: int) -> None:
    """Its epochs go on from there (E4)."""
    loaded, _ = load(tree_with(assigned, 2), Settings(), "cluster", 3)
    assert list(loaded.topics["orders"].state.partitions) == list(range(assigned))
    assert {of.partition: stored.state.leader_epoch for of, stored in loaded.partitions.items()} == {0: 7, 1: 7}
    assert loaded.removed == frozenset()


def test_a_state_that_somebody_has_removed_is_named() -> None:
    loaded, _ = load(tree_with(2, 1, folders=2), Settings(), "cluster", 3)
    assert loaded.removed == {TopicPartition("orders", 1)}
    assert list(loaded.partitions) == [TopicPartition("orders", 0)]


def test_whoever_no_longer_holds_the_place_loads_nothing() -> None:
    with pytest.raises(NotController, match="is gone again"):
        load(tree_with(1, 1, controlled=False), Settings(), "cluster", 3)
