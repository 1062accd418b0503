"""A log that is to start in the midst of a segment: what is kept, byte by byte, and a crash between any two steps."""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import count, product
from pathlib import Path

import pyarrow as pa
import pytest
from msgspec.structs import replace

from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.errors import OffsetOutOfRange, StorageFailed
from spark_replication.sim.scenarios.memory_log import MemoryLog
from spark_replication.sim.world.faulty_files import FaultyFiles
from spark_replication.sim.world.world import Killed
from spark_replication.storage.format.index import decode_entries
from spark_replication.storage.log.log_start import LOG_START_FILE
from spark_replication.storage.log.partition_log import POINT_BYTES, PartitionLog
from spark_replication.storage.log.segment_copy import COPIED_BYTES
from tests.unit.storage.failing_files import Crash, FailingFiles
from tests.unit.storage.storage_stories import Open, StoryLog, files_of, log_in, prepared, read, read_rows

FOLDER = Path("orders-0.id")
SEGMENT_BYTES = 600  # two batches and their schema have more
ALL = list(range(20))


def names(*bases: int) -> list[str]:
    return [f"{base:020}{suffix}" for base in bases for suffix in (".arrow", ".index")]


def written(log: StoryLog) -> StoryLog:
    """Ten batches of two rows in segments from 0, 4, 8, 12 and 16; epochs 1 from 0 and 2 from 10; the last epoch has no
    records yet. Clocks of leaders differ: the batch at 4 is newer than those up to 8."""
    for epoch, batches in ((1, 5), (2, 5), (5, 0)):
        log.begin_epoch(epoch)
        for _ in range(batches):
            timestamp_ms = 990 if log.log_end == 4 else 100 + log.log_end
            log.append(prepared(log.log_end), leader_epoch=epoch, timestamp_ms=timestamp_ms)
    log.checkpoint(8)
    assert [segment.base for segment in log.segments()] == [0, 4, 8, 12, 16]
    return log


def kept_below(log: PartitionLog) -> set[int]:
    return {int(path.name[:20]) for path in log._folder.glob("0*")} - {each.base for each in log.segments()}


def test_a_log_starts_in_the_midst_of_a_segment(open_log: Open, tmp_path: Path) -> None:
    log = written(open_log(segment_bytes=SEGMENT_BYTES))
    before = files_of(tmp_path / "leader")
    log.drop_below(6)
    for _ in range(2):
        assert (log.log_start, log.log_end, log.high_watermark) == (6, 20, 8)
        assert log.epochs == EpochHistory.of([(1, 6), (2, 10), (5, 20)])
        assert read_rows(log, 6) == ALL[6:]
        with pytest.raises(OffsetOutOfRange):
            read(log, 5, bytes_max=1, end=20)
        assert sorted(files_of(tmp_path / "leader")) == names(6, 8, 12, 16)
        log.close()
        log = open_log(segment_bytes=SEGMENT_BYTES)
        assert (log.recovery.why, log.recovery.rebuilt, log.recovery.lossless) == ("", (), True)
    after = files_of(tmp_path / "leader")
    assert {name: after[name] for name in names(8, 12, 16)} == {name: before[name] for name in names(8, 12, 16)}
    log.append(prepared(20), leader_epoch=5, timestamp_ms=0)
    assert read_rows(log, 6) == [*ALL[6:], 20, 21]


def test_its_tail_is_a_segment_like_any_other_with_the_same_batches(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    log.begin_epoch(0)
    for timestamp_ms in (100, 990, 120, 110, 130):
        log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=timestamp_ms)
    old_data, old_index = files_of(tmp_path / "leader").values()
    old = list(decode_entries(old_index))
    log.drop_below(4)
    data, index = (files_of(tmp_path / "leader")[name] for name in names(4))
    schema_bytes = old[0].position
    assert data == old_data[:schema_bytes] + old_data[old[2].position :]
    assert list(decode_entries(index)) == [
        entry._replace(position=entry.position - old[2].position + schema_bytes, timestamp_max_ms=newest)
        for entry, newest in zip(old[2:], (120, 120, 130), strict=True)
    ]
    assert [log.offset_of_time(each) for each in (0, 120, 121, 131)] == [4, 4, 8, 10]
    rows = [row for batch in pa.ipc.open_stream(data) for row in batch.column("row").to_pylist()]
    assert rows == list(range(4, 10))


