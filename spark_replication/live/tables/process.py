"""The writer of topics' tables beside a broker: `python -m spark_replication.live.tables.process --directory …`.

It writes what that broker leads, and what others have not written in time. Its guardian starts it once a topic is a
table. It ends by itself once its broker has been gone for GONE_S: the next life of the broker is another writer's.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
import time
from contextlib import closing
from pathlib import Path

from spark_replication.client.finding.routes import Routes
from spark_replication.client.reading.reader import Reader
from spark_replication.config import settings_from
from spark_replication.errors import ReplicationError
from spark_replication.live.tables.table_writers import TableWriters
from spark_replication.live.tables.writer_status import StatusFile
from spark_replication.process.logs import OwnOutput, log_as_text
from spark_replication.process.memory import Collecting, limit_memory
from spark_replication.process.processes import LOG_FILE, come_last
from spark_replication.process.stop_signals import on_stop_signals
from spark_replication.process.threads import now_ms
from spark_replication.storage.directory.broker_directory import probe
from spark_replication.tables.places import read_table_options
from spark_replication.transport.security.security import read_security

GONE_S = 10.0
LOOK_S = 0.5
NICENESS = 10  # brokers go first
MEMORY_BYTES_MAX = 1 << 30

log = logging.getLogger(__name__)


class BrokerWatcher:
    """Whether this writer goes on, which its broker's lock tells."""

    def __init__(self, directory: Path, stopped: threading.Event) -> None:
        self._directory = directory
        self._stopped = stopped
        self._seen_s = time.monotonic()

    def wait(self, seconds: float) -> bool:
        """Wait so long. Returns whether to end."""
        until_s = time.monotonic() + seconds
        while not self._stopped.wait(min(LOOK_S, max(0.0, until_s - time.monotonic()))):
            now_s = time.monotonic()
            if probe(self._directory):
                self._seen_s = now_s
            elif now_s - self._seen_s > GONE_S:
                log.warning("the broker of %s is gone: its writer ends", self._directory)
                return True
            if now_s >= until_s:
                return False
        return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark_replication.live.tables.process")
    parser.add_argument("--directory", type=Path, required=True, help="its own")
    parser.add_argument("--broker-directory", type=Path, required=True)
    parser.add_argument("--broker-id", type=int, required=True)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--settings", default="{}", help="JSON of the settings that differ from the defaults")
    arguments = parser.parse_args()
    log_as_text(logging.INFO, OwnOutput(sys.stderr, arguments.directory / LOG_FILE))
    come_last(NICENESS)
    Collecting().start()
    limit_memory(MEMORY_BYTES_MAX)
    stopped = threading.Event()
    on_stop_signals(stopped.set)
    try:
        settings = settings_from(json.loads(arguments.settings))
        security, store = read_security(settings), read_table_options(settings)
        with (
            closing(Routes(arguments.bootstrap, security)) as routes,
            Reader(arguments.bootstrap, security=security, prefer="near") as reader,
        ):
            writers = TableWriters(routes, reader, store, broker=arguments.broker_id)
            status = StatusFile(arguments.directory, lambda: writers.status(now_ms()))
            status.tell()
            writers.run(BrokerWatcher(arguments.broker_directory, stopped).wait, status.tell)
    except ReplicationError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stderr.flush()
    # All that it has written is durable. A process that has used delta-rs may be aborted as Python ends (facts of
    # deltalake 1.6.6), which would look like a crash.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
