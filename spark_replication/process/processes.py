"""Processes: one at a time in a directory, found again by pid and start, forked, and how nice."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from spark_replication.errors import InvalidRequest
from spark_replication.process.files import own_directory, readable
from spark_replication.process.logs import rotate_unused

# Whether gRPC works in this process: not in a fork of one that had used it.
#
# A fork has a copy of gRPC's state, and none of its threads. The first call then waits for ever, beyond its deadline,
# or ends the process by a signal. So a client in such a fork is refused, in one sentence and at once.
#
# What gRPC says by itself goes to standard error, which is the log of a broker or a controller: a line for each
# handshake that fails, so strangers could fill the disk with it. It says errors alone, unless a person has set how much
# it says.


class _Grpc:
    is_used = False  # by this process, or by one that it is a fork of
    is_lost = False


def uses_grpc() -> None:
    """Call this before gRPC is used: a fork from here on cannot use it, and what it says is settled."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # it reads that once, at its first use
    _Grpc.is_used = True


def require_grpc() -> None:
    """Raise InvalidRequest in a fork of a process that had used gRPC."""
    if _Grpc.is_lost:
        raise InvalidRequest(
            f"process {os.getpid()} is a fork of one that had spoken to a cluster, and gRPC does not work in such a "
            'fork: start it by spawn or forkserver, as multiprocessing.get_context("spawn") does'
        )


def _forked() -> None:
    _Grpc.is_lost = _Grpc.is_used


os.register_at_fork(after_in_child=_forked)


# Lets all other processes of a machine come first.
#
# Niceness alone does not: Linux gives each session its share of the processors, whatever the niceness of its processes
# (sched(7), autogroup). A session has a niceness of its own.

SESSION_NICENESS = Path("/proc/self/autogroup")


def come_last(niceness: int) -> None:
    """Make this process and, if it leads one, its session nicer than they were by default.

    A session that it does not lead is left as it is: that of a terminal is its user's.
    """
    os.nice(niceness)
    if os.getsid(0) == os.getpid():
        with suppress(OSError):  # a kernel without such groups, or a container that may not write there
            SESSION_NICENESS.write_text(str(niceness))


# Finds a process again by the mark that it has written down. A pid alone is no proof: pids are reused, and in another
# PID namespace (a container's) the same number is another process, or none.
#
# | what is known of the marked process            | find_process                             |
# | ---------------------------------------------- | ---------------------------------------- |
# | it is in another PID namespace                 | NOT_SEEN                                 |
# | no process here has its pid                    | ENDED                                    |
# | the process with its pid began at another time | ENDED                                    |
# | /proc does not show when that process began    | NOT_SEEN: /proc is not of this namespace |
# | it began when the mark says                    | a pidfd                                  |
# | the mark does not say when it began            | a pidfd                                  |

# The place of field 22 of /proc/<pid>/stat among those after the name, which is in brackets and may hold anything.
_STARTED = 19


class ProcessMark(NamedTuple):
    """What identifies a process. A 0 is not known, since an earlier release has written the mark."""

    pid: int
    #: The PID namespace in which the process has this pid.
    namespace: int = 0
    #: In ticks since the host's start.
    started: int = 0


class Unfound(Enum):
    ENDED = "it has ended"
    NOT_SEEN = "this process can say nothing of it"


def own_mark() -> ProcessMark:
    """The mark of this process. It is right even if /proc is of another namespace: /proc is asked for `self`, never for
    a pid."""
    return ProcessMark(os.getpid(), own_namespace(), started_of("self"))


def own_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def find_process(mark: ProcessMark) -> int | Unfound:
    """A pidfd of that very process, or why there is none. Raises OSError if this process cannot look (too many open
    files, say), which tells nothing about the other one."""
    if mark.namespace not in {0, own_namespace()}:
        return Unfound.NOT_SEEN
    try:
        found = os.pidfd_open(mark.pid)
    except ProcessLookupError:
        return Unfound.ENDED
    try:
        unfound = _compared(found, mark)
    except BaseException:
        os.close(found)
        raise
    if unfound is None:
        return found
    os.close(found)
    return unfound


def started_of(shown: str) -> int:
    """When the process that /proc shows by this name began, in ticks since the host's start."""
    told = Path(f"/proc/{shown}/stat").read_bytes()
    return int(told.rpartition(b")")[2].split()[_STARTED])


