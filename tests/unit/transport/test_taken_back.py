"""Whose token or CA is taken back is out within 2 s, on what is open already, whether anything comes over it or not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_replication.config import settings_from
from spark_replication.engine.ends.fetch_session import FollowerEnd
from spark_replication.errors import AuthenticationFailed, BrokerNotAvailable
from spark_replication.messages.replication import FetchFrame
from spark_replication.transport.flight.listening import Listening
from spark_replication.transport.proofs.caller import Caller
from spark_replication.transport.security.rights import Rights
from spark_replication.transport.security.security import Security, read_security
from tests.unit.storage.storage_stories import prepared
from tests.unit.transport.certificates import Authority, tls_settings
from tests.unit.transport.flight_broker import FlightBroker, get
from tests.unit.transport.replicas import Broker, Brokers
from tests.unit.transport.test_lane import Client, producers, put, stream
from tests.unit.transport.test_reader_lane import ORDERS, Peer, produce, readers, waiters
from tests.unit.transport.test_renewal import Party
from tests.waiting import eventually

OUT_S = 2.0
WAIT_MS = 60_000  # longer than a test
SCHEMA = pa.schema([("number", pa.int64())])
OLD, NEW = "old-secret-of-brokers\n", "new-secret-of-brokers\n"
ROOT, ALICE = "root the-secret-of-root\n", "alice the-secret-of-alice\n"


def secret(path: Path, content: str) -> str:
    path.touch(mode=0o600)
    path.write_text(content)
    return str(path)


class Known(NamedTuple):
    server: Security
    #: Who is to go, and who stays.
    leaver: Security
    stayer: Security
    take_back: Callable[[], object]
    #: Whether what is open of who stays goes on. Nobody says of which CA a caller is: all begin anew.
    is_told_apart: bool


def by_token(directory: Path) -> Known:
    served = directory / "served"

    def of(path: str) -> Security:
        return read_security(settings_from({"security.mode": "token", "security.token.file": path}))

    return Known(
        of(secret(served, ROOT + ALICE)),
        of(secret(directory / "alice", ALICE)),
        of(secret(directory / "root", ROOT)),
        lambda: served.write_text(ROOT),
        is_told_apart=True,
    )


def by_certificate(directory: Path, token: dict[str, Any] | None = None) -> Known:
    """token: what all of them have besides."""
    old, new = Authority(directory, "old"), Authority(directory, "new")
    server = Party(directory, "server", new)
    server.trusts(old, new)

    def of(settings: dict[str, Any]) -> Security:
        return read_security(settings_from({**settings, **(token or {})}))

    def client(name: str, authority: Authority) -> Security:
        files = authority.issue(name, name, "127.0.0.1")
        return of({**tls_settings(authority, files, mutual=True), "security.tls.ca.file": str(new.file)})

    return Known(
        of(server.settings),
        client("alice", old),
        client("root", new),
        lambda: server.trusts(new),
        is_told_apart=False,
    )


def by_both(directory: Path) -> Known:
    """The token stays, and without the certificate it is of no use."""
    return by_certificate(directory, {"security.token.file": secret(directory / "token", ROOT)})


@pytest.fixture(params=[by_token, by_certificate, by_both], ids=["token", "certificate", "both"])
def known(request: pytest.FixtureRequest, tmp_path: Path) -> Known:
    made: Known = request.param(tmp_path)
    return made


@pytest.fixture
def broker(known: Known, tmp_path: Path) -> Iterator[FlightBroker]:
    started = FlightBroker(tmp_path / "logs", SCHEMA, security=known.server)
    yield started
    threading.Thread(target=started.close, daemon=True).start()


class Streams:
    """Of one client: a write that has begun, and a read that waits."""

    def __init__(self, broker: FlightBroker, security: Security) -> None:
        self._client = broker.client(security=security)
        path = flight.FlightDescriptor.for_path("orders", "0")
        self.writer, self.answers = self._client.do_put(path, SCHEMA)
        self.write(1)
        self.answers.read()
        self.ended: list[str] = []

    def wait(self) -> None:
        reading = get(self._client, from_offset="latest", max_wait_ms=WAIT_MS)
        assert reading.read_chunk().data.num_rows == 0, "it begins"
        for name, wait in (("write", self.answers.read), ("read", reading.read_chunk)):
            threading.Thread(target=self._run, args=(name, wait), daemon=True).start()

    def write(self, number: int) -> None:
        self.writer.write_batch(pa.record_batch([pa.array([number])], schema=SCHEMA))

    def _run(self, name: str, wait: Callable[[], Any]) -> None:
        try:
            if wait() is not None:
                name = f"{name} goes on"
        except (flight.FlightError, pa.ArrowException, OSError, StopIteration):
            pass
        self.ended.append(name)


def served_by(broker: FlightBroker) -> flight.FlightServerBase:
    listening = broker.server._listening
    assert isinstance(listening, Listening)
    return listening._serving


def test_open_streams_of_flight_end(known: Known, broker: FlightBroker) -> None:
    leaving, staying = Streams(broker, known.leaver), Streams(broker, known.stayer)
    for each in (leaving, staying):
        each.wait()
    eventually(lambda: broker.waiters() == 2, "both wait")
    before = served_by(broker)
    known.take_back()
    began_s = time.monotonic()
    eventually(lambda: sorted(leaving.ended) == ["read", "write"], "both of its streams end", OUT_S)
    assert time.monotonic() - began_s < OUT_S
    if not known.is_told_apart:
        eventually(lambda: served_by(broker) is not before, "another server has its port, with its new certificate")
        staying = Streams(broker, known.stayer)
        staying.wait()
    assert staying.ended == []
    end = broker.replica.log.log_end
    staying.write(2)
    eventually(lambda: sorted(staying.ended) == ["read goes on", "write goes on"], "who stays goes on")
    assert broker.replica.log.log_end == end + 1
    eventually(lambda: len(broker.server._streams) == 1, "nothing is kept of those that have ended")


def led(brokers: Brokers, security: Security) -> Broker:
    leader = brokers.start(1, security=security)
    leader.command(ORDERS, 1, (1,))
    produce(leader, prepared(0))
    return leader


def test_a_question_that_waits_is_not_answered_any_more(known: Known, brokers: Brokers) -> None:
    leader = led(brokers, known.server)
    leaving, staying = Peer(leader, known.leaver), Peer(leader, known.stayer)
    for peer in (leaving, staying):
        peer.ask(from_offset=2, max_wait_ms=WAIT_MS)
    eventually(lambda: waiters(leader) == 2, "both wait")
    known.take_back()
    stay = int(known.is_told_apart)
    eventually(lambda: len(readers(leader)) == stay, "the connection ends, though nothing comes", OUT_S)
    if not known.is_told_apart:
        staying = Peer(leader, known.stayer)
        staying.ask(from_offset=2, max_wait_ms=WAIT_MS)
        eventually(lambda: waiters(leader) == 1, "it waits again")
    produce(leader, prepared(2))
    assert staying.answer().rows() == [2, 3]
    with pytest.raises((OSError, BrokerNotAvailable)):
        leaving.hears()


def test_a_producers_connection_that_is_silent_ends(known: Known, brokers: Brokers) -> None:
    leader = led(brokers, known.server)
    leaving, staying = Client(leader, known.leaver), Client(leader, known.stayer)
    assert len(producers(leader)) == 2
    known.take_back()
    eventually(lambda: len(producers(leader)) == int(known.is_told_apart), "it ends", OUT_S)
    del leaving, staying


def test_what_a_producer_sends_after_that_is_not_stored(
    known: Known, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come before the next look at who is known."""
    leader = led(brokers, known.server)
    client = Client(leader, known.leaver)
    end = leader.replica(ORDERS).log.log_end
    monkeypatch.setattr(Security, "is_known", lambda _security, _mark: False)
    client.say(stream(), put(0))
    eventually(lambda: not producers(leader), "it ends", OUT_S)
    assert leader.replica(ORDERS).log.log_end == end


