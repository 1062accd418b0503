"""A broker's lease: it lives for as long as a guardian renews it (section 2 of the design: nothing is left behind on a
cluster whose application is gone). (controller epoch, attempt) orders leases; a later one takes over."""

from __future__ import annotations

import threading

from spark_replication.errors import StaleLease

NEVER = 0


class Lease:
    def __init__(self, controller_epoch: int, attempt: int, *, lease_ms: int, now_ms: int) -> None:
        self._lock = threading.Lock()
        self._holder = (controller_epoch, attempt)
        self._lease_ms = lease_ms
        self._renewed_ms = now_ms

    def renew(self, controller_epoch: int, attempt: int, *, lease_ms: int, now_ms: int) -> None:
        with self._lock:
            if (controller_epoch, attempt) < self._holder:
                raise StaleLease(
                    f"the lease of controller epoch {controller_epoch}, attempt {attempt} is over: epoch "
                    f"{self._holder[0]}, attempt {self._holder[1]} has taken over this broker. Leave it alone"
                )
            self._holder = (controller_epoch, attempt)
            self._lease_ms = lease_ms
            self._renewed_ms = now_ms

    def expired(self, now_ms: int) -> bool:
        with self._lock:
            return self._lease_ms != NEVER and now_ms - self._renewed_ms >= self._lease_ms
