"""A guardian as a process of its own, which may be in another PID namespace than its broker.

Tells what it does, a line each; ends with its standard input: `stop` has the broker stopped before.
"""

from __future__ import annotations

import sys
import threading

from spark_replication.config import settings_from
from spark_replication.engine.guarding.leases import Lease
from spark_replication.live.guarding.guardian import Assignment, Guardian
from spark_replication.transport.security.security import NO_SECURITY

LEASE_MS = 3_000


def tell(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Telling(Guardian):
    def _watch(self) -> None:
        tell(f"{'adopted' if self.adopted else 'started'} {self._found.incarnation}")
        super()._watch()

    def _renew(self) -> None:
        super()._renew()
        tell("renewed")


def main(logs: str, cluster_id: str, zookeeper: str) -> None:
    guardian = Telling(
        1,
        Assignment(log_directory=logs, cluster_id=cluster_id, zookeeper=zookeeper, host="127.0.0.1", overrides={}),
        Lease(1, 4),
        settings=settings_from({"broker.lease.ms": LEASE_MS}),
        security=NO_SECURITY,
        report=lambda died: tell(f"died {died.incarnation}"),
    )
    thread = threading.Thread(target=guardian.guard)
    thread.start()
    if sys.stdin.readline().strip() == "stop":
        guardian.shut_down()
        tell("stopped")
    guardian.stop()
    thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
