"""The controller's way to the brokers: a thread for each broker that lives, commands coalesced while it is busy.

What waits is the latest command of each partition, so it is bounded by their number, however slow a broker is. Commands
are repeated while that life of the broker goes on: their epochs order them, not their arrival (E2).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from pyarrow import flight

from spark_replication.errors import BrokerNotAvailable, ReplicationError, error_of
from spark_replication.messages import (
    NONE,
    Command,
    CommandAnswer,
    LeaderAndIsr,
    PartitionCommand,
    StopReplica,
    UpdateMetadata,
)
from spark_replication.model import BrokerId, Registration, TopicConfig, TopicPartition
from spark_replication.transport.actions import call

RETRY_S_MIN, RETRY_S_MAX = 0.02, 1.0
REFUSALS_BEFORE_SUSPICION = 2  # a reset connection, and a refused one after it

log = logging.getLogger(__name__)

Confirmed = Callable[[TopicPartition, int], None]
Suspect = Callable[[BrokerId, int], None]


class CommandSender:
    """ports.CommandSender. `confirmed(partition, leader_epoch)`: its leader leads; `suspect(broker, epoch)`: it seems
    to be dead. Both are called on the senders' threads."""

    def __init__(self, *, timeout_ms: int, confirmed: Confirmed, suspect: Suspect) -> None:
        self._timeout_ms = timeout_ms
        self._confirmed = confirmed
        self._suspect = suspect
        self._lines: dict[BrokerId, _Line] = {}

    def send(self, broker: BrokerId, registration: Registration, command: Command) -> None:
        line = self._lines.get(broker)
        if line is None or line.registration.epoch != registration.epoch:
            if line is not None:
                line.close()
            line = _Line(broker, registration, self._timeout_ms, self._confirmed, self._suspect)
            self._lines[broker] = line
        line.put(command)

    def gone(self, broker: BrokerId) -> None:
        line = self._lines.pop(broker, None)
        if line is not None:
            line.close()

    def close(self) -> None:
        for line in self._lines.values():
            line.close()
        self._lines.clear()


class _Pending:
    """The latest of each partition, and who lives; taken whole by the line's thread."""

    def __init__(self) -> None:
        self.leader_and_isr: dict[TopicPartition, PartitionCommand] = {}
        self.metadata: dict[TopicPartition, PartitionCommand] = {}
        self.deleted: dict[str, None] = {}
        self.stops: list[StopReplica] = []
        self.topics: dict[str, TopicConfig] = {}
        self.brokers: dict[BrokerId, Registration] = {}
        self.controller_epoch = 0
        self.init = False
        self.has_metadata = False

    def add(self, command: Command) -> None:
        self.controller_epoch = command.controller_epoch
        match command:
            case LeaderAndIsr():
                self.leader_and_isr.update({found.topic_partition: found for found in command.partitions})
                self.init = self.init or command.init
                self.topics.update(command.topics)
                self.brokers = command.brokers
            case UpdateMetadata():
                self.metadata.update({found.topic_partition: found for found in command.partitions})
                self.deleted.update(dict.fromkeys(command.deleted))
                self.has_metadata = True
                self.topics.update(command.topics)
                self.brokers = command.brokers
            case StopReplica():
                self.stops.append(command)

    def put_back(self, command: LeaderAndIsr) -> None:
        """What was not carried out, unless something newer of that partition has come."""
        self.controller_epoch = max(self.controller_epoch, command.controller_epoch)
        self.leader_and_isr = {found.topic_partition: found for found in command.partitions} | self.leader_and_isr
        self.topics = command.topics | self.topics
        self.brokers = self.brokers or command.brokers

    def commands(self) -> list[Command]:
        commands: list[Command] = list(self.stops)
        if self.leader_and_isr or self.init:
            partitions = tuple(self.leader_and_isr.values())
            commands.append(
                LeaderAndIsr(
                    controller_epoch=self.controller_epoch,
                    partitions=partitions,
                    topics=self._topics(partitions),
                    brokers=self.brokers,
                    init=self.init,
                )
            )
        if self.has_metadata:
            told = tuple(self.metadata.values())
            commands.append(
                UpdateMetadata(
                    controller_epoch=self.controller_epoch,
                    partitions=told,
                    topics=self._topics(told),
                    brokers=self.brokers,
                    deleted=tuple(self.deleted),
                )
            )
        return commands

    def _topics(self, partitions: tuple[PartitionCommand, ...]) -> dict[str, TopicConfig]:
        names = {partition.topic for partition in partitions}
        return {name: config for name, config in self.topics.items() if name in names}


