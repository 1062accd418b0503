"""A call for another cluster is refused, of whatever kind; one that names none is served."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_replication.errors import AuthenticationFailed, MisroutedCall
from spark_replication.messages.actions import INIT_PRODUCER
from spark_replication.messages.records import InitProducer
from spark_replication.transport.flight.actions import call, error_of_flight
from spark_replication.transport.proofs.token import Token
from spark_replication.transport.proofs.tokens import Tokens
from spark_replication.transport.security.security import NO_SECURITY, Security
from tests.unit.transport.flight_broker import FlightBroker, get, written

SCHEMA = pa.schema([("number", pa.int64())])
ROW = pa.record_batch([pa.array([1])], SCHEMA)
OURS = NO_SECURITY.of_cluster(lambda: "cluster")
ANOTHER = NO_SECURITY.of_cluster(lambda: "another")
CALLS: list[Callable[[flight.FlightClient], object]] = [
    lambda client: call(client, INIT_PRODUCER, InitProducer(), 5_000),
    lambda client: written(client, ROW),
    lambda client: get(client).read_all(),
    lambda client: client.get_flight_info(flight.FlightDescriptor.for_path("orders")),
    lambda client: list(client.list_flights()),
    lambda client: client.list_actions(),
]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[FlightBroker]:
    started = FlightBroker(tmp_path, SCHEMA, security=OURS)
    yield started
    started.close()


@pytest.mark.parametrize("asks", CALLS)
@pytest.mark.parametrize("security", [OURS, NO_SECURITY])
def test_calls_for_this_cluster_or_none_are_served(
    broker: FlightBroker, security: Security, asks: Callable[[flight.FlightClient], object]
) -> None:
    with broker.client(security=security) as client:
        asks(client)


@pytest.mark.parametrize("asks", CALLS)
def test_a_call_for_another_cluster_is_refused(
    broker: FlightBroker, asks: Callable[[flight.FlightClient], object]
) -> None:
    with broker.client(security=ANOTHER) as client, pytest.raises((flight.FlightError, MisroutedCall)) as refused:
        asks(client)
    error = refused.value if isinstance(refused.value, MisroutedCall) else error_of_flight(refused.value)
    assert isinstance(error, MisroutedCall)
    assert error.message.startswith("this is a server of cluster cluster, and the call is for another,")
    assert (error.retriable, error.stale_routes, error.maybe_written) == (True, True, False)
    assert broker.replica.log.log_end == 0


def test_a_server_that_does_not_know_its_cluster_yet_serves_everybody(tmp_path: Path) -> None:
    broker = FlightBroker(tmp_path, SCHEMA)
    with broker.client(security=ANOTHER) as client:
        call(client, INIT_PRODUCER, InitProducer(), 5_000)
    broker.close()


def test_whose_cluster_it_is_is_told_to_those_alone_who_may_know(tmp_path: Path) -> None:
    token = Security(mode="token", tokens=Tokens.of(Token("the-secret")))
    broker = FlightBroker(tmp_path, SCHEMA, security=token.of_cluster(lambda: "cluster"))
    with broker.client(security=ANOTHER) as client, pytest.raises(AuthenticationFailed):
        call(client, INIT_PRODUCER, InitProducer(), 5_000)
    with broker.client(security=token.of_cluster(lambda: "another")) as client, pytest.raises(MisroutedCall):
        call(client, INIT_PRODUCER, InitProducer(), 5_000)
    with broker.client(security=token.of_cluster(lambda: "cluster")) as client:
        call(client, INIT_PRODUCER, InitProducer(), 5_000)
    broker.close()
