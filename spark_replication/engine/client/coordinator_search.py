"""How a member of a group finds whoever coordinates it, one attempt at a time.

| event                               | what follows                                                                   |
| ----------------------------------- | ------------------------------------------------------------------------------ |
| it has nobody                       | an attempt: the known route, and a handshake                                   |
| nobody let it in                    | another after a while. Whoever that was may be stopped, or gone: who           |
|                                     | coordinates is asked for again                                                 |
| the connection has ended            | the same                                                                       |
| refused, and a retry may not help   | whoever uses the consumer gets the error                                       |

Sans-IO: a driver makes the attempt that `begins` has begun, and says what became of it.
"""

from __future__ import annotations

import math

from spark_replication.engine.client.pausing import back_off_s
from spark_replication.errors import ReplicationError


class CoordinatorSearch:
    def __init__(self) -> None:
        #: Whether the route that is known is not to be used again.
        self.doubts_route = False
        #: Why no more attempts are made.
        self.error: ReplicationError | None = None
        self._is_busy = False  # an attempt is under way, or has led to a connection
        self._failures = 0
        self._due_s = -math.inf

    def begins(self, now_s: float) -> bool:
        """Whether an attempt begins now."""
        if self._is_busy or self.error is not None or now_s < self._due_s:
            return False
        self._is_busy = True
        return True

    @property
    def due_s(self) -> float:
        """When an attempt is due. Infinite: while there is one, or a connection."""
        return math.inf if self._is_busy or self.error is not None else self._due_s

    def connected(self) -> None:
        self._failures = 0
        self.doubts_route = False

    def failed(self, error: OSError | ReplicationError, now_s: float) -> None:
        """The attempt has, or the connection that it led to has ended."""
        self._is_busy = False
        self.doubts_route = True
        self._failures += 1
        self._due_s = now_s + back_off_s(self._failures)
        if isinstance(error, ReplicationError) and not error.retriable:
            self.error = error
