"""A detached process, one per directory, which later processes find again there.

It holds the lock on `<directory>/lock` for exactly as long as it lives. Its starter takes the lock, and leaves it to
the process with the open file: so the program itself need not know of the lock. A pid alone is no proof, since pids are
reused: the one in `<directory>/pid` counts only while the lock is held and /proc shows a command line that names the
directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from spark_replication.process.descriptors import readable
from spark_replication.process.own_directory import own_directory
from spark_replication.process.own_output import rotate_unused

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
        try:
            pid = int((self.directory / PID_FILE).read_text())
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (OSError, ValueError):
            return None
        return pid if self.alive() and os.fsencode(self.directory) in command else None

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
