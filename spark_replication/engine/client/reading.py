"""One read of one partition: who is asked next and for what, and what answers and errors mean. Pure.

`next` says what is to be done. Whoever does it tells of the outcome, and asks again:

| it does       | told                      | what follows                                                             |
| ------------- | ------------------------- | ------------------------------------------------------------------------ |
| LearnTopic    | topic_known               | the start, unless it is known and the topic is the one of before         |
| FindLeader    | leader_known              | FindStart while the start is not known, then AskRecords                  |
| FindStart     | starts_at                 | the first replica's turn                                                 |
| FindReplicas  | replicas_known            | AskRecords of the preferred one, or AskFiles; of none: the leader's turn |
| AskFiles      | files_told                | ReadFiles if they are those of this topic and host, else AskRecords      |
| ReadFiles     | given, served, failed     | AskRecords of the same replica from where they end, whatever their error |
| AskRecords    | answered, wanted, given   | the question that goes at once; the rows that come next                  |
| of a replica  | served, failed            | the leader's turn, unless it gave something and may give more            |
| of the leader | served                    | EndRead; with max_wait_ms it is asked again, and if it fell short of     |
|               |                           | what was committed, until time is over: RaiseError                       |
| of any        | failed: CorruptLog        | once more, and the broker is to look at the checksums first              |
| of the leader | failed: what may pass     | ReportRoute and Pause, then another try until time is over               |
| of the leader | failed: what does not     | RaiseError. Retention that was faster than a named start: FindStart      |
| anything      | closed                    | EndRead                                                                  |

A preferred replica is read first, and then the leader gives what the replica lacks: a follower learns of the high
watermark later. A replica that gave nothing is not asked again before the leader.

Invariant: each batch continues the one before, whatever brokers send. What lies below the next offset is cut off, a gap
is an error, and so is a log that was cut below the next offset, however far it has grown since. Time is over once
nothing was given for `patience_s`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec.structs import replace

from spark_replication.core.replica.epochs import NO_EPOCH
from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.core.routing import Route
from spark_replication.engine.client.pausing import FailedTries
from spark_replication.errors import CorruptLog, LogTruncated, OffsetOutOfRange, ReplicationError
from spark_replication.messages.ranges import FoundRange, WantedRange
from spark_replication.messages.records import ReadTicket
from spark_replication.model import BrokerId, Offset, Registration

Preference = Literal["leader", "follower", "near"] | BrokerId


class Replica(NamedTuple):
    """A broker to read from."""

    broker: BrokerId
    #: For requests (host:port).
    address: str
    #: For records.
    host: str
    port: int
    #: To whom its files belong; None if it does not say so.
    files_uid: int | None

    @classmethod
    def leading(cls, route: Route) -> Replica:
        return cls(route.leader, route.address, route.host, route.replication_port, route.files_uid)

    @classmethod
    def at(cls, broker: BrokerId, registration: Registration) -> Replica:
        found = registration
        return cls(broker, found.address, found.host, found.replication_port, found.files_uid)


class LearnTopic(NamedTuple):
    """Wait for the topic of this name, and for its partition."""


class FindLeader(NamedTuple):
    """Find the route to the leader."""


class FindReplicas(NamedTuple):
    """Find the replicas that are in sync. If one nearby is preferred: those on this host, the leader first."""


class FindStart(NamedTuple):
    """Ask the leader where the ticket starts."""

    leader: Replica
    ticket: ReadTicket


class AskFiles(NamedTuple):
    """Ask a replica where its files are, and what of them is committed."""

    replica: Replica
    wanted: WantedRange


class ReadFiles(NamedTuple):
    """Give what these files hold."""

    found: FoundRange


class AskRecords(NamedTuple):
    """Ask a replica for the ticket's records, and give them."""

    replica: Replica
    ticket: ReadTicket
    #: Whether the broker is to look at the checksums before it sends.
    checked: bool


class ReportRoute(NamedTuple):
    """Report that this route did not work."""

    route: Route


class ReportTopic(NamedTuple):
    """Report that what is known of the topic seems to be out of date."""


class Pause(NamedTuple):
    s: float


class RaiseError(NamedTuple):
    """The read has failed."""

    error: ReplicationError


class EndRead(NamedTuple):
    """All that was asked for has been given, or nobody wants any more."""


Instruction = (
    LearnTopic
    | FindLeader
    | FindReplicas
    | FindStart
    | AskFiles
    | ReadFiles
    | AskRecords
    | ReportRoute
    | ReportTopic
    | Pause
    | RaiseError
    | EndRead
)


