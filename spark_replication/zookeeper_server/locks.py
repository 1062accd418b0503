"""The two locks of an embedded ZooKeeper's directory: `starting`, who starts its servers; `users`, who needs them.

Each user holds a shared lock on `users` for as long as it needs ZooKeeper. The last user to go stops the servers: it
gives up its own lock, and stops them under the exclusive one. The system gives up the locks of a process that dies. No
node in ZooKeeper says the same: a driver that stands by, or is starting, has none there.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from spark_replication.errors import ReplicationError, StartFailed, StartGivenUp

STARTING_FILE = "starting"
USERS_FILE = "users"
POLL_S = 0.02


class Use:
    """One user. Two in one process are two users. Not thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock: io.BufferedWriter | None = None

    def begin(self, deadline: float) -> None:
        """Waits while the last user before this one stops the servers."""
        lock = (self._directory / USERS_FILE).open("ab")
        late = StartFailed(
            f"another process is stopping the ZooKeeper in {self._directory}, and has not finished in time: retry"
        )
        try:
            _take(lock, fcntl.LOCK_SH, deadline, late)
        except BaseException:
            lock.close()
            raise
        self._lock = lock

    def end(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with lock:
                # Closing is not enough: a child that is just being forked has the file open, too.
                fcntl.flock(lock, fcntl.LOCK_UN)


@contextlib.contextmanager
def unused(directory: Path) -> Iterator[bool]:
    """True: nobody uses it, and nobody begins to before this ends."""
    if not directory.exists():  # a person has removed it
        yield True
        return
    with (directory / USERS_FILE).open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)


@contextlib.contextmanager
def starting(directory: Path, deadline: float, wanted: Callable[[], bool]) -> Iterator[None]:
    """Of two that start its servers at once, the later waits, and adopts."""
    late = StartFailed(f"another process is starting the ZooKeeper in {directory}, and has not finished in time: retry")
    with (directory / STARTING_FILE).open("ab") as lock:
        _take(lock, fcntl.LOCK_EX, deadline, late, wanted)
        yield


def require_wanted(directory: Path, wanted: Callable[[], bool]) -> None:
    if not wanted():
        raise StartGivenUp(f"the start of the ZooKeeper in {directory} was given up: start again")


def _take(
    lock: io.BufferedWriter,
    how: int,
    deadline: float,
    late: ReplicationError,
    wanted: Callable[[], bool] = lambda: True,
) -> None:
    while True:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, how | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            raise late
        require_wanted(Path(lock.name).parent, wanted)
        time.sleep(POLL_S)
