"""The page in a process of its own: `python -m spark_replication.page.process`.

The process that runs a cluster starts this one (`page.served`). Decoding, encoding and zipping the state of 10,000
partitions holds Python's GIL: in the controller's process, elections would wait for it.

This process prints the page's URL, or the link that lets a browser in and, once that was used, the next one
(`page.entry`). It ends when its standard input ends, and so together with the process that started it, however
that one ends.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from spark_replication.client.asking.admin import Admin
from spark_replication.client.reading.reader import Reader
from spark_replication.config import settings_from
from spark_replication.errors import ReplicationError
from spark_replication.page.served import REFUSED
from spark_replication.page.server import PageServer
from spark_replication.process.logs import OwnOutput, log_as_text
from spark_replication.process.processes import come_last
from spark_replication.process.stop_signals import on_stop_signals
from spark_replication.transport.security.security import Security, read_security

DEADLINE_MS = 5_000  # of a question to the cluster: enough for a controller that hangs, and then a broker
READ_DEADLINE_MS = 3_000  # of each step of a look at records
NICENESS = 10  # brokers and the controller come first where they share processors with the page


def serve_page(
    bootstrap: str,
    security: Security,
    *,
    host: str,
    port: int,
    stopping: threading.Event,
    say: Callable[[str], None],
) -> None:
    """Serve the page until `stopping` is set. `say` is called with what to open, whenever that has changed."""
    with (
        closing(Admin(bootstrap, security=security, deadline_ms=DEADLINE_MS)) as admin,
        Reader(bootstrap, security=security, deadline_ms=READ_DEADLINE_MS) as reader,
    ):
        served = PageServer.start(admin, reader, host=host, port=port, security=security, say=say)
        try:
            stopping.wait()
        finally:
            served.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark_replication.page.process")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True, help="the file that standard error is")
    arguments = parser.parse_args()
    log_as_text(logging.WARNING, OwnOutput(sys.stderr, arguments.log))
    come_last(NICENESS)
    stopping = threading.Event()
    on_stop_signals(stopping.set)
    given = sys.stdin.buffer.readline()  # the settings as JSON. Not on the command line, which everybody can read
    if not given.endswith(b"\n"):
        return 0  # whoever started this has ended
    threading.Thread(target=_until_input_ends, args=(stopping.set,), name="input", daemon=True).start()
    try:
        security = read_security(settings_from(json.loads(given)))
        serve_page(
            arguments.bootstrap,
            security,
            host=arguments.host,
            port=arguments.port,
            stopping=stopping,
            say=_say,
        )
    except ReplicationError as error:
        sys.stderr.write(f"{error}\n")
        return REFUSED
    return 0


def _say(url: str) -> None:
    sys.stdout.write(f"{url}\n")
    sys.stdout.flush()


def _until_input_ends(ended: Callable[[], None]) -> None:
    """Call `ended` once standard input ends. This reads the descriptor, not sys.stdin: a thread that is left behind in
    sys.stdin holds a lock that the interpreter's end needs."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    ended()


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Not sys.exit: a question to a silent cluster may be under way, and the interpreter would end beneath it.
    os._exit(code)
