"""Without security (security.mode none) nothing listens beyond this host."""

from __future__ import annotations

import ipaddress
import socket

from spark_replication.errors import InvalidConfig


def require_loopback(host: str) -> None:
    """InvalidConfig unless every address that `host` stands for is a loopback address."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidConfig(f"host {host!r} has no address: {error}. Use 127.0.0.1") from error
    for *_, address in found:
        if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
            raise InvalidConfig(
                f"host {host!r} is {address[0]}, beyond this host: without security only loopback is served. "
                "Use 127.0.0.1"
            )
