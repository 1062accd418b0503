from __future__ import annotations

import socket

import pytest

from spark_replication.errors import InvalidConfig
from spark_replication.process.loopback import is_loopback, port_again, require_loopback


def test_loopback_is_served_and_nothing_beyond_it() -> None:
    require_loopback("127.0.0.1", "why")
    require_loopback("localhost", "why")
    with pytest.raises(InvalidConfig, match=r"0\.0\.0\.0, beyond this host: why"):
        require_loopback("0.0.0.0", "why")


@pytest.mark.parametrize(
    ("host", "is_one"),
    [("127.0.0.1", True), ("127.0.0.2", True), ("::1", True), ("0.0.0.0", False), ("no.host.", False)],
)
def test_a_host_is_loopback_or_not(host: str, *, is_one: bool) -> None:
    assert is_loopback(host) == is_one


def test_a_port_is_taken_again_if_nobody_has_it() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        assert port_again("127.0.0.1", port) == 0
    assert port_again("127.0.0.1", port) == port
