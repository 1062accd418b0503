"""A broker's lease: it lives for as long as a guardian renews it, so that nothing is left behind on a cluster whose
application is gone.

(controller epoch, attempt) orders leases; a later one takes over, an earlier one is refused, in the broker's next lives
too: the present holder is kept in lease.json, so a guardian that was taken over cannot start the broker again either.
"""

from __future__ import annotations

import threading
from pathlib import Path

from spark_replication.errors import StaleLease
from spark_replication.model import Epoch, Value, decode, encode
from spark_replication.storage.state_files import read_file, replace_file

NEVER = 0
LEASE_FILE = "lease.json"


class LeaseFile(Value, frozen=True, kw_only=True):
    controller_epoch: Epoch
    attempt: int


class Lease:
    def __init__(self, directory: Path, controller_epoch: int, attempt: int, *, lease_ms: int, now_ms: int) -> None:
        """Takes the lease of this directory's broker. StaleLease: a later guardian has it."""
        self._path = directory / LEASE_FILE
        self._lock = threading.Lock()
        self._lease_ms = lease_ms
        data = read_file(self._path)
        held = LeaseFile(controller_epoch=0, attempt=-1) if data is None else decode(data, LeaseFile, str(self._path))
        self._holder = (held.controller_epoch, held.attempt)
        self.renew(controller_epoch, attempt, lease_ms=lease_ms, now_ms=now_ms)

    def renew(self, controller_epoch: int, attempt: int, *, lease_ms: int, now_ms: int) -> None:
        with self._lock:
            if (controller_epoch, attempt) < self._holder:
                raise StaleLease(
                    f"the lease of controller epoch {controller_epoch}, attempt {attempt} is over: epoch "
                    f"{self._holder[0]}, attempt {self._holder[1]} has taken over this broker. Leave it alone"
                )
            if (controller_epoch, attempt) != self._holder:
                file = LeaseFile(controller_epoch=controller_epoch, attempt=attempt)
                replace_file(self._path, encode(file), durable=False)
                self._holder = (controller_epoch, attempt)
            self._lease_ms = lease_ms
            self._renewed_ms = now_ms

    def expired(self, now_ms: int) -> bool:
        with self._lock:
            return self._lease_ms != NEVER and now_ms - self._renewed_ms >= self._lease_ms
