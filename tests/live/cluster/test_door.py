"""The port of a driver's controller, which a process of its own has: that one is attacked, limited and killed, and the
process whose port it is goes on. Here that is the process of the test."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import flight

from spark_replication.config import settings_from
from spark_replication.errors import AuthenticationFailed, BrokerNotAvailable, Overloaded, ReplicationError
from spark_replication.messages.actions import Action
from spark_replication.messages.envelope import Done, to_json
from spark_replication.messages.records import InitProducer, ProducerId
from spark_replication.process.processes import wait_ended
from spark_replication.transport.flight.actions import call, handled, handled_of
from spark_replication.transport.flight.door import LOG_FILE, Door
from spark_replication.transport.proofs.token import AUTHORIZATION
from spark_replication.transport.security.security import Security, read_security
from tests.live.broker.test_slow_follower import resident_bytes
from tests.live.cluster.sides import MODES, sides
from tests.unit.transport.certificates import Authority, tls_settings
from tests.unit.transport.doors import BehindDoor, behind_door
from tests.unit.transport.test_security import SECRET, broker_settings
from tests.unit.transport.test_strangers import is_hung_up
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

GROWTH_BYTES_MAX = 96 << 20
TIMEOUT_MS = 20_000
DEADLINE_S = 60.0
DOUBLE = Action("double", ProducerId, ProducerId, lambda _asked: ())
HANG = Action("hang", InitProducer, Done, lambda _asked: ())
WHO = Action("who", InitProducer, ProducerId, lambda _asked: ())
LARGE_CALLS, LARGE_BYTES = 2, 300 << 20
CLIENTS_CALLS, CLIENTS_BYTES = 16, 15 << 20
HALF_OPEN, HALF_OPEN_BYTES = 100, 16 << 20
CONNECTIONS = 500


class Kept:
    """What a driver's controller would hold."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.entered, self.may_go_on = threading.Event(), threading.Event()

    def actions(self) -> list[Any]:
        return [
            handled(DOUBLE, lambda asked: ProducerId(producer=2 * asked.producer)),
            handled(HANG, self._hang),
            handled_of(WHO, self._who),
        ]

    def _hang(self, _asked: InitProducer) -> Done:
        self.entered.set()
        self.may_go_on.wait(DEADLINE_S)
        return Done()

    def _who(self, _asked: InitProducer, caller: str) -> ProducerId:
        self.asked.append(caller)
        return ProducerId(producer=0)


@pytest.fixture
def kept() -> Iterator[Kept]:
    found = Kept()
    yield found
    found.may_go_on.set()


def doubled(security: Security, address: str) -> int:
    with security.client(address) as client:
        return call(client, DOUBLE, ProducerId(producer=4), TIMEOUT_MS).producer


def serves(security: Security, address: str) -> bool:
    with suppress(BrokerNotAvailable):
        return doubled(security, address) == 8
    return False


@pytest.mark.parametrize("mode", ["none", *MODES])
def test_it_is_seen_who_calls_and_from_where(tmp_path: Path, kept: Kept, mode: str) -> None:
    serving, client = sides(mode, tmp_path)
    with behind_door(tmp_path / "driver", serving, kept.actions()) as served:
        with Security.of(client).client(served.address) as asking:
            call(asking, WHO, InitProducer(), TIMEOUT_MS)
            assert {each.type for each in asking.list_actions()} >= {"double", "hang"}
        expected = {"none": "127.0.0.1", "token": "client at 127.0.0.1", "tls": "127.0.0.1 at 127.0.0.1"}
        assert kept.asked == [expected[mode]]
        if mode == "none":
            return
        with pytest.raises((AuthenticationFailed, BrokerNotAvailable)):
            doubled(read_security(settings_from({})), served.address)
        assert served.door.pid not in (None, os.getpid())


def test_a_process_that_is_killed_is_started_again_at_its_address(tmp_path: Path, kept: Kept) -> None:
    serving, client = sides("token", tmp_path)
    security, failures = Security.of(client), list[ReplicationError]()
    with behind_door(tmp_path / "driver", serving, kept.actions()) as served:
        before = served.door.pid
        assert before is not None

        def hanging() -> None:
            with security.client(served.address) as asking, pytest.raises(BrokerNotAvailable) as failed:
                call(asking, HANG, InitProducer(), TIMEOUT_MS)
            failures.append(failed.value)

        under_way = threading.Thread(target=hanging)
        under_way.start()
        assert kept.entered.wait(DEADLINE_S)
        os.kill(before, signal.SIGKILL)
        under_way.join(DEADLINE_S)
        (failure,) = failures
        assert (failure.retriable, failure.maybe_written) == (True, True)
        kept.may_go_on.set()
        eventually(lambda: served.door.pid not in (None, before), "another has the port", DEADLINE_S)
        eventually(lambda: serves(security, served.address), "it serves", DEADLINE_S)


