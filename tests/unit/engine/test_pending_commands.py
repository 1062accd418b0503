"""What waits for a busy broker: of each partition the latest, in an order that a broker can follow."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from spark_replication.engine.controller.pending_commands import (
    LEADER_AND_ISR_PARTITIONS_MAX,
    PendingCommands,
    PendingQuestions,
    State,
)
from spark_replication.messages.commands import (
    LOG_INFO_PARTITIONS_MAX,
    GetReplicaLogInfo,
    LeaderAndIsr,
    LogInfoWanted,
    PartitionCommand,
    StopPartition,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.model import TopicConfig, TopicPartition
from tests.unit.core.stories import FOO, command, state

FOO_1 = TopicPartition("foo", 1)
CONFIG = TopicConfig(settings={"min.insync.replicas": 2})
OLD = command(state(1, [1, 2]), 7)
NEW = command(state(2, [1, 2]), 8)
OTHER = command(state(1, [1, 2]), 7, partition=FOO_1)


def lead(*partitions: PartitionCommand, init: bool = False) -> LeaderAndIsr:
    topics = {found.topic: CONFIG for found in partitions}
    return LeaderAndIsr(controller_epoch=1, partitions=partitions, topics=topics, brokers={}, init=init)


def stop(*partitions: TopicPartition) -> StopReplica:
    return StopReplica(
        controller_epoch=1,
        partitions=tuple(
            StopPartition(topic=found.topic, partition=found.partition, topic_id="id", leader_epoch=4, delete=True)
            for found in partitions
        ),
    )


def metadata(
    *partitions: PartitionCommand, deleted: tuple[str, ...] = (), removed: tuple[TopicPartition, ...] = ()
) -> UpdateMetadata:
    topics = {found.topic: CONFIG for found in partitions}
    return UpdateMetadata(
        controller_epoch=1, partitions=partitions, topics=topics, brokers={}, deleted=deleted, removed=removed
    )


def unmade(*partitions: TopicPartition, of: UpdateMetadata) -> UpdateMetadata:
    return replace(of, unmade=partitions)


def configured(topic: str) -> UpdateMetadata:
    return UpdateMetadata(controller_epoch=1, partitions=(), topics={topic: CONFIG}, brokers={})


def of_cluster(retention_ms: int, *partitions: PartitionCommand) -> UpdateMetadata:
    return replace(metadata(*partitions), settings={"retention.ms": retention_ms})


@pytest.mark.parametrize(
    ("told", "commands"),
    [
        ([], []),
        ([lead()], []),
        ([lead(init=True)], [lead(init=True)]),
        ([lead(OLD), lead(NEW), lead(OTHER)], [lead(NEW, OTHER)]),
        # Of a partition the last word counts, and no other is said.
        ([lead(OLD, OTHER), stop(FOO)], [lead(OTHER), stop(FOO)]),
        ([stop(FOO), lead(NEW)], [lead(NEW)]),
        ([lead(OLD), stop(FOO), lead(NEW)], [lead(NEW)]),
        ([stop(FOO), lead(NEW), stop(FOO)], [stop(FOO)]),
        ([stop(FOO), stop(FOO_1)], [stop(FOO, FOO_1)]),
        ([metadata(OLD), stop(FOO), lead(OTHER)], [lead(OTHER), stop(FOO), metadata(OLD)]),
        ([metadata(OLD), metadata(NEW)], [metadata(NEW)]),
        ([metadata()], [metadata()]),
        # Of the cluster's settings the last word counts, too.
        ([of_cluster(5), metadata(OLD), of_cluster(6)], [of_cluster(6, OLD)]),
        # Settings are news, though no partition is.
        ([configured("foo")], [configured("foo")]),
        ([lead(OLD), configured("bar")], [lead(OLD), configured("bar")]),
        # Removed, and added again; or the other way round.
        ([metadata(OLD), metadata(removed=(FOO,))], [UpdateMetadata(
            controller_epoch=1, partitions=(), topics={"foo": CONFIG}, brokers={}, removed=(FOO,))]),
        ([metadata(removed=(FOO, FOO_1)), metadata(NEW)], [metadata(NEW, removed=(FOO_1,))]),
        # A partition that is not made yet is told of until it is made, or goes.
        ([unmade(FOO_1, of=metadata(OLD)), metadata(NEW)], [unmade(FOO_1, of=metadata(NEW))]),
        ([unmade(FOO_1, of=metadata(OLD)), metadata(OTHER)], [metadata(OLD, OTHER)]),
        ([unmade(FOO_1, of=metadata(OLD)), metadata(removed=(FOO_1,))], [metadata(OLD, removed=(FOO_1,))]),
        ([metadata(OLD, removed=(FOO_1,)), unmade(FOO_1, of=metadata(NEW))], [unmade(FOO_1, of=metadata(NEW))]),
        ([unmade(FOO_1, of=metadata(OLD)), replace(metadata(NEW), complete=True)],
         [replace(metadata(NEW), complete=True)]),
        ([unmade(FOO_1, of=metadata(OLD)), metadata(deleted=("foo",))], [metadata(deleted=("foo",))]),
        # A topic that is deleted takes along what was to be told of it.
        ([metadata(OLD, removed=(FOO_1,)), metadata(deleted=("foo",))], [metadata(deleted=("foo",))]),
        # Made again, it is told of after it is forgotten.
        ([metadata(deleted=("foo", "bar")), metadata(NEW)],
         [metadata(deleted=("foo",)), metadata(NEW, deleted=("bar",))]),
        ([metadata(deleted=("foo",)), configured("foo")], [metadata(deleted=("foo",)), configured("foo")]),
        ([metadata(deleted=("foo",)), metadata(NEW), metadata(deleted=("foo",))], [metadata(deleted=("foo",))]),
    ],
)  # fmt: skip
def test_what_is_told_after_all_this(told: list[State], commands: list[State]) -> None:
    pending = PendingCommands()
    for each in told:
        pending.add(each)
    assert pending.commands() == commands


@pytest.mark.parametrize(
    ("meanwhile", "commands"),
    [
        ([], [lead(OLD, OTHER)]),
        ([lead(NEW)], [lead(NEW, OTHER)]),
        ([stop(FOO)], [lead(OTHER), stop(FOO)]),
    ],
)
def test_what_failed_is_told_again_unless_there_is_news(meanwhile: list[State], commands: list[State]) -> None:
    pending = PendingCommands()
    for each in meanwhile:
        pending.add(each)
    pending.put_back(lead(OLD, OTHER))
    assert pending.commands() == commands


@pytest.mark.parametrize(
    ("init", "sizes"), [(False, [LEADER_AND_ISR_PARTITIONS_MAX, 1]), (True, [LEADER_AND_ISR_PARTITIONS_MAX + 1])]
)
def test_many_partitions_are_told_in_pieces_unless_they_are_all_that_the_broker_has(
    init: bool, sizes: list[int]
) -> None:
    partitions = [
        command(state(1, [1, 2]), 7, partition=TopicPartition("foo", number))
        for number in range(LEADER_AND_ISR_PARTITIONS_MAX + 1)
    ]
    pending = PendingCommands()
    pending.add(lead(*partitions, init=init))
    told = pending.commands()
    assert all(isinstance(each, LeaderAndIsr) and each.init == init and each.topics == {"foo": CONFIG} for each in told)
    assert [len(each.partitions) for each in told] == sizes
    assert [each for piece in told for each in piece.partitions] == partitions


def question(*partitions: TopicPartition) -> GetReplicaLogInfo:
    wanted = tuple(
        LogInfoWanted(topic=found.topic, partition=found.partition, topic_id="id", leader_epoch=4)
        for found in partitions
    )
    return GetReplicaLogInfo(controller_epoch=1, partitions=wanted)


def test_a_question_waits_for_its_pause_and_holds_up_no_other() -> None:
    questions = PendingQuestions(pause_ms=1000)
    assert (questions.due_ms(5000), questions.take(5000)) == (None, [])
    questions.add(question(FOO))
    assert (questions.due_ms(5000), questions.take(5000)) == (5000, [question(FOO)])
    questions.add(question(FOO))
    assert (questions.due_ms(5250), questions.take(5250)) == (6000, [])
    questions.add(question(FOO_1))
    assert (questions.due_ms(5500), questions.take(5500)) == (5500, [question(FOO_1)])
    assert (questions.due_ms(6000), questions.take(6000)) == (6000, [question(FOO)])
    assert questions.due_ms(6000) is None


def test_questions_are_asked_in_requests_of_a_limited_size() -> None:
    questions = PendingQuestions(pause_ms=1000)
    partitions = [TopicPartition("foo", number) for number in range(LOG_INFO_PARTITIONS_MAX + 1)]
    questions.add(question(*partitions[1:]))
    questions.add(question(*partitions[:1]))
    assert [len(asked.partitions) for asked in questions.take(0)] == [LOG_INFO_PARTITIONS_MAX, 1]


def test_once_everything_was_told_nothing_of_before_is() -> None:
    everything = replace(metadata(NEW), complete=True)
    pending = PendingCommands()
    pending.add(metadata(OTHER, deleted=("gone",)))
    pending.add(everything)
    assert pending.commands() == [everything]
