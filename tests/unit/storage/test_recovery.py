"""A log after a crash: the longest prefix that holds, no less and no more, and it goes on from there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from spark_replication.core.replica.epochs import EpochHistory
from spark_replication.storage.log.epochs_file import EPOCHS_FILE
from spark_replication.storage.log.high_watermarks import HIGH_WATERMARKS_FILE
from spark_replication.storage.log.partition_log import PartitionLog
from tests.unit.storage.failing_files import Crash, FailingFiles
from tests.unit.storage.storage_stories import Open, files_of, prepared, read, read_rows

ENTRY = 80
BATCHES = 4
DATA = f"{0:020}.arrow"
INDEX = f"{0:020}.index"

Restore = Callable[[], Path]


def written(log: PartitionLog, epochs: list[int]) -> list[int]:
    """One batch of two rows for each epoch; the data's size after each of them."""
    sizes = []
    for epoch in epochs:
        log.begin_epoch(epoch)
        log.append(prepared(log.log_end), leader_epoch=epoch, timestamp_ms=0)
        records = read(log, log.log_end - 1, bytes_max=1, end=log.log_end)
        assert records is not None
        sizes.append(len(records.data))
    return sizes


@pytest.fixture
def story(open_log: Open, tmp_path: Path) -> tuple[Restore, list[int]]:
    """Puts a closed log of four batches back as it was; and the data's size after each batch, the schema's first."""
    log = open_log("origin")
    sizes = written(log, [1, 1, 2, 2])
    log.close()
    total = (tmp_path / "origin" / DATA).stat().st_size
    ends = [total - sum(sizes[kept:]) for kept in range(BATCHES + 1)]

    def restore() -> Path:
        shutil.rmtree(tmp_path / "leader", ignore_errors=True)
        shutil.copytree(tmp_path / "origin", tmp_path / "leader")
        return tmp_path / "leader"

    return restore, ends


def check(open_log: Open, folder: Path, kept: int, *, entries_cut: int, ends: list[int]) -> None:
    """Exactly `kept` batches are left, both files end there, and the log takes another batch that survives."""
    log = open_log()
    report = log.recovery
    assert (log.log_end, report.log_end, report.batches_kept, report.entries_cut) == (
        2 * kept,
        2 * kept,
        kept,
        entries_cut,
    )
    assert report.lossless == (entries_cut == 0)
    assert report.why != ""
    assert read_rows(log) == list(range(2 * kept))
    assert {name: len(content) for name, content in files_of(folder).items()} == (
        {DATA: ends[kept], INDEX: kept * ENTRY} if kept else {}
    )
    written(log, [3])
    log.close()
    again = open_log()
    assert (again.recovery.why, again.recovery.rebuilt) == ("", ())
    assert read_rows(again) == list(range(2 * kept + 2))
    again.close()


@pytest.mark.slow
def test_data_cut_at_every_byte_of_its_last_two_batches(open_log: Open, story: tuple[Restore, list[int]]) -> None:
    restore, ends = story
    for size in range(ends[2], ends[4]):
        folder = restore()
        cut(folder / DATA, size)
        kept = 2 if size < ends[3] else 3
        check(open_log, folder, kept, entries_cut=BATCHES - kept, ends=ends)


