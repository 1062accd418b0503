"""Log lines as JSON, one a line, so that a machine can search what a person reads."""

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
        return msgspec.json.encode(line).decode()


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
    shown.setFormatter(logging.Formatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[file, shown], force=True)
    logging.getLogger("spark_replication").setLevel(logging.INFO)
