"""A broker's lease: the broker lives for as long as a guardian renews it, and so ends with its application.

(controller epoch, attempt) orders leases. A later one takes over, an earlier one is refused. This also holds in the
broker's next lives, since lease.json keeps the present holder: a guardian that was taken over cannot start the broker
again either.

Only time in which the process runs counts: if it stands still (SIGSTOP, a paused container), nobody can renew it, and
an end at its first breath would end brokers whose guardians live.
"""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from spark_replication.errors import StaleLease
from spark_replication.model import Epoch, Value, decode, encode
from spark_replication.storage.disk.state_files import read_file, replace_file

NEVER = 0
LOOKS_APART_MS = 2_000  # twice what lies between looks; beyond it, the process stood still
LEASE_FILE = "lease.json"

log = logging.getLogger(__name__)


class LeaseFile(Value, frozen=True, kw_only=True):
    controller_epoch: Epoch
    attempt: int


def holder_in(directory: Path) -> tuple[int, int]:
    """The holder that lease.json of this directory names; without that file, one that is earlier than any other.

    OSError or CorruptState: the file cannot be read.
    """
    path = directory / LEASE_FILE
    data = read_file(path)
    held = LeaseFile(controller_epoch=0, attempt=-1) if data is None else decode(data, LeaseFile, str(path))
    return held.controller_epoch, held.attempt


class BrokerLease:
    def __init__(self, directory: Path, controller_epoch: int, attempt: int, *, lease_ms: int, now_ms: int) -> None:
        """Take the lease of this directory's broker. StaleLease: a later guardian has it."""
        self._path = directory / LEASE_FILE
        self._lock = threading.Lock()
        self._lease_ms = lease_ms
        self._holder = holder_in(directory)
        self.renew(controller_epoch, attempt, lease_ms=lease_ms, now_ms=now_ms)

    def take(self, controller_epoch: int, attempt: int) -> None:
        """Give the lease to whoever orders anything. StaleLease: a later guardian has it."""
        with self._lock:
            if (controller_epoch, attempt) < self._holder:
                raise StaleLease(
                    f"the lease of controller epoch {controller_epoch}, attempt {attempt} is over: epoch "
                    f"{self._holder[0]}, attempt {self._holder[1]} has taken over this broker. Leave it alone"
                )
            if (controller_epoch, attempt) != self._holder:
                self._holder = (controller_epoch, attempt)
                self._store(LeaseFile(controller_epoch=controller_epoch, attempt=attempt))

    def renew(self, controller_epoch: int, attempt: int, *, lease_ms: int, now_ms: int) -> None:
        self.take(controller_epoch, attempt)
        with self._lock:
            self._lease_ms = lease_ms
            self._renewed_ms = self._looked_ms = now_ms

    def _store(self, file: LeaseFile) -> None:
        """Write lease.json. A full disk ends no broker: the lease then holds in this life, and the next does not know
        it."""
        try:
            replace_file(self._path, encode(file), durable=False)
        except OSError as error:
            log.error("the lease holds in memory alone: %s. Free space or repair the disk", error)

    def left_ms(self, now_ms: int) -> int | None:
        """How long the lease still runs; None if it never ends."""
        with self._lock:
            self._renewed_ms += max(0, now_ms - self._looked_ms - LOOKS_APART_MS)
            self._looked_ms = now_ms
            return None if self._lease_ms == NEVER else max(0, self._renewed_ms + self._lease_ms - now_ms)

    @property
    def lease_ms(self) -> int:
        """How long the lease runs after it was renewed."""
        with self._lock:
            return self._lease_ms

    def expired(self, now_ms: int) -> bool:
        return self.left_ms(now_ms) == 0
