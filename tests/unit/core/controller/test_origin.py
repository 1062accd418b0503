"""What set things off, in words that a person reads."""

from __future__ import annotations

from typing import get_args

import pytest

from spark_replication.core.controller.events import (
    BrokerDeathReported,
    BrokersRead,
    Event,
    LogInfoRead,
    LogsAhead,
    NodesUnreadable,
    PartitionsRead,
    ReplicasDamaged,
    ReplicasFailed,
    Requested,
    Ticked,
    TookOver,
)
from spark_replication.core.controller.origin import NAMED_MAX, WORDS_MAX, Origin, in_words, origin_of
from spark_replication.core.controller.plan import Advance, BrokersMoved
from spark_replication.core.law.acls import ACLS
from spark_replication.messages.commands import ReplicaLogInfos
from spark_replication.messages.mending import DiskDamage
from spark_replication.messages.requests import (
    AcknowledgeLoss,
    AddPartitions,
    CancelReassignment,
    ChangeAcls,
    Configure,
    CreateTopic,
    DeleteTopic,
    ElectLeaders,
    Reassign,
    RemovePartitions,
    Request,
    SetQuota,
    WidenTopic,
)
from spark_replication.model import ReplicaOf, TopicPartition

LOST = DiskDamage(batches=1, mended=0, words="")
READ = BrokersRead(brokers={}, broker_epochs={})


@pytest.mark.parametrize(
    ("event", "kind", "words", "is_fact"),
    [
        (TookOver(), "take_over", "a controller took over", True),
        (BrokerDeathReported(2, "x"), "report", "the process of broker 2 was seen to end", True),
        (
            ReplicasFailed(2, 1, (ReplicaOf(TopicPartition("orders", 0), "id"),)),
            "disk",
            "the disk of broker 2 cannot keep orders-0",
            True,
        ),
        (
            ReplicasDamaged(2, 1, {ReplicaOf(TopicPartition("orders", 0), "id"): LOST}),
            "damage",
            "broker 2 told of its disk, and orders-0",
            False,
        ),
        (
            LogsAhead(2, 1, {ReplicaOf(TopicPartition("orders", 0), "id"): 7}),
            "ahead",
            "broker 2 has logs from after the time that ZooKeeper is as of: orders-0 (epoch 7)",
            True,
        ),
        (READ, "brokers", "brokers were read", False),
        (PartitionsRead({}), "isr", "leaders changed their ISR", False),
        (NodesUnreadable("/brokers/ids", {}), "unreadable", "/brokers/ids was read", False),
        (LogInfoRead(3, ReplicaLogInfos(broker_epoch=0, partitions=())), "logs", "broker 3 told of its logs", False),
        (Ticked(0), "time", "the controller looked for what was due", False),
        (Advance(()), "again", "the controller went on with what it had begun", False),
    ],
)
def test_each_event(event: Event, kind: str, words: str, is_fact: bool) -> None:
    assert origin_of("7.1", event, None) == Origin("7.1", kind, words, is_fact)


def test_who_asked_is_said() -> None:
    asked = DeleteTopic(topic="orders")
    found = origin_of("7.1", Requested(asked=asked, asked_by="10.0.0.3"), None)
    assert found == Origin("7.1", "request", "delete topic orders: asked by 10.0.0.3", is_fact=True)
    path = "/admin/delete_topics/orders"
    assert origin_of("7.1", Requested(asked=asked, path=path), None).words.endswith(f"asked by {path}")
    assert origin_of("7.1", Requested(asked=asked), None).words.endswith("asked by the controller")


@pytest.mark.parametrize(
    ("moved", "words"),
    [
        (BrokersMoved(lost=frozenset({2}), started=frozenset()), "broker 2 gone"),
        (BrokersMoved(lost=frozenset({3, 2}), started=frozenset()), "brokers 2, 3 gone"),
        (BrokersMoved(lost=frozenset({2}), started=frozenset({2, 4})), "broker 2 restarted; broker 4 registered"),
        (
            BrokersMoved(lost=frozenset(), started=frozenset(), stopping=frozenset({1})),
            "broker 1 shutting down",
        ),
        (BrokersMoved(lost=frozenset(range(9)), started=frozenset()), "brokers 0, 1, 2, 3, 4 and 4 others gone"),
    ],
)
def test_which_brokers_moved_is_said(moved: BrokersMoved, words: str) -> None:
    assert origin_of("7.1", READ, moved).words == words


REQUESTS: list[tuple[Request, str]] = [
    (CreateTopic(name="orders"), "create topic orders"),
    (DeleteTopic(topic="orders"), "delete topic orders"),
    (AddPartitions(counts={"a": 3}, assignments={"b": {1: (1,)}}), "add partitions to a, b"),
    (RemovePartitions(partitions={"a": (3, 2)}), "remove partitions a-3, a-2"),
    (Reassign(targets={"a-0": (3, 2)}), "reassign a-0 to [3, 2]"),
    (CancelReassignment(partitions=("a-0", "a-1")), "cancel the reassignment of a-0, a-1"),
    (ElectLeaders(kind="preferred"), "elect leaders (preferred) wherever it can be done"),
    (ElectLeaders(kind="unclean", partitions=("a-0",)), "elect leaders (unclean) of a-0"),
    (AcknowledgeLoss(known={"a-0": 3, "a-1": 4}), "acknowledge the possible loss of a-0, a-1"),
    (Configure(topic="a", settings={"x": 1, "y": None}), "configure topic a: x 1, y by default"),
    (Configure(settings={"x": True}), "configure the cluster: x True"),
    (
        ChangeAcls(add=ACLS.each(["alice write topic a"]), remove=ACLS.each(["bob alter cluster"])),
        "change ACLs: add alice write topic a, remove bob alter cluster",
    ),
    (SetQuota(principal="*", kind="streams", limit=5), "set streams of * to 5"),
    (SetQuota(principal="bob", kind="request_rate"), "set request_rate of bob to nothing of its own"),
    (WidenTopic(topic="a", schema="s"), "add columns to topic a"),
]


@pytest.mark.parametrize(("asked", "words"), REQUESTS)
def test_each_request(asked: Request, words: str) -> None:
    assert in_words(asked) == words


def test_no_request_is_without_words() -> None:
    assert {type(asked) for asked, _ in REQUESTS} == set(get_args(Request))


def test_what_is_said_of_a_large_request_is_short() -> None:
    many: dict[str, tuple[int, ...]] = {f"orders-{number}": (1, 2) for number in range(NAMED_MAX + 7)}
    assert in_words(Reassign(targets=many)).endswith("and 7 others")
    long = in_words(CancelReassignment(partitions=("x" * 10_000,)))
    assert len(long) < WORDS_MAX + 100
