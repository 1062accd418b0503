"""The certificates of an embedded ZooKeeper: made at once or not at all, and for their user alone."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from spark_replication.process import certificates as made_by
from spark_replication.zk.login import NOBODY
from spark_replication.zookeeper_server import certificates
from spark_replication.zookeeper_server.certificates import (
    client_files,
    client_login,
    login_at,
    make_certificates,
    tls_directory,
)
from spark_replication.zookeeper_server.layout import PORT_FILE

NAMES = ["ca.pem", "client.key", "client.pem", "server.pem"]


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((directory / "tls").iterdir())}


def test_they_are_made_once_for_their_user_alone_and_nobody_signs_another(tmp_path: Path) -> None:
    directory = tmp_path / "zookeeper"
    assert (tls_directory(directory), client_files(directory), client_login(directory)) == (None, None, NOBODY)
    make_certificates(directory)
    assert [path.name for path in directory.iterdir()] == ["tls"]
    found = contents(directory)
    assert list(found) == NAMES, "without the CA's key"
    secret = {"client.key", "server.pem"}
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (directory / "tls").iterdir()}
    assert all(modes[name] == 0o600 for name in secret), modes
    assert [stat.S_IMODE(path.stat().st_mode) for path in (directory, directory / "tls")] == [0o700, 0o700]
    make_certificates(directory)
    assert contents(directory) == found
    files = directory / "tls"
    assert client_login(directory).tls == (
        ("ca", str(files / "ca.pem")),
        ("certfile", str(files / "client.pem")),
        ("keyfile", str(files / "client.key")),
    )


def test_the_servers_serve_this_host_and_clients_serve_nobody(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca, server, client = (
        x509.load_pem_x509_certificate((tmp_path / "tls" / name).read_bytes())
        for name in ("ca.pem", "server.pem", "client.pem")
    )
    for each in (server, client):
        each.verify_directly_issued_by(ca)
    hosts = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in hosts] == ["127.0.0.1", "localhost"]
    uses = client.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "tls" / "server.pem")


def test_of_two_that_make_them_at_one_time_the_first_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_certificates(tmp_path)
    first = contents(tmp_path)
    answers = iter([None])  # the second has looked before the first was there
    monkeypatch.setattr(certificates, "tls_directory", lambda path: next(answers, path))
    make_certificates(tmp_path)
    assert contents(tmp_path) == first
    assert [path.name for path in tmp_path.iterdir()] == ["tls"]


def test_without_room_for_all_of_them_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_arguments: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(made_by, "principal_certificate", refused)
    with pytest.raises(OSError, match="the disk is full"):
        make_certificates(tmp_path)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    rename = Path.rename
    monkeypatch.setattr(Path, "rename", lambda path, to: refused() if path.is_dir() else rename(path, to))
    with pytest.raises(OSError, match="the disk is full"):
        make_certificates(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_client_finds_those_of_the_zookeeper_that_it_names(tmp_path: Path) -> None:
    directory = tmp_path / "zookeeper"
    assert login_at("127.0.0.1:2181", tmp_path) == NOBODY
    make_certificates(directory)
    (directory / PORT_FILE).write_text("2181")
    assert login_at("127.0.0.1:2180,127.0.0.1:2181", tmp_path).tls == client_login(directory).tls
    assert login_at("127.0.0.1:2180", tmp_path) == NOBODY, "it is another's"
