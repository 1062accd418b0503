"""Who needs an embedded ZooKeeper keeps it alive, and the last who does ends it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spark_replication.process.processes import wait_ended
from spark_replication.zk.operations import Create
from spark_replication.zk.session import Session
from spark_replication.zookeeper_server.embedded import EmbeddedZooKeeper, stop_directory
from spark_replication.zookeeper_server.keeper import LOOK_S, Keeper
from spark_replication.zookeeper_server.patience import HANG_S
from tests.live.cluster.faults import hang
from tests.waiting import eventually

pytestmark = [pytest.mark.live, pytest.mark.timeout(180)]

SAID_S_MAX = 5.0
BACK_S_MAX = 15.0
HUNG_BACK_S_MAX = 2 * HANG_S + BACK_S_MAX  # the machine may be busy, and each question then takes its time


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "zookeeper"
    stop_directory(tmp_path / "zookeeper")


@pytest.fixture
def keep(directory: Path) -> Iterator[Callable[..., Keeper]]:
    kept: list[Keeper] = []

    def start(servers: int = 1, **options: Any) -> Keeper:
        kept.append(Keeper.start(directory, 60, servers, **options))
        return kept[-1]

    yield start
    for keeper in kept:
        keeper.leave()


def session(address: str) -> Session:
    return Session.connect(address, "/x", session_timeout_ms=20_000, request_timeout_ms=20_000)


def kill(pid: int) -> float:
    """When it had ended."""
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert wait_ended(process, 10)
    os.close(process)
    return time.monotonic()


def within(timeout_s: float, since_s: float, holds: Callable[[], object], what: str) -> None:
    eventually(holds, what, timeout_s - (time.monotonic() - since_s))


def stays_down(keeper: Keeper) -> None:
    """Nobody starts it again, who might not have heard yet that it was stopped."""
    stopped_s = time.monotonic()

    def has_stayed_down() -> bool:
        assert keeper.pids == []
        assert not keeper._zookeeper.alive()
        return time.monotonic() - stopped_s >= 3 * LOOK_S

    eventually(has_stayed_down, "it was looked at for long enough")


def answers(address: str) -> bool:
    try:
        Session.connect(address, "/x", session_timeout_ms=4_000, request_timeout_ms=1_000).close()
    except Exception:  # noqa: BLE001 (whatever it is, nobody answers)
        return False
    return True


def test_a_killed_server_is_said_to_be_gone_and_is_back_at_its_port_with_its_data(keep: Callable[..., Keeper]) -> None:
    keeper = keep()
    assert keeper.problems() == []
    client = session(keeper.address)
    client.commit_now((Create("/kept", b"data"), Create("/mine", b"", ephemeral=True)))
    address, (killed,) = keeper.address, keeper.pids
    ended_s = kill(killed)
    within(SAID_S_MAX, ended_s, keeper.problems, "it is said")
    (problem,) = keeper.problems() or ["it was back faster than one can ask"]
    assert f"ZooKeeper at {address} has not answered for" in problem or "faster" in problem
    within(BACK_S_MAX, ended_s, lambda: keeper.pids not in ([], [killed]) and answers(address), "it is back")
    within(BACK_S_MAX, ended_s, lambda: not keeper.problems(), "and that is said")
    kept, mine = client.read_many(["/kept", "/mine"])
    assert kept is not None
    assert kept.data == b"data"
    assert mine is not None, "its session went on"
    client.close()


def test_one_that_hangs_is_replaced(keep: Callable[..., Keeper]) -> None:
    keeper = keep()
    address, (hung,) = keeper.address, keeper.pids
    hang(hung)
    hung_s = time.monotonic()
    within(SAID_S_MAX, hung_s, keeper.problems, "it is said")
    within(HUNG_BACK_S_MAX, hung_s, lambda: keeper.pids not in ([], [hung]) and answers(address), "it is replaced")
    assert time.monotonic() - hung_s >= HANG_S, "it was given its time"
    within(HUNG_BACK_S_MAX, hung_s, lambda: not keeper.problems(), "and that is said")


def test_a_start_does_not_wait_for_ever_for_one_that_hangs(directory: Path) -> None:
    """Nobody kept it: all who used it had died."""
    (hung,) = EmbeddedZooKeeper.start(directory, timeout_s=60).pids
    hang(hung)
    started = EmbeddedZooKeeper.start(directory, timeout_s=60)
    assert started.pids not in ([], [hung])
    assert answers(started.address)


def test_two_keepers_make_one_server_and_the_last_user_ends_it(keep: Callable[..., Keeper]) -> None:
    first, second = keep(), keep()
    (killed,) = first.pids
    ended_s = kill(killed)
    within(BACK_S_MAX, ended_s, lambda: first.pids not in ([], [killed]) and answers(first.address), "it is back")
    within(BACK_S_MAX, ended_s, lambda: not first.problems() and not second.problems(), "both say so")
    pids = first.pids
    assert not first.stop()
    assert (second.pids, second.address) == (pids, first.address), "the second uses it"
    ended_s = kill(pids[0])
    within(BACK_S_MAX, ended_s, lambda: second.pids not in ([], pids) and answers(second.address), "it is kept")
    assert second.stop()
    stays_down(second)


def test_a_stop_while_it_is_restarted_leaves_nothing(keep: Callable[..., Keeper]) -> None:
    keeper = keep()
    ended_s = kill(keeper.pids[0])
    within(BACK_S_MAX, ended_s, lambda: keeper.pids, "its next process")
    assert keeper.stop()
    assert keeper.stop(), "a second time, too"
    stays_down(keeper)


def test_all_who_go_at_once_leave_nothing_and_who_leaves_lets_it_live(keep: Callable[..., Keeper]) -> None:
    keepers = [keep() for _ in range(3)]
    keepers[0].leave()
    assert len(keepers[1].pids) == 1
    with ThreadPoolExecutor(2) as pool:
        stopped = list(pool.map(Keeper.stop, keepers[1:]))
    assert any(stopped)
    stays_down(keepers[0])


def test_who_begins_while_the_last_user_stops_it_has_one_that_lives(keep: Callable[..., Keeper]) -> None:
    keeper = keep()
    with ThreadPoolExecutor(1) as pool:
        stopping = pool.submit(keeper.stop)
        following = keep()
        assert answers(following.address)
        stopping.result(timeout=60)
    assert answers(following.address)
    assert len(following.pids) == 1


def test_of_an_ensemble_a_follower_that_hangs_is_replaced_and_clients_do_not_notice(
    keep: Callable[..., Keeper],
) -> None:
    keeper = keep(servers=3)
    servers = {server.pid: server for server in keeper._zookeeper.servers}
    hung = next(pid for pid, server in servers.items() if server.mode() == "follower")
    assert hung is not None
    hang(hung)
    hung_s = time.monotonic()
    within(HUNG_BACK_S_MAX, hung_s, keeper.problems, "it is said")
    assert f"server {servers[hung].place.number} of ZooKeeper at" in keeper.problems()[0]
    # A client that tries the one that hangs first needs another try.
    within(HUNG_BACK_S_MAX, hung_s, lambda: answers(keeper.address), "clients are served")
    within(HUNG_BACK_S_MAX, hung_s, lambda: hung not in keeper.pids and len(keeper.pids) == 3, "it is replaced")
    within(HUNG_BACK_S_MAX, hung_s, lambda: not keeper.problems(), "and that is said")


def test_members_that_wait_for_a_majority_are_not_taken_to_hang(keep: Callable[..., Keeper], directory: Path) -> None:
    """Two of three cannot start: the third is left alone, for as long as that lasts."""
    started = EmbeddedZooKeeper.start(directory, 60, 3)
    for server in started.servers[:2]:
        assert server.pid is not None
        kill(server.pid)
    left = started.servers[2]
    within(BACK_S_MAX, time.monotonic(), left.waits_for_others, "it says that it serves nobody")
    assert left.is_heard(time.monotonic() + 1)
    assert not started.servers[0].is_heard(time.monotonic() + 1)


def test_little_free_disk_is_said(keep: Callable[..., Keeper], tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    keeper = keep(free_bytes_min=2 * free)
    within(SAID_S_MAX, time.monotonic(), keeper.problems, "it is said")
    assert "MiB are free at" in keeper.problems()[0]
    assert answers(keeper.address)
