"""Files: whose they are, who else may read them, locks, descriptors, and when they are read again."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import resource
import select
import ssl
import stat
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from pathlib import Path
from typing import Generic, NoReturn, TypeVar

from spark_replication.errors import InvalidConfig, InvalidRequest, ReplicationError

# How many log files a broker keeps open. Files beyond that number are closed, and opened again when they are used.

DESCRIPTORS_MAX = 65_536  # no more is asked of the host: a broker of ten thousand replicas needs no more


def open_files_max(wanted: int) -> int:
    """`wanted`; if that is 0, half of the files that this process may open, since sockets need the rest. The soft
    limit, often 1,024, is raised as far as the hard one allows."""
    if wanted:
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft != resource.RLIM_INFINITY and soft < highest:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest, hard))
        soft = highest
    return min(DESCRIPTORS_MAX if soft == resource.RLIM_INFINITY else soft, DESCRIPTORS_MAX) // 2


# Waits for descriptors, closes them, and keeps one for when there is no other. It waits by poll, since select refuses
# descriptors beyond 1,024.


def readable(descriptors: Collection[int], timeout_s: float) -> list[int]:
    """Wait for descriptors that can be read, or whose other end is gone, and return them; an empty list after
    timeout_s."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(timeout_s * 1_000)]


def close_all(*descriptors: int) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def lowest_free() -> int | None:
    """The lowest descriptor that is free: all below it are used. None: there is none."""
    number = _any()
    if number is not None:
        os.close(number)
    return number


class SpareDescriptor:
    """One for whoever has to do something without descriptors."""

    def __init__(self) -> None:
        self._number = _any()

    def give(self) -> None:
        """Free it, if it is there."""
        if self._number is not None:
            os.close(self._number)
            self._number = None

    def keep(self) -> None:
        """Take one again, if there is one."""
        if self._number is None:
            self._number = _any()


def _any() -> int | None:
    try:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None


# Directories whose content is nobody else's: other users of the host read and lock nothing there.

OWNER_ALONE = 0o700
ROOT = 0
SHARED = 0o775  # less what the umask takes


def own_directory(path: Path, mode: int = OWNER_ALONE) -> None:
    """Make the directory, and give it this mode. Raises InvalidConfig if another user owns it: who does could change
    everything in it. OSError: the disk, or the user that this process runs as, does not allow it."""
    path.mkdir(parents=True, exist_ok=True)
    _require_own_directory(path, path.stat())
    path.chmod(mode)


def shared_directory(path: Path) -> None:
    """Make the directory, or take it with the mode that it has, since parts of it may be for others. Raises
    InvalidConfig if another user owns it, other than root, or everybody may write in it and rename what is there.
    OSError: see own_directory."""
    path.mkdir(SHARED, parents=True, exist_ok=True)
    found = path.stat()
    if found.st_uid != ROOT:  # whose are the volumes of containers, as a rule
        _require_own_directory(path, found)
    if found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX:
        raise InvalidConfig(
            f"every user of this host may write in {path}, and put another file in the place of any that is there: "
            f"chmod o-w {path}"
        )


def _require_own_directory(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise InvalidConfig(
            f"{path} belongs to user {found.st_uid}, and this process is of user {os.geteuid()}: name another"
        )


# Locks of an open file description (F_OFD_SETLK).
#
# Like a flock(2) lock, such a lock ends with the last descriptor of its open file, those of forked children included.
# Unlike a flock(2) lock, a process can ask about it without taking it, so the question never blocks anybody.

# struct flock of 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


def take_lock(handle: int, *, shared: bool = False) -> bool:
    """Take the lock, unless another open file holds a conflicting one; return whether it was taken. `take` does not
    wait. The file must be open for reading (shared) or for writing (exclusive)."""
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_RDLCK if shared else fcntl.F_WRLCK))
    except OSError as error:
        if error.errno in {errno.EAGAIN, errno.EACCES}:
            return False
        raise
    return True


def let_lock_go(handle: int) -> None:
    """Release the lock, for every process that shares this open file."""
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, _whole_file(fcntl.F_UNLCK))


def is_lock_taken(handle: int) -> bool:
    """Whether another open file holds a lock, shared or exclusive."""
    answer = fcntl.fcntl(handle, fcntl.F_OFD_GETLK, _whole_file(fcntl.F_WRLCK))
    return bool(_FLOCK.unpack(answer)[0] != fcntl.F_UNLCK)


