"""Between a client and a server, so that a test can cut connections as a crash would, or fall silent as a lost path."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class TcpProxy:
    """Its address stays its own while it is down: another test's server that got its port would answer in its place."""

    def __init__(self, target_port: int, port: int = 0) -> None:
        self._target_port = target_port
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._swallowed: set[socket.socket] = set()
        self._held = socket.socket()
        self._held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for a listener beside it, and no other's
        self._held.bind(("127.0.0.1", port))
        self.port: int = self._held.getsockname()[1]
        self.up()

    def passing(self, data: bytes) -> None:
        """What goes through, in either direction."""

    def cut(self) -> None:
        """Every connection there is; new ones are taken."""
        with self._lock:
            connections, self._connections = self._connections, set()
        for connection in connections:
            _hang_up(connection)

    def swallow(self) -> None:
        """What comes over any connection there is goes nowhere, and nobody is told; new ones are served."""
        with self._lock:
            self._swallowed |= self._connections

    def down(self) -> None:
        """New connections are refused, too."""
        _hang_up(self._listener)
        self.cut()

    def up(self) -> None:
        self._listener = self._listen(self.port)

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, args=(listener,), name="proxy", daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                return
            with self._lock:
                self._connections |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._forward, args=(source, sink), name="proxy", daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(1 << 16):
                self.passing(data)
                if source not in self._swallowed:
                    sink.sendall(data)
        except OSError:
            pass  # cut, or closed by the other side
        if source not in self._swallowed:  # else the other side is not told of this end, either
            _hang_up(source)
            _hang_up(sink)


class TcpProxies:
    """The proxies of a server that has several ports."""

    def __init__(self, *target_ports: int) -> None:
        self._proxies = [TcpProxy(port) for port in target_ports]

    @property
    def ports(self) -> list[int]:
        return [proxy.port for proxy in self._proxies]

    def cut(self) -> None:
        for proxy in self._proxies:
            proxy.cut()

    def swallow(self) -> None:
        for proxy in self._proxies:
            proxy.swallow()

    def down(self) -> None:
        for proxy in self._proxies:
            proxy.down()

    def up(self) -> None:
        for proxy in self._proxies:
            proxy.up()


def _hang_up(connection: socket.socket) -> None:
    with suppress(OSError):  # the peer was faster
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