def test_a_large_tail_is_copied_in_parts(open_log: Open, tmp_path: Path) -> None:
    log, rows = open_log(segment_bytes=1 << 30), 30_000
    log.begin_epoch(0)
    while log.bytes_from(rows) < 2 * COPIED_BYTES:
        log.append(prepared(log.log_end, rows), leader_epoch=0, timestamp_ms=10 * rows - log.log_end // rows)
    batches, end = list(decode_entries(files_of(tmp_path / "leader")[names(0)[1]])), log.log_end
    log.drop_below(rows)
    assert [each.base for each in log.segments()] == [rows]
    entries = list(decode_entries(files_of(tmp_path / "leader")[names(rows)[1]]))
    assert [(each.base_offset, each.crc) for each in entries] == [(each.base_offset, each.crc) for each in batches[1:]]
    assert {each.timestamp_max_ms for each in entries} == {10 * rows - 1}
    assert read_rows(log, rows) == list(range(rows, end))


@pytest.mark.parametrize("offset", [4, 6, 10, 18, 20])
@pytest.mark.parametrize("drop_first", [False, True])
def test_replicas_that_start_at_one_offset_are_identical(
    open_log: Open, tmp_path: Path, offset: int, *, drop_first: bool
) -> None:
    """Whether one copied all of the tail from the other, or one part before and the rest after."""
    leader, follower = written(open_log(segment_bytes=SEGMENT_BYTES)), open_log("follower", segment_bytes=SEGMENT_BYTES)

    def follow() -> None:
        if follower.log_end < leader.log_start:
            follower.begin_anew(leader.log_start)
        while (records := read(leader, follower.log_end, bytes_max=1, end=leader.log_end)) is not None:
            follower.append_slice(records)

    if not drop_first:
        follow()
        follower.drop_below(offset)
    leader.drop_below(offset)
    follow()
    leader.begin_epoch(7)
    leader.append(prepared(20), leader_epoch=7, timestamp_ms=0)
    follow()
    assert files_of(tmp_path / "follower") == files_of(tmp_path / "leader")
    assert read_rows(follower, offset) == [*ALL[offset:], 20, 21]


@pytest.mark.parametrize(("offset", "bases"), [(4, [4, 8, 12, 16]), (16, [16]), (20, [])])
def test_where_a_segment_begins_or_the_log_ends_nothing_is_copied(
    open_log: Open, tmp_path: Path, offset: int, bases: list[int]
) -> None:
    log = written(open_log(segment_bytes=SEGMENT_BYTES))
    before = files_of(tmp_path / "leader")
    log.drop_below(offset)
    for _ in range(2):
        assert (log.log_start, log.log_end, log.high_watermark) == (offset, 20, max(8, offset))
        assert log.epochs.last_epoch == 5
        assert files_of(tmp_path / "leader") == {name: before[name] for name in names(*bases)}
        log.close()
        log = open_log(segment_bytes=SEGMENT_BYTES)
        assert log.recovery.lossless
    log.append(prepared(20), leader_epoch=5, timestamp_ms=0)
    assert read_rows(log, offset) == [*ALL[offset:], 20, 21]


def test_a_batch_says_where_it_begins(open_log: Open) -> None:
    log = written(open_log(segment_bytes=SEGMENT_BYTES))
    assert [log.batch_start(offset) for offset in range(8)] == [0, 0, 2, 2, 4, 4, 6, 6]


def test_a_tail_that_is_copied_twice_is_the_same(open_log: Open, tmp_path: Path) -> None:
    """As of a replica that was down for the first of two starts."""
    for name, offsets in (("leader", (2, 6)), ("follower", (6,))):
        log = open_log(name, segment_bytes=1 << 20)
        log.begin_epoch(0)
        for timestamp_ms in (500, 900, 100, 200, 300):
            log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=timestamp_ms)
        for offset in offsets:
            log.drop_below(offset)
    assert files_of(tmp_path / "follower") == files_of(tmp_path / "leader")


@pytest.mark.parametrize("offset", [1, 2, 6, 19, 20])
def test_a_log_in_memory_comes_to_the_same_place(open_log: Open, offset: int) -> None:
    """As ports.ReplicaLog has it, whichever of them a replica has."""
    logs: list[StoryLog | MemoryLog] = [open_log(segment_bytes=SEGMENT_BYTES), MemoryLog.of_runs([], 0)]
    found = []
    for log in logs:
        for epoch in (1, 3):
            log.begin_epoch(epoch)
            for _ in range(5):
                batch = prepared(log.log_end)
                batch = replace(batch, message=b"text") if isinstance(log, MemoryLog) else batch
                log.append(batch, leader_epoch=epoch, timestamp_ms=0)
        log.checkpoint(8)
        start = log.batch_start(min(offset, 19))
        if start > 0:
            log.drop_below(start)
        places = [(log.log_start, log.log_end, log.epochs, log.high_watermark)]
        log.drop_below(20)
        places.append((log.log_start, log.log_end, log.epochs, log.high_watermark))
        found.append((start, places))
    assert found[0] == found[1]


