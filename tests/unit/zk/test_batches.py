"""How groups become multi()s: tables."""

from __future__ import annotations

import pytest

from spark_replication.core.writes import BrokerRemoval, Group, PartitionWrite, TopicWrite
from spark_replication.errors import InvalidRequest
from spark_replication.model import ABSENT, PartitionState, TopicConfig, TopicPartition, TopicState, encode
from spark_replication.zk import batches, paths
from spark_replication.zk.batches import Item, Standing, multi_of, pack, standing, versions_stored, waves_of
from spark_replication.zk.session import EXISTS, Check, Create, Delete, Node, SetData

EPOCH = Check(paths.CONTROLLER_EPOCH, 3)
STATE = PartitionState(leader=1, leader_epoch=0, isr=frozenset({1}), min_isr=1, epochs={1: 0})
TOPIC = TopicState(topic_id="id", partitions={0: (1,)})


def partition(
    topic: str, number: int, version: int = ABSENT, relies_on: dict[int, int] | None = None
) -> PartitionWrite:
    return PartitionWrite(
        partition=TopicPartition(topic, number), state=STATE, version=version, relies_on=relies_on or {}
    )


def item(*writes: object, number: int = 0) -> Item:
    return Item(number, writes, root_bytes=10)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("write", "checks", "operations"),
    [
        (
            partition("foo", 0, 4, {2: 7, 1: 5}),
            (Check("/brokers/epochs/1", 5), Check("/brokers/epochs/2", 7)),
            (SetData("/brokers/topics/foo/0/leaderAndISR", encode(STATE), 4),),
        ),
        (
            partition("foo", 0),
            (),
            (Create("/brokers/topics/foo/0"), Create("/brokers/topics/foo/0/leaderAndISR", encode(STATE))),
        ),
        (
            TopicWrite(topic="foo", state=TOPIC),
            (),
            (
                Create("/brokers/topics/foo", encode(TOPIC)),
                Create("/brokers/topic_ids/id"),
                Create("/config/topics/foo", encode(TopicConfig())),
            ),
        ),
        (TopicWrite(topic="foo", state=TOPIC, version=2), (), (SetData("/brokers/topics/foo", encode(TOPIC), 2),)),
        (BrokerRemoval(broker=4, epoch=9), (Check("/brokers/epochs/4", 9),), (Delete("/brokers/ids/4", EXISTS),)),
    ],
)
def test_a_write_is_these_operations(write: object, checks: object, operations: object) -> None:
    made = item(write)
    assert (made.checks, made.operations) == (checks, operations)


def test_a_shared_check_is_in_a_multi_once_and_the_epoch_comes_first() -> None:
    one, two = item(partition("foo", 0, 1, {1: 5})), item(partition("foo", 1, 1, {1: 5, 2: 0}))
    assert multi_of([one, two], EPOCH) == [
        (EPOCH, None),
        (Check("/brokers/epochs/1", 5), None),
        (Check("/brokers/epochs/2", 0), None),
        (one.operations[0], one),
        (two.operations[0], two),
    ]


def test_multis_stay_below_both_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    items = [item(partition("foo", number, 1), number=number) for number in range(10)]
    monkeypatch.setattr(batches, "MULTI_OPERATIONS_MAX", 4)
    assert [len(batch) for batch in pack(items)] == [4, 4, 2]
    monkeypatch.setattr(batches, "MULTI_BYTES_MAX", 2 * items[0].bytes)
    assert [len(batch) for batch in pack(items)] == [2, 2, 2, 2, 2]
    monkeypatch.setattr(batches, "MULTI_BYTES_MAX", 1)
    assert [len(batch) for batch in pack(items)] == [1] * 10, "a group is never split, whatever its size"
    assert list(pack([])) == []


def test_a_group_past_what_zookeeper_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    size = item(partition("foo", 0), partition("foo", 1)).bytes
    monkeypatch.setattr(batches, "GROUP_BYTES_MAX", size)
    item(partition("foo", 0), partition("foo", 1))
    monkeypatch.setattr(batches, "GROUP_BYTES_MAX", size - 1)
    with pytest.raises(InvalidRequest, match="fewer partitions"):
        item(partition("foo", 0), partition("foo", 1))


@pytest.mark.parametrize(
    ("groups", "waves"),
    [
        ([], []),
        ([(partition("foo", 0),), (partition("foo", 1),), (BrokerRemoval(broker=1, epoch=0),)], [[0, 1, 2]]),
        ([(TopicWrite(topic="foo", state=TOPIC),), (partition("foo", 0),), (partition("bar", 0),)], [[0, 2], [1]]),
        ([(partition("foo", 0, 1),), (partition("foo", 0, 2),), (partition("foo", 0, 3),)], [[0], [1], [2]]),
        ([(TopicWrite(topic="foo", state=TOPIC), partition("foo", 0)), (partition("foo", 1),)], [[0], [1]]),
    ],
)
def test_a_group_comes_after_those_whose_nodes_it_needs(groups: list[Group], waves: list[list[int]]) -> None:
    items = [Item(number, group, 0) for number, group in enumerate(groups)]
    assert [[one.number for one in wave] for wave in waves_of(items)] == waves