def followed(directory: Path, brokers: Brokers) -> tuple[Broker, Broker]:
    """A leader and its follower, whose secret the leader will not have in its file for long."""

    def of(name: str, content: str) -> Security:
        token = secret(directory / f"{name}-token", ROOT)
        settings = {"security.mode": "token", "security.token.file": token}
        own = secret(directory / name, content)
        return read_security(settings_from({**settings, "security.broker.token.file": own}))

    leader = brokers.start(1, security=of("leader", NEW + OLD))
    follower = brokers.start(2, security=of("follower", OLD))
    for each in (leader, follower):
        each.command(ORDERS, 1, (1, 2))
    eventually(lambda: leader.replication._server.followers.of(2) is not None, "it follows")
    return leader, follower


def test_a_fetch_that_comes_after_that_does_not_count(
    tmp_path: Path, brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what nobody in sync has could be acknowledged."""
    leader, follower = followed(tmp_path, brokers)
    known, frame = Security.is_known, FollowerEnd.frame
    is_taken_back = threading.Event()

    def framed(end: FollowerEnd) -> FetchFrame | None:
        found = frame(end)
        if found is not None and any(fetch.offset for fetch in found.partitions):
            is_taken_back.set()
        return found

    monkeypatch.setattr(FollowerEnd, "frame", framed)
    monkeypatch.setattr(Security, "is_known", lambda of, mark: not is_taken_back.is_set() and known(of, mark))
    produce(leader, prepared(0))
    end = leader.replica(ORDERS).log.log_end
    eventually(lambda: follower.replica(ORDERS).log.log_end == end, "it has the records")
    eventually(lambda: leader.replication._server.followers.of(2) is None, "its connection ends", OUT_S)
    assert leader.replica(ORDERS).high_watermark == 0


def test_a_follower_that_waits_is_not_answered_any_more(tmp_path: Path, brokers: Brokers) -> None:
    """Its secret is taken from the leader's file alone: it is somebody else's by now."""
    leader, follower = followed(tmp_path, brokers)
    (tmp_path / "leader").write_text(NEW)
    eventually(lambda: leader.replication._server.followers.of(2) is None, "its connection ends", OUT_S)
    produce(leader, prepared(0))
    assert follower.replica(ORDERS).log.log_end == 0


@pytest.fixture
def server_of_before(tmp_path: Path) -> tuple[Security, Security, Callable[[], object]]:
    """A server with a certificate of the old CA, who trusts both; a client, and what takes the old CA from its file."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    server, client = Party(tmp_path, "server", old), Party(tmp_path, "client", new)
    for party in (server, client):
        party.trusts(old, new)
    return (
        read_security(settings_from(server.settings)),
        read_security(settings_from(client.settings)),
        lambda: client.trusts(new),
    )


def test_a_server_whose_ca_is_taken_back_is_sent_nothing_and_is_not_heard(
    server_of_before: tuple[Security, Security, Callable[[], object]], brokers: Brokers
) -> None:
    """Whose connection was begun before."""
    server, client, take_back = server_of_before
    leader = led(brokers, server)
    asked, silent = Peer(leader, client), Peer(leader, client)
    asked.ask(from_offset=2, max_wait_ms=WAIT_MS)
    eventually(lambda: waiters(leader) == 1, "it waits")
    take_back()
    assert client.certificates is not None
    assert client.certificates.look()
    produce(leader, prepared(2))
    with pytest.raises(ConnectionAbortedError, match="a CA was taken back"):
        asked.hears()
    with pytest.raises(ConnectionAbortedError, match="a CA was taken back"):
        silent.ask()
    with pytest.raises(AuthenticationFailed):
        Peer(leader, client)


def test_a_leader_whose_ca_is_taken_back_is_followed_no_longer(
    server_of_before: tuple[Security, Security, Callable[[], object]], brokers: Brokers
) -> None:
    server, client, take_back = server_of_before
    leader, follower = brokers.start(1, security=server), brokers.start(2, security=client)
    for each in (leader, follower):
        each.command(ORDERS, 1, (1, 2))
    eventually(lambda: leader.replication._server.followers.of(2) is not None, "it follows")
    take_back()
    assert client.certificates is not None
    assert client.certificates.look()
    produce(leader, prepared(0))
    eventually(lambda: leader.replication._server.followers.of(2) is None, "it hangs up")
    assert follower.replica(ORDERS).log.log_end == 0


@pytest.mark.parametrize(("mark", "ca"), [("gone", ""), ("", "gone"), ("gone", "gone")])
def test_what_let_a_caller_in_has_to_hold_as_a_whole(known: Known, mark: str, ca: str) -> None:
    rights = Rights(known.server)
    assert rights.is_known(Caller("alice", is_of_cluster=False))
    assert not rights.is_known(Caller("alice", is_of_cluster=False, mark=mark, ca=ca))


def test_a_ca_that_comes_ends_nothing(tmp_path: Path, brokers: Brokers) -> None:
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    party = Party(tmp_path, "server", old)
    security = read_security(settings_from(party.settings))
    assert security.tls is not None
    before = security.tls.mark
    party.trusts(old, new)
    assert security.certificates is not None
    assert security.certificates.look()
    assert security.is_known(before)
    assert security.is_known(security.tls.mark)
    party.trusts(new, old)
    assert security.certificates.look()
    assert security.is_known(before), "in whatever order"
    party.trusts(new)
    assert security.certificates.look()
    assert not security.is_known(before)
    assert not security.is_known("CA")
    assert not security.is_known("")
