"""Keeps brokers that no guardian is near: renews their leases over the network, and reports brokers that refuse, as
`engine.guarding.leases` says."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from spark_replication.engine.guarding.leases import KeptLeases, Lease, renew_s
from spark_replication.errors import BrokerNotAvailable, ReplicationError
from spark_replication.messages.actions import RENEW_LEASE
from spark_replication.messages.guarding import BrokerDied, Kept, RenewLease
from spark_replication.transport.flight.actions import call
from spark_replication.transport.security.security import Security

RENEW_S_MAX = 1.0
REQUEST_TIMEOUT_MS = 2_000
JOIN_S = 10.0

log = logging.getLogger(__name__)


class LeaseKeeper:
    """Renews on a thread of its own, for as long as a guardian's task runs."""

    def __init__(
        self, lease: Lease, lease_ms: int, *, security: Security, report: Callable[[BrokerDied], None]
    ) -> None:
        """lease: the lowest of its submission, so that a guardian of that submission which comes near is not refused.
        report: tells the controller of a death. It may fail: then the broker's session in ZooKeeper expires."""
        self._lease = lease
        self._lease_ms = lease_ms
        self._security = security
        self._report = report
        self._leases = KeptLeases()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        self._thread.start()

    def keep(self, kept: tuple[Kept, ...]) -> None:
        """Keep these brokers from the next round on, and no others."""
        if self._leases.keep(kept):
            log.info("keeping brokers %s: no guardian is near them", [each.broker_id for each in kept])

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        while not self._stopping.wait(renew_s(self._lease_ms, RENEW_S_MAX)):
            for each in self._leases.due():
                self._renew(each)

    def _renew(self, kept: Kept) -> None:
        request = RenewLease(
            controller_epoch=self._lease.controller_epoch, attempt=self._lease.attempt, lease_ms=self._lease_ms
        )
        try:
            with self._security.client(kept.address) as client:
                call(client, RENEW_LEASE, request, REQUEST_TIMEOUT_MS)
        except BrokerNotAvailable as error:
            died = self._leases.refused(kept)
            if died is not None:
                log.warning(
                    "broker %d at %s refuses connections: reporting it (%s)", kept.broker_id, kept.address, error
                )
                with contextlib.suppress(ReplicationError):
                    self._report(died)
        except ReplicationError as error:
            log.warning("the lease of broker %d is not renewed from here: %s", kept.broker_id, error)
        else:
            self._leases.renewed(kept)