@pytest.mark.slow
def test_index_cut_at_every_byte_of_its_last_two_entries(open_log: Open, story: tuple[Restore, list[int]]) -> None:
    restore, ends = story
    for size in range(2 * ENTRY, 4 * ENTRY):
        folder = restore()
        cut(folder / INDEX, size)
        # A torn entry was never acknowledged: nothing is lost.
        check(open_log, folder, size // ENTRY, entries_cut=0, ends=ends)


def test_a_process_killed_within_either_write_loses_nothing(open_log: Open, story: tuple[Restore, list[int]]) -> None:
    restore, ends = story
    for size in range(ends[3] + 1, ends[4] + 1, 7):
        folder = restore()
        cut(folder / DATA, size)
        cut(folder / INDEX, 3 * ENTRY)
        check(open_log, folder, 3, entries_cut=0, ends=ends)


@pytest.mark.slow
def test_every_byte_of_the_last_batch_flipped(open_log: Open, story: tuple[Restore, list[int]]) -> None:
    restore, ends = story
    for place in range(ends[3], ends[4]):
        folder = restore()
        flip(folder / DATA, place)
        check(open_log, folder, 3, entries_cut=1, ends=ends)


@pytest.mark.slow
def test_every_byte_of_the_last_entry_flipped(open_log: Open, story: tuple[Restore, list[int]]) -> None:
    restore, ends = story
    for place in range(3 * ENTRY, 4 * ENTRY):
        folder = restore()
        flip(folder / INDEX, place)
        check(open_log, folder, 3, entries_cut=1, ends=ends)


def test_a_batch_broken_in_the_middle_takes_all_that_follow(open_log: Open, story: tuple[Restore, list[int]]) -> None:
    restore, ends = story
    folder = restore()
    flip(folder / DATA, ends[1])
    check(open_log, folder, 1, entries_cut=3, ends=ends)


def test_an_all_zero_tail_is_no_entry(open_log: Open, story: tuple[Restore, list[int]]) -> None:
    restore, ends = story
    folder = restore()
    for name, size in ((INDEX, 160), (DATA, 512)):
        (folder / name).write_bytes((folder / name).read_bytes() + bytes(size))
    check(open_log, folder, 4, entries_cut=2, ends=ends)


def test_a_schema_that_does_not_parse_leaves_nothing(open_log: Open, story: tuple[Restore, list[int]]) -> None:
    restore, ends = story
    folder = restore()
    (folder / DATA).write_bytes(bytes(64) + (folder / DATA).read_bytes()[64:])
    check(open_log, folder, 0, entries_cut=4, ends=ends)


def test_a_missing_file_of_a_segment_is_a_loss(open_log: Open, story: tuple[Restore, list[int]]) -> None:
    restore, ends = story
    for name, entries_cut in ((DATA, 4), (INDEX, 1)):
        folder = restore()
        (folder / name).unlink()
        check(open_log, folder, 0, entries_cut=entries_cut, ends=ends)


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_a_process_killed_at_any_point_of_an_append_has_lost_nothing(open_log: Open, segment_bytes: int) -> None:
    """A roll makes two files: one without the other is no loss, or a member of the ISR would be void for it (I8)."""
    crashes = 0
    while True:
        files, name = FailingFiles(), f"log {crashes}"
        log = open_log(name, segment_bytes=segment_bytes, files=files)
        written(log, [1, 1])
        files.changes_left = crashes
        try:
            log.append(prepared(log.log_end), leader_epoch=1, timestamp_ms=0)
        except Crash:
            crashes += 1
        else:
            break
        again = open_log(name, segment_bytes=segment_bytes)
        assert (again.log_end, again.recovery.lossless, read_rows(again)) == (4, True, [0, 1, 2, 3])
    assert crashes == (4 if segment_bytes == 1 else 2)


def test_a_tail_of_an_older_epoch_that_came_back_is_cut(open_log: Open, tmp_path: Path) -> None:
    """Truncated, written anew in a later epoch and shorter; the host crash brings the old tail's blocks back."""
    log = open_log()
    written(log, [1, 1, 1])
    old = files_of(tmp_path / "leader")
    log.truncate(2)
    written(log, [5])
    log.close()
    new = files_of(tmp_path / "leader")
    for name in (DATA, INDEX):
        (tmp_path / "leader" / name).write_bytes(new[name] + old[name][len(new[name]) :])
    log = open_log()
    assert (log.log_end, log.recovery.entries_cut, log.epochs) == (4, 1, EpochHistory.of([(1, 0), (5, 2)]))
    assert "the leader epoch falls" in log.recovery.why


def test_a_broken_segment_takes_the_later_ones_with_it(open_log: Open, tmp_path: Path) -> None:
    log = open_log(segment_bytes=1)
    written(log, [1, 2, 3])
    log.close()
    flip(tmp_path / "leader" / f"{2:020}.arrow", -1)
    log = open_log()
    assert (log.log_end, log.recovery.entries_cut, log.epochs) == (2, 2, EpochHistory.of([(1, 0)]))
    assert sorted(files_of(tmp_path / "leader")) == [DATA, INDEX]
    assert f"segment {2:020}" in log.recovery.why


def test_a_gap_between_segments_ends_the_log(open_log: Open, tmp_path: Path) -> None:
    log = open_log(segment_bytes=1)
    written(log, [1, 1, 1])
    log.close()
    (tmp_path / "leader" / f"{2:020}.arrow").unlink()
    (tmp_path / "leader" / f"{2:020}.index").unlink()
    log = open_log()
    assert (log.log_end, log.recovery.entries_cut) == (2, 1)


def test_a_log_that_ends_below_its_checkpoint_has_lost_something(
    open_log: Open, story: tuple[Restore, list[int]]
) -> None:
    restore, _ = story
    folder = restore()
    log = open_log()
    log.checkpoint(8)
    log.close()
    cut(folder / INDEX, 3 * ENTRY)
    log = open_log()
    assert (log.log_end, log.high_watermark) == (6, 6)
    assert (log.recovery.entries_cut, log.recovery.below_high_watermark, log.recovery.lossless) == (0, True, False)
    written(log, [2, 2])
    log.close()
    log = open_log()
    assert (log.log_end, log.high_watermark) == (10, 6), "what came later is not committed by what is lost"
    assert log.recovery.lossless, "a loss is told once"


@pytest.mark.parametrize("content", [b"", b"00000000 {}\n", b'{"v":1,"starts":[]}'])
def test_a_damaged_epoch_history_is_rebuilt_from_the_entries(
    open_log: Open, story: tuple[Restore, list[int]], content: bytes
) -> None:
    restore, _ = story
    (restore() / EPOCHS_FILE).write_bytes(content)
    log = open_log()
    assert log.epochs == EpochHistory.of([(1, 0), (2, 4)])
    assert (log.recovery.rebuilt, log.recovery.lossless) == ((EPOCHS_FILE,), True)
    log.close()
    assert open_log().recovery.rebuilt == ()


def test_an_epoch_history_that_the_entries_contradict_is_rebuilt(
    open_log: Open, story: tuple[Restore, list[int]], tmp_path: Path
) -> None:
    other = open_log("other")
    written(other, [1, 3, 3, 3])
    restore, _ = story
    shutil.copy(tmp_path / "other" / EPOCHS_FILE, restore() / EPOCHS_FILE)
    log = open_log()
    assert (log.epochs, log.recovery.rebuilt) == (EpochHistory.of([(1, 0), (2, 4)]), (EPOCHS_FILE,))


def test_a_damaged_checkpoint_starts_over_and_nobody_vouches_for_the_log(
    open_log: Open, story: tuple[Restore, list[int]]
) -> None:
    restore, _ = story
    (restore() / HIGH_WATERMARKS_FILE).write_bytes(b"torn")
    log = open_log()
    assert (log.high_watermark, log.log_end) == (0, 8)
    assert (log.recovery.rebuilt, log.recovery.lossless) == ((HIGH_WATERMARKS_FILE,), False)


def test_nothing_is_changed_before_the_proof_is_dropped(open_log: Open, story: tuple[Restore, list[int]]) -> None:
    restore, _ = story
    folder = restore()
    flip(folder / DATA, -1)
    broken = files_of(folder)
    seen = []
    open_log(before_cut=lambda: seen.append(files_of(folder)))
    assert seen == [broken]
    open_log(before_cut=lambda: seen.append({}))
    assert len(seen) == 1, "a log that is whole leaves the proof alone"


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 0x10
    path.write_bytes(data)
