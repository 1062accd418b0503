"""What a disk does not give back as it was written is found, batch by batch, and written again in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_replication.errors import InvalidRequest, StorageFailed
from spark_replication.ports import DamagedBatch, StoredSlice
from spark_replication.storage.format.index import ENTRY_BYTES, decode_entries
from tests.unit.storage.failing_files import FailingFiles
from tests.unit.storage.storage_stories import Open, StoryLog, files_of, prepared, read_rows

SEGMENT_BYTES = 600  # two batches


@pytest.fixture
def log(open_log: Open) -> StoryLog:
    """Offsets [0, 12): six batches of two rows, in three segments."""
    return filled(open_log(segment_bytes=SEGMENT_BYTES))


def filled(log: StoryLog) -> StoryLog:
    log.begin_epoch(0)
    for first in range(0, 12, 2):
        log.append(prepared(first), leader_epoch=0, timestamp_ms=0)
    assert [each.base for each in log.segments()] == [0, 4, 8]
    return log


def stored(log: StoryLog, offset: int) -> tuple[Path, int, bytes]:
    """The file that has the batch at this offset, where it begins there, and its bytes."""
    found = log.find_stored(offset, bytes_max=1)
    assert found is not None
    (entry,) = decode_entries(found.entries)
    return log._folder / f"{found.segment_base:020}.arrow", entry.position, bytes(found.loaded().data)


def change(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def bases(found: list[DamagedBatch]) -> list[int]:
    return [each.base_offset for each in found]


def test_every_bit_of_a_batch_that_changes_is_found_and_mended(log: StoryLog) -> None:
    path, position, data = stored(log, 6)
    before = files_of(log._folder)
    assert log.damaged(0, 12) == []
    for place, byte in enumerate(data):
        change(path, position + place, bytes([byte ^ 1 << place % 8]))
        (found,) = log.damaged(0, 12)
        assert (found.base_offset, found.last_offset, found.position, found.bytes) == (6, 7, position, len(data))
        assert str(found) == f"offsets 6 to 7, at byte {position} of {path}: it does not have its CRC-32C"
        log.mend(found, data)
        assert log.damaged(0, 12) == []
    assert files_of(log._folder) == before
    assert read_rows(log) == [*range(12)]


def test_only_what_is_asked_for_is_looked_at_and_what_is_not_there_is_no_damage(log: StoryLog) -> None:
    for offset in (0, 6, 10):
        path, position, data = stored(log, offset)
        change(path, position, bytes([data[0] ^ 1]))
    assert bases(log.damaged(0, 12)) == [0, 6, 10]
    assert bases(log.damaged(1, 7)) == [0, 6]
    assert bases(log.damaged(2, 6)) == []
    assert bases(log.damaged(8, 100)) == [10]
    log.checkpoint(12)
    log.forget(4)
    log.truncate(10)
    assert bases(log.damaged(0, 12)) == [6]


def test_a_file_that_has_become_shorter_is_damaged(log: StoryLog) -> None:
    path, position, data = stored(log, 6)
    with path.open("r+b") as file:
        file.truncate(position + 3)
    (found,) = log.damaged(0, 12)
    assert found.why == f"the file has 3 of its {len(data)} bytes"
    log.mend(found, data)
    assert log.damaged(0, 12) == []


def test_a_file_that_cannot_be_read_is_damaged(open_log: Open) -> None:
    files = FailingFiles()
    log = filled(open_log(segment_bytes=SEGMENT_BYTES, files=files))
    files.refused = {("read", f"{4:020}.arrow")}
    found = log.damaged(0, 12)
    assert bases(found) == [4, 6]
    assert found[0].why.startswith("it cannot be read: [Errno 5]")


def test_no_other_bytes_take_the_place_of_a_batch(log: StoryLog) -> None:
    path, position, data = stored(log, 6)
    change(path, position, bytes([data[0] ^ 1]))
    (found,) = log.damaged(0, 12)
    before = files_of(log._folder)
    for other in (b"", data[:-1], data + b"x", bytes([data[0] ^ 1]) + data[1:], stored(log, 8)[2]):
        with pytest.raises(InvalidRequest, match="these are not the bytes of offsets 6 to 7"):
            log.mend(found, other)
    assert files_of(log._folder) == before


def test_a_batch_that_is_no_longer_there_is_not_mended(log: StoryLog) -> None:
    path, position, data = stored(log, 6)
    change(path, position, bytes([data[0] ^ 1]))
    (found,) = log.damaged(0, 12)
    log.truncate(6)
    log.append(prepared(100, 1), leader_epoch=0, timestamp_ms=0)
    log.append(prepared(200, 3), leader_epoch=0, timestamp_ms=0)
    before = files_of(log._folder)
    with pytest.raises(InvalidRequest):
        log.mend(found, data)
    log.truncate(4)
    with pytest.raises(InvalidRequest):
        log.mend(found, data)
    assert files_of(log._folder) == {name: each for name, each in before.items() if name < f"{4:020}"}


def test_a_disk_that_does_not_even_take_them_says_so(open_log: Open) -> None:
    files = FailingFiles()
    log = filled(open_log(segment_bytes=SEGMENT_BYTES, files=files))
    path, position, data = stored(log, 6)
    change(path, position, bytes([data[0] ^ 1]))
    (found,) = log.damaged(0, 12)
    files.refused = {("write", path.name)}
    with pytest.raises(StorageFailed, match="mending"):
        log.mend(found, data)
    log.close()
    with pytest.raises(StorageFailed, match="offline"):
        log.mend(found, data)


def test_what_is_found_in_the_file_is_not_what_is_in_memory(log: StoryLog) -> None:
    assert not isinstance(log.find(10, bytes_max=1, end=12), StoredSlice), "the newest batch is in memory"
    found = log.find_stored(9, bytes_max=1 << 20)
    assert isinstance(found, StoredSlice)
    assert (found.first_offset, found.next_offset, len(found.entries)) == (8, 12, 2 * ENTRY_BYTES)
    assert log.find_stored(12, bytes_max=1) is None
    log.checkpoint(12)
    log.forget(8)
    assert log.find_stored(7, bytes_max=1) is None
