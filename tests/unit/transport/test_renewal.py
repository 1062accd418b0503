"""Certificates that change while a process runs, and the names in them."""

from __future__ import annotations

import logging
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spark_replication.config import settings_from
from spark_replication.errors import (
    AuthenticationFailed,
    ClusterAuthorizationFailed,
    InvalidConfig,
)
from spark_replication.messages.actions import INIT_PRODUCER
from spark_replication.messages.records import InitProducer, ProducerId
from spark_replication.model import TopicPartition
from spark_replication.transport.flight import listening
from spark_replication.transport.flight.actions import ActionServer, call, handled
from spark_replication.transport.proofs.caller import ANYBODY
from spark_replication.transport.security.expiry import AGAIN_S, WARN_S, Expiry
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import Security, read_security, require_own_brokers
from tests.unit.transport.certificates import Authority, Files, tls_settings
from tests.unit.transport.replicas import TIMEOUT_S, Brokers
from tests.unit.transport.test_security import token_settings
from tests.waiting import eventually

ORDERS = TopicPartition("orders", 0)


def security_of(*settings: dict[str, Any]) -> Security:
    return read_security(settings_from({name: value for each in settings for name, value in each.items()}))


class Party:
    """The files of a process, which may be replaced."""

    def __init__(self, directory: Path, name: str, authority: Authority) -> None:
        self.name = name
        self.files = Files(directory / f"{name}-now.pem", directory / f"{name}-now.key")
        self.ca = directory / f"{name}-ca"
        self.trusts(authority)
        self.shows(authority)
        self.settings = {**tls_settings(authority, self.files, mutual=True), "security.tls.ca.file": str(self.ca)}

    def shows(self, authority: Authority) -> None:
        issued = authority.issue(f"{self.name}-{time.monotonic_ns()}")
        for now, new in zip(self.files, issued, strict=True):
            now.touch(mode=0o600)
            now.write_text(new.read_text())

    def trusts(self, *authorities: Authority) -> None:
        self.ca.write_text("".join(each.file.read_text() for each in authorities))


@pytest.fixture
def authorities(tmp_path: Path) -> tuple[Authority, Authority]:
    return Authority(tmp_path, "old"), Authority(tmp_path, "new")


class Served:
    def __init__(self, security: Security) -> None:
        self.server = ActionServer("127.0.0.1", [handled(INIT_PRODUCER, self._answer)], rights=Rights(security))
        self.address = f"127.0.0.1:{self.server.port}"

    def _answer(self, _asked: InitProducer) -> ProducerId:
        return ProducerId(producer=7)

    def asked(self, security: Security) -> int:
        with security.client(self.address) as client:
            return call(client, INIT_PRODUCER, InitProducer(), 5_000).producer

    def certificate(self) -> str:
        return ssl.get_server_certificate(("127.0.0.1", self.server.port), timeout=TIMEOUT_S)


