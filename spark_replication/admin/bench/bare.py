"""The bare loop: client → leader, which writes a file and sends to two followers, which write files; answers go back.

It moves the same bytes on the same way as acks=all, with plain sockets, and does nothing else: no log, no index, no
checksum, not even batches. The cost of replication is what it takes beyond this loop. `python -m
spark_replication.admin.bench.bare` is one of the loop's processes, which ends with its connections.
"""

from __future__ import annotations

import argparse
import os
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from spark_replication.admin.bench.load import AnswerReader
from spark_replication.errors import BrokerNotAvailable
from spark_replication.transport.sockets.frames import hang_up

HOST = "127.0.0.1"
RECEIVE_BYTES = 1 << 20
RECENT_BYTES = 64 << 20  # the most that a file holds before it begins anew
END_TIMEOUT_S = 10.0
_POSITION = struct.Struct("!Q")  # an answer: everything below this is written


class BareLoop:
    """A load.Target of one stream. A context manager, with which its processes and their files end."""

    streams = 1

    def __init__(self, message: bytes) -> None:
        self.batch_bytes = len(message)
        self._message = message
        self._temporary = tempfile.TemporaryDirectory(prefix="bench-")
        self.directory = Path(self._temporary.name)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._connection: socket.socket | None = None
        try:
            followers = [self._start(self.directory / f"follower-{number}") for number in (1, 2)]
            leader = self._start(self.directory / "leader", *(f"--follower={port}" for port in followers))
            self._connection = _connected(leader)
        except BaseException:
            self.close()
            raise
        self.pids = tuple(process.pid for process in self.processes)
        self._answers = AnswerReader(1)
        self._answered = 0
        threading.Thread(target=self._receive, args=(self._connection,), name="bare-answers", daemon=True).start()

    def begin(self, answers: AnswerReader) -> None:
        self._answers = answers

    def send(self, stream: int) -> None:
        assert self._connection is not None
        self._connection.sendall(self._message)

    def close(self) -> None:
        if self._connection is not None:
            hang_up(self._connection)
            self._connection.close()
        for process in self.processes:
            if self._connection is None:
                process.kill()  # nobody has connected to it: it would wait for ever
            process.wait(END_TIMEOUT_S)
        self._temporary.cleanup()

    def __enter__(self) -> BareLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, path: Path, *arguments: str) -> int:
        """Start a process. Return the port that it listens on."""
        command = [sys.executable, "-m", "spark_replication.admin.bench.bare", f"--file={path}", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        self.processes.append(process)
        assert process.stdout is not None
        with process.stdout as told:
            return int(told.readline())

    def _receive(self, connection: socket.socket) -> None:
        try:
            while (position := _receive_position(connection)) is not None:
                batches = position // self.batch_bytes
                self._answers.came(0, batches - self._answered)
                self._answered = batches
        except OSError as error:
            self._answers.failed(BrokerNotAvailable(f"the bare loop ended: {error}"))


def _connected(port: int) -> socket.socket:
    connection = socket.create_connection((HOST, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _receive_position(connection: socket.socket) -> int | None:
    """The last of the positions that have come. None if the peer has closed."""
    data = connection.recv(_POSITION.size * 1_024)
    while len(data) % _POSITION.size:
        data += connection.recv(_POSITION.size - len(data) % _POSITION.size)
    return int(_POSITION.unpack(data[-_POSITION.size :])[0]) if data else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="spark_replication.admin.bench.bare")
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--follower", type=int, action="append", default=[])
    options = parser.parse_args()
    followers = [_connected(port) for port in options.follower]
    with socket.create_server((HOST, 0)) as listener:
        sys.stdout.write(f"{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        upstream, _ = listener.accept()
    upstream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    handle = os.open(options.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    serve(upstream, followers, handle)


def serve(upstream: socket.socket, followers: list[socket.socket], handle: int) -> None:
    """Serve until upstream closes. One thread serves all connections, as they become ready."""
    waiting = select.poll()
    for connection in (upstream, *followers):
        waiting.register(connection, select.POLLIN)
    positions = {follower.fileno(): 0 for follower in followers}
    by_handle = {follower.fileno(): follower for follower in followers}
    view = memoryview(bytearray(RECEIVE_BYTES))
    written = held = told = 0
    while True:
        for ready, _ in waiting.poll():
            if ready == upstream.fileno():
                received = upstream.recv_into(view)
                if not received:
                    return
                if held >= RECENT_BYTES:
                    os.ftruncate(handle, 0)
                    held = 0
                os.pwrite(handle, view[:received], held)
                held += received
                written += received
                for follower in followers:
                    follower.sendall(view[:received])
            else:
                position = _receive_position(by_handle[ready])
                if position is None:
                    return
                positions[ready] = position
        everywhere = min(positions.values(), default=written)
        if everywhere > told:
            told = everywhere
            upstream.sendall(_POSITION.pack(told))


if __name__ == "__main__":
    main()
