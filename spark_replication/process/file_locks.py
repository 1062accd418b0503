"""Locks of an open file description (F_OFD_SETLK).

Like a flock(2) lock, such a lock ends with the last descriptor of its open file, those of forked children included.
Unlike a flock(2) lock, a process can ask about it without taking it, so the question never blocks anybody.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


def take(handle: int, *, shared: bool = False) -> bool:
    """Take the lock, unless another open file holds a conflicting one; return whether it was taken. `take` does not
    wait. The file must be open for reading (shared) or for writing (exclusive)."""
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_RDLCK if shared else fcntl.F_WRLCK))
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return False
        raise
    return True


def let_go(handle: int) -> None:
    """Release the lock, for every process that shares this open file."""
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_UNLCK))


def is_taken(handle: int) -> bool:
    """Whether another open file holds a lock, shared or exclusive."""
    answer = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _whole_file(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
