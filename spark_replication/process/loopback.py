"""Where a process listens: on this host alone unless transport.security.security allows more, and at the port that it
had before."""

from __future__ import annotations

import ipaddress
import socket
from contextlib import ExitStack

from spark_replication.errors import InvalidConfig


def require_loopback(host: str, why: str) -> None:
    """Raise InvalidConfig unless every address that `host` stands for is a loopback address."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise InvalidConfig(f"host {host!r} has no address: {error}. Use 127.0.0.1") from error
    for *_, address in found:
        if not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
            raise InvalidConfig(f"host {host!r} is {address[0]}, beyond this host: {why}")


def is_loopback(host: str) -> bool:
    """Whether `host` stands for loopback addresses alone. False for a host without an address."""
    try:
        require_loopback(host, "")
    except InvalidConfig:
        return False
    return True


def port_again(host: str, wanted: int) -> int:
    """`wanted` if that port is free, so that addresses outlive a restart; else 0, with which the system chooses.

    A plain socket asks, since gRPC would share the port of another gRPC server without a word.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections of the last life may linger
        try:
            probe.bind((host, wanted))
            probe.listen(1)
        except OSError:
            return 0
    return wanted


def free_ports(count: int) -> list[int]:
    """Find free ports of 127.0.0.1. All are held at one time, so that none is found twice."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
