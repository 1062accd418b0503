"""A controller as a process of its own: `python -m spark_replication.live.controller_process`.

It stands by while another commands, and ends on SIGTERM. <directory>/address says where its admin requests go.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path

from spark_replication.config import settings_from
from spark_replication.errors import ReplicationError
from spark_replication.live.driver import Driver
from spark_replication.model import HeldDirectory
from spark_replication.storage.broker_directory import boot_id, directory_mark
from spark_replication.transport.security import read_security
from spark_replication.zk.locked_process import LockedProcess


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark_replication.live.controller_process")
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--zookeeper", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--settings", default="{}", help="JSON of the settings that differ from the defaults")
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    stopping = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stopping.set())
    try:
        settings = settings_from(json.loads(arguments.settings))
        driver = Driver(
            arguments.zookeeper,
            name=f"controller of {arguments.directory}",
            host=arguments.host,
            settings=settings,
            security=read_security(settings),
            held=_held(arguments.directory),
        )
        driver.start()
    except ReplicationError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    stopping.wait()
    driver.close()
    return 0


def _held(directory: Path) -> HeldDirectory | None:
    """None: whoever started this process did not leave it the directory's lock, so that others may live there."""
    if LockedProcess(directory).pid() != os.getpid():
        return None
    return HeldDirectory(boot_id=boot_id(), directory_mark=directory_mark(directory))


if __name__ == "__main__":
    sys.exit(main())
