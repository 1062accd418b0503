"""Logs in a temporary folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from spark_replication.storage.batches import schema_to_bytes
from spark_replication.storage.partition_log import PartitionLog
from spark_replication.storage.recovery import recover
from tests.unit.storage.storage_stories import SCHEMA, Open


@pytest.fixture
def open_log(tmp_path: Path) -> Iterator[Open]:
    """Opens (again) the log in `tmp_path/name`, recovering it; all are closed at the end."""
    opened: list[PartitionLog] = []

    def opener(
        name: str = "leader",
        *,
        segment_bytes: int = 1 << 20,
        schema: pa.Schema = SCHEMA,
        before_cut: Callable[[], None] = lambda: None,
    ) -> PartitionLog:
        (tmp_path / name).mkdir(exist_ok=True)
        recovered = recover(tmp_path / name, before_cut)
        opened.append(PartitionLog(recovered, schema=schema_to_bytes(schema), segment_bytes=segment_bytes))
        return opened[-1]

    yield opener
    for log in opened:
        log.close()
