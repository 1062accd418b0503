"""Files over a bare socket: a process that sends them by sendfile to whoever connects, one connection after another.

A reader that looks at every byte cannot be faster. `python -m spark_replication.admin.bench.bare_file FILE…` is that
process. It ends with its standard input.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from spark_replication.admin.bench.bare import END_TIMEOUT_S, HOST, RECEIVE_BYTES


class BareFile:
    """A context manager, with which its process ends."""

    def __init__(self, files: Sequence[Path]) -> None:
        command = [sys.executable, "-m", "spark_replication.admin.bench.bare_file", *map(str, files)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        with self.process.stdout as told:
            self._port = int(told.readline())

    def received(self) -> Iterator[memoryview]:
        """All that the files hold, in pieces, each of them valid until the next."""
        room = memoryview(bytearray(RECEIVE_BYTES))
        with socket.create_connection((HOST, self._port)) as connection:
            while count := connection.recv_into(room):
                yield room[:count]

    def __enter__(self) -> BareFile:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(END_TIMEOUT_S)


def _serve(listener: socket.socket, files: Sequence[str]) -> None:
    while True:
        connection, _ = listener.accept()
        with connection:
            for path in files:
                with Path(path).open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    sent = 0
                    while sent < size:
                        sent += os.sendfile(connection.fileno(), file.fileno(), sent, size - sent)


def main() -> None:
    listener = socket.create_server((HOST, 0))
    sys.stdout.write(f"{listener.getsockname()[1]}\n")
    sys.stdout.flush()
    threading.Thread(target=_serve, args=(listener, sys.argv[1:]), name="serve", daemon=True).start()
    sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
