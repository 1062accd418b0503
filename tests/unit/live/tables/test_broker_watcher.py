"""A writer of tables goes on while its broker's lock is held, and for GONE_S after: a broker that restarts keeps it."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from spark_replication.live.tables import process
from spark_replication.live.tables.process import BrokerWatcher
from spark_replication.storage.directory.broker_directory import DirectoryLock

LOOK_S, GONE_S = 0.05, 0.4


@pytest.fixture(autouse=True)
def soon_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GONE_S", GONE_S)
    monkeypatch.setattr(process, "LOOK_S", LOOK_S)


def test_it_waits_as_long_as_it_is_told_while_its_broker_lives(tmp_path: Path) -> None:
    lock = DirectoryLock.take(tmp_path)
    watcher = BrokerWatcher(tmp_path, threading.Event())
    began_s = time.monotonic()
    assert watcher.wait(GONE_S + LOOK_S) is False
    assert time.monotonic() - began_s >= GONE_S + LOOK_S
    assert watcher.wait(0) is False
    lock.release()


def test_it_ends_once_its_broker_is_gone_for_long(tmp_path: Path) -> None:
    lock = DirectoryLock.take(tmp_path)
    watcher = BrokerWatcher(tmp_path, threading.Event())
    lock.release()
    began_s = time.monotonic()
    assert watcher.wait(60 * GONE_S) is True
    assert GONE_S <= time.monotonic() - began_s < 30 * GONE_S


def test_short_waits_count_together_and_a_broker_that_is_back_in_time_keeps_it(tmp_path: Path) -> None:
    watcher = BrokerWatcher(tmp_path, threading.Event())
    assert watcher.wait(GONE_S / 2) is False, "there has been none yet, and not for long"
    lock = DirectoryLock.take(tmp_path)
    assert watcher.wait(LOOK_S / 2) is False
    lock.release()
    assert watcher.wait(GONE_S * 3 / 4) is False, "it counts from when the broker was seen last"
    assert watcher.wait(GONE_S * 3 / 4) is True


def test_it_ends_at_once_when_it_is_told_to(tmp_path: Path) -> None:
    stopped = threading.Event()
    lock = DirectoryLock.take(tmp_path)
    watcher = BrokerWatcher(tmp_path, stopped)
    threading.Timer(LOOK_S / 2, stopped.set).start()
    began_s = time.monotonic()
    assert watcher.wait(60 * GONE_S) is True
    assert watcher.wait(0) is True
    assert time.monotonic() - began_s < 30 * GONE_S
    lock.release()
