"""What a process uses and holds, as Linux tells it."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Literal

_TICKS_PER_S = 100.0  # of /proc/<pid>/stat: Linux shows hundredths of seconds, whatever its clock
_RECEIVED = struct.Struct("<Q")
_RECEIVED_AT = 128  # in what TCP_INFO gives: tcpi_bytes_received of linux/tcp.h


def cpu_s_of(pids: Iterable[int]) -> float:
    total = 0.0
    for pid in pids:
        # The program's name, in parentheses, may contain anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
    return total


def memory_kb(pid: int, shown: Literal["VmRSS", "VmHWM"] = "VmRSS") -> int:
    """The resident memory; VmHWM: the most that it ever was."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{shown}:"))


def threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def received_bytes() -> dict[int, int]:
    """How much has come over each connection of this process that is open, by its inode."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # it has been closed meanwhile, or is no connection by TCP
            if path.is_socket():
                inode = path.stat().st_ino
                with socket.socket(fileno=os.dup(int(path.name))) as connection:
                    told = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RECEIVED_AT + _RECEIVED.size)
                (found[inode],) = _RECEIVED.unpack_from(told, _RECEIVED_AT)
    return found
