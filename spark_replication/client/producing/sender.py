"""Sends the batches of one partition: `engine.client.sending` decides, under a lock, and futures get the outcomes.

No sender has a thread. The producer's loop sends and receives, and looks after a sender when something may be due.
`Leaders` asks where a leader is, since that may take long. Futures are resolved outside of the lock, since they call
back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import pyarrow as pa

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.routes import Routes
from spark_replication.client.producing.lane import CLOSED, LeaderLinks
from spark_replication.client.producing.leaders import Leaders
from spark_replication.core.routing import Route
from spark_replication.engine.client.lanes import Lane, Outgoing
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.sending import Ack, SenderSettings, Sending, Settled
from spark_replication.engine.client.window import Promise, Send
from spark_replication.errors import ClientClosed, InvalidRequest, Overloaded, ReplicationError
from spark_replication.messages.lane import PutAnswer
from spark_replication.model import TopicPartition

SEND_BYTES = 1_024  # what a send counts beside its Arrow message: about what the producer keeps for it

log = logging.getLogger(__name__)


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
        """See Sending."""
        self.partition = partition
        self._routes = routes
        self._leaders = leaders
        self._links = links
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)  # send() and join() wait on it
        self._sending = Sending(partition, self, identity, settings, time.monotonic, is_fixed=is_fixed)
        self._closing = False
        #: Who waits for room without a thread.
        self._told: list[Callable[[], object]] = []
        #: For any thread to read.
        self.taken_bytes = 0

    # What the producer calls

    @property
    def is_idle(self) -> bool:
        """Whether every send has its answer. For any thread, at some moment."""
        return not self._sending.window

    def send(self, batch: pa.RecordBatch, deadline: Deadline) -> Future[Ack]:
        """Add a batch to the window, after waiting for room up to the deadline. Overloaded if there is none by then, or
        if sends before it run out of time: the room that they leave helps nobody."""
        future: Future[Ack] = Future()
        future.set_running_or_notify_cancel()  # it is on its way: it cannot be cancelled
        send = _send_of(batch, deadline, future)
        with self._lock:
            expired = self._sending.expired
            while not self._has_room(send, deadline, expired):
                self._room.wait(deadline.remaining_s)
            settled = self._add(send)
        self._settle(settled)
        return future

    def send_at_once(
        self,
        batch: pa.RecordBatch,
        deadline: Deadline,
        promise: Promise[Ack],
        *,
        expired: int,
        changed: Callable[[], object] | None = None,
    ) -> bool:
        """As `send`, without a wait. False: there is no room yet. Then `changed` is called once, by any thread, as soon
        as there may be. `expired` is what it was before the caller began to wait."""
        send = _send_of(batch, deadline, promise)
        with self._lock:
            if not self._has_room(send, deadline, expired):
                if changed is not None:
                    self._told.append(changed)
                return False
            settled = self._add(send)
        self._settle(settled)
        return True

    @property
    def expired(self) -> int:
        """How many sends have run out of time so far. For any thread, at some moment."""
        return self._sending.expired

    def _has_room(self, send: Send[Ack], deadline: Deadline, expired: int) -> bool:
        """Whether the window has room. Raises what `send` does, once it is of no use to wait for any."""
        sending = self._sending
        if self._closing:
            raise ClientClosed(CLOSED)
        if sending.is_over:
            raise InvalidRequest(
                f"a batch for {self.partition} has failed, and this one would have its number: begin anew"
            )
        is_late = expired != sending.expired
        if sending.window.has_room(send) and not is_late:
            return True
        if is_late or deadline.passed:
            raise Overloaded(
                f"the batches for {self.partition} that fill the window had no answer within "
                f"{deadline.timeout_ms:.0f} ms{sending.because()}: slow down and retry"
            )
        sending.close_last()  # nothing joins the last batch while the window is full
        return False

    def _add(self, send: Send[Ack]) -> Settled:
        self.taken_bytes += send.bytes
        return self._sending.add(send)

    def _tell(self) -> list[Callable[[], object]]:
        """There may be room. Returns whom to call outside of the lock."""
        self._room.notify_all()
        told, self._told = self._told, []
        return told

    def flush(self) -> list[Promise[Ack]]:
        """Return the sends that have no answer yet. None of them waits for more to join its batch."""
        with self._lock:
            self._sending.close_last()
            return [send.future for send in self._sending.window.live()]

    def close(self) -> None:
        """Accept no more sends."""
        with self._lock:
            self._closing = True
            self._sending.close_last()
            told = self._tell()
        for call in told:
            call()

    def join(self, timeout_s: float) -> None:
        """Wait until the last batch is answered or has run out of time."""
        with self._lock:
            self._room.wait_for(lambda: self.is_idle, timeout_s)

    # What Leaders calls

    def found(self, route: Route | ReplicationError) -> None:
        self._step(self._sending.found, route)

    # What the loop calls

    def look(self, at_s: float) -> None:
        self._step(self._sending.look, at_s)

    def next_batch(self, lane: Lane) -> Outgoing | None:
        with self._lock:
            return self._sending.next_batch(lane)

    def answered(self, lane: Lane, answers: list[PutAnswer]) -> None:
        self._step(self._sending.answered, lane, answers)

    def ended(self, lane: Lane, error: ReplicationError) -> None:
        self._step(self._sending.ended, lane, error)

    def loop_ended(self, error: ReplicationError) -> None:
        """The loop looks after nothing any more."""
        self._step(self._sending.given_up, error)

    def _step(self, event: Callable[..., Settled], *of: object) -> None:
        with self._lock:
            settled = event(*of)
            told = self._tell()
        self._settle(settled)
        for call in told:
            call()

    # What Sending needs, under the lock

    def known(self) -> Route | None:
        return self._routes.known(self.partition)

    def stale(self, route: Route) -> None:
        self._routes.stale(route)

    def ask(self, by_s: float) -> None:
        self._leaders.ask(self, by_s)

    def lane(self, route: Route, kind: Any, epoch: int) -> Lane:
        return self._links.lane(route, kind, epoch=epoch, owner=self)

    def look_at(self, at_s: float) -> None:
        self._links.at(at_s, partial(self.look, at_s))

    def _settle(self, settled: Settled) -> None:
        for send, outcome in settled:
            try:
                if isinstance(outcome, Ack):
                    send.future.set_result(outcome)
                else:
                    send.future.set_exception(outcome)
            except BaseException:  # SystemExit, say: it is of the callback alone, and ends no thread of the producer
                log.exception("a callback of a future of %s has failed", self.partition)


def _send_of(batch: pa.RecordBatch, deadline: Deadline, promise: Promise[Ack]) -> Send[Ack]:
    return Send(
        batch=batch,
        kind=batch.schema,
        rows=batch.num_rows,
        bytes=pa.ipc.get_record_batch_size(batch) + SEND_BYTES,  # ten times as fast as nbytes
        deadline_s=deadline.at_s,
        future=promise,
    )
