"""What a driver checks before it orders brokers to end, and how it ends those that no guardian ends."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

from spark_replication.errors import ReplicationError
from spark_replication.live.controller.host import ControllerHost
from spark_replication.live.guarding.guardian import SHUT_DOWN_TIMEOUT_S
from spark_replication.messages.actions import SHUTDOWN
from spark_replication.messages.guarding import Shutdown
from spark_replication.transport.flight.actions import call
from spark_replication.zk.broker.store import BrokerStore
from spark_replication.zk.session import Session

REQUEST_TIMEOUT_MS = 2_000
POLL_S = 0.05
LAST_ATTEMPT = (1 << 62) - 1  # of a driver's own orders: later than those of all of its guardians

log = logging.getLogger(__name__)


def commanded_epoch(driver: ControllerHost) -> int | None:
    """The controller epoch, as the driver itself knows it. None if it stands by."""
    try:
        return driver.ask(lambda cluster: cluster.controller_epoch)
    except ReplicationError:
        return None


def still_commands(epoch: int, connect: Callable[[], Session], *, dead: bool) -> bool:
    """Whether this driver still commands, by ZooKeeper. A driver that has lost its connection takes itself for the
    controller until it hears of its successor, whose brokers it must not stop. With `dead`, this ZooKeeper does not
    run, and nobody can have been elected by it since."""
    try:
        with contextlib.closing(BrokerStore(connect)) as store:
            there = store.controller()
    except ReplicationError as error:
        if not dead:
            log.error("brokers are not stopped: ZooKeeper does not say whether this driver still commands (%s)", error)
        return dead
    if there is None or there.epoch != epoch:
        log.error("brokers are not stopped: %s commands", "nobody" if there is None else there.id)
        return False
    return True


def shut_down_unguarded(driver: ControllerHost, epoch: int) -> None:
    """Shut down the brokers whose guardian was gone when it should have stopped them."""
    order = Shutdown(controller_epoch=epoch, attempt=LAST_ATTEMPT, with_all=True)
    deadline = time.monotonic() + SHUT_DOWN_TIMEOUT_S
    asked: set[str] = set()
    while time.monotonic() < deadline:
        try:
            registered = driver.ask(lambda cluster: dict(cluster.registered))
        except ReplicationError:
            return
        if not registered:
            return
        for found in registered.values():
            if found.address not in asked:
                asked.add(found.address)
                with contextlib.suppress(ReplicationError), driver.security.client(found.address) as client:
                    call(client, SHUTDOWN, order, REQUEST_TIMEOUT_MS)
        time.sleep(POLL_S)
