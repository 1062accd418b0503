"""Log lines. Most are JSON, so that a machine can search what a person reads; some are text.

What a name or an error brings with it begins no other line, and steers no terminal on which a log is looked at.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

import msgspec

from spark_replication.model import Scalar
from spark_replication.process import own_output
from spark_replication.process.own_output import OwnOutput
from spark_replication.process.terminal import harmless, harmless_json, harmless_line

_EXTRA = ("partition", "epoch", "who", "host", "action", "outcome", "asked")


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
        line["from"] = record.name.removeprefix("spark_replication.")
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


def log_to_file(path: Path, **always: Scalar) -> None:
    """Log to a file, for a process whose output people read: on standard error they are shown its warnings only. Of
    libraries, warnings alone are logged."""
    file = RotatingFileHandler(path, maxBytes=own_output.FILE_BYTES_MAX, backupCount=1)
    file.setFormatter(JsonLines(always))
    shown = logging.lastResort  # it finds sys.stderr anew, as a StreamHandler does not: a live table redirects it
    assert shown is not None
    shown.setFormatter(_Shown())
    logging.basicConfig(level=logging.WARNING, handlers=[file, shown], force=True)
    logging.getLogger("spark_replication").setLevel(logging.INFO)
