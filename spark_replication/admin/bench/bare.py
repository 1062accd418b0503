"""The limit of the machine: three processes that do nothing but move and write the bytes that are moved for acks=all.

A client sends to a leader, which writes a file and sends to two followers, which write files; answers go back. It is
the same bytes on the same way, by plain sockets: no log, no index, no checksum, no partitions. What our brokers take
beyond this is the cost of replication. What the leader has written is read over a bare socket, or by a memory map; and
Flight alone gives the same batch from memory.

`python -m spark_replication.admin.bench.bare …` is one of these processes: see main.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import NoReturn

import msgspec
import pyarrow as pa
from crc32c import crc32c
from pyarrow import flight

from spark_replication.admin.bench.consuming import look_at
from spark_replication.admin.bench.programs import answer, command_of
from spark_replication.admin.bench.sending import NS_PER_S, batch_of
from spark_replication.admin.bench.side import BROKERS, RECENT_BYTES, WHOLE, Door, Rows
from spark_replication.errors import BrokerNotAvailable, InvalidRequest, ReplicationError
from spark_replication.model import Scalar
from spark_replication.process.memory import keep_freed_memory
from spark_replication.transport.security.security import NO_SECURITY

HOST = "127.0.0.1"
RECEIVE_BYTES = 1 << 20
IN_FLIGHT_BYTES = 64 << 20  # as much as a Producer has
END_TIMEOUT_S = 10.0
WRITE, READ = b"w", b"r"  # what a connection is for: its first byte
_POSITION = struct.Struct("!Q")  # an answer: everything below this is written


class Bare:
    """A Target. Each of its topics is a loop of its own, of one stream."""

    name = "bare"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._leaders: dict[str, int] = {}  # their ports
        self._processes: dict[str, list[subprocess.Popen[bytes]]] = {}

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for processes in self._processes.values() for process in processes)

    def create(self, topic: str, partitions: int, config: Mapping[str, Scalar], replicas: int = BROKERS) -> None:
        self._processes[topic] = []
        kept_bytes = 0 if config == WHOLE else RECENT_BYTES
        followers = [self._start(topic, "serve", self._file(topic, each), kept_bytes) for each in range(1, replicas)]
        self._leaders[topic] = self._start(topic, "serve", self._file(topic, 0), kept_bytes, *followers)

    def delete(self, topic: str) -> None:
        for process in self._processes.pop(topic):
            assert process.stdin is not None
            process.stdin.close()
            process.wait(END_TIMEOUT_S)
        for path in self._directory.glob(f"{topic}-*"):
            path.unlink()

    def close(self) -> None:
        for topic in [*self._processes]:
            self.delete(topic)

    def sender(self, topic: str, of: Rows, *, joins: bool = False) -> list[str]:
        return command_of(__name__, Work(does="send", port=self._leaders[topic], rows=of))

    def consumer(self, topic: str, of: Rows, rows: int, door: Door, *, looks: bool) -> list[str]:
        port, path = self._leaders[topic], str(self._file(topic, 0))
        if door == "flight":
            port = self._start(topic, "flight", of.row_bytes, of.rows_a_batch)
        return command_of(__name__, Work(does=door, port=port, path=path, rows=of, count=rows))

    def mover(self, topic: str) -> list[str]:
        raise InvalidRequest("the bare loop has no replicas that move: leave it out, or take another --meanwhile")

    def _file(self, topic: str, number: int) -> Path:
        return self._directory / f"{topic}-{number}"

    def _start(self, topic: str, *what: object) -> int:
        """Start a process. Returns the port that it listens on."""
        command = [sys.executable, "-m", __name__, *map(str, what)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._processes[topic].append(process)
        assert process.stdout is not None
        with process.stdout as told:
            return int(told.readline())


def _connected(port: int, kind: bytes) -> socket.socket:
    connection = socket.create_connection((HOST, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(kind)
    return connection


def _receive_position(connection: socket.socket) -> int | None:
    """The last of the positions that have come. None if the peer has closed."""
    data = connection.recv(_POSITION.size * 1_024)
    while len(data) % _POSITION.size:
        data += connection.recv(_POSITION.size - len(data) % _POSITION.size)
    return int(_POSITION.unpack(data[-_POSITION.size :])[0]) if data else None


# Its servers


def main() -> None:
    """`serve FILE KEPT_BYTES FOLLOWER…` and `flight ROW_BYTES ROWS` tell their port, and end with their input. Other
    arguments are the Work of a program: see programs."""
    what, *rest = sys.argv[1:]
    match what:
        case "serve":
            listener = socket.create_server((HOST, 0))
            path, kept_bytes, *followers = rest
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            connections = [_connected(int(port), WRITE) for port in followers]
            server = Server(listener, connections, handle, int(kept_bytes))
            _serve_until_end(listener.getsockname()[1], server.serve)
        case "flight":
            alone = _FlightServer(batch_of(*map(int, rest)))
            _serve_until_end(alone.port, alone.serve)
        case _:
            work = msgspec.json.decode(what, type=Work)
            answer(Sending(work).asked if work.does == "send" else reader(work))


def _serve_until_end(port: int, serves: Callable[[], object]) -> None:
    threading.Thread(target=serves, name="serve", daemon=True).start()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()


class Server:
    """A process of the loop. One thread serves all connections, as they become ready."""

    def __init__(
        self, listener: socket.socket, followers: Sequence[socket.socket], handle: int, kept_bytes: int
    ) -> None:
        """kept_bytes: the most that the file holds before it begins anew; 0: all."""
        self._listener = listener
        self._handle = handle
        self._kept_bytes = kept_bytes
        self._view = memoryview(bytearray(RECEIVE_BYTES))
        self._held = self._written = 0
        self._followers = {follower.fileno(): follower for follower in followers}
        self._positions = dict.fromkeys(self._followers, 0)
        self._upstreams: dict[int, _Upstream] = {}
        self._ready = select.poll()
        for connection in (listener, *followers):
            self._ready.register(connection, select.POLLIN)

    def serve(self) -> NoReturn:
        while True:
            for number, _ in self._ready.poll():
                if number == self._listener.fileno():
                    self._accept()
                elif number in self._upstreams:
                    self._while_it_lives(self._upstreams[number], self._take)
                else:
                    position = _receive_position(self._followers[number])
                    assert position is not None, "a follower lives as long as its leader"
                    self._positions[number] = position
            everywhere = min(self._positions.values(), default=self._written)
            for upstream in [*self._upstreams.values()]:
                self._while_it_lives(upstream, partial(_Upstream.tell, everywhere=everywhere))

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if connection.recv(1) == READ:
            threading.Thread(target=self._give, args=(connection,), name="give", daemon=True).start()
            return
        self._upstreams[connection.fileno()] = _Upstream(connection)
        self._ready.register(connection, select.POLLIN)

    def _give(self, connection: socket.socket) -> None:
        with connection:
            sent, whole = 0, os.fstat(self._handle).st_size
            while sent < whole:
                sent += os.sendfile(connection.fileno(), self._handle, sent, whole - sent)

    def _while_it_lives(self, upstream: _Upstream, does: Callable[[_Upstream], None]) -> None:
        try:
            does(upstream)
        except OSError:  # it may be killed at any time
            del self._upstreams[upstream.connection.fileno()]
            self._ready.unregister(upstream.connection)
            upstream.connection.close()

    def _take(self, upstream: _Upstream) -> None:
        received = upstream.connection.recv_into(self._view)
        if not received:
            raise ConnectionResetError("it has ended")
        if self._kept_bytes and self._held >= self._kept_bytes:
            os.ftruncate(self._handle, 0)
            self._held = 0
        os.pwrite(self._handle, self._view[:received], self._held)
        self._held += received
        self._written += received
        upstream.took(received, self._written)
        for follower in self._followers.values():
            follower.sendall(self._view[:received])


class _Upstream:
    """A client of the leader's, or a follower's leader."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._taken = 0
        #: How much of all was written with each part of what came from here, and how much had come from here.
        self._parts: deque[tuple[int, int]] = deque()

    def took(self, received: int, written: int) -> None:
        self._taken += received
        self._parts.append((written, self._taken))

    def tell(self, everywhere: int) -> None:
        """Everything below this is written by all."""
        position = None
        while self._parts and self._parts[0][0] <= everywhere:
            position = self._parts.popleft()[1]
        if position is not None:
            self.connection.sendall(_POSITION.pack(position))


