"""The names of the two files that each segment of a log has: its data, and its batch index."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from spark_replication.model import Offset

DATA, INDEX = ".arrow", ".index"
_SEGMENT_FILE = re.compile(rf"(\d{{20}})({re.escape(DATA)}|{re.escape(INDEX)})")


def segment_bases(names: Iterable[str]) -> list[Offset]:
    """The bases of the segments that have a file among these names, whichever of their two; rising."""
    return sorted({int(match.group(1)) for name in names if (match := _SEGMENT_FILE.fullmatch(name))})


def data_path(folder: Path, base: Offset) -> Path:
    return folder / f"{base:020}{DATA}"


def index_path(folder: Path, base: Offset) -> Path:
    return folder / f"{base:020}{INDEX}"
