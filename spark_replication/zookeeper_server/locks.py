"""The two locks of an embedded ZooKeeper's directory: a start holds `starting`, and each user holds `users`.

A user holds a shared lock on `users` for as long as it needs ZooKeeper. The last user to leave releases its own lock,
and stops the servers under the exclusive one. `is_used` takes no lock: the last user could mistake it for another
user's. The kernel releases the locks of a process that dies. No node in ZooKeeper could stand for a user: a driver that
stands by, or is starting, has none there.
"""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spark_replication.errors import ReplicationError, StartFailed, StartGivenUp
from spark_replication.process.files import is_lock_taken, let_lock_go, take_lock

STARTING_FILE = "starting"
USERS_FILE = "users"
POLL_S = 0.02


class Use:
    """One user. Two objects in one process are two users. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: io.BufferedRandom | None = None

    def begin(self, deadline: float) -> None:
        """Take the user's lock. Waits while the last user before this one stops the servers."""
        lock = _opened(self._directory / USERS_FILE)
        late = StartFailed(
            f"another process is stopping the ZooKeeper in {self._directory}, and has not finished in time: retry"
        )
        try:
            _take(lock, deadline, late, shared=True)
        except BaseException:
            lock.close()
            raise
        self._lock = lock

    def end(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with lock:
                # Closing is not enough: a child that is just being forked has the file open, too.
                let_lock_go(lock.fileno())


def is_used(directory: Path) -> bool:
    """Whether ZooKeeper has a user. True also while the last user stops the servers."""
    try:
        with _opened(directory / USERS_FILE) as lock:
            return is_lock_taken(lock.fileno())
    except FileNotFoundError:  # a person has removed the directory
        return False


@contextlib.contextmanager
def unused(directory: Path) -> Iterator[bool]:
    """Yield whether ZooKeeper has no user. If so, nobody becomes one before the block ends."""
    if not directory.exists():  # a person has removed it
        yield True
        return
    with _opened(directory / USERS_FILE) as lock:
        if not take_lock(lock.fileno()):
            yield False
            return
        try:
            yield True
        finally:
            let_lock_go(lock.fileno())


@contextlib.contextmanager
def starting(directory: Path, deadline: float, wanted: Callable[[], bool]) -> Iterator[None]:
    """Hold the lock for starting the servers. Of two starts at once, the later one waits, and then adopts."""
    late = StartFailed(f"another process is starting the ZooKeeper in {directory}, and has not finished in time: retry")
    with _opened(directory / STARTING_FILE) as lock:
        _take(lock, deadline, late, wanted)
        yield


def require_wanted(directory: Path, wanted: Callable[[], bool]) -> None:
    if not wanted():
        raise StartGivenUp(f"the start of the ZooKeeper in {directory} was given up: start again")


def _opened(path: Path) -> io.BufferedRandom:
    return path.open("a+b")


def _take(
    lock: io.BufferedRandom,
    deadline: float,
    late: ReplicationError,
    wanted: Callable[[], bool] = lambda: True,
    *,
    shared: bool = False,
) -> None:
    while not take_lock(lock.fileno(), shared=shared):
        if time.monotonic() > deadline:
            raise late
        require_wanted(Path(lock.name).parent, wanted)
        time.sleep(POLL_S)
