"""Sends the batches of one partition to its leader, whichever broker leads: window → lane → answers → outcomes.

A batch that is not full waits `linger_ms` for more sends. With `IN_FLIGHT_ALONE` batches unanswered, it waits until one
of them is answered. So a fast producer builds larger batches, and a slow one waits for nothing but `linger_ms`.

While there are batches and no lane, a lane to the leader is taken. Batches that have run out of time fail. A new leader
is looked for when answers stay away. The window decides what an event means for the batches. Each event returns what it
settles: sends, and what became of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, Protocol

import msgspec

from spark_replication.core.routing import Route
from spark_replication.decoding import error_of
from spark_replication.engine.client.lanes import AT_ONCE, Lane, Outgoing
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.pausing import back_off_s, look_again_s
from spark_replication.engine.client.window import FailedSend, FixedWindow, Pending, Send, Window
from spark_replication.errors import (
    BatchTooLarge,
    BrokerNotAvailable,
    ClientClosed,
    InvalidRequest,
    OutOfOrderSequence,
    ReplicationError,
    RequestTimedOut,
    SchemaMismatch,
    UnknownProducerId,
)
from spark_replication.messages.envelope import NONE
from spark_replication.messages.lane import PutAnswer
from spark_replication.messages.records import BatchMetadata
from spark_replication.model import Offset, TopicPartition

IN_FLIGHT_ALONE = 4  # batches in flight up to which the next one waits for nothing

_OF_CONTENT = frozenset((BatchTooLarge.code, SchemaMismatch.code, InvalidRequest.code))

Acks = Literal["all", 0, 1]


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a batch: its rows have the offsets from base_offset to last_offset."""

    topic: str
    partition: int
    base_offset: Offset
    last_offset: Offset


class SenderSettings(msgspec.Struct, frozen=True, kw_only=True):
    acks: Acks
    deadline_ms: int
    in_flight_batches_max: int
    in_flight_bytes_max: int
    linger_ms: int
    batch_bytes: int
    #: After this long without an answer, the route is asked for again.
    stall_s: float = 1.0
    #: After this long without an answer over the whole connection, it is replaced: a broker answers within its
    #: request.timeout.ms, 10 s by default, whatever becomes of the batch.
    silence_s_max: float = 15.0


Settled = list[tuple[Send[Ack], Ack | ReplicationError]]


class SenderPort(Protocol):
    """How one partition's sender finds its leader, and is called again."""

    def known(self) -> Route | None:
        """The last known route. None: it has to be asked for. Raises the error if nobody knows the partition."""

    def stale(self, route: Route) -> None:
        """That route did not work."""

    def ask(self, by_s: float) -> None:
        """Have `found` called, soon and by this time. BrokerNotAvailable: nobody can ask."""

    def lane(self, route: Route, kind: Any, epoch: int) -> Lane:
        """A lane to that leader, of which this sender is the owner. ClientClosed: there are none any more."""

    def look_at(self, at_s: float) -> None:
        """Have `look` called at that time."""


