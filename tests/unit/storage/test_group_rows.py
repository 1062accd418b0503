"""The rows of the groups' log, as batches: in their order, and nothing else is taken for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.errors import BatchTooLarge, CorruptLog
from spark_replication.ports import LogSlice
from spark_replication.storage.format.group_rows import StoredGroupRows
from tests.unit.storage.storage_stories import log_in, prepared

ROWS = [("etl", b'{"change":"left"}'), (None, b'{"change":"snapshot"}'), ("alerts", '{"why":"für immer"}'.encode())]


def stored(folder: Path, rows: list[tuple[str | None, bytes]], *, batch_bytes_max: int) -> tuple[int, LogSlice]:
    log = log_in(folder)
    log.begin_epoch(0)
    batches = StoredGroupRows(batch_bytes_max).encode(rows)
    for batch in batches:
        log.append(batch, leader_epoch=0, timestamp_ms=0)
    found = log.find(0, bytes_max=1 << 20, end=log.log_end)
    assert found is not None
    return len(batches), found.loaded()


@pytest.mark.parametrize(("batch_bytes_max", "batches"), [(1 << 20, 1), (320, 2)])
def test_rows_are_read_as_they_were_written(tmp_path: Path, batch_bytes_max: int, batches: int) -> None:
    count, found = stored(tmp_path, ROWS, batch_bytes_max=batch_bytes_max)
    assert count == batches
    assert list(StoredGroupRows(1 << 20).decode(found)) == [
        (offset, text.decode()) for offset, (_, text) in enumerate(ROWS)
    ]


def test_a_row_that_no_batch_can_have_is_refused() -> None:
    with pytest.raises(BatchTooLarge):
        StoredGroupRows(290).encode([("etl", b"x" * 1_000)])


def test_damage_is_told_of(tmp_path: Path) -> None:
    _, found = stored(tmp_path, ROWS, batch_bytes_max=1 << 20)
    data = bytearray(found.data)
    data[-1] ^= 1
    damaged = LogSlice(found.first_offset, found.next_offset, 0, found.entries, bytes(data), found.schema)
    with pytest.raises(CorruptLog, match="does not have its CRC-32C"):
        list(StoredGroupRows(1 << 20).decode(damaged))


def test_rows_of_other_columns_are_no_changes_of_groups(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.begin_epoch(0)
    log.append(prepared(0), leader_epoch=0, timestamp_ms=0)
    found = log.find(0, bytes_max=1 << 20, end=log.log_end)
    assert found is not None
    with pytest.raises(CorruptLog, match="has other columns at offset 0"):
        list(StoredGroupRows(1 << 20).decode(found.loaded()))
