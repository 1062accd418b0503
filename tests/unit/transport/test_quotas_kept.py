"""What a client meets that takes more than its quota: by frames, and over Flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from pyarrow import flight

from spark_replication.config import Settings
from spark_replication.errors import Overloaded
from spark_replication.messages.actions import INIT_PRODUCER
from spark_replication.messages.envelope import to_json
from spark_replication.messages.lane import PutAnswersFrame, ReadAnswerFrame, ThrottledFrame
from spark_replication.messages.records import InitProducer, ReadTicket
from spark_replication.transport.flight import known_peers
from spark_replication.transport.flight.actions import call
from spark_replication.transport.meter import CALL
from spark_replication.transport.proofs.caller import Caller
from spark_replication.transport.proofs.flight_client import KnownClient
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.security.quotas import Quotas
from spark_replication.transport.security.security import Security
from tests.unit.storage.storage_stories import SCHEMA, rows
from tests.unit.transport.flight_broker import FlightBroker, get, written
from tests.unit.transport.replicas import TIMEOUT_S, Broker, Brokers
from tests.unit.transport.test_lane import ORDERS, OTHER, Client, put, reads, stream
from tests.unit.transport.test_reader_lane import Peer
from tests.waiting import eventually

ALICE, BOB = Token("a-secret-of-one", "alice"), Token("a-secret-of-two", "bob")
SERVING = Security(mode="token", tokens=Tokens.of(ALICE, BOB), broker_tokens=Tokens.of(Token("brokers", "broker")))
AS_ALICE, AS_BOB = (Security(mode="token", tokens=Tokens.of(token)) for token in (ALICE, BOB))
LARGE = rows(0, 10_000)
MINUTE_S = 60


def too_little(kind: str, count: int = LARGE.nbytes) -> str:
    """So much is a minute's worth of alice's."""
    return f"alice {kind} {count // MINUTE_S}"


@pytest.fixture
def leader(brokers: Brokers) -> Broker:
    found = brokers.start(1, security=SERVING)
    for partition in (ORDERS, OTHER):
        found.command(partition, 1, (1,))
    return found


def is_throttled(client: Client | Peer, quota: str) -> None:
    heard = client.hears()
    told = heard[0] if isinstance(heard, tuple) else heard
    assert isinstance(told, ThrottledFrame), told
    assert told.quota == quota
    assert 0 < told.ms <= 1_000


# By frames


def test_a_producer_that_sent_too_much_has_its_answer_and_is_read_no_more(brokers: Brokers, leader: Broker) -> None:
    brokers.quotas = too_little("producer_byte_rate")
    client = Client(leader, AS_ALICE)
    client.say(stream(), put(0, LARGE))
    heard = [client.hears(), client.hears()]
    assert {type(each) for each in heard} == {PutAnswersFrame, ThrottledFrame}
    assert not reads(leader)
    client.say(put(1, LARGE))
    is_throttled(client, "producer_byte_rate")  # again, as long as it is so
    is_throttled(client, "producer_byte_rate")
    assert leader.replica(ORDERS).log.log_end == LARGE.num_rows
    brokers.quotas = ""
    answer = client.hears()
    while isinstance(answer, ThrottledFrame):
        answer = client.hears()
    assert isinstance(answer, PutAnswersFrame)
    assert [each.number for each in answer.answers] == [1]
    assert leader.replica(ORDERS).log.log_end == 2 * LARGE.num_rows


def test_all_connections_of_a_principal_wait_and_nobody_else_does(brokers: Brokers, leader: Broker) -> None:
    brokers.quotas = too_little("producer_byte_rate")
    one = Client(leader, AS_ALICE)
    one.say(stream(), put(0, LARGE))
    heard = {type(one.hears()), type(one.hears())}
    assert heard == {PutAnswersFrame, ThrottledFrame}
    another = Client(leader, AS_ALICE)
    another.say(stream(), put(0))
    is_throttled(another, "producer_byte_rate")
    bob = Client(leader, AS_BOB)
    bob.say(stream(), *(put(number, LARGE, to=1) for number in range(20)))
    assert list(bob.answers(20)) == list(range(20))
    assert leader.replica(ORDERS).log.log_end == LARGE.num_rows, "nothing of the other connection"


def test_what_comes_is_as_fast_as_the_quota(brokers: Brokers, leader: Broker) -> None:
    """A quarter of what was measured is left for slow machines: a wait is never too short."""
    count = 40
    brokers.quotas = f"alice request_rate {count}"
    client = Client(leader, AS_ALICE)
    client.say(stream())
    began_s = time.monotonic()
    for number in range(2 * count):
        client.say(put(number))
        while isinstance(client.hears(), ThrottledFrame):
            continue
    took_s = time.monotonic() - began_s
    assert took_s > 0.9, "one second's worth was there, and the other was waited for"


def test_a_reader_is_sent_no_more_than_its_quota(brokers: Brokers, leader: Broker) -> None:
    writer = Client(leader, AS_BOB)
    writer.say(stream(), put(0, LARGE), put(1, LARGE))
    writer.answers(2)
    brokers.quotas = too_little("consumer_byte_rate")
    reader = Peer(leader, AS_ALICE)
    reader.ask(0)
    assert reader.answer(0).told.next_offset == LARGE.num_rows, "a single batch goes as a whole"
    reader.ask(1, from_offset=LARGE.num_rows)
    is_throttled(reader, "consumer_byte_rate")
    other = Peer(leader, AS_BOB)
    for number in range(2):
        other.ask(number, from_offset=number * LARGE.num_rows)
        assert other.answer(number).told.next_offset == (number + 1) * LARGE.num_rows
    brokers.quotas = ""
    told, _ = reader.hears()
    while isinstance(told, ThrottledFrame):
        told, _ = reader.hears()
    assert isinstance(told, ReadAnswerFrame)
    assert (told.number, told.next_offset) == (1, 2 * LARGE.num_rows)


def test_a_reader_that_asks_nothing_is_not_told_to_wait(brokers: Brokers, leader: Broker) -> None:
    writer = Client(leader, AS_BOB)
    writer.say(stream(), put(0, LARGE))
    writer.answers(1)
    brokers.quotas = too_little("consumer_byte_rate")
    reader = Peer(leader, AS_ALICE)
    reader.ask(0)
    reader.answer(0)
    reader.channel.settimeout(0.2)
    with pytest.raises(TimeoutError):
        reader.hears()


def test_questions_count_as_requests(brokers: Brokers, leader: Broker) -> None:
    brokers.quotas = "alice request_rate 1"
    reader = Peer(leader, AS_ALICE)
    reader.ask(0)
    reader.answer(0)
    reader.ask(1)
    is_throttled(reader, "request_rate")
    while isinstance(told := reader.hears()[0], ThrottledFrame):
        continue
    assert isinstance(told, ReadAnswerFrame)
    assert told.number == 1


def test_a_principal_has_so_many_connections_and_one_that_ends_makes_room(brokers: Brokers, leader: Broker) -> None:
    brokers.quotas = "alice streams 2"
    first, _second = Client(leader, AS_ALICE), Peer(leader, AS_ALICE)
    for another in (Client, Peer):
        with pytest.raises(Overloaded, match=r"client alice has 2 streams open here, .*\(quota streams\): retry later"):
            another(leader, AS_ALICE)
    Client(leader, AS_BOB)
    first.leaves()
    connected_again: list[Client] = []
    eventually(lambda: connects(leader, connected_again), "there is room again")
    with pytest.raises(Overloaded, match="has 2 streams open here"):
        Client(leader, AS_ALICE)


def connects(leader: Broker, kept: list[Client]) -> bool:
    try:
        kept.append(Client(leader, AS_ALICE))
    except Overloaded:
        return False
    return True


# Over Flight


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FlightBroker]:
    found = FlightBroker(tmp_path, SCHEMA, security=SERVING)
    yield found
    found.close()


class Shows(flight.ClientMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Any Flight client's header."""

    def __init__(self, token: Token) -> None:
        super().__init__()
        self._token = token

    def start_call(self, _info: object) -> flight.ClientMiddleware:
        shown = self._token.bearer

        class Showing(flight.ClientMiddleware):  # type: ignore[misc]
            def sending_headers(self) -> dict[str, str]:
                return {"authorization": shown}

        return Showing()