def _whole_file(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)


# Files that a setting names, read once and whole: what was checked is what is used.

BYTES_MAX = 1 << 20


class UntrustedFile(InvalidConfig):
    """Others than its user may have read a secret's file, or written one that says whom to trust."""


class Care(Enum):
    """How a file is kept from other users. Its group is trusted as its owner is."""

    #: Whatever is in it, nobody is harmed who does not use it.
    NONE = auto()
    #: Whoever writes it says whom this process trusts.
    TRUST = auto()
    #: Whoever reads it can be whom it names.
    SECRET = auto()


#: What others may not do with it, in words, and which change mends that.
_KEPT = {
    Care.TRUST: (stat.S_IWOTH, "may be written by every user of this host", "o-w"),
    Care.SECRET: (stat.S_IRWXO, "is open to every user of this host", "o-rwx"),
}


def read_named(setting: str, path: str, care: Care = Care.NONE) -> bytes:
    """The content of the file that `setting` names. Raises InvalidConfig, which names the setting, if the file cannot
    be read, is empty, far too large or no file, and UntrustedFile if it is open to other users in a way that `care`
    forbids, or theirs. With care the last part of the path may be a link of ours or of root's alone. The folders before
    it are not looked at."""
    try:
        if care is not Care.NONE:
            _require_no_strangers_link(f"{setting}={path}", os.lstat(path))
        with open(path, "rb", opener=_without_waiting) as file:
            found_stat = os.fstat(file.fileno())
            if not stat.S_ISREG(found_stat.st_mode):
                raise InvalidConfig(f"{setting}={path} is no file")
            if care is not Care.NONE:
                _require_ours(f"{setting}={path}", found_stat, care)
            found = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise InvalidConfig(f"{setting}={path} cannot be read: {error.strerror}") from error
    if not found.strip():
        raise InvalidConfig(f"{setting}={path} is empty")
    if len(found) > BYTES_MAX:
        raise InvalidConfig(f"{setting}={path} is over {BYTES_MAX} bytes: is it the right file?")
    return found


def load_pair(context: ssl.SSLContext, chain: bytes, key: bytes) -> None:
    """Load a certificate and its key, both in PEM, as they were read: ssl itself takes names of files only. Raises
    OSError (as an ssl.SSLError is one) or ValueError if they are no such pair."""
    with _in_memory(chain) as chain_file, _in_memory(key) as key_file:
        context.load_cert_chain(chain_file, key_file, password=_no_password)


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """Yield the name of a file that is on no disk, and that this process alone has open."""
    with os.fdopen(os.memfd_create("pair", os.MFD_CLOEXEC), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _no_password() -> NoReturn:
    """Refuse a key with a password: OpenSSL would ask for it on the terminal."""
    raise ValueError("the key has a password: store it without one")


def _without_waiting(path: str, flags: int) -> int:
    """Open a FIFO, too, that nobody writes to."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _require_no_strangers_link(named: str, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode) and not _is_trusted(found):
        raise UntrustedFile(
            f"{named} is a link of user {found.st_uid}, who may point it elsewhere: name the file that it leads to"
        )


def _require_ours(named: str, found: os.stat_result, care: Care) -> None:
    refused, why, mended = _KEPT[care]
    if found.st_mode & refused:
        raise UntrustedFile(f"{named} {why}: chmod {mended} {named.partition('=')[2]}")
    if not _is_trusted(found):
        raise UntrustedFile(f"{named} belongs to user {found.st_uid}, who may read and change it: make it your own")


def _is_trusted(found: os.stat_result) -> bool:
    """Whether its owner is the user of this process, or root."""
    return found.st_uid in (0, os.geteuid())


# Makes and changes files of secrets, which their owner alone may read, and their group where that might before.


def make_secret(path: Path, secret: str) -> None:
    """Make it whole, so that nobody sees half of it. If it is there, or another process makes it at this time, the
    first one counts."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f"{path.name}.{os.getpid()}")
    made.unlink(missing_ok=True)
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "w") as file:
        file.write(f"{secret}\n")
    with contextlib.suppress(FileExistsError):
        os.link(made, path)
    made.unlink()


