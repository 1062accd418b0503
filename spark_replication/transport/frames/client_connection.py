"""A client's connection after its handshake, as the broker's loop has it: how it begins and ends."""

from __future__ import annotations

import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from spark_replication.errors import ReplicationError
from spark_replication.messages.lane import ThrottledFrame, WelcomeFrame
from spark_replication.messages.quotas import Rate
from spark_replication.messages.replication import ErrorFrame
from spark_replication.transport.proofs.caller import Caller
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.sockets.frames import Channel, FrameReceiver, ReceivedFrame, encoded
from spark_replication.transport.sockets.socket_loop import Connected, SocketLoop
from spark_replication.transport.sockets.taking import Taking, moment_ms


class Admitted(NamedTuple):
    """A client that has shaken hands."""

    caller: Caller
    rights: Rights
    channel: Channel
    receiver: FrameReceiver
    welcome: WelcomeFrame
    #: Whether to tell the client why its connection ends.
    is_refusal: Callable[[OSError | ReplicationError], bool]
    close: Callable[[], None]


class ClientConnection(Connected):
    def __init__(self, loop: SocketLoop, client: Admitted) -> None:
        super().__init__(client.channel)
        self._loop = loop
        self._client = client
        self._look_ms = client.rights.look_ms(client.caller)  # infinite: nothing that let it in can be forgotten
        self._taking = Taking(self.take)
        self.share = client.rights.quotas.of(client.caller)
        self._waits_until_ms = 0.0

    def begin(self) -> None:
        """Join the loop. The client's first frames may have come with its handshake."""
        if self._loop.add(self):
            self.outbox.put(encoded(self._client.welcome))
            self._loop.perform(self, self._came_before)

    def _came_before(self) -> None:
        """No poll reports what came with the last bytes of the handshake."""
        self._took(self._client.receiver.whole())
        self.came()

    def wake(self) -> None:
        self._loop.touch(self)

    def came(self) -> None:
        if self._look_ms < math.inf:
            self._client.rights.require_known(self._client.caller)
        if not self._taking.left:
            self._took(self._client.receiver.receive())

    def _took(self, frames: list[ReceivedFrame]) -> None:
        if frames:
            self.share.take("request_rate", len(frames))
            self._taking.add(frames)
            self._taking.go_on(moment_ms())

    def waits_until_ms(self, now_ms: float, rate: Rate) -> float:
        """When the client may go on that has taken more than it may, of this rate or of requests: until then nothing is
        read from it, and no records are sent. It is told so. This may be over already."""
        if self._waits_until_ms <= now_ms:
            wait = self.share.wait(rate, "request_rate")
            if wait is not None:
                self._waits_until_ms = now_ms + wait.ms
                self.outbox.put(encoded(ThrottledFrame(ms=wait.ms, quota=wait.quota)))
        return self._waits_until_ms

    def turn(self, now_ms: float) -> float:
        if self._look_ms < math.inf:
            self._client.rights.require_known(self._client.caller)
        if self._taking.left:
            self._taking.go_on(moment_ms())
        due_ms = self.do_due(now_ms)
        return now_ms if self._taking.left else min(due_ms, now_ms + self._look_ms)

    @abstractmethod
    def do_due(self, now_ms: float) -> float:
        """As `turn`."""

    @abstractmethod
    def take(self, received: ReceivedFrame) -> None:
        """Take what the client has sent."""

    @abstractmethod
    def over(self) -> None:
        """The connection has ended."""

    @abstractmethod
    def last_words(self) -> None:
        """Put what is still to be said into the outbox, before the client is told why its connection ends."""

    def ended(self, error: OSError | ReplicationError) -> None:
        try:
            self.over()
            if self._client.is_refusal(error) and isinstance(error, ReplicationError):
                self.last_words()
                self.outbox.put(encoded(ErrorFrame(error=error.code, message=error.message)))
                with contextlib.suppress(OSError, ReplicationError):
                    self.outbox.flush()
        finally:
            self._taking.drop()
            self._client.receiver.free()
            self._client.close()
