"""Routes as metadata tell them: what is newer wins, and what is missing says what to do."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.core.routing import Route, Routing, learned, partition_of
from spark_replication.errors import LeaderNotAvailable, ReplicationError, UnknownTopicOrPartition, WrongCluster
from spark_replication.messages.commands import PartitionCommand
from spark_replication.messages.descriptions import Metadata, TopicMetadata
from spark_replication.model import PartitionState, Registration, TopicConfig


def broker(id_: int) -> Registration:
    return Registration(host=f"host{id_}", port=9_000 + id_, replication_port=1, epoch=1, incarnation="one")


def partition(
    leader: int | None, epoch: int, *, partition_epoch: int = 0, number: int = 0, id_: str = "id"
) -> PartitionCommand:
    isr = frozenset() if leader is None else frozenset({leader})
    return PartitionCommand(
        topic="orders",
        partition=number,
        topic_id=id_,
        replicas=(1, 2),
        state=PartitionState(leader=leader, leader_epoch=epoch, isr=isr, min_isr=1, epochs=dict.fromkeys(isr, 0)),
        partition_epoch=partition_epoch,
    )


def metadata(*partitions: PartitionCommand, cluster_id: str = "c", brokers: tuple[int, ...] = (1, 2)) -> Metadata:
    topics = (
        TopicMetadata(name="orders", topic_id=partitions[0].topic_id, config=TopicConfig(), partitions=partitions),
    )
    return Metadata(
        cluster_id=cluster_id,
        brokers={id_: broker(id_) for id_ in brokers},
        controller="host1:1",
        topics=topics if partitions else (),
    )


def empty(cluster_id: str = "c") -> Metadata:
    return Metadata(cluster_id=cluster_id, brokers={}, topics=())


def routing(*answers: Metadata) -> Routing:
    known = Routing()
    for answer in answers:
        known = learned(known, answer, ("orders",))
    return known


def test_a_route_is_the_leader_and_its_address() -> None:
    known = routing(metadata(partition(2, 7)))
    assert known.route("orders", 0) == Route(
        topic="orders",
        partition=0,
        topic_id="id",
        leader=2,
        leader_epoch=7,
        address="host2:9002",
        replication_port=1,
    )
    assert known.controller == "host1:1"


@pytest.mark.parametrize(
    ("second", "leader", "epoch"),
    [
        (partition(2, 8), 2, 8),
        (partition(2, 7, partition_epoch=4), 2, 7),
        (partition(2, 7, partition_epoch=2), 1, 7),
        (partition(2, 6, partition_epoch=9), 1, 7),
        (partition(2, 0, id_="another"), 2, 0),
    ],
)
def test_what_is_older_never_replaces_what_is_newer_of_the_same_topic_id(
    second: PartitionCommand, leader: int, epoch: int
) -> None:
    route = routing(metadata(partition(1, 7, partition_epoch=3)), metadata(second)).route("orders", 0)
    assert (route.leader, route.leader_epoch) == (leader, epoch)


def three(epoch: int, *numbers: int, id_: str = "id") -> Metadata:
    return metadata(*(partition(1, epoch, number=number, id_=id_) for number in numbers or range(3)))


@pytest.mark.parametrize(
    ("answer", "epochs"),
    [
        (three(8, 1), [7, 8, 7]),
        (three(6, 1), [7, 7, 7]),
        (three(8), [8, 8, 8]),  # whoever answers may tell of others, too
        (three(8, 2), [7, None, 8]),  # it is gone
        (three(8, 1, 3), [7, 8, 7, 8]),
    ],
)
def test_partitions_that_were_not_asked_for_stay_as_they_are(answer: Metadata, epochs: list[int | None]) -> None:
    known = learned(routing(three(7)), answer, ("orders",), {"orders": (1,)})
    found = {each.partition: each.state.leader_epoch for each in known.topic("orders").partitions}
    assert found == {number: epoch for number, epoch in enumerate(epochs) if epoch is not None}
    assert list(found) == sorted(found)


def test_a_topic_that_was_made_again_is_not_known_by_some_of_its_partitions() -> None:
    """How many it has, so which partition a key belongs to, is not in that answer."""
    known = learned(routing(three(7)), three(0, 1, id_="another"), ("orders",), {"orders": (1,)})
    with pytest.raises(UnknownTopicOrPartition):
        known.route("orders", 1)
    whole = learned(known, three(0, id_="another"), ("orders",))
    assert whole.route("orders", 2).topic_id == "another"
    with pytest.raises(UnknownTopicOrPartition):
        learned(Routing(), three(7, 1), ("orders",), {"orders": (1,)}).route("orders", 1)


def test_a_broker_that_does_not_know_the_topic_makes_nobody_forget_its_epoch() -> None:
    known = routing(metadata(partition(1, 7)), empty())
    with pytest.raises(UnknownTopicOrPartition, match="nobody knows a topic 'orders': check its name, or create it"):
        known.route("orders", 0)
    again = learned(known, metadata(partition(2, 6)), ("orders",))
    assert again.route("orders", 0).leader_epoch == 7


@pytest.mark.parametrize(
    ("answer", "number", "error", "text"),
    [
        (empty(), 0, UnknownTopicOrPartition, "check its name, or create it"),
        (metadata(partition(1, 7)), 3, UnknownTopicOrPartition, "orders has the partitions 0: choose one of them"),
        (metadata(partition(1, 7, number=4)), 0, UnknownTopicOrPartition, "orders has the partitions 4"),
        (metadata(partition(1, 7)), -1, UnknownTopicOrPartition, "there is no orders--1"),
        (metadata(partition(None, 7)), 0, LeaderNotAvailable, "orders-0 has no leader .leader epoch 7.*retry"),
        (metadata(partition(1, 7), brokers=(2,)), 0, LeaderNotAvailable, "led by broker 1 .*not registered: retry"),
    ],
)
def test_without_a_route_the_error_says_what_to_do(
    answer: Metadata, number: int, error: type[ReplicationError], text: str
) -> None:
    with pytest.raises(error, match=text) as raised:
        routing(answer).route("orders", number)
    assert raised.value.retriable
    assert raised.value.stale_routes


def test_partitions_are_found_by_their_number_wherever_they_stand() -> None:
    known = routing(metadata(partition(1, 0, number=2), partition(2, 0, number=0)))
    assert [known.route("orders", number).leader for number in (0, 2)] == [2, 1]


def test_another_cluster_is_refused() -> None:
    with pytest.raises(WrongCluster, match="cluster other"):
        routing(metadata(partition(1, 7)), empty("other"))


def test_a_key_stays_with_its_partition_and_keys_spread_over_those_that_there_are() -> None:
    known = routing(metadata(*(partition(1, 0, number=number) for number in (5, 0, 2)))).topic("orders")
    placed = [partition_of(known, b"customer-%d" % number) for number in range(300)]
    assert placed == [partition_of(known, b"customer-%d" % number) for number in range(300)]
    assert {number: placed.count(number) > 60 for number in placed} == {0: True, 2: True, 5: True}
    assert partition_of(known, b"123456789") == [0, 2, 5][0xCBF43926 % 3], "CRC-32's published check value"


def test_a_topic_without_partitions_is_not_known_yet() -> None:
    """Else whoever goes by it would read nothing of it, or ask for it no more."""
    none_yet = TopicMetadata(name="orders", topic_id="", config=TopicConfig(), partitions=())
    known = routing(Metadata(cluster_id="c", brokers={}, topics=(none_yet,)))
    with pytest.raises(UnknownTopicOrPartition, match="no partitions yet: retry"):
        known.topic("orders")


def test_followers_are_the_registered_members_of_the_isr_that_do_not_lead() -> None:
    led = partition(1, 7)
    in_sync = frozenset({1, 2, 3})
    wide = replace(led, state=replace(led.state, isr=in_sync, epochs=dict.fromkeys(in_sync, 0)))
    followers = routing(metadata(wide)).followers("orders", 0)
    assert {broker: registration.address for broker, registration in followers.items()} == {2: "host2:9002"}
    assert routing(metadata(led)).followers("orders", 0) == {}
    with pytest.raises(UnknownTopicOrPartition):
        routing(metadata(led)).followers("orders", 1)


def hiding(answer: Metadata, *numbers: int) -> Metadata:
    (topic,) = answer.topics
    return replace(answer, topics=(replace(topic, hidden=numbers),))


def test_a_key_keeps_its_partition_while_others_cannot_be_read() -> None:
    three = metadata(*(partition(1, 1, number=number) for number in range(3)))
    two = hiding(metadata(*(partition(1, 1, number=number) for number in (0, 2))), 1)
    keys = [b"%d" % number for number in range(100)]
    assert [partition_of(routing(two).topic("orders"), key) for key in keys] == [
        partition_of(routing(three).topic("orders"), key) for key in keys
    ]
    with pytest.raises(LeaderNotAvailable, match="the state of orders-1 in ZooKeeper is being made, or cannot be read"):
        routing(two).route("orders", 1)
    with pytest.raises(UnknownTopicOrPartition, match="orders has the partitions 0 to 2"):
        routing(two).route("orders", 3)


def test_what_was_known_of_a_partition_that_is_hidden_now_is_kept() -> None:
    before = metadata(partition(1, 1), partition(2, 5, number=1))
    known = routing(before, hiding(metadata(partition(1, 2)), 1))
    assert known.route("orders", 1).leader_epoch == 5
    assert known.topic("orders").hidden == ()
    assert [each.partition for each in routing(before, metadata(partition(1, 2))).topic("orders").partitions] == [0]


def test_what_is_hidden_is_so_until_somebody_tells_of_it() -> None:
    hidden = hiding(metadata(partition(1, 1)), 1, 2)
    known = learned(routing(hidden), metadata(partition(1, 2)), ("orders",), {"orders": (0,)})
    assert known.topic("orders").hidden == (1, 2), "nobody asked for it"
    known = learned(known, metadata(partition(2, 1, number=1)), ("orders",), {"orders": (1,)})
    assert (known.topic("orders").hidden, known.topic("orders").numbers) == ((2,), (0, 1, 2))
