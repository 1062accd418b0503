"""A connection of members of consumer groups after its handshake: requests in, answers and news out. Only the broker's
loop uses it."""

from __future__ import annotations

import logging
import math

from spark_replication.engine.groups.coordinators import Coordinators
from spark_replication.errors import BrokerNotAvailable, InvalidRequest, ReplicationError
from spark_replication.messages.acls import Need
from spark_replication.messages.groups import (
    ASKED_MAX,
    GroupAnswer,
    GroupAnswerFrame,
    GroupFrame,
    GroupNews,
    GroupNewsFrame,
    GroupRefusal,
    GroupRequest,
    JoinGroup,
)
from spark_replication.process.logs import log_if_mistaken
from spark_replication.transport.frames.client_connection import Admitted, ClientConnection
from spark_replication.transport.meter import GROUP, Meter
from spark_replication.transport.sockets.frames import ReceivedFrame, encoded
from spark_replication.transport.sockets.socket_loop import SocketLoop, loop_ms

REQUEST_BYTES_MAX = 4 << 20  # a member may hold many partitions
REQUESTS_ROOM_BYTES = 4 << 10  # of the buffer in which they are received
SILENT_MS = 30_000  # of a connection over which nothing was asked yet

log = logging.getLogger(__name__)


class MemberConnection(ClientConnection):
    """engine.groups.coordinator.MemberLink."""

    def __init__(self, coordinators: Coordinators, loop: SocketLoop, meter: Meter, client: Admitted) -> None:
        super().__init__(loop, client)
        client.receiver.frame_bytes_max = REQUEST_BYTES_MAX
        client.receiver.room_bytes = REQUESTS_ROOM_BYTES
        self._coordinators = coordinators
        self._meter = meter
        self._require = client.rights.require
        self._caller = client.caller
        self._began_ms = loop_ms()
        self._has_asked = False
        #: When each request came that is not answered yet.
        self._owed: dict[int, float] = {}
        self._is_over = False

    def take(self, received: ReceivedFrame) -> None:
        frame, _ = received
        if not isinstance(frame, GroupFrame):
            raise InvalidRequest(f"a member sends requests, not {type(frame).__name__}")
        if frame.number in self._owed or len(self._owed) >= ASKED_MAX:
            raise InvalidRequest(f"request {frame.number} is not answered yet, or {ASKED_MAX} others are not")
        self._has_asked = True
        self._owed[frame.number] = loop_ms()
        try:
            self._require(self._caller, _needs(frame.asked))
        except ReplicationError as error:
            self.answer(frame.number, error)
            return
        self._coordinators.ask(frame.number, frame.asked, self)

    def answer(self, number: int, told: GroupAnswer | ReplicationError) -> None:
        came_ms = self._owed.pop(number)
        if isinstance(told, ReplicationError):
            log_if_mistaken(log, told)
            self._meter.refused(GROUP, told.code)
            told = GroupRefusal(error=told.code, message=told.message)
        self._meter.took(GROUP, [(loop_ms() - came_ms) / 1000])
        self._put(GroupAnswerFrame(number=number, told=told))

    def tell(self, news: GroupNews) -> None:
        self._put(GroupNewsFrame(news=news))

    def _put(self, frame: GroupAnswerFrame | GroupNewsFrame) -> None:
        if not self._is_over:
            self.outbox.put(encoded(frame))
            self.wake()

    def do_due(self, now_ms: float) -> float:
        waits_until_ms = self.waits_until_ms(now_ms, "request_rate")
        is_sent = self.outbox.flush()
        self.reads = is_sent and waits_until_ms <= now_ms
        if not self._has_asked and now_ms >= self._began_ms + SILENT_MS:
            raise BrokerNotAvailable("no member has asked for anything over it: connect again")
        due_ms = math.inf if self._has_asked else self._began_ms + SILENT_MS
        return due_ms if waits_until_ms <= now_ms else min(due_ms, waits_until_ms)

    def over(self) -> None:
        self._is_over = True
        self._coordinators.hung_up(self)

    def last_words(self) -> None:
        """A member asks again what was not answered."""


def _needs(asked: GroupRequest) -> list[Need]:
    needs = [Need("read", group=asked.group)]
    if isinstance(asked, JoinGroup):
        needs += [Need("read", topic) for topic in asked.introduction.topics]
    return needs
