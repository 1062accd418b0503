"""A CA and certificates that Python's own TLS accepts, and nothing that is written over."""

from __future__ import annotations

import json
import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from cryptography import x509

from spark_replication.config import settings_from
from spark_replication.errors import InvalidConfig, InvalidRequest
from spark_replication.process.certificates import ca_in, host_certificate, principal_certificate
from spark_replication.transport.security.security import Security, read_security
from spark_replication.transport.sockets.tls_channel import TlsChannel
from tests.unit.admin.conftest import Run

TIMEOUT_S = 10.0


def security_of(directory: Path, name: str) -> Security:
    return read_security(
        settings_from(
            {
                "security.mode": "tls",
                "security.tls.mutual": True,
                "security.tls.ca.file": str(directory / "ca.pem"),
                "security.tls.certificate.file": str(directory / f"{name}.pem"),
                "security.tls.key.file": str(directory / f"{name}.key"),
            }
        )
    )


def met(server: Security, client: Security, host: str) -> tuple[str, str]:
    """The names that both sides see."""
    assert server.tls is not None
    assert client.tls is not None
    assert server.tls.as_server is not None
    ours, theirs = socket.socketpair()
    seen: list[str] = []

    def accept() -> None:
        with theirs:
            try:
                seen.append(TlsChannel.accepted(theirs, server.tls.as_server, TIMEOUT_S).peer_name)  # type: ignore[union-attr, arg-type]
            except Exception as error:  # noqa: BLE001
                seen.append(str(error))

    accepting = threading.Thread(target=accept)
    accepting.start()
    with ours:
        channel = TlsChannel.connected(ours, client.tls.as_client, host, TIMEOUT_S)
        accepting.join(TIMEOUT_S)
        return channel.peer_name, seen[0]


def test_hosts_and_clients_know_each_other_by_their_names(run: Run, tmp_path: Path) -> None:
    directory = tmp_path / "made"
    ran = run("certificates", directory, "--format=json", "--host", "localhost, 127.0.0.1", "--client", "alice")
    assert (ran.exit, ran.err) == (0, "")
    told = {Path(row["file"]).name: row["is"] for row in json.loads(ran.out)}
    assert told == {
        "ca.pem": "the CA",
        "ca.key": "the CA's key",
        "localhost.pem": "host localhost, 127.0.0.1",
        "localhost.key": "the key of host localhost, 127.0.0.1",
        "alice.pem": "client alice",
        "alice.key": "the key of client alice",
    }
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == {name: 0o600 if name.endswith(".key") else 0o644 for name in told}
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    host, alice = security_of(directory, "localhost"), security_of(directory, "alice")
    for dialled in ("localhost", "127.0.0.1"):
        assert met(host, alice, dialled) == ("localhost", "alice")
        assert met(host, host, dialled) == ("localhost", "localhost")


def test_a_clients_certificate_serves_nobody_as_a_hosts(tmp_path: Path) -> None:
    ca, _ = ca_in(tmp_path, "a CA")
    host_certificate(tmp_path, ca, ["localhost"], 1)
    principal_certificate(tmp_path, ca, "localhost.alice", 1)
    host, alice = security_of(tmp_path, "localhost"), security_of(tmp_path, "localhost.alice")
    with pytest.raises(Exception, match="TLS with the peer"):
        met(alice, host, "localhost.alice")


def test_nothing_is_written_over_and_the_ca_signs_what_is_new(run: Run, tmp_path: Path) -> None:
    run("certificates", tmp_path, "--client", "alice")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    ran = run("certificates", tmp_path, "--client", "alice", "--client", "bob", "--days", 3, "--format=json")
    assert ran.exit == 0
    assert "alice.pem is there, and stays" in ran.err
    assert [Path(row["file"]).name for row in json.loads(ran.out)] == ["bob.pem", "bob.key"]
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    bob = x509.load_pem_x509_certificate((tmp_path / "bob.pem").read_bytes())
    ca = x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes())
    bob.verify_directly_issued_by(ca)
    assert (bob.not_valid_after_utc - bob.not_valid_before_utc).days == 3
    ssl.create_default_context(cadata=(tmp_path / "ca.pem").read_text())


@pytest.mark.parametrize("name", ["", "a/b", "x" * 65])
def test_a_name_that_no_file_or_certificate_can_have(tmp_path: Path, name: str) -> None:
    ca, _ = ca_in(tmp_path, "a CA")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(InvalidRequest):
        principal_certificate(tmp_path, ca, name, 1)
    assert sorted(tmp_path.iterdir()) == before


def test_a_host_has_names_and_addresses(tmp_path: Path) -> None:
    ca, _ = ca_in(tmp_path, "a CA")
    with pytest.raises(InvalidRequest, match="is neither an address nor a host's name"):
        host_certificate(tmp_path, ca, ["höst"], 1)
    assert len(host_certificate(tmp_path, ca, ["::1", "broker-1.example"], 1)) == 2


def test_a_key_of_another_ca_signs_nothing(tmp_path: Path) -> None:
    for name in ("one", "other"):
        ca_in(tmp_path / name, name)
    (tmp_path / "other" / "ca.key").rename(tmp_path / "one" / "ca.key")
    with pytest.raises(InvalidConfig, match=r"ca\.key is not the key of .*ca\.pem"):
        ca_in(tmp_path / "one", "one")
    (tmp_path / "one" / "ca.key").unlink()
    with pytest.raises(InvalidConfig, match="cannot be read"):
        ca_in(tmp_path / "one", "one")