class PartitionRead:
    def __init__(
        self, asked: ReadTicket, prefer: Preference, *, patience_s: float, now_s: float, whole: bool = False
    ) -> None:
        """whole: everything up to the ticket's end was committed once, so that a read which ends before is no end."""
        self._whole = whole
        self._asked = asked
        self._prefer = prefer
        self._patience_s = patience_s
        #: What was asked for, of one topic: without a topic_id only until LearnTopic is done.
        self.ticket = asked
        self._topic_id = asked.topic_id  # as last known
        #: When it is over unless something is given before.
        self.deadline_s = now_s + patience_s
        self._tries = FailedTries()
        #: What follows next; once it is empty, the state says it.
        self._due: deque[Instruction] = deque()
        self._doing: Instruction | None = None
        self._is_over = False
        #: Whether the leader is read from next. It always is if it is preferred.
        self._leaders_turn = prefer == "leader"
        #: Who is asked at present: the leader by its route, or a replica that is preferred to it.
        self._route: Route | None = None
        self._replica: Replica | None = None
        self._begin()

    def _begin(self) -> None:
        """A start that is no offset is for the leader to resolve, even if a follower is read afterwards. The read goes
        on by offset: the start is resolved again only if retention removed that offset before anything was read, or
        another topic has the name."""
        start, last_epoch = self._asked.start, self._asked.last_epoch
        found = ReadPlace(start, NO_EPOCH if last_epoch is None else last_epoch) if isinstance(start, int) else None
        #: The next offset, with the leader epoch of the record before it. Everything between _began and it was given,
        #: once and in order. None: the leader is to say where the read begins.
        self._place = self._began = found
        self._tries_to_begin = FailedTries()

    @property
    def place(self) -> ReadPlace:
        assert self._place is not None, "where it begins is known before anything is asked for"
        return self._place

    def left_s(self, now_s: float) -> float:
        return max(0.0, self.deadline_s - now_s)

    def next(self) -> Instruction:
        self._doing = self._due.popleft() if self._due else self._goes_on()
        return self._doing

    def _goes_on(self) -> Instruction:
        if self._is_over:
            return EndRead()
        if self.ticket.topic_id is None:
            return LearnTopic()
        if self._place is None:
            return FindLeader()
        if self._is_beyond(self._place.offset):
            return EndRead()
        return FindLeader() if self._leaders_turn else FindReplicas()

    def _is_beyond(self, offset: Offset) -> bool:
        return self.ticket.to is not None and offset >= self.ticket.to

    # What was found out

    def topic_known(self, topic_id: str) -> None:
        self.ticket = replace(self._asked, topic_id=topic_id)
        if topic_id != self._topic_id:
            self._topic_id = topic_id
            self._begin()

    def leader_known(self, route: Route) -> None:
        self._route = route
        if self._place is None:
            self._due.append(FindStart(Replica.leading(route), replace(self.ticket, to=0, max_wait_ms=0)))
        else:
            self._due.append(self._question(Replica.leading(route)))

    def starts_at(self, place: ReadPlace) -> None:
        self._route = None
        self._place = self._began = place

    def replicas_known(self, replicas: Sequence[Replica]) -> None:
        """See FindReplicas."""
        chosen = self._preferred(replicas)
        if chosen is None:
            self._leaders_turn = True
            return
        self._replica, self._before = chosen, self.place
        if self._prefer == "near":
            self._due.append(AskFiles(chosen, self._wanted_files()))
        else:
            self._due.append(self._question(chosen))

    def _preferred(self, replicas: Sequence[Replica]) -> Replica | None:
        if self._prefer == "near":
            return replicas[0] if replicas else None
        if self._prefer == "follower":
            return replicas[self.ticket.partition % len(replicas)] if replicas else None
        return next((each for each in replicas if each.broker == self._prefer), None)

    def _wanted_files(self) -> WantedRange:
        return WantedRange(
            topic=self.ticket.topic,
            partition=self.ticket.partition,
            start=self.place.offset,
            last_epoch=_known(self.place),
            to=self.ticket.to,
            files=True,
        )

    def files_told(self, found: FoundRange, *, are_here: bool) -> None:
        """are_here: the range holds something, and its files are on this host."""
        assert self._replica is not None, "it was asked"
        is_of_this_log = found.topic_id == self.ticket.topic_id and found.cut is None
        self._due.append(ReadFiles(found) if are_here and is_of_this_log else self._question(self._replica))

    # Records

    def _question(self, replica: Replica, *, checked: bool = False) -> AskRecords:
        self._question_at = self.place
        return AskRecords(replica, self._ticket_at(self.place), checked)

    def _ticket_at(self, place: ReadPlace) -> ReadTicket:
        return replace(
            self.ticket,
            from_offset=place.offset,
            from_time=None,
            last_epoch=_known(place),
            any_replica=self._replica is not None,
        )

    def answered(self, after: ReadPlace) -> ReadTicket | None:
        """An answer's records end there. Return the next question: it goes before these records are received, so that
        the broker never waits for this reader. None: these are the last."""
        if after.offset <= self._question_at.offset or self._is_beyond(after.offset):
            return None
        self._question_at = after
        return self._ticket_at(after)

    def wanted(self, base_offset: Offset, last_offset: Offset) -> tuple[Offset, Offset] | None:
        """Which rows of a stored batch come next: from the first of these offsets on, below the second. None: none."""
        first, to = self.place.offset, self.ticket.to
        beyond = last_offset + 1 if to is None else min(to, last_offset + 1)
        if beyond <= first:
            return None
        if base_offset > first:
            raise self._gap(base_offset)
        return first, beyond

    def _gap(self, sent: Offset) -> CorruptLog:
        return CorruptLog(
            f"{self.ticket.topic}-{self.ticket.partition}: offset {self.place.offset} was next, but the broker sent "
            f"{sent}: read from there if what lies between may be missed"
        )

    def given(self, next_offset: Offset, leader_epoch: int, now_s: float) -> None:
        """The rows from `place` on were given, below next_offset. leader_epoch: that of the last of them."""
        self._place = ReadPlace(next_offset, leader_epoch)
        if self._replica is None:
            self._renew(now_s)

    def _renew(self, now_s: float) -> None:
        self.deadline_s = now_s + self._patience_s
        if self._tries.count:
            self._tries = FailedTries()

    def served(self, now_s: float) -> None:
        """All questions were answered, or the files were read to their end."""
        if isinstance(self._doing, ReadFiles):
            self._after_files(now_s)
        elif self.place.offset < self._question_at.offset:  # the last answers ended there, and had no records
            self.failed(self._gap(self._question_at.offset), now_s)
        elif self._replica is not None:
            self._leave_replica(now_s, may_give_more=self.ticket.max_wait_ms > 0)
        elif self._whole and not self._is_beyond(self.place.offset):
            self._fell_short(now_s)
        else:
            self._leave_leader()
            self._renew(now_s)
            self._is_over = not self.ticket.max_wait_ms

    def _fell_short(self, now_s: float) -> None:
        """The leader may have been deposed, and not know it; if not, records are gone."""
        asked = self.ticket
        gone = LogTruncated(
            f"{asked.topic}-{asked.partition}: all below offset {asked.to} was committed, and its leader has it up to "
            f"{self.place.offset} only: an unclean election has lost the rest, or the partition was removed and added "
            "again"
        )
        left_s = self.left_s(now_s)
        told = self._tries.add(gone, left_s)
        if self._route is not None:
            self._due.append(ReportRoute(self._route))
        self._due.append(Pause(min(self._tries.back_off_s, left_s)) if left_s else RaiseError(told))
        self._leave_leader()

    def _after_files(self, now_s: float) -> None:
        assert self._replica is not None, "they are its files"
        if self._is_beyond(self.place.offset):
            self._leave_replica(now_s, may_give_more=False)
        else:
            self._due.append(self._question(self._replica))

    def _leave_replica(self, now_s: float, *, may_give_more: bool) -> None:
        gave = self.place != self._before
        self._replica = None
        self._leaders_turn = not (gave and may_give_more)
        if gave:
            self._renew(now_s)

    def _leave_leader(self) -> None:
        self._route = None
        self._leaders_turn = self._prefer == "leader"

    # Errors, and the end

    def failed(self, error: ReplicationError, now_s: float) -> None:
        """What is being done has failed."""
        doing = self._doing
        if isinstance(doing, LearnTopic):  # whoever finds topics has tried again
            self._due.append(RaiseError(self._tries.add(error, self.left_s(now_s))))
        elif self._is_over:
            return  # because it was closed
        elif isinstance(doing, FindReplicas):
            self._leaders_turn = True  # the way to the leader meets the same error, and retries
        elif isinstance(doing, ReadFiles):
            self._after_files(now_s)
        elif isinstance(doing, AskRecords) and isinstance(error, CorruptLog) and not doing.checked:
            self._due.append(self._question(doing.replica, checked=True))
        elif self._replica is not None:
            self._due.append(ReportTopic())  # the leader has the same error, or serves what the replica did not
            self._leave_replica(now_s, may_give_more=True)
        else:
            self._leader_failed(error, now_s)

    def _leader_failed(self, error: ReplicationError, now_s: float) -> None:
        is_of_start, was_faster = self._place is None, self._retention_was_faster(error)
        if not was_faster or now_s >= self.deadline_s:
            self._try_again(error, self._tries_to_begin if is_of_start else self._tries, now_s)
        self._leave_leader()
        if not is_of_start and self._place == self._began:
            self.ticket = self._asked  # nothing was read: another topic of this name will do as well
            if was_faster:
                self._begin()

    def _retention_was_faster(self, error: ReplicationError) -> bool:
        is_gone = isinstance(error, OffsetOutOfRange) and not isinstance(error, LogTruncated)
        is_named = not isinstance(self._asked.start, int)
        return is_gone and is_named and self._place is not None and self._place == self._began

    def _try_again(self, error: ReplicationError, tries: FailedTries, now_s: float) -> None:
        left_s = self.left_s(now_s)
        told = tries.add(error, left_s)
        may_pass = error.retriable or (self._route is not None and error.stale_routes)
        if self._route is not None and may_pass:
            # Any error that may be tried again, a timeout too, may mean that the leader is gone.
            self._due.append(ReportRoute(self._route))
        self._due.append(Pause(min(tries.back_off_s, left_s)) if may_pass and left_s else RaiseError(told))

    def closed(self) -> None:
        """Nobody wants any more."""
        self._is_over = True
        self._due.clear()


def _known(place: ReadPlace) -> int | None:
    return None if place.last_epoch == NO_EPOCH else place.last_epoch
