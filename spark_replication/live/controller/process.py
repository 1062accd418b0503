"""A controller as a process of its own: `python -m spark_replication.live.controller.process`.

It stands by while another controller commands. It ends on SIGTERM, or once nobody has needed it for long enough, if it
is told how long that is. <directory>/page says where it serves the page.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import threading
import time
from pathlib import Path

from spark_replication.config import settings_from
from spark_replication.errors import NotController, ReplicationError
from spark_replication.live.controller.host import ControllerHost
from spark_replication.page.served import ServedPage, page_action
from spark_replication.process.logs import OwnOutput, log_as_text
from spark_replication.process.memory import Collecting, limit_memory
from spark_replication.process.processes import LOG_FILE
from spark_replication.process.stop_signals import on_stop_signals
from spark_replication.transport.security.security import read_security
from spark_replication.zookeeper_server.locks import is_used
from spark_replication.zookeeper_server.patience import Unused

PAGE_AFTER_S = 3.0
POLL_S = 0.02
LOOK_S = 1.0

log = logging.getLogger(__name__)


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark_replication.live.controller.process")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--zookeeper", required=True)
    parser.add_argument("--mirror", required=True, help="where the Delta tables lie")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--settings", default="{}", help="JSON of the settings that differ from the defaults")
    parser.add_argument("--origins", default="{}", help="JSON: where settings come from")
    parser.add_argument("--needed-by", type=Path, help="who uses the ZooKeeper in this directory needs this process")
    parser.add_argument("--unused-s", type=float, default=0.0, help="ends after so long without that; 0 = never")
    arguments = parser.parse_args()
    log_as_text(logging.INFO, OwnOutput(sys.stderr, arguments.directory / LOG_FILE))
    Collecting().start()
    page: ServedPage | None = None
    stopping = threading.Event()
    on_stop_signals(stopping.set)
    try:
        settings = settings_from(json.loads(arguments.settings))
        limit_memory(settings.controller_memory_bytes_max)
        driver = ControllerHost(
            arguments.zookeeper,
            name=f"controller of {arguments.directory}",
            host=arguments.host,
            settings=settings,
            origins=json.loads(arguments.origins),
            security=read_security(settings),
            seat=arguments.directory / "seat",
            mirror_path=arguments.mirror,
            actions=[page_action(lambda: page)],
        )
        driver.start()
    except ReplicationError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    # The page starts once this controller has elected whom it can: its start takes a processor for a second.
    settled_s = time.monotonic() + PAGE_AFTER_S
    while not (driver.active or driver.standing_by or time.monotonic() > settled_s) and not stopping.wait(POLL_S):
        pass
    page = ServedPage(
        f"zk://{arguments.zookeeper}{settings.zookeeper_chroot}",
        settings,
        host=arguments.host,
        directory=arguments.directory,
    )
    _wait(driver, arguments.needed_by, arguments.unused_s, stopping)
    driver.close()
    page.stop()
    return 0


def _wait(driver: ControllerHost, needed_by: Path | None, unused_s: float, stopping: threading.Event) -> None:
    """Wait until this process is to stop, or nobody has needed it for unused_s: neither a user of the ZooKeeper in
    `needed_by`, nor a broker. Without needed_by, or with unused_s=0, it waits for a stop only."""
    nobody = Unused(time.monotonic())
    while not stopping.wait(LOOK_S if needed_by and unused_s else None):
        assert needed_by is not None, "else it waits for ever"
        is_needed = is_used(needed_by) or _has_brokers(driver)
        if nobody.looked(unused_s, is_needed=is_needed, now_s=time.monotonic()):
            log.warning("nobody has needed this controller for %.0f s: it ends", unused_s)
            return


def _has_brokers(driver: ControllerHost) -> bool:
    try:
        return driver.ask(lambda cluster: bool(cluster.registered))
    except NotController:  # whoever commands has them
        return False
    except ReplicationError:
        return True


if __name__ == "__main__":
    sys.exit(main())
