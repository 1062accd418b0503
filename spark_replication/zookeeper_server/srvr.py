"""A ZooKeeper server's answer to the command `srvr`, which needs no session."""

from __future__ import annotations

import re
import socket

from spark_replication.zk.kazoo_handler import tls_context
from spark_replication.zookeeper_server.certificates import client_login
from spark_replication.zookeeper_server.layout import HOST, ServerPlace

TIMEOUT_S = 1.0
BYTES_MAX = 16 << 10
NOT_SERVING = b"not currently serving requests"  # a member's answer while there is no majority

_MODE = re.compile(rb"^Mode: (\w+)$", re.MULTILINE)
_CONNECTIONS = re.compile(rb"^Connections: (\d+)$", re.MULTILINE)


def said_by(place: ServerPlace) -> bytes:
    """The server's answer; empty if it gave none in time."""
    said = b""
    try:
        with _connected(place) as asking:
            asking.sendall(b"srvr")
            while len(said) < BYTES_MAX and (more := asking.recv(BYTES_MAX)):
                said += more
    except OSError:
        return b""
    return said


def _connected(place: ServerPlace) -> socket.socket:
    tls = client_login(place.shared).tls
    context = tls_context(**dict(tls)) if tls else None
    connection = socket.create_connection((HOST, place.client), timeout=TIMEOUT_S)
    return connection if context is None else context.wrap_socket(connection, server_hostname=HOST)


def mode_in(said: bytes) -> str | None:
    """The mode in an answer: leader, follower or standalone. None if the server serves nobody."""
    found = _MODE.search(said)
    return None if found is None else found[1].decode()


def clients_in(said: bytes) -> int:
    """The number of clients that are connected, without the one that asked."""
    found = _CONNECTIONS.search(said)
    return 0 if found is None else max(0, int(found[1]) - 1)