# Crashes


@pytest.mark.parametrize("offset", [2, 6, 18, 20])
def test_a_crash_at_any_point_leaves_a_log_that_comes_to_the_same_place(
    open_log: Open, tmp_path: Path, offset: int
) -> None:
    seen = set()
    for changes in count():
        files, name = FailingFiles(), f"log {changes}"
        log = written(open_log(name, segment_bytes=SEGMENT_BYTES, files=files))
        files.changes_left = changes
        try:
            log.drop_below(offset)
        except Crash:
            pass
        else:
            break
        again = open_log(name, segment_bytes=SEGMENT_BYTES)
        assert (again.recovery.lossless, again.recovery.why, again.recovery.rebuilt) == (True, "", ())
        assert kept_below(again) == set()
        seen.add((again.log_start, again.log_end))
        assert read_rows(again, again.log_start) == ALL[again.log_start :]
        if again.log_start < offset:
            again.drop_below(offset)
        assert (again.log_start, again.log_end, again.high_watermark) == (offset, 20, max(8, offset))
        assert again.epochs == EpochHistory.of([(1, 0), (2, 10), (5, 20)]).trimmed(offset)
        again.append(prepared(20), leader_epoch=5, timestamp_ms=0)
        assert read_rows(again, offset) == [*ALL[offset:], 20, 21]
        again.close()
        assert open_log(name, segment_bytes=SEGMENT_BYTES).recovery.lossless
    assert seen == {(0, 20), (offset, 20)}


@pytest.mark.slow
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("offset", [2, 18])
def test_whatever_a_loss_of_power_keeps_the_log_is_the_one_before_or_after(*, offset: int, flushed: bool) -> None:
    """Of a log that was flushed nothing is missing, and of another one its end at most."""
    starts: set[int] = set()
    for changes, seed in product(range(30), range(12)):
        rng, files = random.Random(seed), FaultyFiles()
        files.make_folder(FOLDER)
        files.write_back()
        log = written(log_in(FOLDER, files=files, segment_bytes=SEGMENT_BYTES))
        if flushed:
            log.flush()
            files.write_back()
        else:
            files.write_back(partial(rng.choice, [False, True]))
        files.dies_in = changes
        with suppress(Killed):
            log.drop_below(offset)
        files.dies_in = None
        files.lose_power(rng)
        found = log_in(FOLDER, files=files, segment_bytes=SEGMENT_BYTES)
        starts.add(found.log_start)
        assert found.log_start in (0, offset), f"change {changes}, seed {seed}"
        assert read_rows(found, found.log_start) == ALL[found.log_start : found.log_end], f"{changes}, {seed}"
        if flushed:
            assert (found.log_end, found.recovery.lossless) == (20, True), f"change {changes}, seed {seed}"
    assert starts == {0, offset}


def test_what_was_copied_is_on_the_disk_before_the_start_is(tmp_path: Path) -> None:
    """Else a loss of power leaves a log that starts where it has no segment."""
    files = FaultyFiles()
    files.make_folder(FOLDER)
    log = written(log_in(FOLDER, files=files, segment_bytes=SEGMENT_BYTES))
    files.write_back()
    log.drop_below(6)
    for seed in range(50):
        files.lose_power(random.Random(seed))
        found = log_in(FOLDER, files=files, segment_bytes=SEGMENT_BYTES)
        assert (found.log_start, found.log_end, read_rows(found, 6)) == (6, 20, ALL[6:])


# A disk that refuses


REFUSED = [
    ("read", ".index"),
    ("read", ".arrow"),
    ("create", ".index"),
    ("create", ".arrow"),
    ("write", ".arrow"),
    ("write", ".index"),
    ("sync", ".arrow"),
    ("sync", ".index"),
    ("sync_folder", ""),
    ("create", f"{LOG_START_FILE}.tmp"),
]


