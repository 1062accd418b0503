"""What a process says: safe for terminals, in lines of JSON, in files with a bound, and not too often."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Hashable, Iterator, Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import TextIO

import msgspec

from spark_replication.errors import ReplicationError
from spark_replication.model import Scalar

# Text from data, names or errors on its way to a terminal or a log: it is shown, and steers nothing.

# Control characters (C0 but newline, DEL, C1), and characters that reorder or hide the text around them.
_STEERING = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


def harmless(text: str) -> str:
    r"""The text with each escape sequence shown as the text \x1b[…"""
    return _STEERING.sub(lambda found: _escaped(ord(found[0])), text)


def harmless_line(text: str) -> str:
    r"""The same in one line: a newline is shown as the text \n."""
    return harmless(text).replace("\n", "\\n")


def harmless_json(text: str) -> str:
    """The same document: JSON has an escape for every character, and its own newlines and spaces stay."""
    return _STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escaped(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


# The output of a detached process: one file, which its starter has opened for it as standard output and error.
#
# Rules:
# - The process rotates the file itself: it puts another file in the place of both descriptors with dup2(2). Every
#   write, a library's and faulthandler's too, then goes to the one file or the other: none is lost or cut. To copy the
#   file and then truncate it would lose what other threads write between the two steps.
# - A process leaves alone whatever is not its own output: a terminal, a pipe, a file elsewhere.
# - If another process has renamed the file (a second one that was refused, say), the process goes on in the file at the
#   path.

FILE_BYTES_MAX = 16 << 20  # a file of this size is kept as `.1`, and begun anew

_DESCRIPTORS = (1, 2)
_rotating = threading.Lock()


class OwnOutput(logging.StreamHandler[TextIO]):
    """Writes log lines to this process's output, and keeps that small if it is the file at `path`."""

    def __init__(self, stream: TextIO, path: Path) -> None:
        super().__init__(stream)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        super().emit(record)
        keep_small(self._path)


def keep_small(path: Path) -> None:
    """Rotate this process's output if it is the file at `path`, and large. If the disk refuses, the next call tries
    again."""
    with _rotating, contextlib.suppress(OSError):
        ours = [each for each in _DESCRIPTORS if _is_file(each, path)]
        if ours and os.fstat(ours[0]).st_size >= FILE_BYTES_MAX:
            _go_on_in(_begun(path), ours)
        elif left := [each for each in _DESCRIPTORS if _is_file(each, kept(path))]:
            _go_on_in(_opened(path), left)


def rotate_unused(path: Path) -> None:
    """Rotate the output of a process that does not do so itself, before it is started. A predecessor that lives goes on
    in `.1`."""
    with contextlib.suppress(OSError):
        if path.stat().st_size >= FILE_BYTES_MAX:
            path.replace(kept(path))


def kept(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _begun(path: Path) -> int:
    fresh = path.with_name(f"{path.name}.new")
    handle = _opened(fresh)  # first: if the disk has no room for it, everything stays as it is
    try:
        path.replace(kept(path))
        fresh.replace(path)
    except OSError:
        os.close(handle)
        raise
    return handle


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)


def _go_on_in(handle: int, descriptors: list[int]) -> None:
    for each in descriptors:
        os.dup2(handle, each)
    os.close(handle)


def _is_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


# Log lines. Most are JSON, so that a machine can search what a person reads; some are text.
#
# What a name or an error brings with it begins no other line, and steers no terminal on which a log is looked at.

PACKAGE = "spark_replication"
_EXTRA = ("partition", "epoch", "who", "host", "action", "outcome", "asked", "count")


class JsonLines(logging.Formatter):
    def __init__(self, always: Mapping[str, Scalar]) -> None:
        super().__init__()
        self._always = dict(always)

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            **self._always,
        }
        for name in _EXTRA:
            if hasattr(record, name):
                line[name] = str(getattr(record, name))
        line["message"] = record.getMessage()
        line["from"] = record.name.removeprefix(f"{PACKAGE}.")
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return harmless_json(msgspec.json.encode(line).decode())