@contextlib.contextmanager
def changed_alone(path: Path) -> Iterator[None]:
    """Raises InvalidRequest if another process changes files of this folder like this at the moment: of two that do,
    one would undo what the other has done."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError as error:
        raise InvalidRequest(f"another command changes a file in {path.parent}: try again") from error
    finally:
        os.close(folder)


def replace_secret(path: Path, text: str) -> None:
    """Put this text in the place of the file, whole and on the disk: whoever opens it reads what was, or what is. It
    has the owner and the group that it had. The umask has no say. Raises OSError, and then nothing has changed."""
    path = path.resolve()  # what a link leads to
    made = path.with_name(f".{path.name}.{os.getpid()}")
    made.unlink(missing_ok=True)
    handle = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            mode = 0o600
            if path.exists():
                before, now = path.stat(), os.fstat(handle)
                mode |= before.st_mode & stat.S_IRGRP
                if (before.st_uid, before.st_gid) != (now.st_uid, now.st_gid):
                    os.fchown(handle, before.st_uid, before.st_gid)
            os.fchmod(handle, mode)
            file.write(text)
            file.flush()
            os.fsync(handle)
        made.rename(path)
    except BaseException:
        made.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# What files say now: they are read again once one of them has changed.
#
# Rules:
# - A file that cannot be read is a trouble that people are to see (`trouble`), and is read again at each look until it
#   can be.
# - A file that is missing or has a mistake in it takes nothing away: what was read before holds on.
# - A secret's file that cannot be trusted (UntrustedFile) takes away, after UNTRUSTED_S, whatever it let in. Who was to
#   be removed by it would stay for good otherwise.

LOOK_S = 1.0  # between two looks at the files
#: How long what was read before holds on while a file cannot be trusted. It is time for the second of two steps (`mv`,
#: then `chmod`), and for the problem to reach somebody; whoever was to be removed has no more of it.
UNTRUSTED_S = 10.0

Read = TypeVar("Read")

log = logging.getLogger(__name__)


class Reread(Generic[Read]):
    """Thread-safe."""

    def __init__(self, paths: Sequence[str], read: Callable[[], Read], *, revoked: Read | None = None) -> None:
        """revoked: what holds once a file has not been trusted for UNTRUSTED_S; None: what was read before, since it
        lets nobody in. Raises what `read` raises."""
        self._paths = paths
        self._read = read
        self._revoked = revoked
        self._looking = threading.Lock()
        self._looked_s = time.monotonic()
        self._seen = self._look()
        self._trouble = ""
        self._untrusted_s: float | None = None  # since when
        self._last = self._now = read()

    def now(self) -> Read:
        """What holds, no older than LOOK_S."""
        if self._paths and time.monotonic() - self._looked_s >= LOOK_S:
            self.look()
        return self._now

    def last(self) -> Read:
        """What was read last, whether it holds or not."""
        self.now()
        return self._last

    @property
    def trouble(self) -> str:
        """Why the files cannot be used as they are, and what holds meanwhile. Empty if they can."""
        self.now()
        return self._trouble

    def look(self) -> bool:
        """Look at the files at once. Returns whether what holds has changed."""
        with self._looking:
            self._looked_s = time.monotonic()
            seen = self._look()
            if seen == self._seen and not self._trouble:
                return False
            self._seen = seen
            before = self._now
            try:
                self._last = self._now = self._read()
            except ReplicationError as error:
                self._refused(error)
                return self._now is not before
            self._trouble, self._untrusted_s = "", None
        log.info("%s changed, and was read again", ", ".join(self._paths))
        return True

    def _refused(self, error: ReplicationError) -> None:
        if isinstance(error, UntrustedFile) and self._untrusted_s is None:
            self._untrusted_s = self._looked_s  # until a file can be read again, whatever is wrong with it meanwhile
        if self._untrusted_s is None or self._revoked is None:
            holds = "what was read before holds on"
        elif self._looked_s - self._untrusted_s < UNTRUSTED_S:
            holds = f"whom it let in before is refused {UNTRUSTED_S:.0f} s after that was seen"
        else:
            holds = "whom it let in before is refused"
            self._now = self._revoked
        trouble = f"{error.message}: {holds}"
        if trouble != self._trouble:
            self._trouble = trouble
            log.warning("%s", trouble)

    def _look(self) -> list[tuple[int, int, int, int] | None]:
        return [_stamp(path) for path in self._paths]


def _stamp(path: str) -> tuple[int, int, int, int] | None:
    """Whatever changes of a file: chmod and chown touch its ctime alone."""
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size