@pytest.mark.parametrize(("operation", "ending"), REFUSED)
@pytest.mark.parametrize("offset", [6, 18])
def test_a_disk_that_refuses_leaves_the_log_as_it_was(
    open_log: Open, tmp_path: Path, operation: str, ending: str, offset: int
) -> None:
    files = FailingFiles()
    log = written(open_log(segment_bytes=SEGMENT_BYTES, files=files, batch_bytes_max=1))
    log._memory.indexes._bytes_max = 0  # so that an index is read anew
    before = files_of(tmp_path / "leader")
    files.refuse(operation, ending)
    with pytest.raises(StorageFailed, match="a new log start"):
        log.drop_below(offset)
    files.heal()
    assert (log.log_start, log.log_end, read_rows(log)) == (0, 20, ALL)
    log.append(prepared(20), leader_epoch=5, timestamp_ms=0)
    assert sorted(files_of(tmp_path / "leader")) == sorted([*before, *names(20)])
    log.drop_below(offset)
    assert read_rows(log, offset) == [*ALL[offset:], 20, 21]


@pytest.mark.parametrize("room", range(0, 1_560, 70))
def test_a_disk_that_fills_up_keeps_no_part_of_a_copy(open_log: Open, tmp_path: Path, room: int) -> None:
    files = FailingFiles()
    log = open_log(files=files)
    log.begin_epoch(0)
    for _ in range(5):
        log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=0)
    before = files_of(tmp_path / "leader")
    files.room = room
    with pytest.raises(StorageFailed, match="Free space"):
        log.drop_below(2)
    assert (log.log_start, files_of(tmp_path / "leader"), read_rows(log)) == (0, before, ALL[:10])


class FailingFolder(FailingFiles):
    """syncs_left: of folders, until each of them is refused; None: none is."""

    syncs_left: int | None = None

    def sync_folder(self, folder: Path) -> None:
        if self.syncs_left is not None:
            self.syncs_left -= 1
            if self.syncs_left < 0:
                raise OSError(errno.EIO, "Input/output error", str(folder))
        super().sync_folder(folder)

    def heal(self) -> None:
        super().heal()
        self.syncs_left = None


def unsynced(log: StoryLog, files: FailingFolder) -> None:
    """The start is stored, and its name could not be synced: nobody knows which start is on the disk."""
    files.syncs_left = 1
    with pytest.raises(StorageFailed):
        log.drop_below(6)


def test_a_copy_stays_while_the_disk_may_say_that_the_log_starts_with_it(open_log: Open, tmp_path: Path) -> None:
    files = FailingFolder()
    log = written(open_log(segment_bytes=SEGMENT_BYTES, files=files))
    unsynced(log, files)
    for _ in range(2):
        with pytest.raises(StorageFailed):
            then_append(log)
        assert kept_below(log) == {6}
    files.heal()
    then_append(log)
    assert kept_below(log) == set()
    log.close()
    again = open_log(segment_bytes=SEGMENT_BYTES)
    assert (again.log_start, again.log_end, again.recovery.lossless) == (0, 22, True)


def test_a_start_that_was_damaged_since_is_written_again(open_log: Open, tmp_path: Path) -> None:
    files = FailingFolder()
    log = written(open_log(segment_bytes=SEGMENT_BYTES, files=files))
    unsynced(log, files)
    (tmp_path / "leader" / LOG_START_FILE).write_bytes(b"torn")
    files.heal()
    then_append(log)
    log.close()
    again = open_log(segment_bytes=SEGMENT_BYTES)
    assert (again.log_start, again.log_end, again.recovery.lossless) == (0, 22, True)


def test_what_an_append_could_not_cut_away_is_cut_away_before_the_copy(open_log: Open, tmp_path: Path) -> None:
    files = FailingFiles()
    log = written(open_log(files=files, segment_bytes=SEGMENT_BYTES))
    then_append(log)
    before = files_of(tmp_path / "leader")
    files.refuse("write", ".index")
    files.refuse("truncate", ".index")
    with pytest.raises(StorageFailed):
        then_append(log)
    assert files_of(tmp_path / "leader") != before
    files.heal()
    log.drop_below(2)
    after = files_of(tmp_path / "leader")
    assert {name: after[name] for name in list(before)[-2:]} == dict(list(before.items())[-2:])


def then_append(log: PartitionLog) -> None:
    log.append(prepared(log.log_end), leader_epoch=5, timestamp_ms=0)


THEN: list[Callable[[PartitionLog], None]] = [
    then_append,
    lambda log: log.truncate(2),
    lambda log: log.begin_anew(30),
    lambda log: log.drop_below(6),
    lambda log: log.drop_below(20),
]