class Sending:
    def __init__(
        self,
        partition: TopicPartition,
        port: SenderPort,
        identity: Identity,
        settings: SenderSettings,
        now_s: Callable[[], float],
        *,
        is_fixed: bool = False,
    ) -> None:
        """All senders of a producer share its `identity`. With `is_fixed`, the user chose its numbers: they are never
        changed."""
        self._partition = partition
        self._port = port
        self._identity = identity
        self._settings = settings
        self._now_s = now_s
        batches_max, bytes_max = settings.in_flight_batches_max, settings.in_flight_bytes_max
        self.window: Window[Ack] = (
            FixedWindow(batches_max=batches_max, bytes_max=bytes_max, epoch=identity.epoch)
            if is_fixed
            else Window(batches_max=batches_max, bytes_max=bytes_max, batch_bytes=settings.batch_bytes)
        )
        self.lane: Lane | None = None
        self._is_asking = False  # `found` will be called
        #: When `look` is due next. As long as there are batches, it is no later than anything may be.
        self._looks_s = math.inf
        self._resumes_s = 0.0  # after a failure, no lane is taken before this time
        self._trouble: ReplicationError | None = None  # the last error since the last acknowledgement
        self._failures = 0  # since the last acknowledgement
        self._progress_s = 0.0  # when the lane was last taken, answered, or without anything to answer
        self._asked_s = 0.0  # when the route was last asked for again because answers stayed away
        #: How many sends have run out of time so far.
        self.expired = 0

    @property
    def is_over(self) -> bool:
        """Whether a batch has failed under numbers that the user chose: no other may take its number."""
        return isinstance(self.window, FixedWindow) and self.window.over

    def because(self) -> str:
        """Why there are no answers, in parentheses, as far as anybody knows."""
        waits_for = "" if self.lane is None else self.lane.link.waits_for(self._now_s())
        why = str(self._trouble or waits_for)
        return why and f" ({why})"

    # Events

    def add(self, send: Send[Ack]) -> Settled:
        """Add a send, for which the window has room."""
        now_s = self._now_s()
        was_empty = not self.window
        if was_empty:
            self._progress_s = now_s
        if self.window.add(send, now_s):
            self._ask_for_next()
        return self._go_on() if was_empty else []

    def close_last(self) -> None:
        """The last batch waits for no more sends."""
        self.window.close_last()
        self._ask_for_next()

    def found(self, route: Route | ReplicationError) -> Settled:
        self._is_asking = False
        return self._found(route) + self._go_on()

    def look(self, at_s: float) -> Settled:
        """Do what is due. Nothing, if `at_s` is not the time of the next look any more."""
        if at_s != self._looks_s:
            return []
        self._looks_s = math.inf
        return self._go_on()

    def next_batch(self, lane: Lane) -> Outgoing | None:
        lane.asked_at_s = math.inf
        pending = self.window.next_unsent
        if self.lane is not lane or pending is None or self._sendable_at_s(lane, pending) > self._now_s():
            self._ask_for_next()
            return None
        if not self.window.unanswered:
            self._progress_s = self._now_s()
        self.window.send_next()
        self._ask_for_next()
        return Outgoing(
            [send.batch for send in pending.sends],
            BatchMetadata(
                acks=self._settings.acks,
                producer=self._identity.producer,
                epoch=lane.epoch,
                sequence=pending.sequence,
                any_order=self._identity.any_order,
                partition=self._partition.partition,
            ),
        )

    def answered(self, lane: Lane, answers: Sequence[PutAnswer]) -> Settled:
        settled: Settled = []
        if self.lane is not lane:
            return settled
        self._progress_s = self._now_s()
        for answer in answers:
            if answer.error != NONE:
                settled += self._refused(lane, answer)
                break  # the lane is given up: later answers mean nothing
            settled += self._acknowledged(answer)
        self._ask_for_next()
        return settled

    def ended(self, lane: Lane, error: ReplicationError) -> Settled:
        """The lane's connection has ended."""
        if self.lane is not lane:
            return []
        idle = not self.window
        self._give_up(lane, None if idle else error)
        # With stale routes, whoever ended it may be no leader: the next one is asked. See AuthenticationFailed.
        may_pass = error.retriable or error.stale_routes
        return [] if idle or may_pass else self._fail_all(error)

    def given_up(self, error: ReplicationError) -> Settled:
        """Nothing is sent any more, and `look` is not called again."""
        failed = self._fail_all(error)
        self._looks_s = math.inf
        if self.lane is not None:
            self._give_up(self.lane, None)
        return failed

    # What is due

    def _go_on(self) -> Settled:
        """Do what is due, and have a look taken when anything else may be."""
        settled = self._expire()
        if self.window and self.lane is None and not self._is_asking:
            settled += self._take_lane()
        elif self.window and self.lane is not None and self._stalls_s <= self._now_s():
            self._look_for_another_leader(self.lane)
        if self.window:
            self._look_at(min(self.window.first_live_deadline_s, self._next_s))
        return settled

    @property
    def _next_s(self) -> float:
        """When something is to be done that is no batch's end."""
        if self.lane is not None:
            return self._stalls_s
        return math.inf if self._is_asking else self._resumes_s

    @property
    def _stalls_s(self) -> float:
        return max(self._progress_s, self._asked_s) + self._settings.stall_s

    def _look_at(self, at_s: float) -> None:
        if at_s < self._looks_s:
            self._looks_s = at_s
            self._port.look_at(at_s)

    def _expire(self) -> Settled:
        expired = self.window.expire(self._now_s())
        failed: Settled = [(each.send, self._out_of_time(maybe_written=each.maybe_written)) for each in expired]
        self.expired += len(failed)
        if self.lane is not None and self.lane.epoch != self.window.epoch:
            self._give_up(self.lane, None)
        return failed

    def _out_of_time(self, *, maybe_written: bool) -> ReplicationError:
        within = f"within {self._settings.deadline_ms} ms{self.because()}"
        if maybe_written or self._trouble is None:
            return RequestTimedOut(
                f"a batch for {self._partition} had no answer {within}: it may be written, look before sending it anew"
                if maybe_written
                else f"a batch for {self._partition} could not be sent {within}: it is not written, send it anew",
                maybe_written=maybe_written,
            )
        return error_of(
            self._trouble.code,
            f"{self._trouble.message} (given up after {self._settings.deadline_ms} ms, nothing is written)",
        )

    # Leaders

    def _take_lane(self) -> Settled:
        if self._now_s() < self._resumes_s:
            return []
        try:
            route = self._port.known()
            if route is None:
                self._ask()
                return []
        except ReplicationError as error:
            return self._found(error)
        return self._found(route)

    def _ask(self) -> None:
        self._port.ask(self.window.first_live_deadline_s)
        self._is_asking = True

    def _found(self, route: Route | ReplicationError) -> Settled:
        if not self.window:
            return []
        if self.lane is not None:
            if isinstance(route, Route) and route != self.lane.route:
                moved = f"{self._partition} has moved from {self.lane.route.address} to {route.address}"
                self._give_up(self.lane, BrokerNotAvailable(f"{moved}: retry", maybe_written=True))
            return []  # without another route, the lane may still get its answers
        if isinstance(route, ReplicationError):
            return self._not_found(route)
        try:
            self.lane = self._port.lane(route, self.window.first.kind, self.window.epoch)
        except ClientClosed as error:
            return self._fail_all(error)
        self._progress_s = self._now_s()
        self._ask_for_next()
        return []

    def _not_found(self, error: ReplicationError) -> Settled:
        if self._trouble is None or self._now_s() < self.window.first_live_deadline_s:
            self._note(error)  # otherwise this try had no time: the earlier error tells more
        return [] if error.retriable else self._fail_all(error)

    def _fail_all(self, error: ReplicationError) -> Settled:
        return _because_of(error, self.window.fail_all())

    def _look_for_another_leader(self, lane: Lane) -> None:
        self._asked_s = self._now_s()
        self._port.stale(lane.route)
        heard_s = max(self._progress_s, lane.link.heard_s)
        silence_s_max = self._settings.silence_s_max
        if self.window.unanswered and self._asked_s - heard_s >= silence_s_max:
            lane.link.abandon(f"{lane.route.address} has answered nothing for {silence_s_max:.0f} s")
        elif not self._is_asking:
            with suppress(BrokerNotAvailable):  # the lane may still get its answers
                self._ask()

    # Batches

    def _ask_for_next(self) -> None:
        """Have the next batch asked for once it may be sent."""
        lane, pending = self.lane, self.window.next_unsent
        if lane is None or pending is None:
            return
        if pending.kind == lane.kind:
            lane.ask_at(self._sendable_at_s(lane, pending))
        elif not self.window.unanswered:  # leaving earlier would lose those answers, again and again
            self._give_up(lane, None)  # the next lane has the other kind

    def _sendable_at_s(self, lane: Lane, pending: Pending[Ack]) -> float:
        """When this batch may be sent. Until then it waits for more sends, unless it is full or closed before."""
        if pending.kind != lane.kind:
            return math.inf
        if pending.closed:
            return AT_ONCE
        if self.window.unanswered >= IN_FLIGHT_ALONE:
            return math.inf  # until an answer comes
        return pending.opened_s + self._settings.linger_ms / 1000

    def _acknowledged(self, answer: PutAnswer) -> Settled:
        self._trouble = None
        self._failures = 0
        topic, partition = self._partition
        settled: Settled = []
        base_offset = answer.base_offset
        for send in self.window.acknowledged().sends:
            end = base_offset + send.rows
            if not send.expired:
                ack = Ack(topic=topic, partition=partition, base_offset=base_offset, last_offset=end - 1)
                settled.append((send, ack))
            base_offset = end
        return settled

    def _refused(self, lane: Lane, answer: PutAnswer) -> Settled:
        failed = self.window.refused(
            retriable=answer.retriable,
            out_of_order=answer.error == OutOfOrderSequence.code,
            forgotten=answer.error == UnknownProducerId.code,
            of_content=answer.error in _OF_CONTENT,
            maybe_written=answer.maybe_written,
        )
        error = error_of(answer.error, answer.message, maybe_written=answer.maybe_written)
        self._give_up(lane, error if answer.retriable else None)
        return _because_of(error, failed)

    def _give_up(self, lane: Lane, error: ReplicationError | None) -> None:
        """Leave the present lane. What was sent on it is sent again on the next one."""
        self.lane = None
        lane.leave()
        self.window.interrupted()
        self._note(error)
        if error is not None and error.stale_routes:
            self._port.stale(lane.route)
        if self.window:
            self._look_at(self._next_s)

    def _note(self, error: ReplicationError | None) -> None:
        if error is not None:
            self._trouble = error
            self._failures += 1
            wait_s = look_again_s if error.stale_routes else back_off_s
            self._resumes_s = self._now_s() + wait_s(self._failures)


def _because_of(error: ReplicationError, failed: Sequence[FailedSend]) -> Settled:
    return [(each.send, error_of(error.code, error.message, maybe_written=each.maybe_written)) for each in failed]