def connected(broker: FlightBroker, token: Token) -> flight.FlightClient:
    return flight.connect(f"grpc://127.0.0.1:{broker.server.port}", middleware=[Shows(token)])


def test_a_write_stream_goes_on_once_its_principal_may(broker: FlightBroker) -> None:
    broker.quotas = too_little("producer_byte_rate")
    writer, reader = connected(broker, ALICE).do_put(flight.FlightDescriptor.for_path("orders", "0"), SCHEMA)
    writer.write_batch(LARGE)
    assert b"base_offset" in reader.read().to_pybytes(), "what came is stored, and answered"
    eventually(lambda: ("producer_byte_rate",) in broker.server.quotas.throttled_s(), "it waits")
    writer.write_batch(LARGE)
    assert b"base_offset" in written(connected(broker, BOB), LARGE), "nobody else waits"
    assert broker.replica.log.log_end == 2 * LARGE.num_rows
    broker.quotas = ""
    assert b"base_offset" in reader.read().to_pybytes()
    writer.close()


def test_a_read_stream_goes_on_once_its_principal_may(broker: FlightBroker) -> None:
    for _ in range(2):
        written(connected(broker, BOB), LARGE)
    broker.quotas = too_little("consumer_byte_rate")
    with pytest.raises(flight.FlightTimedOutError):
        connected(broker, ALICE).do_get(ticket(), flight.FlightCallOptions(timeout=0.5)).read_all()
    assert get(connected(broker, BOB)).read_all().num_rows == 2 * LARGE.num_rows
    with ThreadPoolExecutor() as threads:
        again = threads.submit(lambda: get(connected(broker, ALICE)).read_all())
        eventually(lambda: broker.server.quotas._streams["alice"] == 1, "it waits, and the other one does no longer")
        broker.quotas = ""
        assert again.result(TIMEOUT_S).num_rows == 2 * LARGE.num_rows


