"""Who asked for a change, from where, and what became of it: a line each in the log of whoever was asked. Whoever has
no right to what it asks for has one, too. Whoever proves nothing may ask as often as it likes, so that has one a minute
for each kind of call."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from spark_replication.errors import (
    AuthenticationFailed,
    ClusterAuthorizationFailed,
    ReplicationError,
    TopicAuthorizationFailed,
)
from spark_replication.messages.actions import ADMIN_REQUESTS, REBUILD_MIRROR, SHUTDOWN
from spark_replication.messages.requests import RequestAnswer
from spark_replication.process.seldom import Seldom

CHANGES = frozenset((*(each.name for each in ADMIN_REQUESTS.values()), REBUILD_MIRROR.name, SHUTDOWN.name))
BODY_MAX = 1_000  # characters of a request: a schema may have megabytes
TOLD_AGAIN_MS = 60_000

_REFUSED = (ClusterAuthorizationFailed, TopicAuthorizationFailed)

log = logging.getLogger(__name__)

#: Takes the answer.
Answered = Callable[[msgspec.Struct], None]


class RefusedCalls:
    """Calls whose caller has not proven who it is. Thread-safe."""

    def __init__(self, now_ms: Callable[[], int] = lambda: int(time.monotonic() * 1000)) -> None:
        """now_ms: never goes back."""
        self._lines = Seldom(TOLD_AGAIN_MS, now_ms)

    def refused(self, error: AuthenticationFailed, kind: str, host: str = "") -> None:
        """kind: a method of Flight, or an action that is known. host: empty where it is not known."""
        count = self._lines.come(kind)
        if not count:
            return
        log.warning(
            "%s%s was refused: %s%s",
            kind,
            f" from {host}" if host else "",
            error,
            f" (so were {count - 1} more since the last such line)" if count > 1 else "",
            extra={"action": kind, "host": host, "outcome": error.code},
        )


@contextmanager
def audited(action: str, body: bytes, *, who: str, host: str, calls: RefusedCalls) -> Iterator[Answered]:
    """The block carries out this action."""
    outcome = "done"

    def answered(answer: msgspec.Struct) -> None:
        nonlocal outcome
        if isinstance(answer, RequestAnswer) and answer.errors:
            outcome = ", ".join(sorted({refused.error for refused in answer.errors.values()}))

    is_refused = False
    try:
        yield answered
    except ReplicationError as error:
        outcome, is_refused = error.code, isinstance(error, _REFUSED)
        if isinstance(error, AuthenticationFailed):
            calls.refused(error, action, host)
        raise
    finally:
        if action in CHANGES or is_refused:
            facts = {"who": who, "host": host, "action": action, "outcome": outcome}
            asked = body[:BODY_MAX].decode(errors="replace")
            log.info("%s at %s asked for %s: %s", *facts.values(), extra={**facts, "asked": asked})
