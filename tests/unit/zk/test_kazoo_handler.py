"""Whom kazoo's connections trust."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from spark_replication.zk.kazoo_handler import NeverBlockingHandler
from tests.unit.transport.certificates import Authority, Files, locked_key

TIMEOUT_S = 4.0


@contextmanager
def server(files: Files, says: bytes = b"!") -> Iterator[tuple[str, int]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with suppress(OSError), listening.accept()[0] as plain, context.wrap_socket(plain, server_side=True) as one:
                one.sendall(says)
                one.recv(1)  # until the other side hangs up

        answering = threading.Thread(target=answer)
        answering.start()
        yield listening.getsockname()
        answering.join(TIMEOUT_S)


def heard(address: tuple[str, int], ca: Path, own: Files | None = None) -> bytes:
    given: dict[str, Any] = {"use_ssl": True, "ca": str(ca), "verify_certs": True, "check_hostname": False}
    if own is not None:
        given |= {"certfile": str(own.certificate), "keyfile": str(own.key)}
    handler = NeverBlockingHandler(lambda error: None)
    with handler.create_connection(address, hostname="127.0.0.1", timeout=TIMEOUT_S, **given) as connection:
        return connection.recv(1)


def test_a_server_of_our_authority_and_of_the_host_that_was_asked_for_is_trusted(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    with server(ours.issue("zookeeper")) as address:
        assert heard(address, ours.file) == b"!"


def test_another_host_and_another_authority_are_not(tmp_path: Path) -> None:
    ours, theirs = Authority(tmp_path), Authority(tmp_path, "another CA")
    for files in (ours.issue("elsewhere", "10.9.9.9"), theirs.issue("stranger")):
        with server(files) as address, pytest.raises(ssl.SSLCertVerificationError):
            heard(address, ours.file)


def test_a_key_is_looked_at_whenever_it_is_used(tmp_path: Path) -> None:
    """kazoo connects again after an OSError, and ends a session of any other."""
    ours = Authority(tmp_path)
    own = ours.issue("broker")
    own.key.chmod(0o644)
    nowhere = ("127.0.0.1", 1)  # it is looked at first
    with pytest.raises(OSError, match=r"zookeeper\.tls\.key\.file=.* is open to every user"):
        heard(nowhere, ours.file, own)
    own.key.write_text(locked_key())
    own.key.chmod(0o600)
    with pytest.raises(OSError, match="the key has a password"):
        heard(nowhere, ours.file, own)
    with server(ours.issue("zookeeper")) as address:
        assert heard(address, ours.file, ours.issue("broker")) == b"!"


def test_what_tls_has_decrypted_is_not_waited_for(tmp_path: Path) -> None:
    ours = Authority(tmp_path)
    handler = NeverBlockingHandler(lambda error: None)
    with server(ours.issue("zookeeper"), says=b"two answers") as address:
        connection = handler.create_connection(
            address, hostname="127.0.0.1", timeout=TIMEOUT_S, use_ssl=True, ca=str(ours.file)
        )
        with connection:
            assert handler.select([connection], [], [], TIMEOUT_S)[0] == [connection]
            assert connection.recv(4) == b"two "
            woken, waking = handler.create_socket_pair()
            waking.send(b"!")
            assert handler.select([connection, woken], [], [], 0)[0] == [connection, woken]
            woken.recv(1)
            assert handler.select([connection, woken], [], [], 0)[0] == [connection]
            assert connection.recv(100) == b"answers"
            woken.close()


def test_a_server_that_shakes_no_hands_is_left_for_the_next_within_its_share(tmp_path: Path) -> None:
    handler = NeverBlockingHandler(lambda error: None)
    files: dict[str, Any] = {"use_ssl": True, "ca": str(Authority(tmp_path).file)}
    with socket.create_server(("127.0.0.1", 0)) as hung:
        began_s = time.monotonic()
        with pytest.raises(TimeoutError):
            handler.create_connection(hung.getsockname(), hostname="127.0.0.1", timeout=TIMEOUT_S, **files)
    assert time.monotonic() - began_s < TIMEOUT_S / 2
