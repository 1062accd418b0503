"""The page as a process of its own: `python -m spark_replication.page.process`.

Whoever runs a cluster starts it (`page.served`). Decoding what 10,000 partitions are, encoding it and zipping it holds
Python's lock: in the controller's process elections would wait for it.

It prints where it serves. It ends when its standard input does, and so with the process that started it, however that
ends.
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

from spark_replication.client.admin import Admin
from spark_replication.config import settings_from
from spark_replication.errors import ReplicationError
from spark_replication.page.served import REFUSED
from spark_replication.page.server import PageServer
from spark_replication.process.stop_signals import on_stop_signals
from spark_replication.transport.security import Security, read_security

DEADLINE_MS = 5_000  # of a question to the cluster: time for a controller that hangs, and then for a broker
NICENESS = 10  # brokers and the controller come first, where they share processors with it


def serve_page(
    bootstrap: str,
    security: Security,
    *,
    host: str,
    port: int,
    stopping: threading.Event,
    say: Callable[[str], None],
) -> None:
    """Until `stopping` is set. say: told where it is served."""
    with closing(Admin(bootstrap, security=security, deadline_ms=DEADLINE_MS)) as admin:
        served = PageServer.start(admin, host=host, port=port, security=security)
        try:
            say(served.url)
            stopping.wait()
        finally:
            served.stop()


def main() -> int:
    parser = argparse.ArgumentParser(prog="spark_replication.page.process")
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    os.nice(NICENESS)
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
    """Past sys.stdin, whose lock a thread that is left behind in it would keep from the interpreter's end."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    ended()


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Not sys.exit: a question to a cluster that is silent is under way, and Python would end beneath it.
    os._exit(code)
