"""Sends the controller's commands to brokers: one thread for each line of commands delivers what is due.

`engine.controller.command_line` decides what is due, what is repeated, and what follows from an answer.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

from spark_replication.engine.controller.command_line import BrokerNews, CommandLine, CommandLines, LineNews
from spark_replication.errors import ReplicationError
from spark_replication.messages.actions import GET_REPLICA_LOG_INFO, action_of
from spark_replication.messages.commands import Command, CommandAnswer, GetReplicaLogInfo, LeaderAndIsr, ReplicaLogInfos
from spark_replication.model import BrokerId, Registration, TopicPartition
from spark_replication.process.threads import Worker, name_of_dead, now_ms
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import Security

log = logging.getLogger(__name__)


class Heard(Protocol):
    """Takes what follows from brokers' answers; called on the thread of each broker's line."""

    def confirmed(self, partition: TopicPartition, topic_id: str, leader_epoch: int) -> None:
        """A leader has confirmed that it leads at this epoch."""

    def happened(self, event: BrokerNews) -> None: ...


class ThreadedCommandSender:
    """ports.CommandSender."""

    def __init__(self, *, timeout_ms: int, security: Security, heard: Heard) -> None:
        """timeout_ms: how long to wait for a broker's answer."""
        self._lines = CommandLines(lambda line: _Messenger(line, timeout_ms, security, heard))

    def send(self, broker: BrokerId, registration: Registration, command: Command) -> None:
        self._lines.send(broker, registration, command)

    def gone(self, broker: BrokerId) -> None:
        self._lines.gone(broker)

    def dead_thread(self) -> str:
        """The name of a thread that has died, whose broker gets no commands any longer; empty if none has."""
        return name_of_dead(messenger.worker for messenger in self._lines.messengers)

    def close(self) -> None:
        self._lines.close()


class _Messenger:
    """command_line.Messenger."""

    def __init__(self, line: CommandLine, timeout_ms: int, security: Security, heard: Heard) -> None:
        self._line = line
        self._changed = threading.Condition()  # guards the line
        self._timeout_ms = timeout_ms
        self._heard = heard
        self._client = security.client(line.registration.address)
        self.worker = Worker(self._run, f"commands-to-{line.broker}")
        self.worker.start()

    def tell(self, command: Command) -> None:
        with self._changed:
            self._line.tell(command)
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._line.end()
            self.worker.stop()
            self._changed.notify()

    def _run(self) -> None:
        while (command := self._next()) is not None:
            self._deliver(command)
        self._client.close()

    def _next(self) -> Command | None:
        """Wait for the next command. None: this life of the broker has ended."""
        with self._changed:
            while not self._line.ended:
                command = self._line.next(now_ms())
                if command is not None:
                    return command
                due_ms = self._line.due_ms(now_ms())
                self._changed.wait(None if due_ms is None else max(0, due_ms - now_ms()) / 1000)
        return None

    def _deliver(self, command: Command) -> None:
        try:
            answer = self._call(command)
        except ReplicationError as error:
            if not error.retriable:
                log.warning("broker %d refuses a command: %s", self._line.broker, error)
            with self._changed:
                news = self._line.failed(error, now_ms())
        else:
            with self._changed:
                news = self._line.answered(answer, now_ms())
            self._log(command, news)
        for led in news.confirmed:
            self._heard.confirmed(led.topic_partition, led.topic_id, led.state.leader_epoch)
        for event in news.events:
            self._heard.happened(event)

    def _call(self, command: Command) -> CommandAnswer | ReplicaLogInfos:
        if isinstance(command, GetReplicaLogInfo):
            return call(self._client, GET_REPLICA_LOG_INFO, command, self._timeout_ms)
        return call(self._client, action_of(command), command, self._timeout_ms)

    def _log(self, command: Command, news: LineNews) -> None:
        if isinstance(command, LeaderAndIsr):
            log.info(
                "broker %d leads %d of %d partitions as told%s",
                self._line.broker,
                len(news.confirmed),
                len(command.partitions),
                ", INIT" if command.init else "",
            )
        for partition, code in news.refused.items():
            log.warning("broker %d refuses %s: %s", self._line.broker, partition, code)
