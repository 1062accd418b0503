"""Who is the last user of an embedded ZooKeeper, and who must wait for whom."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path

import pytest

from spark_replication.errors import StartFailed, StartGivenUp
from spark_replication.zookeeper_server.locks import Use, is_used, starting, unused

SOON_S = 10.0
ASKED = 2_000


def begun(directory: Path) -> Use:
    use = Use(directory)
    use.begin(time.monotonic() + SOON_S)
    return use


def is_unused(directory: Path) -> bool:
    with unused(directory) as found:
        return found


def test_the_last_user_to_go_is_alone(tmp_path: Path) -> None:
    first, second = begun(tmp_path), begun(tmp_path)
    first.end()
    assert not is_unused(tmp_path)
    second.end()
    assert is_unused(tmp_path)
    second.end()
    third = begun(tmp_path)
    assert not is_unused(tmp_path)
    third.end()
    assert is_unused(tmp_path / "that is not there")


def test_who_only_asks_whether_it_is_used_is_no_user(tmp_path: Path) -> None:
    assert not is_used(tmp_path)
    use = begun(tmp_path)
    assert is_used(tmp_path)
    use.end()
    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(lambda: [is_used(tmp_path) for _ in range(ASKED)])
        while not asking.done():
            assert is_unused(tmp_path)
    assert not is_used(tmp_path / "that is not there")
    with unused(tmp_path):
        assert is_used(tmp_path), "its last user stops it"


def test_nobody_begins_while_the_last_user_stops_it(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool:
        with unused(tmp_path) as found:
            assert found
            assert not is_unused(tmp_path), "of two that go at once, one stops it"
            with pytest.raises(StartFailed, match="is stopping the ZooKeeper"):
                Use(tmp_path).begin(time.monotonic())
            waiting = pool.submit(begun, tmp_path)
            with pytest.raises(FutureTimeoutError):
                waiting.result(timeout=0.2)
        use = waiting.result(timeout=SOON_S)
    assert not is_unused(tmp_path)
    use.end()


def test_one_starts_and_the_other_waits_until_its_deadline_or_until_it_is_given_up(tmp_path: Path) -> None:
    asked: list[bool] = []

    def wanted() -> bool:
        asked.append(True)
        return len(asked) < 3

    with starting(tmp_path, time.monotonic(), lambda: True):
        with pytest.raises(StartFailed, match="is starting the ZooKeeper"), starting(tmp_path, 0, lambda: True):
            pass
        with pytest.raises(StartGivenUp), starting(tmp_path, time.monotonic() + SOON_S, wanted):
            pass
    assert len(asked) == 3
