"""Commands on their way to a broker: a line for each life of a broker, with one command under way at a time.

| phase     | what happens                   | goes to   | what follows                                                |
| --------- | ------------------------------ | --------- | ----------------------------------------------------------- |
| waiting   | a command is added             | waiting   | it is due at once, together with what is to be repeated     |
| waiting   | something is due               | under way | everything is taken, of each partition the latest           |
| under way | a command is added             | under way | it waits, in place of what it outdates                      |
| under way | answered                       | next      | leaders are confirmed; what a partition cannot do now waits |
| under way | refused, or no answer          | again     | the same command, with the same number, after a delay       |
| under way | refused for good               | next      | nobody repeats it                                           |
| again     | its delay has passed           | under way |                                                             |
| again     | no connection, the second time | again     | the broker seems to be dead: the controller hears of it     |
| any       | this life has ended            | ended     | nothing is due any longer; an answer still counts           |

`next`: under way with the rest of what was taken together, or waiting if nothing is left of it.

Rules:
- Commands are repeated while that life of the broker goes on: their epochs order them, not their arrival (E2).
- One sick partition holds up no other. What a partition could not do waits for a delay; if another command is sent
  before that, it goes along.
- A command that a disk refused is not repeated: the controller decides who else can have the replica (B4). Nor is one
  below a log's last epoch: the controller begins a later one (Z2).
- What waits is bounded by the number of partitions, however slow a broker is.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

import msgspec

from spark_replication.core.controller.answers import outcome
from spark_replication.core.controller.events import (
    BrokerDeathReported,
    BrokerNoted,
    LogInfoRead,
    LogsAhead,
    ReplicasFailed,
)
from spark_replication.engine.controller.pending_commands import PendingCommands, PendingQuestions
from spark_replication.errors import BrokerNotAvailable, ReplicationError
from spark_replication.messages.commands import (
    Command,
    CommandAnswer,
    GetReplicaLogInfo,
    LeaderAndIsr,
    PartitionCommand,
    ReplicaLogInfos,
)
from spark_replication.model import BrokerId, Registration, TopicPartition

REPEAT_MS_MIN, REPEAT_MS_MAX = 20, 1_000
REFUSALS_BEFORE_SUSPICION = 2  # a reset connection, and a refused one after it
QUESTION_PAUSE_MS = 100  # before the same partition's log is asked for again

# What the controller's loop learns from a broker's answers, or from their absence.
BrokerNews = BrokerDeathReported | BrokerNoted | LogInfoRead | LogsAhead | ReplicasFailed


class LineNews(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller learns from an answer, or from its absence."""

    #: Partitions that this broker leads, as it has confirmed, at the leader epoch of the command.
    confirmed: tuple[PartitionCommand, ...] = ()
    events: tuple[BrokerNews, ...] = ()
    #: Partitions for which the command is not repeated, with the error code. A command refused as a whole names none.
    refused: dict[TopicPartition, str] = msgspec.field(default_factory=dict)


NOTHING = LineNews()


