"""Strangers who come to each port of a cluster as fast as they can, in each mode: they leave a few lines a minute, so
nothing grows that has a disk's whole size as its only bound, and nothing that others look for is pushed out."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

import spark_replication as sr
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper
from tests.live.cluster.sides import MODES, sides
from tests.live.cluster.test_hostile_clients import CONNECT_S, HELLOS, HTTP1, HTTP2, SEED, TLS_HELLO, Attacked
from tests.unit.transport.hostile import any_of

pytestmark = [pytest.mark.trust, pytest.mark.live, pytest.mark.timeout(240)]

FLOOD_S = float(os.environ.get("FLOOD_S", "8"))
#: At each port, however slow the machine is: a line of LINE_BYTES for each of them would be twice GROWTH_BYTES_MAX.
COMERS_MIN = 2_000
LINE_BYTES = 50
GROWTH_BYTES_MAX = COMERS_MIN * LINE_BYTES // 2  # of a file
TABLES = "mirror"  # whose files are none that strangers write, and are bound by mirror.history.bytes
WRONG_LENGTH = (0x7FFF_FFFF).to_bytes(4, "big")
FORM = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 7\r\n\r\ntoken=x"
NO_REQUEST = b"no request\r\n\r\n"
VIEW = b"GET /api/view HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer guessed\r\n\r\n"
SOUND = {
    "frames": [*HELLOS, TLS_HELLO],
    "broker": [HTTP2, TLS_HELLO],
    "controller": [HTTP2, TLS_HELLO],
    "page": [HTTP1, VIEW, FORM, TLS_HELLO],
    "zookeeper": [WRONG_LENGTH, TLS_HELLO],
}


@pytest.fixture(params=["none", *MODES])
def attacked(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Attacked]:
    serving, client = sides(request.param, tmp_path)
    with sr.LocalCluster.start(brokers=1, directory=tmp_path / "cluster", config=serving) as cluster:
        found = Attacked(cluster, client)
        zookeeper = EmbeddedZooKeeper.found_in(cluster.directory / "zookeeper")
        assert zookeeper is not None
        found.ports["zookeeper"] = zookeeper.servers[0].place.client
        yield found


def sizes(directory: Path) -> dict[str, int]:
    """What the disk has of each file: ZooKeeper makes its own larger than what is in them."""
    found = {}
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # gone meanwhile
            told = path.stat()
            if path.is_file() and TABLES not in path.relative_to(directory).parts:
                found[str(path.relative_to(directory))] = min(told.st_size, 512 * told.st_blocks)
    return found


def comes(port: int, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=CONNECT_S) as connection:
        connection.sendall(said)
        if said == NO_REQUEST:
            connection.recv(1)  # the page hangs up unread on those that wait, once too many do


def asks(client: flight.FlightClient, body: bytes) -> None:
    options = flight.FlightCallOptions(timeout=CONNECT_S)
    with suppress(flight.FlightError, pa.ArrowException):
        list(client.do_action(("metadata", body), options))


def flood(attacked: Attacked, port: str) -> int:
    """Returns how many came."""
    rng, count = random.Random(f"{SEED} {port}"), 0
    ends_s = time.monotonic() + FLOOD_S
    calls = None
    if port in attacked.flights and attacked.client.tls is None:
        calls = sr.Security.of(None).client(attacked.flights[port])
    attempts: list[Callable[[bytes], None]] = [lambda said: comes(attacked.ports[port], said)]
    if calls is not None:
        attempts.append(lambda said: asks(calls, said))
    while time.monotonic() < ends_s or count < COMERS_MIN:
        with suppress(OSError):
            is_whole = port == "page" and rng.random() < 0.5  # of the others HTTP waits for more, as a rule
            attempts[count % len(attempts)](NO_REQUEST if is_whole else any_of(rng, SOUND[port]))
            count += 1
    if calls is not None:
        calls.close()
    return count


def test_a_flood_of_strangers_leaves_a_few_lines(attacked: Attacked) -> None:
    attacked.works()
    before = sizes(attacked.cluster.directory)
    with ThreadPoolExecutor(len(attacked.ports)) as strangers:
        came = dict(zip(attacked.ports, strangers.map(lambda port: flood(attacked, port), attacked.ports), strict=True))
    attacked.works()
    after = sizes(attacked.cluster.directory)
    grown = {name: size - before.get(name, 0) for name, size in after.items()}
    print(f"seed={SEED}; came: {came}; grown: { {name: size for name, size in grown.items() if size} }")  # noqa: T201
    assert {name: size for name, size in grown.items() if size > GROWTH_BYTES_MAX} == {}
    assert sum(grown.values()) < len(attacked.ports) * GROWTH_BYTES_MAX
