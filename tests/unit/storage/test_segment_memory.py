"""What is in memory of segments: who is close behind is given the newest batch from there, whatever the disk does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from spark_replication.errors import StorageFailed
from spark_replication.ports import LogSlice, Records, StoredSlice
from spark_replication.storage.log.segment_memory import BATCH_BYTES_MAX, IndexCache, NewestBatches
from tests.unit.storage.failing_files import FailingFiles
from tests.unit.storage.storage_stories import Open, StoryLog, prepared, read, read_rows

EVERYTHING = 1 << 20


def test_indexes_in_memory_are_bounded_and_the_last_one_stays() -> None:
    cache = IndexCache(100)
    cache.put("a", bytearray(40))
    cache.put("b", bytearray(40))
    assert cache.get("a") == bytearray(40)
    cache.put("c", bytearray(40))
    assert (cache.get("b"), cache.size_bytes) == (None, 80)
    cache.extend("a", bytes(30))
    assert (cache.get("c"), cache.get("a"), cache.size_bytes) == (None, bytearray(70), 70)
    cache.extend("c", bytes(1))  # it is not here: its file has it
    cache.put("large", bytearray(1_000))
    assert (cache.get("a"), cache.size_bytes) == (None, 1_000)
    cache.drop("large")
    cache.drop("large")
    assert (cache.get("large"), cache.size_bytes) == (None, 0)


def of_size(count: int) -> LogSlice:
    return LogSlice(0, 1, 0, b"", bytes(count))


def test_newest_batches_are_bounded_and_a_large_one_is_not_kept() -> None:
    cache = NewestBatches(100)
    cache.appended("a", of_size(60))
    cache.appended("a", of_size(50))  # in place of the one before
    assert cache.size_bytes == 50
    cache.appended("b", of_size(60))
    assert (cache.get("a"), cache.size_bytes) == (None, 60)
    cache.appended("b", of_size(101))
    assert (cache.get("b"), cache.size_bytes) == (None, 0)
    roomy = NewestBatches(10 * BATCH_BYTES_MAX)
    roomy.appended("a", of_size(BATCH_BYTES_MAX))
    roomy.appended("b", of_size(BATCH_BYTES_MAX + 1))
    assert (roomy.get("a") is None, roomy.get("b")) == (False, None)


@pytest.fixture
def log(open_log: Open) -> StoryLog:
    """Rows 0 and 1 in one batch, 2 and 3 in another."""
    log = open_log()
    log.begin_epoch(0)
    append(log)
    append(log)
    return log


def append(log: StoryLog) -> None:
    log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=0)


def from_memory(found: Records | None) -> bool:
    assert found is not None
    return isinstance(found, LogSlice)


def test_who_has_all_but_the_newest_batch_gets_it_from_memory_as_it_lies_in_the_file(log: StoryLog) -> None:
    found = log.find(2, bytes_max=1, end=4)
    assert isinstance(found, LogSlice)
    log.close()  # it is forgotten
    stored = log.find(2, bytes_max=1, end=4)
    assert isinstance(stored, StoredSlice)
    assert replace(found, data=bytes(found.data)) == stored.loaded()


@pytest.mark.parametrize(("offset", "end"), [(0, 4), (3, 4)])
def test_who_is_further_behind_or_within_it_is_given_the_file(log: StoryLog, offset: int, end: int) -> None:
    assert not from_memory(log.find(offset, bytes_max=EVERYTHING, end=end))


def test_what_is_not_committed_is_not_given_from_memory_either(log: StoryLog) -> None:
    assert log.find(2, bytes_max=EVERYTHING, end=3) is None
    assert from_memory(log.find(2, bytes_max=EVERYTHING, end=4))


def test_what_was_cut_is_not_given_in_place_of_what_came_then(open_log: Open, log: StoryLog) -> None:
    other = open_log("other")
    other.begin_epoch(0)
    other.append(prepared(0), leader_epoch=0, timestamp_ms=0)
    other.append(prepared(50), leader_epoch=0, timestamp_ms=0)
    came = read(other, 2, bytes_max=1, end=4)
    assert came is not None
    log.truncate(2)
    assert log.find(2, bytes_max=1, end=4) is None
    log.append_slice(came)
    assert read_rows(log) == [0, 1, 50, 51]
    assert read_rows(log, 2) == [50, 51]


@pytest.mark.parametrize("end", [lambda log: log.begin_anew(5), lambda log: log.truncate(0), lambda log: log.close()])
def test_nothing_is_kept_of_segments_that_are_gone(log: StoryLog, end: Callable[[StoryLog], None]) -> None:
    assert log._memory.newest.size_bytes > 0
    end(log)
    assert log._memory.newest.size_bytes == 0


def test_a_follower_keeps_nothing_of_what_it_received(open_log: Open, log: StoryLog) -> None:
    received = bytearray()
    follower = open_log("follower")
    while (records := read(log, follower.log_end, bytes_max=1, end=4)) is not None:
        received[:] = records.data
        view = memoryview(received)
        follower.append_slice(
            LogSlice(
                records.first_offset, records.next_offset, records.segment_base, records.entries, view, records.schema
            )
        )
        view.release()
    received[:] = bytes(len(received))
    assert not from_memory(follower.find(2, bytes_max=1, end=4))
    assert read_rows(follower) == [0, 1, 2, 3]


def test_a_disk_that_refuses_to_be_read_still_lets_followers_have_what_is_in_memory(open_log: Open) -> None:
    files = FailingFiles()
    log = open_log(files=files)
    log.begin_epoch(0)
    append(log)
    append(log)
    files.refuse("read")
    newest = read(log, 2, bytes_max=1, end=4)
    assert newest is not None
    assert newest.next_offset == 4
    with pytest.raises(StorageFailed, match="epair the disk"):
        read(log, 0, bytes_max=1, end=4)
