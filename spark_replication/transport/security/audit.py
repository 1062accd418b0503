"""Who asked for what, from where, and what came of it (W6): in a file of its own beside the log of each process that
answers clients, a JSON object a line.

Rules:
- Each request that changes something has a line, whatever became of it.
- Whoever has no right to what it asks for has one a minute for each of its actions, which says how many there were.
- Whoever proves nothing may ask as often as it likes, from as many hosts as it has: all such are one line a minute,
  which counts those of each host. So no stranger pushes anything else out of the file. The process's own log says why
  they were refused, once a minute for each kind of call.
- The file is kept small: it is begun anew at FILE_BYTES_MAX, and so many before it are kept.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any

import msgspec

from spark_replication.errors import (
    AuthenticationFailed,
    ClusterAuthorizationFailed,
    ReplicationError,
    TopicAuthorizationFailed,
)
from spark_replication.messages.actions import ADMIN_REQUESTS, REBUILD_MIRROR, SHUTDOWN
from spark_replication.messages.requests import RequestAnswer
from spark_replication.process.logs import JsonLines, Seldom

AUDIT_FILE = "audit.log"
FILE_BYTES_MAX = 16 << 20
FILES_KEPT = 4  # beside the one that is written
CHANGES = frozenset((*(each.name for each in ADMIN_REQUESTS.values()), REBUILD_MIRROR.name, SHUTDOWN.name))
BODY_MAX = 1_000  # characters of a request: a schema may have megabytes
TOLD_AGAIN_MS = 60_000
HOSTS_COUNTED_MAX = 1_000
HOSTS_TOLD_MAX = 10  # of strangers, in one line

_REFUSED = (ClusterAuthorizationFailed, TopicAuthorizationFailed)

log = logging.getLogger(__name__)

#: Takes the answer.
Answered = Callable[[msgspec.Struct], None]


class AuditLog:
    """Thread-safe."""

    def __init__(
        self, path: Path | None = None, now_ms: Callable[[], int] = lambda: int(time.monotonic() * 1000)
    ) -> None:
        """path: of the file, which is made with its first line. None: the lines are in the process's own log. now_ms:
        never goes back."""
        self._log = log if path is None else _log_of(path)
        self._refusals = Seldom(TOLD_AGAIN_MS, now_ms)
        self._strangers = Seldom(TOLD_AGAIN_MS, now_ms)
        self._kinds = Seldom(TOLD_AGAIN_MS, now_ms)
        self._lock = threading.Lock()
        #: Refused strangers by host, since the last line that told of them.
        self._hosts: Counter[str] = Counter()

    def asked(self, *, who: str, host: str, action: str, asked: str, outcome: str) -> None:
        self._tell({"who": who, "host": host, "action": action, "outcome": outcome, "asked": asked[:BODY_MAX]})

    def refused(self, *, who: str, host: str, action: str, asked: str, outcome: str) -> None:
        """It has no right to what it asked for."""
        count = self._refusals.come((who, host, action, outcome))
        if count:
            facts = {"who": who, "host": host, "action": action, "outcome": outcome, "asked": asked[:BODY_MAX]}
            self._tell({**facts, "count": count})

    def stranger(self, error: ReplicationError, kind: str, host: str) -> None:
        """Who calls from this host has proven nothing, and was refused. kind: a method of Flight, an action that is
        known, or a connection. host: empty where nobody knows it."""
        if count := self._kinds.come((kind, error.code)):
            more = f" (so were {count - 1} more since the last such line)" if count > 1 else ""
            log.warning("%s%s was refused: %s%s", kind, f" from {host}" if host else "", error, more)
        with self._lock:
            known = host in self._hosts or len(self._hosts) < HOSTS_COUNTED_MAX
            self._hosts[host if known else "others"] += 1
        count = self._strangers.come("strangers")
        if not count:
            return
        with self._lock:
            hosts, self._hosts = self._hosts, Counter()
        told = dict(hosts.most_common(HOSTS_TOLD_MAX))
        if beyond := sum(hosts.values()) - sum(told.values()):
            told["others"] = told.get("others", 0) + beyond
        counts = ", ".join(f"{name or 'unknown'}: {number}" for name, number in told.items())
        self._tell({"who": "strangers", "host": counts, "action": kind, "outcome": error.code, "count": count})

    def _tell(self, facts: dict[str, Any]) -> None:
        self._log.info("%(who)s at %(host)s asked for %(action)s: %(outcome)s", facts, extra=facts)


def _log_of(path: Path) -> logging.Logger:
    """A logger that nobody else finds: two clusters of one process have one each."""
    found = logging.Logger("spark_replication.audit", logging.INFO)
    handler = _File(path, maxBytes=FILE_BYTES_MAX, backupCount=FILES_KEPT, delay=True)
    handler.setFormatter(JsonLines({}))
    found.addHandler(handler)
    return found


class _File(RotatingFileHandler):
    """Its owner alone may read it. A line that the disk does not take is told of in the process's log, now and then."""

    _lines = Seldom(TOLD_AGAIN_MS)

    def _open(self) -> TextIOWrapper:
        opened = os.open(self.baseFilename, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        return os.fdopen(opened, "a", encoding="utf-8")

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        if count := self._lines.come(self.baseFilename):
            log.exception("%d lines could not be written to %s, the last: %s", count, self.baseFilename, record)


@contextmanager
def audited(action: str, body: bytes, *, who: str, host: str, audit: AuditLog) -> Iterator[Answered]:
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
            audit.stranger(error, action, host)
        raise
    except Exception:
        outcome = ReplicationError.code
        raise
    finally:
        facts = {"who": who, "host": host, "action": action, "outcome": outcome}
        if is_refused:
            audit.refused(**facts, asked=body[:BODY_MAX].decode(errors="replace"))
        elif action in CHANGES:
            audit.asked(**facts, asked=body[:BODY_MAX].decode(errors="replace"))
