"""What goes on in a broker while something else does not."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, cast

from spark_replication.config import settings_from
from spark_replication.engine.broker.broker_host import StopAsked
from spark_replication.engine.broker.hidden_partitions import HiddenPartitions
from spark_replication.live.broker.lease import BrokerLease
from spark_replication.live.broker.life import BrokerLife, Options
from spark_replication.transport.security.security import NO_SECURITY

WAIT_S = 20.0


class Held:
    """A BrokerLoop that does not get on, since somebody holds a guard."""

    me = None
    hidden = HiddenPartitions()

    def __init__(self) -> None:
        self.waiting = threading.Semaphore(0)
        self.let_go = threading.Event()

    def __getattr__(self, name: str) -> Any:
        def wait(*_: object, **__: object) -> None:
            self.waiting.release()
            self.let_go.wait(WAIT_S)

        return wait


class Unconnected:
    connected = False

    def controller(self) -> None:
        return None


def options_of(directory: Path) -> Options:
    return Options(
        directory=directory,
        zookeeper="",
        chroot="",
        broker_id=1,
        cluster_id="ours",
        host="",
        settings=settings_from({"replica.lag.time.ms": 100}),
        lease=(0, 0),
    )


def test_a_lease_runs_out_while_all_other_timers_are_held_up(tmp_path: Path) -> None:
    life, held = BrokerLife(options_of(tmp_path)), Held()
    life._loop = life._secret_notes = life._replication = cast("Any", held)
    life._lease = BrokerLease(tmp_path, 0, 0, lease_ms=1 << 60, now_ms=0)
    life._store = cast("Any", Unconnected())
    life._security = NO_SECURITY
    life._watch_lease()
    life._start_timers()
    try:
        for _ in range(2):
            assert held.waiting.acquire(timeout=WAIT_S)
        life._lease.renew(0, 0, lease_ms=1, now_ms=0)
        assert life._news.get(timeout=WAIT_S / 2) == StopAsked("no guardian has renewed the lease in time")
    finally:
        held.let_go.set()
        for timers in life._timers:
            timers.stop()
