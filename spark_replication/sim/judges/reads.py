"""What must hold of one read: each offset once and in order, in one log, to the end that was asked for."""

from __future__ import annotations

from typing import NamedTuple

from spark_replication.core.replica.read_start import ReadPlace
from spark_replication.errors import OffsetOutOfRange, ReplicationError
from spark_replication.messages.records import ReadTicket
from spark_replication.model import Offset
from spark_replication.sim.world.world import InvariantBroken

ONE_LOG = "readers_go_on_in_one_log"
EACH_ONCE = "readers_get_each_offset_once"
TO_THE_END = "readers_reach_the_end"


class GivenRow(NamedTuple):
    """A batch of one row."""

    offset: Offset
    leader_epoch: int
    content: bytes


class BrokerAnswer(NamedTuple):
    """What a broker answers."""

    of_leader: bool
    topic_id: str
    #: Where the read begins, where it goes on, and the leader epoch before that.
    offset: Offset
    after: ReadPlace
    rows: list[GivenRow]
    #: What the broker has before the first of the rows.
    before: GivenRow | None
    #: Whether the rows came as they were written.
    is_whole: bool


class KnownPlace(NamedTuple):
    """Where a read ended, and what it was given last."""

    topic_id: str
    place: ReadPlace
    last: bytes


class ReadJudge:
    def __init__(self, name: str, ticket: ReadTicket, known: KnownPlace | None) -> None:
        self._name = name
        self._ticket = ticket
        self._topic_id = ticket.topic_id
        #: What was given last. None: nothing was.
        self.last = None if known is None else known.last
        self._next = ticket.start if isinstance(ticket.start, int) else None
        self._has_begun = False
        #: Where a leader has said that nothing more is.
        self._end: Offset | None = None

    def is_of(self, topic_id: str) -> None:
        if self._has_begun and topic_id != self._topic_id:
            raise InvariantBroken(ONE_LOG, f"{self._name} has begun in {self._topic_id}, and goes on in {topic_id}")
        self._topic_id = topic_id

    def begins(self, offset: Offset) -> None:
        if self._has_begun:
            raise InvariantBroken(EACH_ONCE, f"{self._name} has come to {self._next}, and begins again at {offset}")
        self._next = offset

    def answered(self, answer: BrokerAnswer) -> None:
        if answer.topic_id != self._topic_id:
            raise InvariantBroken(ONE_LOG, f"{self._name} of {self._topic_id} is read from {answer.topic_id}")
        if not answer.rows and answer.of_leader:
            self._end = answer.offset

    def gives(self, row: GivenRow, first: Offset, beyond: Offset, answer: BrokerAnswer) -> None:
        """The reader gives this row, as the offsets from `first` on."""
        if not self._next == first == row.offset == beyond - 1:
            raise InvariantBroken(
                EACH_ONCE, f"{self._name} was to get {self._next}, and gets {row.offset} as [{first}, {beyond})"
            )
        before = answer.before
        if self.last is not None and before is not None and before.offset == first - 1 and before.content != self.last:
            raise InvariantBroken(ONE_LOG, f"{self._name} had read {self.last!r} before {first}, and there is {before}")
        self._next, self.last, self._has_begun = beyond, row.content, True

    def was_cut(self, *, goes_on: bool) -> None:
        """The leader has said that the log was cut below what was read."""
        if goes_on:
            raise InvariantBroken(ONE_LOG, f"{self._name} goes on at {self._next}, and the log was cut there")

    def failed(self, error: ReplicationError) -> None:
        """The reader has given up: what may pass has not, or the log has no such offset (any more)."""
        if not error.retriable and not isinstance(error, OffsetOutOfRange):
            raise InvariantBroken(TO_THE_END, f"{self._name} ended at {self._next}, since {error}")

    def ended(self) -> None:
        to, follows = self._ticket.to, self._ticket.max_wait_ms > 0
        if to is not None and self._next is not None and self._next >= to:
            return
        if follows or self._end is None or self._end != self._next:
            raise InvariantBroken(
                TO_THE_END, f"{self._name} ended at {self._next}, was to end at {to}, and no leader ends there"
            )