def _compared(pidfd: int, mark: ProcessMark) -> Unfound | None:
    """None if the pidfd is of the marked process."""
    if not mark.started:
        return None
    try:
        # Ask /proc for the pid again: /proc may be of another namespace, where the process has another pid.
        started = started_of(_shown(pidfd))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return Unfound.ENDED if readable((pidfd,), 0) else Unfound.NOT_SEEN
    return None if started == mark.started else Unfound.ENDED


def _shown(pidfd: int) -> str:
    """The pid that /proc shows the process by; -1 if it has ended, 0 if /proc does not show it."""
    told = Path(f"/proc/self/fdinfo/{pidfd}").read_text()
    return next(line.split()[1] for line in told.splitlines() if line.startswith("Pid:"))


# A detached process, one per directory, which later processes find again there.
#
# It holds the lock on `<directory>/lock` for exactly as long as it lives. Its starter takes the lock, and leaves it to
# the process with the open file: so the program itself need not know of the lock. A pid alone is no proof, since pids
# are reused: the one in `<directory>/pid` counts only while the lock is held and /proc shows a command line that names
# the directory.

LOCK_FILE = "lock"
PID_FILE = "pid"
LOG_FILE = "log"
KILL_WAIT_S = 5.0
PID_WAIT_S = 2.0
POLL_S = 0.02


class LockedProcess:
    """The process of a directory, whoever started it. Its command line must name the directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.log_path = directory / LOG_FILE

    def alive(self) -> bool:
        """Whether the process lives, which its lock tells. The probe is shared, so that two probes do not take each
        other for the process."""
        try:
            with (self.directory / LOCK_FILE).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        return False

    def pid(self) -> int | None:
        """The pid of the process; None if it does not live, or lives where this process cannot see it."""
        deadline = time.monotonic() + PID_WAIT_S
        while True:
            try:
                pid = int((self.directory / PID_FILE).read_text())
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
            except (OSError, ValueError):
                return None
            if not self.alive():
                return None
            if command or time.monotonic() > deadline:
                return pid if os.fsencode(self.directory) in command else None
            time.sleep(POLL_S)  # between two programs, as the shell becomes the one that it starts, it has none

    @contextlib.contextmanager
    def locked(self) -> Iterator[int | None]:
        """Take the lock, and yield its open file for `start`. Yields None if a process lives, or another is starting or
        probing one."""
        own_directory(self.directory)
        with (self.directory / LOCK_FILE).open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield None
                return
            yield lock.fileno()
            # Closing does not unlock while the started process has the file open too.

    def start(self, command: Sequence[str], lock: int) -> subprocess.Popen[bytes]:
        """Start the process in a session of its own, with no pipe to this process, so that it outlives this one. It
        writes its own pid, before exec: so the file is right even if this process dies meanwhile."""
        shell = ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self.directory / PID_FILE), *command]
        rotate_unused(self.log_path)  # with the lock in hand: no process of this directory lives
        with self.log_path.open("ab") as log:
            child = subprocess.Popen(
                shell,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock,),
                cwd=self.directory,
            )
        # Reap it whenever it ends, so that the zombie of a killed process is not taken for a living one.
        threading.Thread(target=child.wait, name="locked-process-reaper", daemon=True).start()
        return child

    def stop(self, timeout_s: float) -> bool:
        """Send SIGTERM, and SIGKILL if it has not ended within timeout_s. Returns whether none lives."""
        pid = self._pid_once_said()
        if pid is None:
            return not self.alive()
        try:
            process = os.pidfd_open(pid)
        except ProcessLookupError:
            return not self.alive()
        try:
            if self.pid() != pid:  # ask again: with the pidfd open, it can no longer become another's
                return not self.alive()
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(process, signal.SIGTERM)
                if not wait_ended(process, timeout_s):
                    signal.pidfd_send_signal(process, signal.SIGKILL)
                    wait_ended(process, KILL_WAIT_S)
        finally:
            os.close(process)
        return not self.alive()

    def _pid_once_said(self) -> int | None:
        """Wait for the pid: a process that was just started holds the lock a moment before it has written its pid."""
        deadline = time.monotonic() + PID_WAIT_S
        while (pid := self.pid()) is None and self.alive() and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return pid


def wait_ended(pidfd: int, timeout_s: float) -> bool:
    return bool(readable((pidfd,), timeout_s))


def last_lines(path: Path, lines: int = 15, bytes_max: int = 16 << 10) -> str:
    """The last lines of a log, for a message that says why the process ended."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - bytes_max))
            return "\n".join(log.read().decode(errors="replace").splitlines()[-lines:])
    except OSError:
        return "(no log)"
