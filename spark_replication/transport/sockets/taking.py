"""What a connection has received is taken for a moment at a time: the broker's loop has other connections, whose peers
wait for signs of life. A write may take milliseconds, and thousands may come together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from spark_replication.transport.sockets.frames import ReceivedFrame
from spark_replication.transport.sockets.socket_loop import loop_ms

MOMENT_MS = 100


def moment_ms() -> float:
    """When a moment that begins now is over."""
    return loop_ms() + MOMENT_MS


class Taking:
    """Frames that were received and not taken yet. They are views of what the receiver holds: while there are any,
    nothing is received."""

    def __init__(self, take: Callable[[ReceivedFrame], None]) -> None:
        self._take = take
        self.left: deque[ReceivedFrame] = deque()

    def add(self, frames: Iterable[ReceivedFrame]) -> None:
        self.left.extend(frames)

    def go_on(self, until_ms: float) -> int:
        """Take frames until then. Returns how many bytes came with them."""
        taken = 0
        while self.left and loop_ms() < until_ms:
            received = self.left.popleft()
            self._take(received)
            taken += len(received.payload)
        return taken

    def drop(self) -> None:
        self.left.clear()