@pytest.fixture
def served(tmp_path: Path, authorities: tuple[Authority, Authority], monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setattr(listening, "LOOK_S", 0.05)
    party = Party(tmp_path, "server", authorities[0])
    one_sided = {**party.settings, "security.tls.mutual": False}
    found = Served(security_of(one_sided, token_settings(tmp_path), {"security.mode": "tls"}))
    yield party, found
    threading.Thread(target=found.server.shutdown, daemon=True).start()


def test_another_flight_server_takes_the_port_with_the_certificate_that_has_come(
    served: tuple[Party, Served], authorities: tuple[Authority, Authority], tmp_path: Path
) -> None:
    party, server = served
    client = security_of(tls_settings(authorities[0], None), token_settings(tmp_path), {"security.mode": "tls"})
    with client.client(server.address) as kept:
        assert call(kept, INIT_PRODUCER, InitProducer(), 5_000).producer == 7
        before = server.certificate()
        party.shows(authorities[0])
        eventually(lambda: is_shown(server, party, before), "the new certificate is shown")
        assert call(kept, INIT_PRODUCER, InitProducer(), 5_000).producer == 7, (
            "on the same client, with the same ticket"
        )
    assert server.asked(client) == 7


def is_shown(server: Served, party: Party, before: str) -> bool:
    try:
        return server.certificate() not in ("", before)
    except OSError:  # between the two
        return False


def test_what_is_no_certificate_changes_nothing(
    served: tuple[Party, Served], authorities: tuple[Authority, Authority], tmp_path: Path, caplog: Any
) -> None:
    party, server = served
    client = security_of(tls_settings(authorities[0], None), token_settings(tmp_path), {"security.mode": "tls"})
    before = server.certificate()
    with caplog.at_level(logging.WARNING):
        party.files.key.write_text("no key")
        eventually(lambda: any("holds on" in each.message for each in caplog.records), "it is told")
    assert server.certificate() == before
    assert server.asked(client) == 7
    party.shows(authorities[0])
    eventually(lambda: is_shown(server, party, before), "a good one is shown")


@pytest.mark.parametrize("wrong", ["no key", "a key that everybody may read"])
def test_who_is_taken_out_of_the_cas_is_out_whatever_is_wrong_with_the_own_key(
    tmp_path: Path, authorities: tuple[Authority, Authority], wrong: str
) -> None:
    old, new = authorities
    party = Party(tmp_path, "server", old)
    party.trusts(old, new)
    security = security_of(party.settings)
    assert security.certificates is not None
    before = security.tls
    assert before is not None
    if wrong == "no key":
        party.files.key.write_text("no key")
    else:
        party.files.key.chmod(0o644)
    party.trusts(new)
    assert security.certificates.look()
    after = security.tls
    assert after is not None
    assert not security.is_known(before.mark)
    assert after.certificate is before.certificate, "as it was read before"
    assert security.trouble.startswith("security.tls.")
    assert security.trouble.endswith("what was read before holds on")


def test_a_certificate_whose_key_follows_in_a_moment_is_waited_for(
    tmp_path: Path, authorities: tuple[Authority, Authority]
) -> None:
    """A process may start in between."""
    party, issued = Party(tmp_path, "client", authorities[0]), authorities[0].issue("other")
    party.files.certificate.write_text(issued.certificate.read_text())
    following = threading.Timer(0.1, lambda: party.files.key.write_text(issued.key.read_text()))
    following.start()
    assert security_of(party.settings).tls is not None
    following.join()
    party.files.key.write_text(authorities[0].issue("third").key.read_text())
    with pytest.raises(InvalidConfig, match="KEY_VALUES_MISMATCH"):
        security_of(party.settings)


def test_a_server_that_stops_begins_no_other(served: tuple[Party, Served], authorities: Any) -> None:
    party, server = served
    server.server.stop(5)
    party.shows(authorities[0])
    with pytest.raises(OSError, match="refused"):
        server.certificate()
    listened = server.server._listening
    assert isinstance(listened, listening.Listening)
    assert not listened._began_again()


def test_a_client_that_has_not_looked_yet_does_so_before_it_gives_up(
    tmp_path: Path, authorities: tuple[Authority, Authority]
) -> None:
    old, new = authorities
    theirs, ours = Party(tmp_path, "server", new), Party(tmp_path, "client", old)
    theirs.trusts(old, new)
    server = Served(security_of(theirs.settings))
    with security_of(ours.settings).client(server.address) as client:
        with pytest.raises(AuthenticationFailed, match="TLS failed"):
            call(client, INIT_PRODUCER, InitProducer(), 5_000)
        ours.trusts(old, new)
        assert call(client, INIT_PRODUCER, InitProducer(), 5_000).producer == 7
    threading.Thread(target=server.server.shutdown, daemon=True).start()


def test_connections_of_brokers_and_clients_begin_anew_when_a_ca_is_taken_back(
    tmp_path: Path, authorities: tuple[Authority, Authority], brokers: Brokers
) -> None:
    old, new = authorities
    party = Party(tmp_path, "broker", new)
    party.trusts(old, new)
    leader, follower = (brokers.start(number, security=security_of(party.settings)) for number in (1, 2))
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    eventually(lambda: leader.replication._server.followers.of(2) is not None, "it follows")
    before = leader.replication._server.followers.of(2)
    party.trusts(new)

    def began_anew() -> bool:
        leader.produce(ORDERS, 1)
        now = leader.replication._server.followers.of(2)
        return now is not None and now is not before

    eventually(began_anew, "the follower connects again")


# Names of brokers


@pytest.fixture
def pki(tmp_path: Path) -> dict[str, Any]:
    """A CA, and the settings of parties whose certificates have these names."""
    ours = Authority(tmp_path)
    return {
        name: tls_settings(ours, ours.issue(name, name, "127.0.0.1"), mutual=True) for name in ("broker-1", "alice")
    }


PRINCIPALS = {"security.broker.principals": "broker-1, broker-2"}


def test_brokers_are_known_by_the_names_in_their_certificates(pki: dict[str, Any], brokers: Brokers) -> None:
    leader = brokers.start(1, security=security_of(pki["broker-1"], PRINCIPALS))
    follower = brokers.start(2, security=security_of(pki["broker-1"], PRINCIPALS))
    for broker in (leader, follower):
        broker.command(ORDERS, 1, (1, 2))
    eventually(lambda: leader.replication._server.followers.of(2) is not None, "it follows")
    stranger = brokers.start(3, security=security_of(pki["alice"]))
    stranger.command(ORDERS, 1, (1, 2, 3))
    eventually(leader.replication.meter.refusals, "alice is refused")
    assert {code for _, code in leader.replication.meter.refusals()} == {ClusterAuthorizationFailed.code}
    assert leader.replication._server.followers.of(3) is None


def test_a_clients_token_makes_no_broker_where_names_do(pki: dict[str, Any], brokers: Brokers, tmp_path: Path) -> None:
    """A follower proves the token that clients have, too, where brokers have no secret of their own."""
    token = {**token_settings(tmp_path), "security.mode": "tls"}
    leader = brokers.start(1, security=security_of(pki["broker-1"], token, PRINCIPALS))
    alice = security_of(pki["alice"], token)
    stranger = brokers.start(3, security=alice)
    stranger.command(ORDERS, 1, (1, 3))
    eventually(leader.replication.meter.refusals, "alice is refused")
    assert {code for _, code in leader.replication.meter.refusals()} == {ClusterAuthorizationFailed.code}
    server = security_of(pki["broker-1"], token, PRINCIPALS)
    proven = ANYBODY._replace(name="client", is_of_cluster=True, mark="m")
    assert not server.known(proven, "alice").is_of_cluster
    assert server.known(proven, "broker-2").is_of_cluster
    assert not server.known(ANYBODY, "").is_of_cluster


@pytest.mark.parametrize("mutual", [False, None])
def test_names_in_certificates_need_certificates(tmp_path: Path, mutual: bool | None) -> None:
    ours = Authority(tmp_path)
    tls = {} if mutual is None else tls_settings(ours, ours.issue("server"), mutual=mutual)
    with pytest.raises(InvalidConfig, match=r"security\.broker\.principals are names in certificates"):
        security_of(tls, PRINCIPALS)


def test_names_of_brokers_do_in_place_of_their_secret(pki: dict[str, Any]) -> None:
    require_own_brokers(settings_from({**pki["broker-1"], **PRINCIPALS}))
    with pytest.raises(InvalidConfig, match=r"or security\.broker\.principals"):
        require_own_brokers(settings_from(pki["broker-1"]))


# A certificate that ends


def test_it_is_told_in_time_and_once_a_day(pki: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    tls = security_of(pki["alice"]).tls
    assert tls is not None
    assert tls.ends_s is not None
    assert 29 < (tls.ends_s - time.time()) / 86_400 < 31
    now_s = tls.ends_s - WARN_S - 1
    expiry = Expiry(lambda: now_s)

    def told() -> list[str]:
        caplog.clear()
        expiry.look(tls)
        return [each.message for each in caplog.records]

    with caplog.at_level(logging.WARNING):
        assert told() == []
        now_s += 2
        (said,) = told()
        assert "ends in 14.0 days: replace its files" in said
        now_s += AGAIN_S - 1
        assert told() == []
        now_s += 1
        assert len(told()) == 1
        now_s = tls.ends_s + 1
        (said,) = told()
        assert "has ended" in said
        expiry.look(None)