def node(data: bytes = b"", version: int = 0) -> Node:
    return Node(data, version, zxid=77, created_zxid=70, owner=0)


LEADER_AND_ISR = paths.leader_and_isr(TopicPartition("foo", 0))
THERE = {paths.topic("foo"): node(), paths.partition(TopicPartition("foo", 0)): None}


@pytest.mark.parametrize(
    ("write", "nodes", "unsure", "expected"),
    [
        (partition("foo", 0, 4), {LEADER_AND_ISR: node(version=4)}, False, Standing.OPEN),
        (partition("foo", 0, 4), {LEADER_AND_ISR: node(version=5)}, False, Standing.LOST),
        (partition("foo", 0, 4), {LEADER_AND_ISR: None}, False, Standing.LOST),
        # Ours, or another's with the same content: told apart by whether an answer of ours is missing.
        (partition("foo", 0, 4), {LEADER_AND_ISR: node(encode(STATE), 5)}, False, Standing.LOST),
        (partition("foo", 0, 4), {LEADER_AND_ISR: node(encode(STATE), 5)}, True, Standing.STORED),
        (partition("foo", 0, 4), {LEADER_AND_ISR: node(encode(STATE), 6)}, True, Standing.LOST),
        (partition("foo", 0, 4), {LEADER_AND_ISR: node(b"{}", 5)}, True, Standing.LOST),
        (partition("foo", 0, 4), {LEADER_AND_ISR: node(version=4)}, True, Standing.OPEN),
        (partition("foo", 0), {LEADER_AND_ISR: None, **THERE}, False, Standing.OPEN),
        (partition("foo", 0), {LEADER_AND_ISR: None, **THERE, paths.topic("foo"): None}, False, Standing.LOST),
        (partition("foo", 0), {LEADER_AND_ISR: node(), **THERE}, False, Standing.LOST),
        (partition("foo", 0), {LEADER_AND_ISR: node(encode(STATE)), **THERE}, True, Standing.STORED),
        (partition("foo", 0, 4, {1: 5}), {LEADER_AND_ISR: node(version=4), "/brokers/epochs/1": node(version=5)}, False,
         Standing.OPEN),
        (partition("foo", 0, 4, {1: 5}), {LEADER_AND_ISR: node(version=4), "/brokers/epochs/1": node(version=6)}, False,
         Standing.LOST),
        (partition("foo", 0, 4, {1: 5}), {LEADER_AND_ISR: node(version=4), "/brokers/epochs/1": None}, False,
         Standing.LOST),
        (TopicWrite(topic="foo", state=TOPIC), {paths.topic("foo"): None}, False, Standing.OPEN),
        (TopicWrite(topic="foo", state=TOPIC), {paths.topic("foo"): node()}, True, Standing.LOST),
        (TopicWrite(topic="foo", state=TOPIC), {paths.topic("foo"): node(encode(TOPIC))}, True, Standing.STORED),
        (BrokerRemoval(broker=1, epoch=5), {"/brokers/ids/1": None, "/brokers/epochs/1": node(version=5)}, True,
         Standing.STORED),
        (BrokerRemoval(broker=1, epoch=5), {"/brokers/ids/1": None, "/brokers/epochs/1": node(version=5)}, False,
         Standing.LOST),
        (BrokerRemoval(broker=1, epoch=5), {"/brokers/ids/1": node(), "/brokers/epochs/1": node(version=5)}, True,
         Standing.OPEN),
        (BrokerRemoval(broker=1, epoch=5), {"/brokers/ids/1": node(), "/brokers/epochs/1": node(version=6)}, True,
         Standing.LOST),
    ],
)  # fmt: skip
def test_where_a_write_stands(write: object, nodes: dict[str, Node | None], unsure: object, expected: Standing) -> None:
    made = item(write)
    made.unsure = bool(unsure)
    assert set(batches.paths_of(made)) <= set(nodes)
    assert standing(made, nodes) is expected


def test_a_stored_group_is_answered_with_what_is_there() -> None:
    made = item(partition("foo", 0, 4), BrokerRemoval(broker=1, epoch=5))
    nodes = {LEADER_AND_ISR: node(version=5), "/brokers/ids/1": None}
    assert versions_stored(made, nodes) == ((5, 77), (0, 0))
