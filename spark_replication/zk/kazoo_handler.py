"""kazoo's threads and connections: what becomes of errors, how its connection thread is woken, whom TLS trusts.

- An error that ends one of kazoo's threads is reported to the session, which ends.
- The connection thread is woken by a counter that never fills up.
- What TLS has decrypted is not waited for. A record may hold several answers, and what is read of it is no longer in
  the socket.
- A server is trusted by `zookeeper.tls.ca.file` alone, and for the host that was asked for. kazoo would trust whoever
  this machine trusts, and by itself any host.

Why a counter: kazoo writes a byte into a socket pair for each request, and reads one for each request that it sends.
The pair holds some 270 bytes, and the bytes of requests that a lost connection failed stay in it. Once it is full,
whoever makes a request blocks. If that is kazoo's own callback thread, everything does.
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kazoo.handlers.threading import SequentialThreadingHandler

from spark_replication.errors import InvalidConfig
from spark_replication.process.files import Care, load_pair, read_named
from spark_replication.zk.login import CA, CERTIFICATE, KEY

# A server that is just starting may take a connection and never answer on it. kazoo gives each server of the list a
# share of the session timeout to answer. With one share for a single server the session would be over before the next
# try.
CONNECT_SHARES_MIN = 4


class _Counter:
    """Stands for both ends of the pair. A read takes one off; the descriptor is readable while it is above zero."""

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_SEMAPHORE | os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._closed = False

    def fileno(self) -> int:
        return self._descriptor

    def send(self, data: bytes) -> int:
        if self._closed:
            raise OSError("the connection is closed")
        os.eventfd_write(self._descriptor, len(data))
        return len(data)

    def recv(self, _count: int) -> bytes:
        os.eventfd_read(self._descriptor)
        return b"\0"

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            os.close(self._descriptor)


class NeverBlockingHandler(SequentialThreadingHandler):  # type: ignore[misc] # kazoo has no types
    def __init__(self, on_error: Callable[[Exception], None]) -> None:
        """on_error: called with the error that a thread of kazoo's died of. Requests would wait for it for ever."""
        super().__init__()
        self._on_error = on_error

    def spawn(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> Any:
        return super().spawn(partial(self._run, func), *args, **kwargs)

    def _run(self, func: Callable[..., object], *args: Any, **kwargs: Any) -> None:
        try:
            func(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 (whatever it is, it ends one session and not the process)
            self._on_error(error)

    def create_socket_pair(self) -> tuple[_Counter, _Counter]:
        counter = _Counter()
        return counter, counter

    def create_connection(
        self,
        address: tuple[str, int],
        hostname: str | None = None,
        timeout: float | None = None,
        *,
        use_ssl: bool = False,
        **files: Any,
    ) -> socket.socket:
        context = tls_context(**files) if use_ssl else None
        connection = socket.create_connection(address, timeout)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is None:
            return connection
        # A server that hangs takes the connection, and shakes no hands: the next one is to be asked in time.
        connection.settimeout(None if timeout is None else timeout / CONNECT_SHARES_MIN)
        return context.wrap_socket(connection, server_hostname=hostname)

    def select(
        self, readable: Sequence[Any], writable: Sequence[Any], exceptional: Sequence[Any], timeout: float | None = None
    ) -> tuple[Sequence[Any], Sequence[Any], Sequence[Any]]:
        """As `select` does, but what TLS has decrypted already can be read, too: kazoo would wait until more comes."""
        decrypted = [each for each in readable if isinstance(each, ssl.SSLSocket) and each.pending()]
        if not decrypted:
            found: tuple[Sequence[Any], Sequence[Any], Sequence[Any]] = super().select(
                readable, writable, exceptional, timeout
            )
            return found
        others = [each for each in readable if each not in decrypted]
        ready, writable, exceptional = super().select(others, writable, exceptional, 0)
        return [*decrypted, *ready], writable, exceptional


def tls_context(*, ca: str, certfile: str | None = None, keyfile: str | None = None, **_: Any) -> ssl.SSLContext:
    """The context of a client. Its files are read anew."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_verify_locations(cadata=read_named(CA, ca, Care.TRUST).decode("ascii"))
        if certfile is not None and keyfile is not None:
            load_pair(context, read_named(CERTIFICATE, certfile), read_named(KEY, keyfile, Care.SECRET))
    except (InvalidConfig, ValueError) as error:
        raise OSError(f"no TLS to ZooKeeper: {error}") from error  # kazoo then tries again
    return context
