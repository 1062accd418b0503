"""How groups become multi()s: tables."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_replication.core.law.standing import Standing, moved_on, standing
from spark_replication.core.law.writes import (
    BrokerRemoval,
    ClusterConfigWrite,
    DeletionMark,
    Group,
    Made,
    PartitionRemoval,
    PartitionWrite,
    RequestRemoval,
    TopicConfigWrite,
    TopicRemoval,
    TopicWrite,
)
from spark_replication.errors import InvalidRequest
from spark_replication.model import (
    ABSENT,
    ClusterSettings,
    PartitionState,
    TopicConfig,
    TopicPartition,
    TopicState,
    encode,
)
from spark_replication.zk import paths
from spark_replication.zk.controller import batches
from spark_replication.zk.controller.batches import Item, looks_at, made_by, multi_of, pack, waves_of
from spark_replication.zk.operations import EXISTS, Check, Create, Delete, Node, SetData

EPOCH = Check(paths.CONTROLLER_EPOCH, 3)
STATE = PartitionState(leader=1, leader_epoch=0, isr=frozenset({1}), min_isr=1, epochs={1: 0})
TOPIC = TopicState(topic_id="id", partitions={0: (1,)})
CONFIG = TopicConfig(settings={"min.insync.replicas": 2})
SETTINGS = ClusterSettings(settings={"min.insync.replicas": 1})
REQUEST = "/admin/partitions_add/foo/3"
REMOVAL = TopicRemoval(topic="foo", topic_id="id")
REMOVED = ("/brokers/topics/foo", "/brokers/topic_ids/id", "/config/topics/foo", "/admin/delete_topics/foo")


def partition(
    topic: str, number: int, version: int = ABSENT, relies_on: dict[int, int] | None = None
) -> PartitionWrite:
    return PartitionWrite(
        partition=TopicPartition(topic, number), state=STATE, version=version, relies_on=relies_on or {}
    )


def node(data: bytes = b"", version: int = 0) -> Node:
    return Node(data, version, zxid=77, created_zxid=70, owner=0, children_zxid=90, modified_ms=9)


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
        (DeletionMark(topic="foo"), (), (Create("/admin/delete_topics/foo"),)),
        (
            PartitionRemoval(partition=TopicPartition("foo", 0)),
            (),
            (Delete("/brokers/topics/foo/0/leaderAndISR", EXISTS), Delete("/brokers/topics/foo/0", EXISTS)),
        ),
        (REMOVAL, (), tuple(Delete(path, EXISTS) for path in REMOVED)),
        (
            TopicConfigWrite(topic="foo", config=CONFIG),
            (),
            (SetData("/config/topics/foo", encode(CONFIG), EXISTS),),
        ),
        (ClusterConfigWrite(config=SETTINGS), (), (SetData("/config/cluster", encode(SETTINGS), EXISTS),)),
        (RequestRemoval(path=REQUEST), (), (Delete(REQUEST, EXISTS),)),
    ],
)
def test_a_write_is_these_operations(write: object, checks: object, operations: object) -> None:
    made = item(write)
    assert (made.checks, made.operations) == (checks, operations)


@pytest.mark.parametrize(
    ("write", "there", "operations"),
    [
        (DeletionMark(topic="foo"), ["/admin/delete_topics/foo"], ()),
        (DeletionMark(topic="foo"), [], (Create("/admin/delete_topics/foo"),)),
        (
            PartitionRemoval(partition=TopicPartition("foo", 0)),
            ["/brokers/topics/foo/0"],
            (Delete("/brokers/topics/foo/0", EXISTS),),
        ),
        (PartitionRemoval(partition=TopicPartition("foo", 0)), [], ()),
        (REMOVAL, REMOVED[1:3], (Delete(REMOVED[1], EXISTS), Delete(REMOVED[2], EXISTS))),
        (REMOVAL, [], ()),
        (TopicConfigWrite(topic="foo", config=CONFIG), [], (Create("/config/topics/foo", encode(CONFIG)),)),
        (ClusterConfigWrite(config=SETTINGS), [], (Create("/config/cluster", encode(SETTINGS)),)),
        (RequestRemoval(path=REQUEST), [], ()),
        (
            partition("foo", 0),
            ["/brokers/topics/foo", "/brokers/topics/foo/0"],
            (Create("/brokers/topics/foo/0/leaderAndISR", encode(STATE)),),
        ),
        (BrokerRemoval(broker=4, epoch=9), ["/brokers/ids/4"], (Delete("/brokers/ids/4", EXISTS),)),
    ],
)
def test_what_is_there_or_gone_already_is_not_asked_for(
    write: object, there: Sequence[str], operations: object
) -> None:
    made = item(write)
    as_thought = made.operations
    nodes = {path: node() if path in there else None for path in batches.paths_of(made)}
    assert made.learn(nodes) == (made.operations != as_thought)
    assert made.operations == operations
    assert not made.learn(nodes), "nothing is new the second time"
    assert stands(made, {**nodes, **{check.path: node(version=check.version) for check in made.checks}}) is (
        Standing.OPEN
    )


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
    assert [len(batch) for batch in pack(items, 4)] == [4, 4, 2]
    monkeypatch.setattr(batches, "MULTI_BYTES_MAX", 2 * items[0].bytes)
    assert [len(batch) for batch in pack(items, 4)] == [2, 2, 2, 2, 2]
    monkeypatch.setattr(batches, "MULTI_BYTES_MAX", 1)
    assert [len(batch) for batch in pack(items, 4)] == [1] * 10, "a group is never split, whatever its size"
    assert list(pack([], 4)) == []


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


def stands(of: Item, nodes: dict[str, Node | None]) -> Standing:
    return standing(looks_at(of, nodes), is_lost=of.unsure)


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
        (DeletionMark(topic="foo"), {"/admin/delete_topics/foo": node()}, False, Standing.OPEN),
        (DeletionMark(topic="foo"), {"/admin/delete_topics/foo": node()}, True, Standing.STORED),
        (DeletionMark(topic="foo"), {"/admin/delete_topics/foo": None}, True, Standing.OPEN),
        (PartitionRemoval(partition=TopicPartition("foo", 0)),
         {LEADER_AND_ISR: None, "/brokers/topics/foo/0": None}, True, Standing.STORED),
        (PartitionRemoval(partition=TopicPartition("foo", 0)),
         {LEADER_AND_ISR: None, "/brokers/topics/foo/0": node()}, True, Standing.OPEN),
        (REMOVAL, dict.fromkeys((*REMOVED, paths.TOPICS)), True, Standing.STORED),
        (REMOVAL, {**dict.fromkeys((*REMOVED, paths.TOPICS)), REMOVED[3]: node()}, True, Standing.OPEN),
        (REMOVAL, dict.fromkeys((*REMOVED, paths.TOPICS)), False, Standing.OPEN),
        (TopicConfigWrite(topic="foo", config=CONFIG), {"/config/topics/foo": node(encode(CONFIG), 5)}, True,
         Standing.STORED),
        (TopicConfigWrite(topic="foo", config=CONFIG), {"/config/topics/foo": node(b"{}", 5)}, True, Standing.OPEN),
        (ClusterConfigWrite(config=SETTINGS), {"/config/cluster": None}, True, Standing.OPEN),
        (RequestRemoval(path=REQUEST), {REQUEST: None}, True, Standing.STORED),
        (RequestRemoval(path=REQUEST), {REQUEST: node()}, False, Standing.OPEN),
    ],
)  # fmt: skip
def test_where_a_write_stands(write: object, nodes: dict[str, Node | None], unsure: object, expected: Standing) -> None:
    made = item(write)
    made.unsure = bool(unsure)
    assert set(batches.paths_of(made)) <= set(nodes)
    assert stands(made, nodes) is expected


def test_a_stored_group_is_answered_with_what_is_there() -> None:
    made = item(partition("foo", 0, 4), BrokerRemoval(broker=1, epoch=5))
    nodes = {LEADER_AND_ISR: node(version=5), "/brokers/ids/1": None, "/brokers/epochs/1": node(version=5)}
    assert made_by(looks_at(made, nodes), nodes) == (Made(5, 77, 9), Made())


FOO_1_ISR = paths.leader_and_isr(TopicPartition("foo", 1))
GROWN = TopicWrite(topic="foo", state=TOPIC, version=2)


def written(version: int) -> Node:
    return node(encode(STATE), version)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        # One node that shows our write speaks for all of the multi(), whatever became of the others.
        ((node(encode(TOPIC), 3), written(5), written(5)), Standing.STORED),
        ((node(encode(TOPIC), 3), node(b"{}", 6), written(5)), Standing.STORED),
        ((node(encode(TOPIC), 3), node(b"{}", 6), node(b"{}", 9)), Standing.STORED),
        ((node(encode(TOPIC), 3), None, None), Standing.STORED),
        ((node(b"{}", 9), node(b"{}", 6), written(5)), Standing.STORED),
        # None shows it.
        ((node(b"{}", 2), node(b"{}", 4), node(b"{}", 4)), Standing.OPEN),
        ((node(b"{}", 2), node(b"{}", 6), node(b"{}", 4)), Standing.LOST),
        ((node(b"{}", 3), node(b"{}", 5), node(b"{}", 5)), Standing.LOST),
        ((None, None, None), Standing.LOST),
    ],
)
def test_of_a_lost_answer_one_node_that_shows_the_write_proves_it_stored(
    nodes: tuple[Node | None, ...], expected: Standing
) -> None:
    made = item(GROWN, partition("foo", 0, 4), partition("foo", 1, 4))
    read = dict(zip((paths.topic("foo"), LEADER_AND_ISR, FOO_1_ISR), nodes, strict=True))
    made.unsure = True
    assert stands(made, read) is expected
    made.unsure = False
    assert stands(made, read) is (Standing.OPEN if expected is Standing.OPEN else Standing.LOST)


@pytest.mark.parametrize(
    ("write", "nodes"),
    [
        (TopicConfigWrite(topic="foo", config=CONFIG), {"/config/topics/foo": node(encode(CONFIG), 5)}),
        (DeletionMark(topic="foo"), {"/admin/delete_topics/foo": node()}),
        (RequestRemoval(path=REQUEST), {REQUEST: None}),
        (BrokerRemoval(broker=1, epoch=5), {"/brokers/ids/1": None, "/brokers/epochs/1": node(version=5)}),
        (PartitionRemoval(partition=TopicPartition("foo", 1)), {FOO_1_ISR: None, "/brokers/topics/foo/1": None}),
    ],
)
def test_what_may_have_been_so_before_proves_nothing(write: object, nodes: dict[str, Node | None]) -> None:
    made = item(write, partition("foo", 0, 4))
    made.unsure = True
    assert stands(made, {**nodes, LEADER_AND_ISR: node(b"{}", 6)}) is Standing.LOST


def test_a_stored_group_whose_partitions_moved_on_tells_what_it_made_and_which_they_are() -> None:
    made = item(GROWN, partition("foo", 0, 4), partition("foo", 1, 4))
    made.unsure = True
    nodes = {paths.topic("foo"): node(encode(TOPIC), 3), LEADER_AND_ISR: node(b"{}", 7), FOO_1_ISR: written(5)}
    assert made_by(looks_at(made, nodes), nodes) == (Made(3, 77, 9), Made(5, 77, 9), Made(5, 77, 9))
    assert list(moved_on(looks_at(made, nodes))) == [partition("foo", 0, 4)]
    assert list(moved_on(looks_at(made, {**nodes, LEADER_AND_ISR: None}))) == []


def test_a_removed_topics_zxid_is_its_parents() -> None:
    nodes: dict[str, Node | None] = dict.fromkeys(REMOVED)
    for topics, at in (node(), Made(zxid=90)), (None, Made()):
        seen = {**nodes, paths.TOPICS: topics}
        assert made_by(looks_at(item(REMOVAL), seen), seen) == (at,)


def test_a_config_and_what_it_calls_for_are_stored_together_or_not_at_all() -> None:
    made = item(TopicConfigWrite(topic="foo", config=CONFIG), partition("foo", 0, 4))
    fine: dict[str, Node | None] = {"/config/topics/foo": node(), LEADER_AND_ISR: node(version=4)}
    assert stands(made, fine) is Standing.OPEN
    assert stands(made, {**fine, LEADER_AND_ISR: node(version=5)}) is Standing.LOST
