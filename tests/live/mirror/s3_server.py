"""An S3 store in memory, on loopback, as a process: `python -m tests.live.mirror.s3_server PORT` says its port once it
serves. It knows If-None-Match. 0: the system chooses the port. DELAY_S: before each answer. ANSWERS_LOST: of the paths
that this expression finds, each first object is stored, and its answer says that the server has failed."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

HOST = "127.0.0.1"
ANSWERS_LOST = os.environ.get("ANSWERS_LOST", "")
DELAY_S = float(os.environ.get("DELAY_S", "0"))


class _Silent(WSGIRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None: ...


def main(port: int) -> None:
    moto = DomainDispatcherApplication(create_backend_app)
    one_at_a_time = threading.Lock()
    lost: set[str] = set()

    def answer(environment: dict[str, Any], start: Callable[..., Any]) -> list[bytes]:
        time.sleep(DELAY_S)
        kept: list[Any] = []
        with one_at_a_time:  # else two could find that an object is not there
            answered = list(moto(environment, lambda *status: kept.append(status)))
        path = environment["PATH_INFO"]
        status, headers = kept[0][:2]
        is_stored = environment["REQUEST_METHOD"] == "PUT" and status.startswith("200")
        if ANSWERS_LOST and is_stored and re.search(ANSWERS_LOST, path) and path not in lost:
            lost.add(path)
            status, headers, answered = "503 Slow Down", [("Content-Length", "0")], []
        start(status, headers)
        return answered

    server = make_server(HOST, port, answer, threaded=True, request_handler=_Silent)
    sys.stdout.write(f"{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
