"""A sync that failed is remembered: the next process knows that what it reads may not be on the disk (I8)."""

from __future__ import annotations

import copy
import random
from pathlib import Path

import pytest

from spark_replication.errors import StorageFailed
from spark_replication.sim.world.faulty_files import FaultyFiles
from spark_replication.storage.disk.failed_sync import FAILED_SYNC_FILE
from spark_replication.storage.log.partition_log import PartitionLog
from tests.unit.storage.failing_files import FailingFiles
from tests.unit.storage.storage_stories import Open, log_in, prepared, read_rows

FOLDER = Path("orders-0.id")


@pytest.fixture
def files() -> FailingFiles:
    return FailingFiles()


def append(log: PartitionLog) -> None:
    log.append(prepared(log.log_end), leader_epoch=0, timestamp_ms=0)


def failed(log: PartitionLog, files: FailingFiles) -> PartitionLog:
    """Two rows are on the disk, and two are not known to be."""
    log.begin_epoch(0)
    append(log)
    log.flush()
    append(log)
    files.refuse("sync", ".arrow")
    with pytest.raises(StorageFailed):
        log.flush()
    files.heal()
    return log


@pytest.mark.parametrize("flush", ["none", "interval", "always"])
def test_after_a_failed_sync_the_next_process_is_unclean_and_has_what_it_can_read(
    open_log: Open, tmp_path: Path, files: FailingFiles, flush: str
) -> None:
    failed(open_log(files=files, flush=flush), files)
    again = open_log(flush=flush)
    assert (again.recovery.lossless, again.recovery.why) == (False, "a sync of it had failed")
    assert (again.log_end, read_rows(again), again.flushed_end) == (4, [0, 1, 2, 3], 0)
    assert not (tmp_path / "leader" / FAILED_SYNC_FILE).exists()
    append(again)
    again.flush()
    again.close()
    assert open_log(flush=flush).recovery.lossless, "it is settled"


def test_a_flush_in_the_background_that_fails_is_remembered_too(open_log: Open, files: FailingFiles) -> None:
    log = open_log(files=files, flush="always")
    log.begin_epoch(0)
    append(log)
    files.refuse("sync", ".index")
    flush = log.begin_flush()
    assert flush is not None
    with pytest.raises(StorageFailed) as error:
        flush.perform()
    log.end_flush(error.value)
    files.heal()
    assert not open_log(flush="always").recovery.lossless


def test_a_damaged_word_of_it_vouches_for_nothing(open_log: Open, tmp_path: Path, files: FailingFiles) -> None:
    failed(open_log(files=files, flush="always"), files)
    (tmp_path / "leader" / FAILED_SYNC_FILE).write_bytes(b"damaged")
    again = open_log(flush="always")
    assert (again.recovery.lossless, again.log_end) == (False, 4)


def test_a_disk_that_does_not_take_it_again_opens_nothing(open_log: Open, files: FailingFiles) -> None:
    failed(open_log(files=files, flush="always"), files)
    files.refuse("write", ".index")
    with pytest.raises(StorageFailed, match="opening"):
        open_log(files=files, flush="always")
    files.heal()
    again = open_log(flush="always")
    assert (again.recovery.lossless, again.log_end) == (False, 4), "the doubt has outlived the attempt"


def about_to_fail(segment_bytes: int, seed: int) -> tuple[FaultyFiles, PartitionLog]:
    """Two rows are on the disk, and two are not; the next sync fails, and loses what the seed says."""
    files = FaultyFiles()
    files.make_folder(FOLDER)
    log = log_in(FOLDER, files=files, segment_bytes=segment_bytes, flush="always")
    log.begin_epoch(0)
    append(log)
    log.flush()
    append(log)
    files.failing = random.Random(seed)
    return files, log


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_what_the_next_process_vouches_for_is_on_the_disk(segment_bytes: int) -> None:
    lost = 0
    for seed in range(60):
        files, log = about_to_fail(segment_bytes, seed)
        with pytest.raises(StorageFailed):
            log.flush()
        files.failing = None
        without, again = copy.deepcopy(files), log_in(FOLDER, files=files, segment_bytes=segment_bytes, flush="always")
        append(again)
        again.flush()
        assert again.flushed_end == 6
        files.lose_power(random.Random(seed))
        assert read_rows(log_in(FOLDER, files=files)) == list(range(6))
        without.sync_folder(FOLDER)
        without.lose_power(random.Random(seed))
        lost += log_in(FOLDER, files=without).log_end < 4
    assert lost > 10, "the sync that failed has lost something"


@pytest.mark.parametrize("segment_bytes", [1, 1 << 20])
def test_a_process_that_is_killed_before_it_can_tell_of_a_failed_sync_leaves_the_next_in_no_error(
    segment_bytes: int,
) -> None:
    lost = 0
    for seed in range(60):
        files, log = about_to_fail(segment_bytes, seed)
        flush = log.begin_flush()
        assert flush is not None
        with pytest.raises(StorageFailed):
            flush.perform()  # and there its process ends
        files.failing = None
        without, again = copy.deepcopy(files), log_in(FOLDER, files=files, segment_bytes=segment_bytes, flush="always")
        assert again.recovery.lossless
        again.flush()
        assert again.flushed_end == 4
        files.lose_power(random.Random(seed))
        assert read_rows(log_in(FOLDER, files=files)) == list(range(4))
        without.sync_folder(FOLDER)
        without.lose_power(random.Random(seed))
        lost += log_in(FOLDER, files=without).log_end < 4
    assert lost > 10, "the sync that failed has lost something"


@pytest.mark.parametrize("takes_the_word", [True, False])
def test_where_the_disk_takes_no_word_of_it_the_proof_of_a_clean_start_is_to_go(
    open_log: Open, files: FailingFiles, *, takes_the_word: bool
) -> None:
    told: list[str] = []
    log = open_log(files=files, distrust=lambda: told.append("distrust"))
    log.begin_epoch(0)
    append(log)
    files.refuse("sync", ".arrow")
    if not takes_the_word:
        files.refuse("create", f"{FAILED_SYNC_FILE}.tmp")
    with pytest.raises(StorageFailed, match=r"arrow could not be flushed"):
        log.flush()
    assert told == ([] if takes_the_word else ["distrust"])
    files.heal()
    assert open_log().recovery.lossless is not takes_the_word, "the log says it, or else nobody but the broker"
