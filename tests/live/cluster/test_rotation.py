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
    """Writes over one connection and over new ones, reads, and asks brokers and controller, all the time."""

    def __init__(self, cluster: sr.LocalCluster, security: dict[str, Any]) -> None:
        self.errors: list[Exception] = []
        self.rounds = 0
        self._cluster = cluster
        self._security = security
        self._over = threading.Event()
        self._worker = threading.Thread(target=self._work)

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

    def goes_on(self) -> None:
        before = self.rounds
        eventually(lambda: self.rounds >= before + 3, "work goes on", DEADLINE_S)

    def __enter__(self) -> Work:
        self._worker.start()
        self.goes_on()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._worker.join(DEADLINE_S)


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


def test_tokens_are_replaced(tmp_path: Path) -> None:
    """The servers' file first, then the client's, and then the old one goes. The same with the secret of brokers."""
    files = {name: tmp_path / name for name in ("served", "client", "leaver", "brokers")}
    for file in files.values():
        file.touch(mode=0o600)
        file.write_text("alice old-secret-of-alice\n" if file.name != "brokers" else "old-secret-of-brokers\n")

    def of(name: str) -> dict[str, Any]:
        return {"security.mode": "token", "security.token.file": str(files[name])}

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

    def __init__(self, directory: Path) -> None:
        self.directory = directory
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
        return {**tls_settings(self.old, self.parties[name], mutual=True), "security.tls.ca.file": str(self.ca)}

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


def test_certificates_and_their_ca_are_replaced(tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    with started(tmp_path / "cluster", pki.settings("server")) as cluster:
        leaver = {**tls_settings(pki.old, pki.old.issue("leaver"), mutual=True), "security.tls.ca.file": str(pki.ca)}
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
                refused = "whose certificate is of the old CA is refused, on its open connection, too"
                eventually(lambda: is_refused(leaving, AuthenticationFailed, BrokerNotAvailable), refused, DEADLINE_S)
            work.goes_on()
            cluster.wait_healthy()
    assert work.errors == []
