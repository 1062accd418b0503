"""Files that a setting names, read once and whole: what was checked is what is used."""

from __future__ import annotations

import os
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from spark_replication.errors import InvalidConfig

BYTES_MAX = 1 << 20


def read_named(setting: str, path: str, *, secret: bool = False) -> bytes:
    """The content of the file that `setting` names. Raises InvalidConfig, which names the setting, if the file cannot
    be read, is empty, far too large or no file, or is `secret` and open to other users, its group aside. Of a secret's
    path the last part may be a link of ours or of root's. The folders before it are not looked at."""
    try:
        if secret:
            _require_no_strangers_link(f"{setting}={path}", os.lstat(path))
        with open(path, "rb", opener=_without_waiting) as file:
            found_stat = os.fstat(file.fileno())
            if not stat.S_ISREG(found_stat.st_mode):
                raise InvalidConfig(f"{setting}={path} is no file")
            if secret:
                _require_ours(f"{setting}={path}", found_stat)
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
    """Yields the name of a file that is on no disk, and that this process alone has open."""
    with os.fdopen(os.memfd_create("pair", os.MFD_CLOEXEC), "wb") as file:
        file.write(content)
        file.flush()
        yield f"/proc/self/fd/{file.fileno()}"


def _no_password() -> NoReturn:
    """Refuses a key with a password: OpenSSL would ask for it on the terminal."""
    raise ValueError("the key has a password: store it without one")


def _without_waiting(path: str, flags: int) -> int:
    """Opens a FIFO, too, that nobody writes to."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)


def _require_no_strangers_link(named: str, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode) and not _is_trusted(found):
        raise InvalidConfig(
            f"{named} is a link of user {found.st_uid}, who may point it elsewhere: name the file that it leads to"
        )


def _require_ours(named: str, found: os.stat_result) -> None:
    if found.st_mode & stat.S_IRWXO:
        raise InvalidConfig(f"{named} is open to every user of this host: chmod o-rwx {named.partition('=')[2]}")
    if not _is_trusted(found):
        raise InvalidConfig(f"{named} belongs to user {found.st_uid}, who may read and change it: make it your own")


def _is_trusted(found: os.stat_result) -> bool:
    """Whether its owner is the user of this process, or root."""
    return found.st_uid in (0, os.geteuid())
