"""When a session without a connection ends locally (Z2): once a server takes new clients, and not this one, for long.

A server whose data is of an earlier time than what this client has seen closes each of its connections at once, for
ever, and never says that the session is over. By then it is over there, or was never known. Whoever opens another
begins anew. While no server serves anybody, a session waits: only a server can end it, and counts from when it is back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

TIMEOUTS_MIN = 3  # of the session: as long as this without a connection, no server can still count on it
GRACE_S = 2.0  # several attempts of kazoo's: the server may have come back just now


class Overdue:
    """Ends a session that stays without a connection. `suspended` and `back` come from the session's own thread."""

    def __init__(
        self, timeout_s: float, *, serves: Callable[[], bool], end: Callable[[], None], grace_s: float = GRACE_S
    ) -> None:
        """serves: whether a server takes a new client at present; may block."""
        self._timeout_s = timeout_s
        self._serves = serves
        self._end = end
        self._grace_s = grace_s
        self._back: threading.Event | None = None

    def suspended(self) -> None:
        if self._back is None:
            back = self._back = threading.Event()
            threading.Thread(target=self._wait, args=(back,), name="zookeeper-overdue", daemon=True).start()

    def back(self) -> None:
        """The connection is back, or nobody needs it any longer."""
        if self._back is not None:
            self._back.set()
            self._back = None

    def _wait(self, back: threading.Event) -> None:
        wait_s = TIMEOUTS_MIN * self._timeout_s
        while not back.wait(wait_s):
            if self._serves() and not back.wait(self._grace_s):
                self._end()
                return
            wait_s = self._timeout_s
