"""Log lines as JSON, one a line, so that a machine can search what a person reads."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from spark_replication.model import Scalar

_EXTRA = ("partition", "epoch")


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


def log_to_stdout(**always: Scalar) -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines(always))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