class TextLines(logging.Formatter):
    """A record is one line; lines that begin with blanks are the traceback of the one above."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.message, record.asctime = record.getMessage(), self.formatTime(record)
        below = self.formatException(record.exc_info).splitlines() if record.exc_info else []
        return "\n  ".join(map(harmless_line, (self.formatMessage(record), *below)))


class _Shown(logging.Formatter):
    """The message alone, whose own lines stay."""

    def format(self, record: logging.LogRecord) -> str:
        return harmless(super().format(record))


def log_as_text(level: int, handler: logging.Handler | None = None) -> None:
    """Log to this handler, or else to standard error."""
    handler = handler or logging.StreamHandler()
    handler.setFormatter(TextLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)


def log_to_stdout(path: Path, **always: Scalar) -> None:
    """Log to standard output. If that is the file at `path`, it is kept small."""
    handler = OwnOutput(sys.stdout, path)
    handler.setFormatter(JsonLines(always))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


class _File(RotatingFileHandler):
    """A line that the disk refuses is lost: its trouble is told by who has data there."""

    def __init__(self, path: Path, always: Mapping[str, Scalar]) -> None:
        super().__init__(path, maxBytes=FILE_BYTES_MAX, backupCount=1)
        self.setFormatter(JsonLines(always))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (its name in logging)
        if not isinstance(sys.exception(), OSError):
            super().handleError(record)


def log_to_file(path: Path, **always: Scalar) -> None:
    """Log to a file, for a process whose output people read: on standard error they are shown its warnings only. Of
    libraries, warnings alone are logged."""
    shown = _last_resort()
    shown.setFormatter(_Shown())
    logging.basicConfig(level=logging.WARNING, handlers=[_File(path, always), shown], force=True)
    logging.getLogger(PACKAGE).setLevel(logging.INFO)


@contextlib.contextmanager
def logged_in(path: Path, **always: Scalar) -> Iterator[None]:
    """What this package says meanwhile is in a file, too: for a task in a process that others have before and after
    it. A disk that refuses the file is told of, and ends nothing."""
    ours = logging.getLogger(PACKAGE)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = _File(path, always)
    except OSError as error:
        ours.warning("%s cannot be written: %s. Look after its disk", path, error)
        yield
        return
    # With a handler of their own, warnings would no longer be shown where nobody has set up logging.
    handlers = [file] if logging.getLogger().handlers else [file, _last_resort()]
    level = ours.level
    try:
        ours.setLevel(logging.INFO)
        for each in handlers:
            ours.addHandler(each)
        yield
    finally:
        for each in handlers:
            ours.removeHandler(each)
        ours.setLevel(level)
        with contextlib.suppress(OSError):  # of a full disk: what it refused is still to be written
            file.close()


def _last_resort() -> logging.Handler:
    shown = logging.lastResort  # it finds sys.stderr anew, as a StreamHandler does not: a live table redirects it
    assert shown is not None
    return shown


# What is said seldom, however often its cause comes: a log must not fill the disk.

KINDS_MAX = 10_000
MISTAKE_MS = 60_000


class Seldom:
    """Thread-safe."""

    def __init__(self, every_ms: int, now_ms: Callable[[], int] = lambda: int(time.monotonic() * 1000)) -> None:
        """every_ms: between two times that one kind is told. now_ms: never goes back."""
        self._every_ms = every_ms
        self._now_ms = now_ms
        self._lock = threading.Lock()
        #: By kind, the one that came last at the end: when it was told last, and how many have come since.
        self._kinds: dict[Hashable, tuple[int | None, int]] = {}

    def come(self, kind: Hashable, count: int = 1) -> int:
        """So many of this kind have come. Returns how many are to be told of now, those that came before and were not
        told of among them; 0: none."""
        now_ms = self._now_ms()
        with self._lock:
            told_ms, untold = self._kinds.pop(kind, (None, 0))
            untold += count
            is_due = untold > 0 and (told_ms is None or now_ms >= told_ms + self._every_ms)
            self._kinds[kind] = (now_ms, 0) if is_due else (told_ms, untold)
            if len(self._kinds) > KINDS_MAX:
                del self._kinds[next(iter(self._kinds))]
        return untold if is_due else 0


_MISTAKES = Seldom(MISTAKE_MS)


def log_mistake(log: logging.Logger, error: BaseException, what: str) -> None:
    """Log what has failed by an error that nobody expected, with its traceback: once a minute for each place that
    raises it, since somebody else may cause it as often as they like."""
    place = traceback.extract_tb(error.__traceback__)[-1:]
    count = _MISTAKES.come((type(error), *((at.filename, at.lineno) for at in place)))
    if count:
        more = f" ({count - 1} more since the last such line)" if count > 1 else ""
        log.error("%s by an error that nobody expected%s: please report", what, more, exc_info=error)


def log_if_mistaken(log: logging.Logger, error: ReplicationError) -> None:
    """The same, of an error that somebody is refused with, if nobody expected what is behind it (errors.mistake)."""
    if type(error) is ReplicationError and error.__cause__ is not None:
        log_mistake(log, error.__cause__, "a request is refused")
