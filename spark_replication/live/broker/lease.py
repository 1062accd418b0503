"""A broker's lease: `engine.guarding.leases` decides, under a lock, and lease.json in its directory has the holder."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from spark_replication.engine.guarding.leases import HeldLease, Lease
from spark_replication.model import Epoch, Value, decode, encode
from spark_replication.storage.disk.state_files import read_file, replace_file

LEASE_FILE = "lease.json"

log = logging.getLogger(__name__)


class LeaseFile(Value, frozen=True, kw_only=True):
    controller_epoch: Epoch
    attempt: int


def holder_in(directory: Path) -> Lease:
    """The holder that lease.json of this directory names; without that file, one that is earlier than any other.

    OSError or CorruptState: the file cannot be read.
    """
    path = directory / LEASE_FILE
    data = read_file(path)
    held = LeaseFile(controller_epoch=0, attempt=-1) if data is None else decode(data, LeaseFile, str(path))
    return Lease(held.controller_epoch, held.attempt)


class BrokerLease:
    def __init__(self, directory: Path, controller_epoch: int, attempt: int, *, lease_ms: int, now_ms: int) -> None:
        """Take the lease of this directory's broker. StaleLease: a later guardian has it."""
        self._path = directory / LEASE_FILE
        self._lock = threading.Lock()
        self._held = HeldLease(holder_in(directory), lease_ms=lease_ms, now_ms=now_ms)
        self.take(controller_epoch, attempt)

    def take(self, controller_epoch: int, attempt: int) -> None:
        """Give the lease to whoever orders anything. StaleLease: a later guardian has it."""
        with self._lock:
            self._take(Lease(controller_epoch, attempt))

    def renew(self, controller_epoch: int, attempt: int, *, lease_ms: int, now_ms: int) -> None:
        with self._lock:
            self._take(Lease(controller_epoch, attempt))
            self._held.renewed(lease_ms, now_ms)

    def _take(self, lease: Lease) -> None:
        """Write lease.json if the holder is a new one. A full disk ends no broker: the lease then holds in this life,
        and the next does not know it."""
        if not self._held.take(lease):
            return
        try:
            file = LeaseFile(controller_epoch=lease.controller_epoch, attempt=lease.attempt)
            replace_file(self._path, encode(file), durable=False)
        except OSError as error:
            log.error("the lease holds in memory alone: %s. Free space or repair the disk", error)

    def left_ms(self, now_ms: int) -> int | None:
        """How long the lease still runs; None if it never ends."""
        with self._lock:
            return self._held.left_ms(now_ms)

    @property
    def lease_ms(self) -> int:
        """How long the lease runs after it was renewed."""
        with self._lock:
            return self._held.lease_ms

    def expired(self, now_ms: int) -> bool:
        return self.left_ms(now_ms) == 0