@pytest.mark.parametrize("then", THEN)
@pytest.mark.parametrize("stored", [False, True])
def test_a_copy_that_could_not_be_removed_goes_before_the_next_change(
    open_log: Open, tmp_path: Path, then: Callable[[PartitionLog], None], *, stored: bool
) -> None:
    """Where the log is cut below it and goes on with other records, it would be the end of a log that nobody had."""
    files = FailingFolder()
    log = written(open_log(segment_bytes=SEGMENT_BYTES, files=files))
    files.refuse("remove", f"{6:020}.index", f"{6:020}.arrow")
    if stored:
        unsynced(log, files)
    else:
        files.refuse("create", f"{LOG_START_FILE}.tmp")
        with pytest.raises(StorageFailed):
            log.drop_below(6)
    with pytest.raises(StorageFailed):
        then(log)
    assert (log.log_start, log.log_end, read_rows(log)) == (0, 20, ALL)
    files.heal()
    then(log)
    start, end, found = log.log_start, log.log_end, read_rows(log, log.log_start) if log.log_end > log.log_start else []
    assert kept_below(log) == set()
    log.close()
    again = open_log(segment_bytes=SEGMENT_BYTES)
    assert (again.log_start, again.log_end, again.recovery.lossless, again.recovery.why) == (start, end, True, "")
    assert found == list(range(start, end))


@pytest.mark.parametrize("refused", [("sync_folder", ""), ("create", f"{LOG_START_FILE}.tmp")])
def test_the_process_after_one_that_could_not_undo_it_has_one_log_or_the_other(
    open_log: Open, tmp_path: Path, refused: tuple[str, str]
) -> None:
    files = FailingFiles()
    log = written(open_log(segment_bytes=SEGMENT_BYTES, files=files))
    files.refuse(*refused)
    files.refuse("remove", ".index", ".arrow")
    with pytest.raises(StorageFailed):
        log.drop_below(6)
    again = open_log(segment_bytes=SEGMENT_BYTES)
    assert again.log_start in (0, 6)
    assert (again.log_end, again.recovery.lossless, read_rows(again, again.log_start)) == (
        20,
        True,
        ALL[again.log_start :],
    )
    assert kept_below(again) == set()


# Flushes


def test_a_flush_that_runs_meanwhile_vouches_for_the_copy(open_log: Open, tmp_path: Path) -> None:
    log = open_log()
    log.begin_epoch(0)
    for _ in range(5):
        log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=0)
    due = log.begin_flush()
    assert due is not None
    log.drop_below(4)
    log.append(prepared(10), leader_epoch=0, timestamp_ms=0)
    due.perform()
    log.end_flush(None)
    assert log.flushed_end == 10
    rest = log.begin_flush()
    assert rest is not None
    rest.perform()
    log.end_flush(None)
    assert (log.flushed_end, log.begin_flush()) == (12, None)


def test_the_recovery_point_rises_with_the_segment_that_is_there(open_log: Open, tmp_path: Path) -> None:
    """And not only once that is larger than the one was that a flush had begun with."""
    log, rows = open_log(segment_bytes=1 << 30), 45_000

    def append(batches: int) -> None:
        for _ in range(batches):
            log.append(prepared(log.log_end, rows), leader_epoch=0, timestamp_ms=0)

    log.begin_epoch(0)
    append(12)
    due = log.begin_flush()
    assert due is not None
    log.drop_below(11 * rows)
    due.perform()
    log.end_flush(None)
    append(9)
    rest = log.begin_flush()
    assert rest is not None
    rest.perform()
    log.end_flush(None)
    assert log._segments[-1].data_bytes > POINT_BYTES
    assert log._recovery_point.offset == log.log_end == 21 * rows


@pytest.mark.parametrize("flush", ["interval", "always"])
def test_what_was_flushed_stays_so_and_the_rest_is_due(open_log: Open, tmp_path: Path, flush: str) -> None:
    log = written(open_log(segment_bytes=SEGMENT_BYTES, flush=flush))
    log.flush()
    log.append(prepared(20), leader_epoch=5, timestamp_ms=0)
    log.drop_below(6)
    assert log.flushed_end == 20
    log.drop_below(22)
    assert (log.flushed_end, log.log_end) == (22, 22)
    log.close()
    again = open_log(segment_bytes=SEGMENT_BYTES, flush=flush)
    assert (again.log_start, again.log_end, again.recovery.lossless) == (22, 22, True)


def test_damage_to_a_copy_above_the_recovery_point_is_found(open_log: Open, tmp_path: Path) -> None:
    log = open_log(segment_bytes=1 << 20)
    log.begin_epoch(0)
    for _ in range(5):
        log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=0)
    log.drop_below(4)
    log.close()
    path = tmp_path / "leader" / names(4)[0]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    again = open_log(segment_bytes=1 << 20)
    assert (again.log_start, again.log_end, again.recovery.lossless) == (4, 8, False)