class _Line:
    """One life of one broker."""

    def __init__(
        self, broker: BrokerId, registration: Registration, timeout_ms: int, confirmed: Confirmed, suspect: Suspect
    ) -> None:
        self.broker = broker
        self.registration = registration
        self._timeout_ms = timeout_ms
        self._confirmed = confirmed
        self._suspect = suspect
        self._changed = threading.Condition()
        self._pending = _Pending()
        self._closed = False
        self._news = False
        self._refusals = 0
        self._client = flight.connect(f"grpc://{registration.address}")
        threading.Thread(target=self._run, name=f"commands-to-{broker}", daemon=True).start()

    def put(self, command: Command) -> None:
        with self._changed:
            self._pending.add(command)
            self._news = True
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _run(self) -> None:
        delay_s: float | None = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._news, timeout=delay_s)
                if self._closed:
                    break
                commands, self._pending, self._news = self._pending.commands(), _Pending(), False
            left = [again for command in commands if (again := self._deliver(command)) is not None]
            with self._changed:
                for again in left:
                    self._pending.put_back(again)
            delay_s = min((delay_s or RETRY_S_MIN / 2) * 2, RETRY_S_MAX) if left else None
        self._client.close()

    def _deliver(self, command: Command) -> LeaderAndIsr | None:
        """Until it is answered, this life ends, or the answer says that repeating it is useless. What is left of it is
        to be sent again, but not before news of other partitions: one sick replica holds up nobody."""
        delay_s = RETRY_S_MIN
        while not self._closed:
            try:
                answer = call(self._client, _ACTIONS[type(command)], command, CommandAnswer, self._timeout_ms)
                self._refusals = 0
            except ReplicationError as error:
                self._refused(error)
                if not error.retriable:
                    log.warning("broker %d refuses a command: %s", self.broker, error)
                    return None
            else:
                return self._take(command, answer)
            with self._changed:
                self._changed.wait_for(lambda: self._closed, timeout=delay_s)
            delay_s = min(delay_s * 2, RETRY_S_MAX)
        return None

    def _refused(self, error: ReplicationError) -> None:
        self._refusals = self._refusals + 1 if isinstance(error, BrokerNotAvailable) else 0
        if self._refusals == REFUSALS_BEFORE_SUSPICION:
            self._suspect(self.broker, self.registration.epoch)

    def _take(self, command: Command, answer: CommandAnswer) -> LeaderAndIsr | None:
        """What of the command is to be repeated; None: nothing."""
        if not isinstance(command, LeaderAndIsr):
            return None
        again = []
        for partition in command.partitions:
            code = answer.errors.get(str(partition.topic_partition), NONE)
            if code == NONE:
                if partition.state.leader == self.broker:
                    self._confirmed(partition.topic_partition, partition.state.leader_epoch)
            elif error_of(code, "").retriable:
                again.append(partition)
            else:
                log.warning("broker %d refuses %s: %s", self.broker, partition.topic_partition, code)
        if not again:
            return None
        return LeaderAndIsr(
            controller_epoch=command.controller_epoch,
            partitions=tuple(again),
            topics=command.topics,
            brokers=command.brokers,
        )


_ACTIONS: dict[type, str] = {
    LeaderAndIsr: "leader_and_isr",
    StopReplica: "stop_replica",
    UpdateMetadata: "update_metadata",
}
