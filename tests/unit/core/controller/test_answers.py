"""A broker answers for each partition by itself: what one needs keeps no other waiting."""

from __future__ import annotations

from msgspec.structs import replace

from spark_replication.core.controller.answers import Outcome, outcome
from spark_replication.errors import EpochBehindLog, InvalidRequest, NotReady, StorageFailed
from spark_replication.messages.commands import CommandAnswer, LeaderAndIsr
from spark_replication.messages.envelope import NONE
from spark_replication.model import ReplicaOf, TopicConfig, TopicPartition
from tests.unit.core.stories import command, registration, state

PARTITIONS = tuple(TopicPartition("foo", number) for number in range(7))
LED, FOLLOWED, FULL, LATER, NEVER, AHEAD, UNSAID = (
    command(state(2 if number == 1 else 1, [1, 2]), 7, partition=partition)
    for number, partition in enumerate(PARTITIONS)
)
TOLD = LeaderAndIsr(
    controller_epoch=3,
    partitions=(LED, FOLLOWED, FULL, LATER, NEVER, AHEAD, UNSAID),
    topics={"foo": TopicConfig()},
    brokers={1: registration(1)},
    init=True,
)


def test_each_partition_has_its_own_outcome() -> None:
    codes = (NONE, NONE, StorageFailed.code, NotReady.code, InvalidRequest.code, EpochBehindLog.code)
    errors = {str(partition): code for partition, code in zip(PARTITIONS, codes, strict=False)}
    assert (NotReady.retriable, InvalidRequest.retriable) == (True, False)
    assert outcome(
        1, TOLD, CommandAnswer(broker_epoch=0, errors=errors, last_epochs={str(AHEAD.topic_partition): 9})
    ) == Outcome(
        confirmed=(LED, UNSAID),
        failed=(ReplicaOf(FULL.topic_partition, FULL.topic_id),),
        again=replace(TOLD, partitions=(LATER,), init=False),
        ahead={ReplicaOf(AHEAD.topic_partition, AHEAD.topic_id): 9},
        refused={NEVER.topic_partition: InvalidRequest.code},
    )


def test_nothing_is_left_of_what_was_carried_out() -> None:
    assert outcome(2, TOLD, CommandAnswer(broker_epoch=0)) == Outcome(
        confirmed=(FOLLOWED,), failed=(), again=None, ahead={}, refused={}
    )
