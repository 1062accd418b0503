"""Sends the batches of one partition to its leader, whichever broker leads: window → lane → answers → futures.

A batch that is not full waits `linger_ms` for more sends. With `IN_FLIGHT_ALONE` batches unanswered, it waits until one
of them is answered. So a fast producer builds larger batches, and a slow one waits for nothing but `linger_ms`.

No sender has a thread. The producer's loop sends and receives, and looks after a sender when something may be due: it
takes a lane to the leader while there are batches and no lane, fails batches that have run out of time, and has a new
leader looked for when answers stay away. `Leaders` asks where a leader is, since that may take long. The window decides
what an event means for the batches. One lock guards everything here. Futures are resolved outside of it, since they
call back.
"""

from __future__ import annotations

import logging
import math
import operator
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Literal

import msgspec
import pyarrow as pa
from msgspec.structs import force_setattr

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.client.producing.lane import AT_ONCE, CLOSED, Lane, LeaderLinks, Outgoing
from spark_replication.client.producing.leaders import Leaders
from spark_replication.core.routing import Route
from spark_replication.engine.client.pausing import back_off_s, look_again_s
from spark_replication.engine.client.window import FailedSend, FixedWindow, Pending, Send, Window
from spark_replication.errors import (
    BatchTooLarge,
    BrokerNotAvailable,
    ClientClosed,
    InvalidRequest,
    OutOfOrderSequence,
    Overloaded,
    ReplicationError,
    RequestTimedOut,
    SchemaMismatch,
    UnknownProducerId,
    error_of,
)
from spark_replication.messages.envelope import NONE
from spark_replication.messages.lane import PutAnswer
from spark_replication.messages.records import KEPT_PRODUCER, BatchMetadata
from spark_replication.model import EPOCH_MAX, Offset, TopicPartition

STALL_S = 1.0  # after this long without an answer, the route is asked for again
# After this long without an answer over the whole connection, it is replaced: a broker answers within its
# request.timeout.ms, 10 s by default, whatever becomes of the batch.
SILENCE_S_MAX = 15.0
IN_FLIGHT_ALONE = 4  # batches in flight up to which the next one waits for nothing
SEND_BYTES = 1_024  # what a send counts beside its Arrow message: about what the producer keeps for it

log = logging.getLogger(__name__)

_OF_CONTENT = frozenset((BatchTooLarge.code, SchemaMismatch.code, InvalidRequest.code))

