"""Tokens, certificates and the CA are replaced while work goes on: nobody restarts, and nothing fails."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import spark_replication as sr
from spark_replication.errors import AuthenticationFailed, BrokerNotAvailable, ReplicationError
from tests.unit.transport.certificates import Authority, Files, tls_settings
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

SCHEMA = pa.schema([("number", pa.int64())])
BATCH = pa.record_batch([pa.array([1])], schema=SCHEMA)
CONFIG = {"page.enabled": False}
DEADLINE_S = 30.0

log = logging.getLogger(__name__)


class Work:
    """Writes over one connection and over new ones, reads, and asks brokers and controller, all the time. One reader
    follows all the while."""

    def __init__(self, cluster: sr.LocalCluster, security: dict[str, Any]) -> None:
        self.errors: list[Exception] = []
        self.rounds = 0
        self.followed = 0  # rows
        self._cluster = cluster
        self._security = security
        self._reader = sr.Reader(cluster.bootstrap, security=security)
        self._over = threading.Event()
        self._workers = [threading.Thread(target=work) for work in (self._work, self._follow)]

    def _work(self) -> None:
        bootstrap, security = self._cluster.bootstrap, self._security
        with sr.Producer(bootstrap, security=security) as kept, sr.Admin(bootstrap, security=security) as admin:
            while not self._over.is_set():
                try:
                    kept.send("orders", BATCH, 0).result(DEADLINE_S)
                    with sr.Producer(bootstrap, security=security) as producer:
                        producer.send("orders", BATCH, 0).result(DEADLINE_S)
                    with sr.Reader(bootstrap, security=security) as reader:
                        assert next(iter(reader.read("orders"))).batch == BATCH
                    assert admin.describe_topics(["orders"])
                    admin.configure("orders", {"retention.ms": 10_000_000 + self.rounds})
                except ReplicationError as error:
                    self.errors.append(error)
                self.rounds += 1

    def _follow(self) -> None:
        try:
            for found in self._reader.read("orders", partition=0, follow=True):
                assert found.base_offset == self.followed, "each row once, in its order"
                self.followed += found.batch.num_rows
        except ReplicationError as error:
            self.errors.append(error)

    def goes_on(self) -> None:
        """Each round writes two rows, and both are followed."""
        rounds, rows = self.rounds + 3, self.followed + 6
        eventually(lambda: self.rounds >= rounds and self.followed >= rows, "work goes on", DEADLINE_S)

    def __enter__(self) -> Work:
        for worker in self._workers:
            worker.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._workers[0].join(DEADLINE_S)
        self._reader.close()
        self._workers[1].join(DEADLINE_S)


@contextmanager
def started(directory: Path, settings: dict[str, Any]) -> Iterator[sr.LocalCluster]:
    with sr.LocalCluster.start(brokers=2, directory=directory, config={**CONFIG, **settings}) as cluster:
        cluster.admin.create_topic("orders", SCHEMA, replication_factor=2)
        yield cluster


def put(file: Path, content: str) -> None:
    """Whole: nobody reads half of it."""
    made = file.with_name(f"{file.name}.new")
    made.touch(mode=0o600)
    made.write_text(content)
    made.rename(file)


def is_refused(producer: sr.Producer, *errors: type[ReplicationError]) -> bool:
    answer = producer.send("orders", BATCH, 0).exception(DEADLINE_S)
    log.warning("answered: %r", answer)  # shown if the test fails
    return isinstance(answer, errors)


@pytest.mark.parametrize("mode", ["token", "tls"])
def test_tokens_are_replaced(tmp_path: Path, mode: str) -> None:
    """The servers' file first, then the client's, and then the old one goes. The same with the secret of brokers."""
    files = {name: tmp_path / name for name in ("served", "client", "leaver", "brokers")}
    for file in files.values():
        file.touch(mode=0o600)
        file.write_text("alice old-secret-of-alice\n" if file.name != "brokers" else "old-secret-of-brokers\n")

    ours = Authority(tmp_path)

    def of(name: str) -> dict[str, Any]:
        tls = tls_settings(ours, ours.issue(name) if name == "served" else None) if mode == "tls" else {}
        return {**tls, "security.mode": mode, "security.token.file": str(files[name])}

    serving = {**of("served"), "security.broker.token.file": str(files["brokers"])}
    with started(tmp_path / "cluster", serving) as cluster, Work(cluster, of("client")) as work:
        with sr.Producer(cluster.bootstrap, security=of("leaver")) as leaving:
            leaving.send("orders", BATCH, 0).result(DEADLINE_S)
            for name, content in (
                ("served", "alice old-secret-of-alice\nalice new-secret-of-alice\n"),
                ("client", "alice new-secret-of-alice\n"),
                ("served", "alice new-secret-of-alice\n"),
                ("brokers", "old-secret-of-brokers\nnew-secret-of-brokers\n"),
                ("brokers", "new-secret-of-brokers\nold-secret-of-brokers\n"),
                ("brokers", "new-secret-of-brokers\n"),
            ):
                put(files[name], content)
                work.goes_on()
            refused = "who stayed with the old one is refused, on its open connection, too"
            eventually(lambda: is_refused(leaving, AuthenticationFailed), refused, DEADLINE_S)
        work.goes_on()
        cluster.wait_healthy()
        (topic,) = cluster.admin.describe_topics(["orders"])
        assert len(topic.partitions[0].isr) == 2
    assert work.errors == []


PARTIES = ("server", "client")


class Pki:
    """The files of two CAs, and those that the cluster and its clients have."""

    def __init__(self, directory: Path, *, mutual: bool = True) -> None:
        """mutual: else clients show a token, and no certificate."""
        self.directory = directory
        self.token = None if mutual else directory / "token"
        if self.token is not None:
            put(self.token, "alice the-secret-of-alice\n")
        self.old, self.new = Authority(directory, "old"), Authority(directory, "new")
        self.ca = directory / "trusted"
        self.parties = {
            name: Files(directory / f"{name}.crt", directory / f"{name}.pem8") for name in ("server", "client")
        }
        self.trust(self.old)
        for name in self.parties:
            self.show(name, self.old)

    def trust(self, *authorities: Authority) -> None:
        put(self.ca, "".join(each.file.read_text() for each in authorities))

    def show(self, name: str, authority: Authority) -> None:
        issued = authority.issue(f"{name}-of-{authority.file.stem}")
        put(self.parties[name].key, issued.key.read_text())
        put(self.parties[name].certificate, issued.certificate.read_text())

    def settings(self, name: str) -> dict[str, Any]:
        return self.settings_of(self.parties[name])

    def settings_of(self, files: Files) -> dict[str, Any]:
        found = {**tls_settings(self.old, files, mutual=True), "security.tls.ca.file": str(self.ca)}
        if self.token is None:
            return found
        if files != self.parties["server"]:
            found = {**tls_settings(self.old, None), "security.tls.ca.file": str(self.ca)}
        return {**found, "security.tls.mutual": False, "security.token.file": str(self.token)}

    def shown_at(self, port: int) -> bytes:
        """The certificate that is shown there."""
        context = ssl.create_default_context(cafile=str(self.ca))
        context.load_cert_chain(self.parties["client"].certificate, self.parties["client"].key)
        with socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S) as connection:
            connection.settimeout(DEADLINE_S)
            with context.wrap_socket(connection, server_hostname="127.0.0.1") as channel:
                return channel.getpeercert(binary_form=True) or b""

    def is_shown_everywhere(self, cluster: sr.LocalCluster) -> bool:
        told = cluster.admin.metadata(())
        assert told.controller is not None
        ports = [int(told.controller.rpartition(":")[2])]
        ports += [port for each in told.brokers.values() for port in (each.port, each.replication_port)]
        wanted = ssl.PEM_cert_to_DER_cert(self.parties["server"].certificate.read_text())
        try:
            return all(self.shown_at(port) == wanted for port in ports)
        except OSError:  # between two Flight servers
            return False


@pytest.mark.parametrize("mutual", [True, False])
def test_certificates_and_their_ca_are_replaced(tmp_path: Path, *, mutual: bool) -> None:
    pki = Pki(tmp_path, mutual=mutual)
    with started(tmp_path / "cluster", pki.settings("server")) as cluster:
        leaver = pki.settings_of(pki.old.issue("leaver"))
        with Work(cluster, pki.settings("client")) as work:
            shown = partial(pki.is_shown_everywhere, cluster)
            assert shown()
            with sr.Producer(cluster.bootstrap, security=leaver, deadline_ms=5_000) as leaving:
                leaving.send("orders", BATCH, 0).result(DEADLINE_S)
                pki.show("server", pki.old)
                eventually(shown, "another certificate of the same CA", DEADLINE_S)
                work.goes_on()
                pki.trust(pki.old, pki.new)
                pki.show("server", pki.new)
                eventually(shown, "a certificate of the new CA", DEADLINE_S)
                work.goes_on()
                pki.show("client", pki.new)
                work.goes_on()
                pki.trust(pki.new)
                if mutual:
                    refused = "whose certificate is of the old CA is refused, on its open connection, too"
                    errors = (AuthenticationFailed, BrokerNotAvailable)
                    eventually(lambda: is_refused(leaving, *errors), refused, DEADLINE_S)
                else:
                    leaving.send("orders", BATCH, 0).result(DEADLINE_S)  # it is known by its token
            work.goes_on()
            cluster.wait_healthy()
    assert work.errors == []
