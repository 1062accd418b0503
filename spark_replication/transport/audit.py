"""Who asked for a change, from where, and what became of it: a line each in the log of whoever was asked. Whoever has
no right to what it asks for, or proves nothing, has one, too."""

from __future__ import annotations

import logging
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

CHANGES = frozenset((*(each.name for each in ADMIN_REQUESTS.values()), REBUILD_MIRROR.name, SHUTDOWN.name))
BODY_MAX = 1_000  # characters of a request: a schema may have megabytes

_REFUSED = (AuthenticationFailed, ClusterAuthorizationFailed, TopicAuthorizationFailed)

log = logging.getLogger(__name__)

#: Takes the answer.
Answered = Callable[[msgspec.Struct], None]


@contextmanager
def audited(action: str, body: bytes, *, who: str, host: str) -> Iterator[Answered]:
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
        raise
    finally:
        if action in CHANGES or is_refused:
            facts = {"who": who, "host": host, "action": action, "outcome": outcome}
            asked = body[:BODY_MAX].decode(errors="replace")
            log.info("%s at %s asked for %s: %s", *facts.values(), extra={**facts, "asked": asked})
