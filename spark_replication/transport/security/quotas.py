"""How much each principal may take of this process (core.law.quotas).

Rules:
- Whoever has taken too much waits, and nothing of what it sent is refused: its connections and streams are not read
  from, and are sent no records, until its debt is made up. A connection by frames is told so. A stream of Flight
  finds that nothing goes on.
- An action is refused, since its wait would keep a thread.
- What comes as one piece counts as a whole, after it was taken: so every client makes progress, however small its
  quota.
- Quotas apply to clients that have proven who they are. Others, and the cluster's own processes, have none.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from spark_replication.core.law.quotas import QuotaTable
from spark_replication.core.replica import throttle
from spark_replication.core.replica.throttle import Bucket
from spark_replication.errors import InvalidConfig, Overloaded
from spark_replication.messages.quotas import QuotaKind, Rate
from spark_replication.process.logs import Seldom
from spark_replication.transport.proofs.caller import Caller

# Whoever waits looks again after so long: the quota may have changed meanwhile.
LOOK_MS = 1_000
ACCOUNTS_MAX = 10_000
TOLD_AGAIN_MS = 60_000  # how often the log says of one principal and quota that it waits

log = logging.getLogger(__name__)


class Wait(NamedTuple):
    ms: int
    quota: Rate
    limit: int


class Quotas:
    """Thread-safe."""

    def __init__(
        self,
        text: Callable[[], str] = lambda: "",
        *,
        are_known: bool = True,
        now_ms: Callable[[], int] = lambda: int(time.monotonic() * 1000),
    ) -> None:
        """text: of the quotas in force. are_known: whether clients prove who they are. now_ms: never goes back."""
        self._text = text
        self.are_known = are_known
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._read: tuple[str, QuotaTable] = "", QuotaTable("")
        #: By principal and quota, the one that was used last at the end.
        self._accounts: dict[tuple[str, Rate], Bucket] = {}
        self._streams: Counter[str] = Counter()
        self._throttled_ms: Counter[Rate] = Counter()
        self._lines = Seldom(TOLD_AGAIN_MS, now_ms)

    def of(self, caller: Caller) -> Share:
        return Share(self, caller)

    def throttled_s(self) -> dict[tuple[Rate], float]:
        """How long clients were told to wait so far, by quota."""
        with self._lock:
            return {(kind,): count / 1000 for kind, count in self._throttled_ms.items()}

    def limit(self, caller: Caller, kind: QuotaKind) -> int | None:
        text = self._text()
        if not text or caller.is_of_cluster or not self.are_known:
            return None
        if self._read[0] != text:
            self._read = text, _table_of(text)
        return self._read[1].limit(caller.name, kind)

    def take(self, principal: str, kind: Rate, limit: int, count: int) -> None:
        now_ms = self._now_ms()
        with self._lock:
            account = self._refilled(principal, kind, limit, now_ms)
            self._accounts[principal, kind] = throttle.returned(account, 0, count)
            if len(self._accounts) > ACCOUNTS_MAX:
                del self._accounts[next(iter(self._accounts))]

    def owed_ms(self, principal: str, kind: Rate, limit: int) -> int:
        now_ms = self._now_ms()
        with self._lock:
            if (principal, kind) not in self._accounts:
                return 0
            account = self._accounts[principal, kind] = self._refilled(principal, kind, limit, now_ms)
            return throttle.owed_ms(account)

    def _refilled(self, principal: str, kind: Rate, limit: int, now_ms: int) -> Bucket:
        known = self._accounts.pop((principal, kind), None)
        if known is None:
            return throttle.full(limit, now_ms)
        known = throttle.refilled(known, now_ms)
        return known if known.bytes_per_second == limit else throttle.limited(known, limit)

    def waits(self, caller: Caller, wait: Wait) -> None:
        """Count a wait, and log it unless the log has said so a moment ago."""
        with self._lock:
            self._throttled_ms[wait.quota] += wait.ms
        if self._lines.come((caller.name, wait.quota)):
            log.warning(
                "%s waits: it takes more than %s=%d", caller, wait.quota, wait.limit, extra={"who": str(caller)}
            )

    @contextmanager
    def stream(self, caller: Caller) -> Iterator[None]:
        limit = self.limit(caller, "streams")
        with self._lock:
            if limit is not None and self._streams[caller.name] >= limit:
                raise Overloaded(
                    f"{caller} has {limit} streams open here, as many as it may (quota streams): retry later"
                )
            self._streams[caller.name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._streams[caller.name] -= 1
                if not self._streams[caller.name]:
                    del self._streams[caller.name]


class Share:
    """What one caller may take. Thread-safe."""

    def __init__(self, quotas: Quotas, caller: Caller) -> None:
        self._quotas = quotas
        self._caller = caller
        self._is_free = caller.is_of_cluster or not quotas.are_known  # as it will stay

    def take(self, kind: Rate, count: int) -> None:
        """Count what the caller has taken."""
        if self._is_free:
            return
        limit = self._quotas.limit(self._caller, kind)
        if limit is not None:
            self._quotas.take(self._caller.name, kind, limit, count)

    def at_most(self, kind: Rate, count: int) -> int:
        """So much, or what the caller may take in a second."""
        limit = self._quotas.limit(self._caller, kind)
        return count if limit is None else min(count, limit)

    def wait(self, *kinds: Rate) -> Wait | None:
        """How the caller is to wait until it may take more of each: then look again. None: it need not."""
        longest: Wait | None = None
        for kind in kinds if not self._is_free else ():
            limit = self._quotas.limit(self._caller, kind)
            if limit is not None:
                owed_ms = min(LOOK_MS, self._quotas.owed_ms(self._caller.name, kind, limit))
                if owed_ms > (0 if longest is None else longest.ms):
                    longest = Wait(owed_ms, kind, limit)
        if longest is not None:
            self._quotas.waits(self._caller, longest)
        return longest

    def pause(self, *kinds: Rate, until: threading.Event, unwanted: Callable[[], bool]) -> None:
        """Wait on this thread until the caller may take more of each, or `until` is set, or nobody wants it."""
        while not unwanted() and (wait := self.wait(*kinds)) is not None:
            if until.wait(wait.ms / 1000):
                return

    def request(self) -> None:
        """Count a request. Raises Overloaded if the caller is to wait."""
        wait = self.wait("request_rate")
        if wait is not None:
            raise Overloaded(
                f"{self._caller} makes more than {wait.limit} requests a second here (quota {wait.quota}): retry in "
                f"{wait.ms} ms"
            )
        self.take("request_rate", 1)

    def stream(self) -> AbstractContextManager[None]:
        """Have one more stream open. Raises Overloaded if it has too many."""
        return self._quotas.stream(self._caller)


def _table_of(text: str) -> QuotaTable:
    try:
        return QuotaTable(text)
    except InvalidConfig as error:
        log.error("no quota is kept here: %s", error.message)
        return QuotaTable("")