class CommandLine:
    """The commands for one life of one broker."""

    def __init__(self, broker: BrokerId, registration: Registration, numbers: Iterator[int]) -> None:
        """numbers: those of the commands; all lines of a controller share them."""
        self.broker = broker
        self.registration = registration
        self.ended = False
        self._numbers = numbers
        self._pending = PendingCommands()
        self._questions = PendingQuestions(QUESTION_PAUSE_MS)
        self._taken: deque[Command] = deque()
        self._under_way: Command | None = None
        # When the command under way is to be delivered again; None while it is being delivered.
        self._again_ms: int | None = None
        # When `_pending` is due; None while it is empty.
        self._due_ms: int | None = None
        self._repeat_ms = REPEAT_MS_MIN
        # What partitions could not do, of the commands that were taken together, and for how long it waits.
        self._left: list[LeaderAndIsr] = []
        self._left_ms = REPEAT_MS_MIN
        self._refusals = 0

    def tell(self, command: Command) -> None:
        if isinstance(command, GetReplicaLogInfo):
            self._questions.add(command)
        else:
            self._pending.add(command)
            self._due_ms = 0

    def end(self) -> None:
        self.ended = True

    def due_ms(self, now_ms: int) -> int | None:
        """When `next` has something to deliver; None if not before something happens."""
        if self.ended:
            return None
        if self._under_way is not None:
            return self._again_ms
        if self._taken:
            return now_ms
        return min((due for due in (self._due_ms, self._questions.due_ms(now_ms)) if due is not None), default=None)

    def next(self, now_ms: int) -> Command | None:
        """The command to deliver now. Report its end by `answered` or `failed`."""
        due_ms = self.due_ms(now_ms)
        if due_ms is None or due_ms > now_ms:
            return None
        if self._under_way is None:
            if not self._taken:
                self._taken.extend((*self._pending.commands(), *self._questions.take(now_ms)))
                self._pending, self._due_ms = PendingCommands(), None
            if not self._taken:
                return None  # what was added has been outdated since
            self._under_way = msgspec.structs.replace(
                self._taken.popleft(), broker_epoch=self.registration.epoch, number=next(self._numbers)
            )
            self._repeat_ms = REPEAT_MS_MIN
        self._again_ms = None
        return self._under_way

    def answered(self, answer: CommandAnswer | ReplicaLogInfos, now_ms: int) -> LineNews:
        command, self._refusals = self._under_way, 0
        news = NOTHING
        if isinstance(answer, ReplicaLogInfos):
            news = LineNews(events=(LogInfoRead(self.broker, answer),))
        elif isinstance(command, LeaderAndIsr):
            found = outcome(self.broker, command, answer)
            if found.again is not None:
                self._left.append(found.again)
            events: list[BrokerNews] = []
            if found.failed:
                events.append(ReplicasFailed(self.broker, self.registration.epoch, found.failed))
            if found.ahead:
                events.append(LogsAhead(self.broker, self.registration.epoch, found.ahead))
            news = LineNews(confirmed=found.confirmed, events=tuple(events), refused=found.refused)
        elif answer.notes is not None:
            news = LineNews(events=(BrokerNoted(self.broker, self.registration.epoch, answer.notes),))
        self._go_on(now_ms)
        return news

    def failed(self, error: ReplicationError, now_ms: int) -> LineNews:
        """The command under way was refused, or not answered in time."""
        self._refusals = self._refusals + 1 if isinstance(error, BrokerNotAvailable) else 0
        if error.retriable:
            self._again_ms = now_ms + self._repeat_ms
            self._repeat_ms = min(self._repeat_ms * 2, REPEAT_MS_MAX)
        else:
            self._go_on(now_ms)
        if self._refusals == REFUSALS_BEFORE_SUSPICION:
            return LineNews(events=(BrokerDeathReported(self.broker, self.registration.incarnation),))
        return NOTHING

    def _go_on(self, now_ms: int) -> None:
        """Turn to the rest of what was taken together. Once all of it was sent, what partitions could not do waits."""
        self._under_way = None
        if self._taken:
            return
        for again in self._left:
            self._pending.put_back(again)
        if self._left:
            self._due_ms = now_ms + self._left_ms if self._due_ms is None else self._due_ms
            self._left_ms = min(self._left_ms * 2, REPEAT_MS_MAX)
        else:
            self._left_ms = REPEAT_MS_MIN
        self._left = []


class Messenger(Protocol):
    """Performs one line: delivers what is due, and reports how that ended."""

    def tell(self, command: Command) -> None: ...
    def end(self) -> None: ...


Carrier = TypeVar("Carrier", bound=Messenger)


class CommandLines(Generic[Carrier]):
    """ports.CommandSender: a messenger for each broker that commands are sent to, while that life of it goes on."""

    def __init__(self, carried: Callable[[CommandLine], Carrier]) -> None:
        """carried: begins to perform a line."""
        self._carried = carried
        self._numbers = itertools.count(1)
        self._lines: dict[BrokerId, tuple[int, Carrier]] = {}

    @property
    def messengers(self) -> list[Carrier]:
        return [carrier for _, carrier in self._lines.values()]

    def send(self, broker: BrokerId, registration: Registration, command: Command) -> None:
        epoch, carrier = self._lines.get(broker, (None, None))
        if carrier is None or epoch != registration.epoch:
            self.gone(broker)
            carrier = self._carried(CommandLine(broker, registration, self._numbers))
            self._lines[broker] = registration.epoch, carrier
        carrier.tell(command)

    def gone(self, broker: BrokerId) -> None:
        _, carrier = self._lines.pop(broker, (None, None))
        if carrier is not None:
            carrier.end()

    def close(self) -> None:
        for broker in list(self._lines):
            self.gone(broker)
