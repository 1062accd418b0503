"""What a broker is still to be told: a line of commands for each life of a broker, one of them under way at a time.

| phase     | what happens                   | goes to   | what follows                                                |
| --------- | ------------------------------ | --------- | ----------------------------------------------------------- |
| waiting   | told of something              | waiting   | it is due at once, with what is to be repeated              |
| waiting   | something is due               | under way | everything is taken, of each partition the latest           |
| under way | told of something              | under way | it waits, in place of what it outdates                      |
| under way | answered                       | next      | leaders are confirmed; what a partition cannot do now waits |
| under way | refused, or no answer          | again     | the same command, with the same number, after a delay       |
| under way | refused for good               | next      | nobody repeats it                                           |
| again     | its delay has passed           | under way |                                                             |
| again     | no connection, the second time | again     | the broker seems to be dead: the controller hears of it     |
| any       | this life has ended            | ended     | nothing is due any longer; an answer still counts           |

`next` is the rest of what was taken together, and waiting once that is empty. Commands are repeated while that life of
the broker goes on: their epochs order them, not their arrival (E2). One sick partition holds up no other: what is left
of a command waits for its delay, and goes with whatever else is to be told before that. What a disk refuses is not
repeated: the controller decides who else can have it (B4). What waits is bounded by the number of partitions, however
slow a broker is.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, Protocol, TypeVar

import msgspec

from spark_replication.core.controller.answers import outcome
from spark_replication.core.controller.events import BrokerDeathReported, LogInfoRead, ReplicasFailed
from spark_replication.engine.pending_commands import PendingCommands, PendingQuestions
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

# What a broker's answers, or their absence, tell the controller's loop.
BrokerNews = BrokerDeathReported | LogInfoRead | ReplicasFailed


class LineNews(msgspec.Struct, frozen=True, kw_only=True):
    """What the controller learns from an answer, or from there being none."""

    #: Their leader, this broker, leads at their leader epoch.
    confirmed: tuple[PartitionCommand, ...] = ()
    events: tuple[BrokerNews, ...] = ()
    #: What is not repeated, with the error code. The whole command has no partitions here.
    refused: dict[TopicPartition, str] = msgspec.field(default_factory=dict)


NOTHING = LineNews()


class CommandLine:
    """Of one life of one broker. numbers: shared by all lines of a controller."""

    def __init__(self, broker: BrokerId, registration: Registration, numbers: Iterator[int]) -> None:
        self.broker = broker
        self.registration = registration
        self.ended = False
        self._numbers = numbers
        self._pending = PendingCommands()
        self._questions = PendingQuestions(QUESTION_PAUSE_MS)
        self._taken: deque[Command] = deque()
        self._under_way: Command | None = None
        # When the command that is under way is to be delivered again; None: it is being delivered.
        self._again_ms: int | None = None
        # When something of `_pending` is due; None: nothing is in it.
        self._due_ms: int | None = None
        self._repeat_ms = REPEAT_MS_MIN
        # What partitions could not do, of commands that were taken together, and how long that waits.
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
        """When `next` has something to deliver; None: not before something happens."""
        if self.ended:
            return None
        if self._under_way is not None:
            return self._again_ms
        if self._taken:
            return now_ms
        return min((due for due in (self._due_ms, self._questions.due_ms(now_ms)) if due is not None), default=None)

    def next(self, now_ms: int) -> Command | None:
        """What is to be delivered now. `answered` or `failed` says what has become of it."""
        due_ms = self.due_ms(now_ms)
        if due_ms is None or due_ms > now_ms:
            return None
        if self._under_way is None:
            if not self._taken:
                self._taken.extend((*self._pending.commands(), *self._questions.take(now_ms)))
                self._pending, self._due_ms = PendingCommands(), None
            if not self._taken:
                return None  # it was told of nothing that is left to tell
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
            failed = ReplicasFailed(self.broker, self.registration.epoch, found.failed)
            news = LineNews(confirmed=found.confirmed, events=(failed,) if found.failed else (), refused=found.refused)
        self._go_on(now_ms)
        return news

    def failed(self, error: ReplicationError, now_ms: int) -> LineNews:
        """The command that is under way was refused, or is not answered in time."""
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
        """With the rest of what was taken together. Once that is told, what is left of it waits."""
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
    """Performs one line: delivers what is due, and says what has become of it."""

    def tell(self, command: Command) -> None: ...
    def end(self) -> None: ...


Carrier = TypeVar("Carrier", bound=Messenger)


class CommandLines(Generic[Carrier]):
    """ports.CommandSender: a messenger for each broker that is told something, for as long as that life of it goes on.

    carried: begins to perform a line.
    """

    def __init__(self, carried: Callable[[CommandLine], Carrier]) -> None:
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
