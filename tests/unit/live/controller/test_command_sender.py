"""Commands on their way to a broker: coalesced while it is busy, repeated until it is done, ended with its life."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from spark_replication.core.controller.events import BrokerDeathReported, LogInfoRead, LogsAhead, ReplicasFailed
from spark_replication.engine.controller.command_line import QUESTION_PAUSE_MS, BrokerNews
from spark_replication.errors import NotReady, ReplicationError, StaleControllerEpoch
from spark_replication.live.controller.command_sender import ThreadedCommandSender
from spark_replication.messages.actions import GET_REPLICA_LOG_INFO, LEADER_AND_ISR, STOP_REPLICA, UPDATE_METADATA
from spark_replication.messages.commands import (
    Command,
    CommandAnswer,
    GetReplicaLogInfo,
    LeaderAndIsr,
    LogInfoWanted,
    PartitionCommand,
    ReplicaLogInfos,
    StopPartition,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.model import BrokerId, Registration, ReplicaOf, TopicConfig, TopicPartition
from spark_replication.transport.flight.actions import ActionServer, handled
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import NO_SECURITY
from tests.unit.core.stories import FOO, command, state
from tests.waiting import eventually

TIMEOUT_S = 20.0
FOO_1 = TopicPartition("foo", 1)
BAR = TopicPartition("bar", 0)
CONFIGS = {"foo": TopicConfig(schema="s"), "bar": TopicConfig()}
Reply = Callable[[Command], dict[str, str]]


class Broker:
    """Takes commands over a real connection. `replies`: what it makes of the next ones; all is well where none is left.
    While `busy` is cleared it answers nothing."""

    def __init__(self) -> None:
        self.took: queue.Queue[Command] = queue.Queue()
        self.replies: queue.Queue[Reply] = queue.Queue()
        self.free = threading.Event()
        self.free.set()
        self.server = ActionServer(
            "127.0.0.1",
            [
                handled(LEADER_AND_ISR, self._handle),
                handled(STOP_REPLICA, self._handle),
                handled(UPDATE_METADATA, self._handle),
                handled(GET_REPLICA_LOG_INFO, self._ask),
            ],
            rights=Rights(NO_SECURITY),
        )

    def _ask(self, question: GetReplicaLogInfo) -> ReplicaLogInfos:
        self._take(question)
        return ReplicaLogInfos(broker_epoch=0, partitions=())

    def _take(self, command: Command) -> None:
        self.took.put(command)
        assert self.free.wait(TIMEOUT_S)

    def _handle(self, command: Command) -> CommandAnswer:
        self._take(command)
        try:
            errors = self.replies.get_nowait()(command)
        except queue.Empty:
            errors = {}
        return CommandAnswer(broker_epoch=0, errors=errors)

    def refuse(self, error: ReplicationError) -> None:
        def reply(command: Command) -> dict[str, str]:
            raise error

        self.replies.put(reply)

    def registration(self, epoch: int = 0) -> Registration:
        return Registration(
            host="127.0.0.1", port=self.server.port, replication_port=1, epoch=epoch, incarnation=str(epoch)
        )

    def next(self) -> Command:
        """Without what the sender adds to it."""
        return msgspec.structs.replace(self.took.get(timeout=TIMEOUT_S), broker_epoch=None, number=0)


class Story:
    def __init__(self) -> None:
        self.broker = Broker()
        self.confirmed: queue.Queue[tuple[TopicPartition, int]] = queue.Queue()
        self.suspected: queue.Queue[tuple[BrokerId, int]] = queue.Queue()
        self.logs: queue.Queue[tuple[BrokerId, ReplicaLogInfos]] = queue.Queue()
        self.failed: queue.Queue[tuple[BrokerId, int, tuple[ReplicaOf, ...]]] = queue.Queue()
        self.sender = ThreadedCommandSender(timeout_ms=int(TIMEOUT_S * 1000), security=NO_SECURITY, heard=News(self))

    def send(self, *commands: Command, epoch: int = 0) -> None:
        for each in commands:
            self.sender.send(1, self.broker.registration(epoch), each)

    def busy_with(self, first: Command) -> None:
        """The broker has taken `first` and does not answer until `free` is set."""
        self.broker.free.clear()
        self.send(first)
        assert self.broker.next() == first

    def close(self) -> None:
        self.broker.free.set()
        self.sender.close()
        self.broker.server.stop(TIMEOUT_S)


class News:
    def __init__(self, story: Story) -> None:
        self._story = story

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        self._story.confirmed.put((partition, leader_epoch))

    def happened(self, event: BrokerNews) -> None:
        match event:
            case BrokerDeathReported():
                self._story.suspected.put((event.broker, int(event.incarnation)))
            case LogInfoRead():
                self._story.logs.put((event.broker, event.answer))
            case LogsAhead():
                raise AssertionError(event)
            case ReplicasFailed():
                self._story.failed.put((event.broker, event.epoch, event.replicas))


@pytest.fixture
def story() -> Iterator[Story]:
    told = Story()
    yield told
    told.close()


def of(leader: BrokerId, partition_epoch: int, partition: TopicPartition = FOO) -> PartitionCommand:
    return command(state(leader, [1, 2]), partition_epoch, partition=partition)


def leader_and_isr(*partitions: PartitionCommand, init: bool = False) -> LeaderAndIsr:
    topics = {each.topic: CONFIGS[each.topic] for each in partitions}
    return LeaderAndIsr(controller_epoch=1, partitions=partitions, topics=topics, brokers={}, init=init)


def metadata(*partitions: PartitionCommand, deleted: tuple[str, ...] = ()) -> UpdateMetadata:
    topics = {each.topic: CONFIGS[each.topic] for each in partitions}
    return UpdateMetadata(controller_epoch=1, partitions=partitions, topics=topics, brokers={}, deleted=deleted)


def stop(partition: TopicPartition = FOO, *, delete: bool = True) -> StopReplica:
    stopped = StopPartition(
        topic=partition.topic, partition=partition.partition, topic_id="id", leader_epoch=4, delete=delete
    )
    return StopReplica(controller_epoch=1, partitions=(stopped,))


def question(*partitions: TopicPartition) -> GetReplicaLogInfo:
    wanted = tuple(
        LogInfoWanted(topic=found.topic, partition=found.partition, topic_id="id", leader_epoch=4)
        for found in partitions
    )
    return GetReplicaLogInfo(controller_epoch=1, partitions=wanted)


def test_a_leader_that_took_its_command_is_confirmed(story: Story) -> None:
    story.send(leader_and_isr(of(2, 7, FOO_1), of(1, 7)))
    assert story.broker.next() == leader_and_isr(of(2, 7, FOO_1), of(1, 7))
    assert story.confirmed.get(timeout=TIMEOUT_S) == (FOO, 4)
    assert story.confirmed.empty()


def test_a_command_says_for_which_life_of_the_broker_it_is_and_which_of_all_it_is(story: Story) -> None:
    registered = story.broker.registration(epoch=6)
    for number in (1, 2):
        story.sender.send(1, registered, metadata())
        told = story.broker.took.get(timeout=TIMEOUT_S)
        assert (told.broker_epoch, told.number) == (6, number)


def test_a_broker_that_is_starting_is_asked_again(story: Story) -> None:
    for _ in range(2):
        story.broker.refuse(NotReady("starting: retry"))
    story.send(leader_and_isr(of(1, 7)))
    assert [story.broker.next() for _ in range(3)] == [leader_and_isr(of(1, 7))] * 3
    assert story.confirmed.get(timeout=TIMEOUT_S) == (FOO, 4)


def test_a_command_that_is_refused_for_good_is_not_repeated(story: Story) -> None:
    story.broker.refuse(StaleControllerEpoch("deposed"))
    story.broker.replies.put(lambda _: {"foo-1": "LOG_DIRECTORY_IN_USE"})
    story.send(leader_and_isr(of(1, 7)))
    assert story.broker.next() == leader_and_isr(of(1, 7))
    story.send(leader_and_isr(of(1, 7, FOO_1)))
    assert story.broker.next() == leader_and_isr(of(1, 7, FOO_1))
    story.send(metadata())
    assert story.broker.next() == metadata()
    assert story.confirmed.empty()


def test_what_a_disk_refuses_is_told_and_not_repeated(story: Story) -> None:
    story.broker.replies.put(lambda _: {"foo-0": "KAFKA_STORAGE_ERROR"})
    story.send(leader_and_isr(of(1, 7), of(1, 7, FOO_1)), epoch=3)
    assert story.failed.get(timeout=TIMEOUT_S) == (1, 3, (ReplicaOf(FOO, of(1, 7).topic_id),))
    assert story.confirmed.get(timeout=TIMEOUT_S) == (FOO_1, 4)
    assert story.broker.next() == leader_and_isr(of(1, 7), of(1, 7, FOO_1))
    story.send(metadata(), epoch=3)
    assert story.broker.next() == metadata()
    assert story.failed.empty()


def test_the_same_question_is_asked_again_only_after_a_pause(story: Story) -> None:
    asked_s = time.monotonic()
    story.send(question(FOO))
    assert story.broker.next() == question(FOO)
    story.logs.get(timeout=TIMEOUT_S)
    story.send(question(FOO, FOO_1))
    assert story.broker.next() == question(FOO_1), "another one is not held up"
    assert story.broker.next() == question(FOO)
    assert time.monotonic() - asked_s >= QUESTION_PAUSE_MS / 1000, "a pause was made"


def test_a_broker_that_refuses_connections_is_suspected_once(story: Story) -> None:
    story.broker.server.stop(TIMEOUT_S)
    story.send(metadata(), epoch=6)
    assert story.suspected.get(timeout=TIMEOUT_S) == (1, 6)
    assert story.suspected.empty()


def test_a_broker_that_is_gone_is_asked_no_more(story: Story) -> None:
    story.busy_with(leader_and_isr(of(1, 7)))
    story.send(leader_and_isr(of(1, 8)))
    story.sender.gone(1)
    story.sender.gone(1)  # known already
    story.broker.free.set()
    story.send(metadata(), epoch=1)
    assert story.broker.next() == metadata()


def test_the_next_life_of_a_broker_gets_none_of_what_the_last_was_owed(story: Story) -> None:
    story.busy_with(leader_and_isr(of(1, 7)))
    story.send(leader_and_isr(of(1, 8)))
    story.send(metadata(), epoch=1)
    assert story.broker.next() == metadata()
    story.broker.free.set()
    story.send(metadata(of(1, 9)), epoch=1)
    assert story.broker.next() == metadata(of(1, 9))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_of_an_error_is_named(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = threading.Event()

    def breaks(_self: News, _partition: TopicPartition, _topic_id: str, _leader_epoch: int) -> None:
        heard.set()
        raise ZeroDivisionError("a bug")

    story.send(leader_and_isr(of(1, 7)))
    assert story.confirmed.get(timeout=TIMEOUT_S) == (FOO, 4)
    assert story.sender.dead_thread() == ""
    monkeypatch.setattr(News, "confirmed", breaks)
    story.send(leader_and_isr(of(1, 8)))
    assert heard.wait(TIMEOUT_S)
    eventually(lambda: story.sender.dead_thread() == "commands-to-1", "the thread is dead")


def test_a_thread_whose_broker_has_gone_is_not_dead(story: Story) -> None:
    story.send(metadata())
    assert story.broker.next() == metadata()
    (line,) = story.sender._lines.messengers
    story.sender.gone(1)
    line.worker.join(TIMEOUT_S)
    assert (line.worker.is_alive(), line.worker.died) == (False, False)
