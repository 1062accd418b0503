"""The broker's end of a reader's connection: when a question for records is answered, and with what.

| event                                  | what follows                                                               |
| -------------------------------------- | -------------------------------------------------------------------------- |
| asked                                  | the question is due                                                        |
| `go_on`, a question is due             | a look into its partition, once that is free                               |
| found                                  | the answer is made: no other question is looked at until it is told        |
| nothing found, and it may wait         | it waits for progress of the partition                                     |
| progress                               | it is due again                                                            |
| no progress until its deadline         | it is answered without records                                             |
| told                                   | the next question is looked at                                             |
| nothing is asked for IDLE_MS           | the connection ends                                                        |
| closed                                 | nothing waits for progress any longer                                      |

Whoever carries the answers calls `go_on` once the connection has taken the answer before, so that a slow reader takes
no memory. Only the broker's loop calls a ReadEnd. Progress may come from any thread.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial

from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.engine.replica.partition import FindPartition, Partition
from spark_replication.engine.replica.reads import LogLook, is_over, look
from spark_replication.engine.replica.replica_loop import ReplicaLoop
from spark_replication.errors import BrokerNotAvailable, InvalidRequest, ReplicationError
from spark_replication.messages.lane import READS_MAX, ReadFrame
from spark_replication.messages.records import ReadTicket
from spark_replication.model import TopicPartition

IDLE_MS = 30_000


class Read:
    """A question that is not answered yet."""

    __slots__ = ("deadline_ms", "due_ms", "frame", "high_watermark", "name", "place", "waits_at", "woken")

    def __init__(self, frame: ReadFrame, asked_ms: float, woken: Callable[[Read], None]) -> None:
        self.frame = frame
        self.name = TopicPartition(frame.ticket.topic, frame.ticket.partition)
        self.deadline_ms = asked_ms + frame.ticket.max_wait_ms
        #: Since when it could be answered.
        self.due_ms = asked_ms
        #: None until the first look.
        self.place: ReadPlace | None = None
        self.high_watermark = 0
        #: Whose progress it waits for.
        self.waits_at: Partition | None = None
        #: Called by whoever has that partition.
        self.woken = partial(woken, self)

    @property
    def ticket(self) -> ReadTicket:
        return self.frame.ticket


class ReadEnd:
    def __init__(
        self,
        find: FindPartition,
        say: Callable[[Read, LogLook | ReplicationError], None],
        *,
        clock_ms: Callable[[], float],
        wake: Callable[[], None],
    ) -> None:
        """say: makes and carries the answer, and then calls `told`. clock_ms: never goes back. wake: has the loop call
        `go_on` soon; from any thread."""
        self._find = find
        self._say = say
        self._clock_ms = clock_ms
        self._wake = wake
        #: By number.
        self._owed: dict[int, Read] = {}
        self._due: deque[Read] = deque()
        #: Those that wait for progress, the one that has waited longest first.
        self._waiting: dict[Read, None] = {}
        #: Those whose partition has made progress. Any thread adds.
        self._woken: deque[Read] = deque()
        self._is_woken = False  # True: `go_on` has not been called since
        #: Whether an answer is being made.
        self.is_making = False
        self._is_closed = False
        self._idle_since_ms = clock_ms()

    def asked(self, frame: ReadFrame) -> None:
        if frame.number in self._owed or len(self._owed) >= READS_MAX:
            raise InvalidRequest(f"question {frame.number} is not answered yet, or {READS_MAX} others are not")
        read = Read(frame, self._clock_ms(), self._progressed)
        self._owed[frame.number] = read
        self._due.append(read)

    def _progressed(self, read: Read) -> None:
        """Whoever has the partition calls this, so it only leaves a note."""
        self._woken.append(read)
        if not self._is_woken:
            self._is_woken = True
            self._wake()

    def go_on(self, bytes_max: Callable[[ReadTicket], int]) -> bool:
        """Look at the next question that is due, for as many bytes as its ticket may have or a single batch. False:
        none is, or an answer is being made."""
        self._take_woken()
        self._expire()
        if self.is_making or not self._due:
            return False
        read = self._due.popleft()
        self.is_making = True
        try:
            partition = self._find(read.name)
        except ReplicationError as error:
            self._say(read, error)
        else:
            partition.do(partial(self._look, read, partition, bytes_max(read.ticket)))
        return True

    def _look(self, read: Read, partition: Partition, bytes_max: int, replica: ReplicaLoop) -> None:
        if self._is_closed:
            return
        try:
            looked = look(replica, read.ticket, read.place, bytes_max)
        except ReplicationError as error:
            self._say(read, error)
            return
        read.place, read.high_watermark = looked.place, looked.high_watermark
        if looked.records is None and not is_over(read.ticket, looked.offset) and self._clock_ms() < read.deadline_ms:
            replica.progress.await_next(read.woken)
            read.waits_at = partition
            self._waiting[read] = None
            self.is_making = False
            self._wake()
        else:
            self._say(read, looked)

    def _take_woken(self) -> None:
        self._is_woken = False  # before the look, so that progress after it wakes the loop again
        while self._woken:
            read = self._woken.popleft()
            if read in self._waiting:
                del self._waiting[read]
                read.waits_at = None
                read.due_ms = self._clock_ms()
                self._due.append(read)

    def _expire(self) -> None:
        if self.is_making:
            return
        now_ms = self._clock_ms()
        for read in self._waiting:
            if read.deadline_ms <= now_ms:
                break
        else:
            return
        del self._waiting[read]
        self._leave(read)
        read.due_ms = now_ms
        self.is_making = True
        assert read.place is not None, "it was looked at before it waited"
        self._say(read, LogLook(read.place, read.high_watermark, None))

    def _leave(self, read: Read) -> None:
        partition, read.waits_at = read.waits_at, None
        if partition is not None:
            partition.do(lambda replica: replica.progress.leave(read.woken))

    def told(self, read: Read) -> None:
        """The answer to this question has been carried, or is in a queue of the connection."""
        del self._owed[read.frame.number]
        self.is_making = False
        self._idle_since_ms = self._clock_ms()

    @property
    def owes(self) -> bool:
        """Whether a question is not answered yet."""
        return bool(self._owed)

    @property
    def due_ms(self) -> float:
        """When to call `go_on` at the latest, if nothing wakes it."""
        if self.is_making:
            return math.inf  # whoever carries the answer calls it after that
        if self._due:
            return self._due[0].due_ms
        if not self._owed:
            return self._idle_since_ms + IDLE_MS
        return min((read.deadline_ms for read in self._waiting), default=math.inf)

    def check_not_idle(self) -> None:
        if not self._owed and self._clock_ms() >= self._idle_since_ms + IDLE_MS:
            raise BrokerNotAvailable("nobody has read over it for a while: connect again")

    def closed(self) -> None:
        self._is_closed = True
        for read in self._waiting:
            self._leave(read)
        self._waiting.clear()