def stranger(address: str, size: int, token: str = "") -> None:
    headers = [(AUTHORIZATION.encode(), f"Bearer {token}".encode())] if token else []
    options = flight.FlightCallOptions(timeout=DEADLINE_S, headers=headers)
    with suppress(flight.FlightError, pa.ArrowException), flight.connect(f"grpc://{address}") as client:
        list(client.do_action(("double", to_json(ProducerId(producer=1)) + b" " * size), options))


def at_once(calls: int, run: Callable[[], None]) -> None:
    threads = [threading.Thread(target=run) for _ in range(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)


def attacked_by_half_open_calls(address: str) -> None:
    """Each says how long its message is, and sends as much of it as it is let."""
    command = [sys.executable, "-m", "tests.live.cluster.half_open", address, str(HALF_OPEN), str(HALF_OPEN_BYTES)]
    subprocess.run(command, check=True, timeout=DEADLINE_S)


def attacked_by_connections(address: str) -> None:
    host, _, port = address.rpartition(":")
    with ExitStack() as held:
        for _ in range(CONNECTIONS):
            with suppress(OSError):
                connection = held.enter_context(socket.create_connection((host, int(port)), timeout=DEADLINE_S))
                connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")


ATTACKS: dict[str, Callable[[str], None]] = {
    "two large calls": lambda address: at_once(LARGE_CALLS, lambda: stranger(address, LARGE_BYTES)),
    "large calls with a guessed token": lambda address: at_once(
        CLIENTS_CALLS, lambda: stranger(address, CLIENTS_BYTES, "guessed")
    ),
    "large calls of a client": lambda address: at_once(CLIENTS_CALLS, lambda: stranger(address, CLIENTS_BYTES, SECRET)),
    "half-open calls": attacked_by_half_open_calls,
    "connections": attacked_by_connections,
}

DRIVER = """
import sys, json, threading
from pathlib import Path
from tests.live.cluster.test_door import Kept, behind_door
with behind_door(Path(sys.argv[1]), json.loads(sys.argv[2]), Kept().actions()) as served:
    print(served.server.port, served.door.pid, flush=True)
    sys.stdin.read()
"""


class Driver:
    """A process whose port a child of it has."""

    def __init__(self, directory: Path, settings: dict[str, Any]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(directory), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        port, door = self.process.stdout.readline().split()
        self.address, self.door = f"127.0.0.1:{port}", int(door)

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(DEADLINE_S)


def test_whatever_is_sent_the_driver_grows_within_a_bound(tmp_path: Path) -> None:
    """Two calls of 300 MiB took 2.4 GB of a driver that had the port itself."""
    serving, client = sides("token", tmp_path)
    driver, security = Driver(tmp_path / "driver", serving), Security.of(client)
    try:
        assert doubled(security, driver.address) == 8
        before, grown = resident_bytes(driver.process.pid), dict[str, int]()
        over = threading.Event()
        for name, attack in ATTACKS.items():
            largest, over = [0], threading.Event()

            def watch(largest: list[int] = largest, over: threading.Event = over) -> None:
                while not over.wait(0.005):
                    largest[0] = max(largest[0], resident_bytes(driver.process.pid))

            watching = threading.Thread(target=watch)
            watching.start()
            attack(driver.address)
            over.set()
            watching.join(DEADLINE_S)
            grown[name] = largest[0] - before
            eventually(lambda: serves(security, driver.address), "it serves", DEADLINE_S)
        assert max(grown.values()) < GROWTH_BYTES_MAX, {name: size >> 20 for name, size in grown.items()}
    finally:
        driver.end()


@pytest.mark.parametrize("how", ["killed", "ended"])
def test_a_driver_that_ends_leaves_no_process(tmp_path: Path, how: str) -> None:
    driver = Driver(tmp_path, {})
    door = os.pidfd_open(driver.door)
    try:
        if how == "killed":
            driver.process.kill()
            driver.process.wait(DEADLINE_S)
        else:
            driver.end()
        assert wait_ended(door, DEADLINE_S)
    finally:
        os.close(door)


def test_one_that_takes_more_than_its_limit_ends_alone(tmp_path: Path, kept: Kept) -> None:
    serving, client = sides("token", tmp_path)
    limited = {**serving, "controller.memory.bytes.max": 512 << 20}
    security = Security.of(client)
    with behind_door(tmp_path / "driver", limited, kept.actions()) as served:
        before = served.door.pid
        at_once(LARGE_CALLS, lambda: stranger(served.address, LARGE_BYTES))
        eventually(lambda: served.door.pid not in (None, before), "another has the port", DEADLINE_S)
        eventually(lambda: serves(security, served.address), "it serves", DEADLINE_S)


def test_the_certificate_that_has_come_is_shown_there(tmp_path: Path, kept: Kept) -> None:
    ours = Authority(tmp_path)
    files, other = ours.issue("server"), ours.issue("other")
    settings = {**tls_settings(ours, files, mutual=True)}
    security = Security.of({**tls_settings(ours, ours.issue("client"), mutual=True)})
    with behind_door(tmp_path / "driver", settings, kept.actions()) as served:
        assert doubled(security, served.address) == 8
        before = shown(served)
        files.certificate.write_text(other.certificate.read_text())
        files.key.write_text(other.key.read_text())
        eventually(lambda: shown(served) not in ("", before), "the new one is shown", DEADLINE_S)
        eventually(lambda: serves(security, served.address), "it serves", DEADLINE_S)


def shown(served: BehindDoor) -> str:
    with suppress(OSError):
        return ssl.get_server_certificate(("127.0.0.1", served.server.port), timeout=DEADLINE_S)
    return ""


def test_strangers_are_hung_up_where_descriptors_run_out_and_who_has_called_is_not(tmp_path: Path, kept: Kept) -> None:
    serving, client = sides("token", tmp_path)
    with behind_door(tmp_path / "driver", serving, kept.actions()) as served:
        door = served.door.pid
        assert door is not None
        with Security.of(client).client(served.address) as asking, connected(served) as other:
            assert call(asking, DOUBLE, ProducerId(producer=4), TIMEOUT_MS).producer == 8
            known = connections(served)
            open_ones = len([*Path(f"/proc/{door}/fd").iterdir()])
            _, hard = resource.prlimit(door, resource.RLIMIT_NOFILE)
            resource.prlimit(door, resource.RLIMIT_NOFILE, (open_ones + 4, hard))
            eventually(lambda: is_hung_up(other), "the stranger is hung up", DEADLINE_S)
            assert call(asking, DOUBLE, ProducerId(producer=4), TIMEOUT_MS).producer == 8
            assert connections(served) < known, "and no other has come"


@pytest.mark.parametrize("mode", ["none", "token"])
def test_a_principal_has_as_many_connections_as_its_quota_says(tmp_path: Path, kept: Kept, mode: str) -> None:
    serving, client = sides(mode, tmp_path)
    serving = {
        **serving,
        **(broker_settings(tmp_path) if mode == "token" else {}),
    }  # else each client may be one of the cluster's own
    security = Security.of(client)
    with (
        behind_door(tmp_path / "driver", serving, kept.actions(), "* connections 2") as served,
        ExitStack() as open_ones,
    ):
        own = [("grpc.use_local_subchannel_pool", 1)]  # else clients of one process share a connection
        two = [open_ones.enter_context(security.client(served.address, own)) for _ in range(2)]
        assert [call(each, DOUBLE, ProducerId(producer=4), TIMEOUT_MS).producer for each in two] == [8, 8]
        if mode == "none":
            assert serves(security, served.address), "nobody is known"
            return
        with pytest.raises(Overloaded, match="has 2 connections here, as many as it may"):
            doubled(security, served.address)
        assert call(two[0], DOUBLE, ProducerId(producer=5), TIMEOUT_MS).producer == 10, "those that it has go on"
        two[1].close()
        eventually(lambda: has_room(security, served.address), "there is room for another", DEADLINE_S)


def has_room(security: Security, address: str) -> bool:
    with suppress(Overloaded):
        return doubled(security, address) == 8
    return False


def connected(served: BehindDoor) -> socket.socket:
    return socket.create_connection(("127.0.0.1", served.server.port), timeout=DEADLINE_S)


def connections(served: BehindDoor) -> set[str]:
    """Both ends of those that are open, as the kernel names them."""
    port = f"0100007F:{served.server.port:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    named = {each.split()[1] + " " + each.split()[2]: each.split()[3] for each in lines}
    return {ends for ends, state in named.items() if ends.endswith(port) and state == "01"}


def test_why_nobody_listens_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        door = Door("127.0.0.1", {}, tmp_path)
        try:
            pid = pid_of(door)  # it listens at its own port by now
            port, door.port = door.port, taken.getsockname()[1]
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: f":{door.port}" in (tmp_path / LOG_FILE).read_text(), "it is told", DEADLINE_S)
            assert f"127.0.0.1:{door.port}" in door.why_not().message
            door.port = port
            assert door.wait_listening(DEADLINE_S)
        finally:
            door.stop()


def pid_of(door: Door) -> int:
    assert door.wait_listening(DEADLINE_S)
    assert door.pid is not None
    return door.pid