class _FlightServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """Gives one batch from its memory, as often as a ticket says."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        keep_freed_memory()
        super().__init__(NO_SECURITY.location(f"{HOST}:0"))
        self._batch = batch

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        return flight.GeneratorStream(self._batch.schema, repeat(self._batch, int(ticket.ticket)))


# Its clients


class Work(msgspec.Struct, frozen=True, kw_only=True):
    does: str
    port: int
    rows: Rows
    #: The leader's file.
    path: str = ""
    #: All rows there are.
    count: int = 0


class Sending:
    """Sends the bytes of a batch as often as it is asked: see Target.sender."""

    def __init__(self, work: Work) -> None:
        batch = batch_of(work.rows.row_bytes, work.rows.rows_a_batch)
        self._message = bytes(batch.serialize())
        self._connection = _connected(work.port, WRITE)
        begin = bytes(batch.schema.serialize())
        self._connection.sendall(begin)  # so that the file is a stream of Arrow
        self._changed = threading.Condition()
        self._due_ns: deque[int] = deque()  # of what is unanswered
        self._took_ns: list[int] = []
        self._failed: ReplicationError | None = None
        threading.Thread(target=self._receive, args=(len(begin),), name="bare-answers", daemon=True).start()

    def asked(self, words: Sequence[str]) -> list[int]:
        rate, count = (0, int(words[1])) if words[0] == "fast" else map(int, words[1:])
        began_ns = time.perf_counter_ns()
        self._took_ns = []
        for number in range(count):
            due_ns = began_ns
            if rate:
                due_ns += number * NS_PER_S // rate
                time.sleep(max(0, due_ns - time.perf_counter_ns()) / NS_PER_S)
            self._wait(IN_FLIGHT_BYTES // len(self._message))
            with self._changed:
                self._due_ns.append(due_ns)
            self._connection.sendall(self._message)
        self._wait(0)
        return self._took_ns if rate else [time.perf_counter_ns() - began_ns]

    def _wait(self, unanswered: int) -> None:
        """Wait until no more are."""
        with self._changed:
            while len(self._due_ns) > unanswered and self._failed is None:
                self._changed.wait()
            if self._failed is not None:
                raise self._failed

    def _receive(self, begin_bytes: int) -> None:
        answered = 0
        while (position := _receive_position(self._connection)) is not None:
            batches = max(0, position - begin_bytes) // len(self._message)
            now_ns = time.perf_counter_ns()
            with self._changed:
                for _ in range(batches - answered):
                    self._took_ns.append(now_ns - self._due_ns.popleft())
                self._changed.notify()
            answered = batches
        with self._changed:
            self._failed = BrokerNotAvailable("the bare loop ended: see whether its processes live")
            self._changed.notify()


def reader(work: Work) -> Callable[[Sequence[str]], list[int]]:
    """Reads all there is by one of the doors, and looks at each byte: see Target.consumer."""

    def by_socket() -> None:
        room = memoryview(bytearray(RECEIVE_BYTES))
        with _connected(work.port, READ) as connection:
            while count := connection.recv_into(room):
                crc32c(room[:count])

    def by_flight() -> None:
        ticket = str(work.count // work.rows.rows_a_batch).encode()
        for chunk in client.do_get(flight.Ticket(ticket)):
            look_at(chunk.data)

    def by_map() -> None:
        with pa.memory_map(work.path) as file:
            for batch in pa.ipc.open_stream(file):
                look_at(batch)

    client = NO_SECURITY.client(f"{HOST}:{work.port}")
    doors: Mapping[str, Callable[[], None]] = {"reader": by_socket, "flight": by_flight, "files": by_map}

    def read(_: Sequence[str]) -> list[int]:
        began_ns = time.perf_counter_ns()
        doors[work.does]()
        return [time.perf_counter_ns() - began_ns]

    return read


if __name__ == "__main__":
    main()
