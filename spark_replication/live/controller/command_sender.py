"""The controller's way to the brokers: a thread for each broker that lives, commands coalesced while it is busy.

What waits is the latest command of each partition, so it is bounded by their number, however slow a broker is. Commands
are repeated while that life of the broker goes on: their epochs order them, not their arrival (E2). What a disk refuses
is not repeated: the controller decides who else can have it (B4).
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

import msgspec

from spark_replication.core.controller.answers import outcome
from spark_replication.errors import BrokerNotAvailable, ReplicationError
from spark_replication.live.controller.pending_commands import PendingCommands, PendingQuestions
from spark_replication.messages.actions import GET_REPLICA_LOG_INFO, Action, Told, action_of
from spark_replication.messages.commands import (
    Command,
    CommandAnswer,
    GetReplicaLogInfo,
    LeaderAndIsr,
    ReplicaLogInfos,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.model import BrokerId, Registration, ReplicaOf, TopicPartition
from spark_replication.process.worker import Worker, name_of_dead
from spark_replication.transport.actions import call
from spark_replication.transport.security import Security

RETRY_S_MIN, RETRY_S_MAX = 0.02, 1.0
REFUSALS_BEFORE_SUSPICION = 2  # a reset connection, and a refused one after it
QUESTION_PAUSE_S = 0.1  # before the same partition's log is asked for again

log = logging.getLogger(__name__)

Answer = TypeVar("Answer", CommandAnswer, ReplicaLogInfos)


class BrokerNews(Protocol):
    """What the senders find out, each on its own thread."""

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        """Its leader leads at this epoch."""

    def suspected(self, broker: BrokerId, registration: Registration) -> None:
        """It refuses connections: it seems to be dead."""

    def log_info(self, broker: BrokerId, answer: ReplicaLogInfos) -> None:
        """It was asked for its logs."""

    def failed(self, broker: BrokerId, epoch: int, replicas: tuple[ReplicaOf, ...]) -> None:
        """Its disk cannot hold these."""


class CommandSender:
    """ports.CommandSender."""

    def __init__(self, *, timeout_ms: int, security: Security, news: BrokerNews) -> None:
        self._timeout_ms = timeout_ms
        self._security = security
        self._news = news
        self._lines: dict[BrokerId, _Line] = {}
        self._numbers = itertools.count(1)

    def send(self, broker: BrokerId, registration: Registration, command: Command) -> None:
        line = self._lines.get(broker)
        if line is None or line.registration.epoch != registration.epoch:
            if line is not None:
                line.close()
            line = _Line(broker, registration, self._numbers, self._timeout_ms, self._security, self._news)
            self._lines[broker] = line
        line.put(command)

    def gone(self, broker: BrokerId) -> None:
        line = self._lines.pop(broker, None)
        if line is not None:
            line.close()

    def dead_thread(self) -> str:
        """The name of one of its threads, whose broker is told nothing any longer."""
        return name_of_dead(line.worker for line in self._lines.values())

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()


class _Line:
    """One life of one broker."""

    def __init__(
        self,
        broker: BrokerId,
        registration: Registration,
        numbers: Iterator[int],
        timeout_ms: int,
        security: Security,
        news: BrokerNews,
    ) -> None:
        self.broker = broker
        self.registration = registration
        self._numbers = numbers
        self._timeout_ms = timeout_ms
        self._news = news
        self._changed = threading.Condition()  # guards these four
        self._pending = PendingCommands()
        self._questions = PendingQuestions(QUESTION_PAUSE_S)
        self._closed = False
        self._fresh = False
        self._refusals = 0
        self._client = security.client(registration.address)
        self.worker = Worker(self._run, f"commands-to-{broker}")
        self.worker.start()

    def put(self, command: Command) -> None:
        with self._changed:
            if isinstance(command, GetReplicaLogInfo):
                self._questions.add(command)
            else:
                self._pending.add(command)
            self._fresh = True
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self.worker.stop()
            self._changed.notify()

    def _run(self) -> None:
        delay_s: float | None = None
        while True:
            with self._changed:
                self._wait(delay_s)
                if self._closed:
                    break
                commands, self._pending, self._fresh = self._pending.commands(), PendingCommands(), False
                questions = self._questions.take(time.monotonic())
            left = [again for command in commands if (again := self._tell(command)) is not None]
            with self._changed:
                for again in left:
                    self._pending.put_back(again)
            for question in questions:
                self._ask(question)
            delay_s = min((delay_s or RETRY_S_MIN / 2) * 2, RETRY_S_MAX) if left else None
        self._client.close()

    def _wait(self, retry_s: float | None) -> None:
        """For something to tell: now, or again, or a question that is due."""
        question_s = self._questions.due_in_s(time.monotonic())
        waits = [wait for wait in (retry_s, question_s) if wait is not None]
        self._changed.wait_for(lambda: self._closed or self._fresh, timeout=min(waits, default=None))

    def _tell(self, command: LeaderAndIsr | StopReplica | UpdateMetadata) -> LeaderAndIsr | None:
        """What is left of it is to be sent again, but not before news of other partitions: one sick replica holds up
        nobody."""
        answer = self._deliver(command, action_of(command))
        return None if answer is None else self._take(command, answer)

    def _ask(self, question: GetReplicaLogInfo) -> None:
        answer = self._deliver(question, GET_REPLICA_LOG_INFO)
        if answer is not None:
            self._news.log_info(self.broker, answer)

    def _deliver(self, command: Command, action: Action[Any, Told]) -> Told | None:
        """Until it is answered. None: this life ended, or the answer says that repeating it is useless."""
        delay_s = RETRY_S_MIN
        told = msgspec.structs.replace(command, broker_epoch=self.registration.epoch, number=next(self._numbers))
        while not self._closed:
            try:
                answer = call(self._client, action, told, self._timeout_ms)
                self._refusals = 0
            except ReplicationError as error:
                self._refused(error)
                if not error.retriable:
                    log.warning("broker %d refuses a command: %s", self.broker, error)
                    return None
            else:
                return answer
            with self._changed:
                self._changed.wait_for(lambda: self._closed, timeout=delay_s)
            delay_s = min(delay_s * 2, RETRY_S_MAX)
        return None

    def _refused(self, error: ReplicationError) -> None:
        self._refusals = self._refusals + 1 if isinstance(error, BrokerNotAvailable) else 0
        if self._refusals == REFUSALS_BEFORE_SUSPICION:
            self._news.suspected(self.broker, self.registration)

    def _take(self, command: Command, answer: CommandAnswer) -> LeaderAndIsr | None:
        """What of the command is to be repeated; None: nothing."""
        if not isinstance(command, LeaderAndIsr):
            return None
        found = outcome(self.broker, command, answer)
        log.info(
            "broker %d leads %d of %d partitions as told%s",
            self.broker,
            len(found.confirmed),
            len(command.partitions),
            ", INIT" if command.init else "",
        )
        for led in found.confirmed:
            self._news.confirmed(led.topic_partition, led.topic_id, led.state.leader_epoch)
        for partition, code in found.refused.items():
            log.warning("broker %d refuses %s: %s", self.broker, partition, code)
        if found.failed:
            self._news.failed(self.broker, self.registration.epoch, found.failed)
        return found.again
