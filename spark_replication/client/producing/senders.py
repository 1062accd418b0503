"""The senders of a producer, and all that they share. They outlive a Producer that nobody holds any more: what it was
given is still written, and then its threads and connections end.

No thread and no connection refers to the Producer, so that it is collected as soon as nobody holds it.
"""

from __future__ import annotations

import atexit
import logging
import threading
import weakref
from functools import partial

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.own_process import OwnProcess
from spark_replication.client.finding.routes import Routes
from spark_replication.client.producing.lane import CLOSED, LeaderLinks
from spark_replication.client.producing.leaders import Leaders
from spark_replication.client.producing.sender import Sender
from spark_replication.engine.client.numbers import Identity
from spark_replication.engine.client.sending import Ack, SenderSettings
from spark_replication.engine.client.window import Promise
from spark_replication.errors import ClientClosed, Overloaded, ReplicationError
from spark_replication.model import TopicPartition

PARTITIONS_MAX = 100_000  # how many partitions one producer writes to: each keeps 3.5 kB for as long as it is open
CLOSE_S = 1.0  # how long connections with nothing in flight may take to end

log = logging.getLogger(__name__)


class Senders:
    """Thread-safe."""

    def __init__(
        self, routes: Routes, identity: Identity, settings: SenderSettings, process: OwnProcess, *, is_fixed: bool
    ) -> None:
        self._routes = routes
        self.leaders = Leaders(routes)
        self.links = LeaderLinks(routes.security, self._loop_failed)
        self._identity = identity
        self._is_fixed = is_fixed
        self._settings = settings
        self._process = process
        self._lock = threading.Lock()
        self._senders: dict[TopicPartition, Sender] = {}
        self._is_closed = False
        _OPEN.add(self)

    def of(self, partition: TopicPartition) -> Sender:
        with self._lock:
            self.require_open()
            if partition not in self._senders:
                if len(self._senders) >= PARTITIONS_MAX:
                    raise Overloaded(f"one producer writes to at most {PARTITIONS_MAX} partitions: open another")
                self._senders[partition] = Sender(
                    partition,
                    self._routes,
                    self.leaders,
                    self.links,
                    self._identity,
                    self._settings,
                    is_fixed=self._is_fixed,
                )
            return self._senders[partition]

    def require_open(self) -> None:
        if self._is_closed:
            raise ClientClosed(CLOSED)

    def unanswered(self) -> list[Promise[Ack]]:
        """None of them waits for more sends to join its batch."""
        return [future for sender in self._all() for future in sender.flush()]

    def close(self) -> None:
        """As Producer.close. May be called again, and by several threads."""
        if not self._process.is_this:
            return
        with self._lock:
            self._is_closed = True
        senders = self._all()
        for sender in senders:
            sender.close()
        deadline = Deadline(self._settings.deadline_ms + 2_000)
        for sender in senders:
            sender.join(deadline.remaining_s)
        self.leaders.close(CLOSE_S)
        self.links.close(CLOSE_S)
        self._routes.close()
        for sender in senders:
            sender.loop_ended(ClientClosed(CLOSED))
        _OPEN.discard(self)

    def close_unasked(self, why: str) -> None:
        """Close, since nobody else will. `why` says why, in the log, if batches are lost."""
        if not self._process.is_this:
            return
        unanswered = self.unanswered()
        self.close()
        lost = [future for future in unanswered if not future.done() or future.exception() is not None]
        if lost:
            reason = lost[0].exception() if lost[0].done() else "it has no answer"
            log.error(
                "%s without close() of a producer: %d of its last %d sends are not acknowledged, the first because %s. "
                "Look which of them are there, and call close() or flush() before",
                why,
                len(lost),
                len(unanswered),
                reason,
            )

    def _all(self) -> list[Sender]:
        with self._lock:
            return list(self._senders.values())

    def _loop_failed(self, error: ReplicationError) -> None:
        for sender in self._all():
            sender.loop_ended(error)


#: Strong references: a producer's senders stay until they are closed, also by `let_go`.
_OPEN: set[Senders] = set()


def closing_with(producer: object, senders: Senders) -> weakref.finalize[[Senders], object]:
    """Have the senders closed once nobody holds the producer."""
    closing = weakref.finalize(producer, _let_go, senders)
    closing.atexit = False  # `_close_all` sees to those that are held to the end
    return closing


def _let_go(senders: Senders) -> None:
    """Any thread may be here, in the midst of anything: it only starts another."""
    ending = threading.Thread(
        target=partial(senders.close_unasked, "nobody holds it any more"), name="producer-ends", daemon=True
    )
    try:
        ending.start()
    except RuntimeError as error:  # the process may have no more threads
        log.warning("a producer stays open to the end of the program: %s", error)


@atexit.register
def _close_all() -> None:
    # Daemon threads still run here, and end with the interpreter right after.
    for senders in tuple(_OPEN):
        senders.close_unasked("the program ended")