Acks = Literal["all", 0, 1]


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """The place of a batch: its rows have the offsets from base_offset to last_offset."""

    topic: str
    partition: int
    base_offset: Offset
    last_offset: Offset


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of a producer's batches, in each partition from 0 on. A producer that sends the same batches under
    the same numbers again gets its acknowledgements, and the batches are stored once."""

    #: 62 bits of the program's own; KEPT_PRODUCER may be set besides.
    producer: int
    #: A later epoch fences the earlier ones. 31 bits.
    epoch: int = 0
    #: Whether a retry of a batch may have its rows in another order.
    any_order: bool = False

    def __post_init__(self) -> None:
        number = number_within("producer", self.producer, 2 * KEPT_PRODUCER - 1)
        force_setattr(self, "producer", number)
        force_setattr(self, "epoch", number_within("epoch", self.epoch, EPOCH_MAX))


def number_within(name: str, number: object, largest: int) -> int:
    """An argument as a plain number, from 0 to the largest. Those of NumPy are taken, too."""
    try:
        found = operator.index(number)  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidRequest(f"{name}={number!r} is no whole number") from error
    if not 0 <= found <= largest:
        raise InvalidRequest(f"{name}={number!r}: it is 0 to {largest}")
    return found


class SenderSettings(msgspec.Struct, frozen=True, kw_only=True):
    acks: Acks
    deadline_ms: int
    in_flight_batches_max: int
    in_flight_bytes_max: int
    linger_ms: int
    batch_bytes: int


Settled = list[tuple[Send[Ack], Ack | ReplicationError]]


class Sender:
    def __init__(
        self,
        partition: TopicPartition,
        routes: Routes,
        leaders: Leaders,
        links: LeaderLinks,
        identity: Identity,
        settings: SenderSettings,
        *,
        is_fixed: bool = False,
    ) -> None:
        """All senders of a producer share its `identity`. With `is_fixed`, the user chose its numbers: they are never
        changed."""
        self.partition = partition
        self._routes = routes
        self._leaders = leaders
        self._links = links
        self._identity = identity
        self._settings = settings
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)  # send() and join() wait on it
        batches_max, bytes_max = settings.in_flight_batches_max, settings.in_flight_bytes_max
        self._window: Window[Ack] = (
            FixedWindow(batches_max=batches_max, bytes_max=bytes_max, epoch=identity.epoch)
            if is_fixed
            else Window(batches_max=batches_max, bytes_max=bytes_max, batch_bytes=settings.batch_bytes)
        )
        self._lane: Lane | None = None
        self._is_asking = False  # Leaders will call `found`
        #: When the loop looks next. As long as there are batches, it is no later than anything may be due.
        self._looks_s = math.inf
        self._resumes_s = 0.0  # after a failure, no lane is taken before this time
        self._trouble: ReplicationError | None = None  # the last error since the last acknowledgement
        self._failures = 0  # since the last acknowledgement
        self._progress_s = 0.0  # when the lane was last taken, answered, or without anything to answer
        self._asked_s = 0.0  # when the route was last asked for again because answers stayed away
        self._expired = 0  # how many sends have run out of time so far
        self._closing = False
        #: For any thread to read.
        self.taken_bytes = 0

    # What the producer calls

    @property
    def is_idle(self) -> bool:
        """Whether every send has its answer. For any thread, at some moment."""
        return not self._window

    def send(self, batch: pa.RecordBatch, deadline: Deadline) -> Future[Ack]:
        """Add a batch to the window, after waiting for room up to the deadline. Overloaded if there is none by then, or
        if sends before it run out of time: the room that they leave helps nobody."""
        future: Future[Ack] = Future()
        future.set_running_or_notify_cancel()  # it is on its way: it cannot be cancelled
        send = Send(
            batch=batch,
            kind=batch.schema,
            rows=batch.num_rows,
            bytes=pa.ipc.get_record_batch_size(batch) + SEND_BYTES,  # ten times as fast as nbytes
            deadline_s=deadline.at_s,
            future=future,
        )
        settled: Settled = []
        with self._lock:
            self._await_room(send, deadline)
            now_s = time.monotonic()
            self.taken_bytes += send.bytes
            was_empty = not self._window
            if was_empty:
                self._progress_s = now_s
            if self._window.add(send, now_s):
                self._ask_for_next()
            if was_empty:
                settled = self._go_on()
        self._settle(settled)
        return future

    def _await_room(self, send: Send[Ack], deadline: Deadline) -> None:
        expired = self._expired
        while not self._closing and not self._window.has_room(send):
            if deadline.passed or expired != self._expired:
                break
            self._close_last()  # nothing joins the last batch while the window is full
            self._room.wait(deadline.remaining_s)
        if self._closing:
            raise ClientClosed(CLOSED)
        if isinstance(self._window, FixedWindow) and self._window.over:
            raise InvalidRequest(
                f"a batch for {self.partition} has failed, and this one would have its number: begin anew"
            )
        if expired != self._expired or not self._window.has_room(send):
            raise Overloaded(
                f"the batches for {self.partition} that fill the window had no answer within "
                f"{deadline.timeout_ms:.0f} ms{self._because()}: slow down and retry"
            )

    def flush(self) -> list[Future[Ack]]:
        """Return the sends that have no answer yet. None of them waits for more to join its batch."""
        with self._lock:
            self._close_last()
            return [send.future for send in self._window.live()]

    def _close_last(self) -> None:
        self._window.close_last()
        self._ask_for_next()

    def close(self) -> None:
        """Accept no more sends."""
        with self._lock:
            self._closing = True
            self._close_last()
            self._room.notify_all()

    def join(self, timeout_s: float) -> None:
        """Wait until the last batch is answered or has run out of time."""
        with self._lock:
            self._room.wait_for(lambda: not self._window, timeout_s)

    # What Leaders calls

    def found(self, route: Route | ReplicationError) -> None:
        with self._lock:
            self._is_asking = False
            settled = self._found(route) + self._go_on()
        self._settle(settled)

    # What the loop calls

    def look(self, at_s: float) -> None:
        """Do what is due. Nothing, if `at_s` is not the time of the next look any more."""
        settled: Settled = []
        with self._lock:
            if at_s == self._looks_s:
                self._looks_s = math.inf
                settled = self._go_on()
        self._settle(settled)

    def next_batch(self, lane: Lane) -> Outgoing | None:
        with self._lock:
            lane.asked_at_s = math.inf
            pending = self._window.next_unsent
            if self._lane is not lane or pending is None or self._sendable_at_s(lane, pending) > time.monotonic():
                self._ask_for_next()
                return None
            if not self._window.unanswered:
                self._progress_s = time.monotonic()
            self._window.send_next()
            self._ask_for_next()
            # The sends of a batch with a number do not change.
            sends, sequence = pending.sends, pending.sequence
        return Outgoing(
            [send.batch for send in sends],
            BatchMetadata(
                acks=self._settings.acks,
                producer=self._identity.producer,
                epoch=lane.epoch,
                sequence=sequence,
                any_order=self._identity.any_order,
                partition=self.partition.partition,
            ),
        )

    def answered(self, lane: Lane, answers: list[PutAnswer]) -> None:
        settled: Settled = []
        with self._lock:
            if self._lane is not lane:
                return
            self._progress_s = time.monotonic()
            for answer in answers:
                if answer.error != NONE:
                    settled += self._refused(lane, answer)
                    break  # the lane is given up: later answers mean nothing
                settled += self._acknowledged(answer)
            self._room.notify_all()
            self._ask_for_next()
        self._settle(settled)

    def ended(self, lane: Lane, error: ReplicationError) -> None:
        with self._lock:
            if self._lane is not lane:
                return
            idle = not self._window
            self._give_up(lane, None if idle else error)
            failed = []
            # With stale routes, whoever ended it may be no leader: the next one is asked. See AuthenticationFailed.
            if not idle and not (error.retriable or error.stale_routes):
                failed = self._fail_all(error)
        self._settle(failed)

    def loop_ended(self, error: ReplicationError) -> None:
        """The loop looks after nothing any more."""
        with self._lock:
            failed = self._fail_all(error)
            self._looks_s = math.inf
            if self._lane is not None:
                self._give_up(self._lane, None)
        self._settle(failed)

    # Under the lock

    def _go_on(self) -> Settled:
        """Do what is due, and have the loop look again when anything else may be."""
        settled = self._expire()
        if self._window and self._lane is None and not self._is_asking:
            settled += self._take_lane()
        elif self._window and self._lane is not None and self._stalls_s <= time.monotonic():
            self._look_for_another_leader(self._lane)
        if self._window:
            self._look_at(min(self._window.first_live_deadline_s, self._next_s))
        return settled

    @property
    def _next_s(self) -> float:
        """When something is to be done that is no batch's end."""
        if self._lane is not None:
            return self._stalls_s
        return math.inf if self._is_asking else self._resumes_s

    @property
    def _stalls_s(self) -> float:
        return max(self._progress_s, self._asked_s) + STALL_S

    def _look_at(self, at_s: float) -> None:
        if at_s < self._looks_s:
            self._looks_s = at_s
            self._links.at(at_s, partial(self.look, at_s))

    def _take_lane(self) -> Settled:
        if time.monotonic() < self._resumes_s:
            return []
        try:
            route = self._routes.known(self.partition)
            if route is None:
                self._ask()
                return []
        except ReplicationError as error:
            return self._found(error)
        return self._found(route)

    def _ask(self) -> None:
        self._leaders.ask(self, self._window.first_live_deadline_s)
        self._is_asking = True

    def _found(self, route: Route | ReplicationError) -> Settled:
        if not self._window:
            return []
        if self._lane is not None:
            if isinstance(route, Route) and route != self._lane.route:
                moved = f"{self.partition} has moved from {self._lane.route.address} to {route.address}"
                self._give_up(self._lane, BrokerNotAvailable(f"{moved}: retry", maybe_written=True))
            return []  # without another route, the lane may still get its answers
        if isinstance(route, ReplicationError):
            return self._not_found(route)
        try:
            self._lane = self._links.lane(route, self._window.first.kind, epoch=self._window.epoch, owner=self)
        except ClientClosed as error:
            return self._fail_all(error)
        self._progress_s = time.monotonic()
        self._ask_for_next()
        return []

    def _not_found(self, error: ReplicationError) -> Settled:
        if self._trouble is None or time.monotonic() < self._window.first_live_deadline_s:
            self._note(error)  # otherwise this try had no time: the earlier error tells more
        return [] if error.retriable else self._fail_all(error)

    def _fail_all(self, error: ReplicationError) -> Settled:
        self._room.notify_all()
        return _because_of(error, self._window.fail_all())

    def _look_for_another_leader(self, lane: Lane) -> None:
        self._asked_s = time.monotonic()
        self._routes.stale(lane.route)
        heard_s = max(self._progress_s, lane.heard_s)
        if self._window.unanswered and self._asked_s - heard_s >= SILENCE_S_MAX:
            lane.abandon(f"{lane.route.address} has answered nothing for {SILENCE_S_MAX:.0f} s")
        elif not self._is_asking:
            with suppress(BrokerNotAvailable):  # the lane may still get its answers
                self._ask()

    def _ask_for_next(self) -> None:
        """Have the loop ask for the next batch once it may be sent."""
        lane, pending = self._lane, self._window.next_unsent
        if lane is None or pending is None:
            return
        if pending.kind.equals(lane.schema):
            lane.ask_at(self._sendable_at_s(lane, pending))
        elif not self._window.unanswered:  # leaving earlier would lose those answers, again and again
            self._give_up(lane, None)  # the next lane has the other schema

    def _sendable_at_s(self, lane: Lane, pending: Pending[Ack]) -> float:
        """When this batch may be sent. Until then it waits for more sends, unless it is full or closed before."""
        if not pending.kind.equals(lane.schema):
            return math.inf
        if pending.closed:
            return AT_ONCE
        if self._window.unanswered >= IN_FLIGHT_ALONE:
            return math.inf  # until an answer comes
        return pending.opened_s + self._settings.linger_ms / 1000

    def _acknowledged(self, answer: PutAnswer) -> Settled:
        self._trouble = None
        self._failures = 0
        topic, partition = self.partition
        settled: Settled = []
        base_offset = answer.base_offset
        for send in self._window.acknowledged().sends:
            end = base_offset + send.rows
            if not send.expired:
                ack = Ack(topic=topic, partition=partition, base_offset=base_offset, last_offset=end - 1)
                settled.append((send, ack))
            base_offset = end
        return settled

    def _refused(self, lane: Lane, answer: PutAnswer) -> Settled:
        failed = self._window.refused(
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
        """Leave a lane. What was sent on it is sent again on the next one."""
        if self._lane is lane:
            self._lane = None
            lane.leave()
            self._window.interrupted()
            self._note(error)
            if error is not None and error.stale_routes:
                self._routes.stale(lane.route)
            if self._window:
                self._look_at(self._next_s)

    def _note(self, error: ReplicationError | None) -> None:
        if error is not None:
            self._trouble = error
            self._failures += 1
            wait_s = look_again_s if error.stale_routes else back_off_s
            self._resumes_s = time.monotonic() + wait_s(self._failures)

    def _expire(self) -> Settled:
        expired = self._window.expire(time.monotonic())
        failed: Settled = [(each.send, self._out_of_time(maybe_written=each.maybe_written)) for each in expired]
        if failed:
            self._expired += len(failed)
            self._room.notify_all()
        if self._lane is not None and self._lane.epoch != self._window.epoch:
            self._give_up(self._lane, None)
        return failed

    def _out_of_time(self, *, maybe_written: bool) -> ReplicationError:
        within = f"within {self._settings.deadline_ms} ms{self._because()}"
        if maybe_written or self._trouble is None:
            return RequestTimedOut(
                f"a batch for {self.partition} had no answer {within}: it may be written, look before sending it anew"
                if maybe_written
                else f"a batch for {self.partition} could not be sent {within}: it is not written, send it anew",
                maybe_written=maybe_written,
            )
        return error_of(
            self._trouble.code,
            f"{self._trouble.message} (given up after {self._settings.deadline_ms} ms, nothing is written)",
        )

    def _because(self) -> str:
        waits_for = "" if self._lane is None else self._lane.waits_for
        why = str(self._trouble or waits_for)
        return why and f" ({why})"

    def _settle(self, settled: Sequence[tuple[Send[Ack], Ack | ReplicationError]]) -> None:
        for send, outcome in settled:
            try:
                if isinstance(outcome, Ack):
                    send.future.set_result(outcome)
                else:
                    send.future.set_exception(outcome)
            except BaseException:  # SystemExit, say: it is of the callback alone, and ends no thread of the producer
                log.exception("a callback of a future of %s has failed", self.partition)


def _because_of(error: ReplicationError, failed: Sequence[FailedSend]) -> Settled:
    return [(each.send, error_of(error.code, error.message, maybe_written=each.maybe_written)) for each in failed]