def ticket() -> flight.Ticket:
    return flight.Ticket(to_json(ReadTicket(topic="orders", partition=0)))


def test_a_stream_that_waits_for_its_quota_holds_up_no_stop(broker: FlightBroker) -> None:
    broker.quotas = too_little("producer_byte_rate")
    writer, reader = connected(broker, ALICE).do_put(flight.FlightDescriptor.for_path("orders", "0"), SCHEMA)
    writer.write_batch(LARGE)
    reader.read()
    writer.done_writing()
    eventually(lambda: ("producer_byte_rate",) in broker.server.quotas.throttled_s(), "it waits")
    began_s = time.monotonic()
    broker.server.stop(TIMEOUT_S)
    assert time.monotonic() - began_s < TIMEOUT_S / 2


def test_actions_and_streams_that_are_begun_are_refused(broker: FlightBroker) -> None:
    broker.quotas = "alice request_rate 1"
    ours = broker.client(security=AS_ALICE)
    for _ in range(2):
        call(ours, INIT_PRODUCER, InitProducer(), 10_000)
    with pytest.raises(Overloaded, match="client alice makes more than 1 requests a second here"):
        call(ours, INIT_PRODUCER, InitProducer(), 10_000)
    theirs = connected(broker, ALICE)
    descriptor = flight.FlightDescriptor.for_path("orders")
    for ask in (
        lambda: theirs.get_flight_info(descriptor),
        lambda: list(theirs.list_flights()),
        lambda: get(theirs).read_all(),
        lambda: written(theirs, LARGE),
    ):
        with pytest.raises(flight.FlightServerError, match="THROTTLING_QUOTA_EXCEEDED"):
            ask()
    call(broker.client(security=AS_BOB), INIT_PRODUCER, InitProducer(), 10_000)
    assert broker.replica.log.log_end == 0


def test_who_only_proves_who_it_is_makes_no_request(broker: FlightBroker) -> None:
    broker.quotas = "alice request_rate 1; * request_rate 1"
    for _ in range(5):
        broker.client(security=AS_ALICE).introduce(TIMEOUT_S)
    call(broker.client(security=AS_ALICE), INIT_PRODUCER, InitProducer(), 10_000)


def test_streams_of_flight_and_connections_by_frames_count_alike(broker: FlightBroker) -> None:
    broker.quotas = "alice streams 1"
    client = connected(broker, ALICE)
    writer, reader = client.do_put(flight.FlightDescriptor.for_path("orders", "0"), SCHEMA)
    writer.write_batch(LARGE)
    assert b"base_offset" in reader.read().to_pybytes()
    for ask in (lambda: get(client).read_all(), lambda: written(client, LARGE)):
        with pytest.raises(flight.FlightServerError, match="client alice has 1 streams open here"):
            ask()
    writer.close()
    assert get(client).read_all().num_rows == LARGE.num_rows


def test_a_principal_has_so_many_connections_of_flight(broker: FlightBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that calls over more is told why, which is counted; and who closes one may open another."""
    monkeypatch.setattr(known_peers, "LOOK_AGAIN_S", 0.0)
    broker.quotas = "alice connections 2"

    def another(security: Security) -> KnownClient:
        return security.client(f"127.0.0.1:{broker.server.port}", [("grpc.use_local_subchannel_pool", 1)])

    def ask(client: KnownClient) -> object:
        return call(client, INIT_PRODUCER, InitProducer(), 10_000)

    ours = [another(AS_ALICE) for _ in range(3)]
    for _ in range(2):
        for client in ours[:2]:
            ask(client)
    with pytest.raises(
        Overloaded, match=r"client alice has 2 connections here, as many as it may \(quota connections\)"
    ):
        ask(ours[2])
    assert broker.server.meter.refusals()[CALL, Overloaded.code] == 1
    ask(another(AS_BOB))
    options = [("grpc.use_local_subchannel_pool", 1)]
    address = f"grpc://127.0.0.1:{broker.server.port}"
    with (
        flight.connect(address, middleware=[Shows(ALICE)], generic_options=options) as theirs,
        pytest.raises(flight.FlightServerError, match="quota connections"),
    ):
        get(theirs).read_all()
    ours[0].close()
    eventually(lambda: is_let_in(ask, ours[2]), "the place of the one that was closed is free")
    ask(ours[1])


def is_let_in(ask: Callable[[KnownClient], object], client: KnownClient) -> bool:
    try:
        ask(client)
    except Overloaded:
        return False
    return True


def test_a_cluster_begins_with_limits_that_leave_places_to_others() -> None:
    quotas = Quotas(lambda: Settings().security_quotas)
    alice = Caller("alice", is_of_cluster=False)
    assert [quotas.limit(alice, kind) for kind in ("connections", "streams", "request_rate")] == [900, 900, None]
    assert Settings().flight_writes_max > 900
    assert quotas.limit(Caller("broker", is_of_cluster=True), "connections") is None
