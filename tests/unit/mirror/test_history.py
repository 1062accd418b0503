"""How long earlier versions of a table are kept."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count

import pytest

from spark_replication.mirror.tables.history import (
    DATA_AT_LEAST,
    HISTORY,
    LOG_AT_LEAST,
    LOG_FILES_MAX,
    RETENTION_OF_DATA,
    RETENTION_OF_LOG,
    StoredFile,
    as_interval,
    from_interval,
    is_due,
    retention,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
names = count()


def data(size: int, age_s: int) -> StoredFile:
    return StoredFile(f"part-{next(names)}.parquet", size, NOW - timedelta(seconds=age_s))


def log(size: int, age_s: int) -> StoredFile:
    return StoredFile(f"_delta_log/{next(names)}.json", size, NOW - timedelta(seconds=age_s))


def test_a_quiet_tables_versions_are_kept_for_as_long_as_any() -> None:
    files = [data(40, 100_000), log(40, 5), data(10, 900_000)]
    assert retention(files, 100, NOW) == {RETENTION_OF_DATA: HISTORY, RETENTION_OF_LOG: HISTORY}


def test_of_a_busy_table_the_newest_files_that_there_is_room_for_are_kept() -> None:
    files = [*(data(10, 100 * age) for age in range(10)), *(log(1, 1_000 * age) for age in range(60))]
    kept = retention(files, 100, NOW)
    assert kept == {RETENTION_OF_DATA: timedelta(seconds=500), RETENTION_OF_LOG: timedelta(seconds=50_000)}


def test_files_of_a_table_whose_last_version_says_it_all_have_a_tenth_of_that() -> None:
    files = [*(data(1, 100 * age) for age in range(10)), *(log(1, 1_000 * age) for age in range(60))]
    kept = retention(files, 100, NOW, keeps_versions=False)
    assert kept == {RETENTION_OF_DATA: timedelta(seconds=500), RETENTION_OF_LOG: timedelta(seconds=50_000)}


def test_of_a_log_of_many_small_files_only_so_many_are_kept() -> None:
    kept = retention([log(0, 100 * age) for age in range(LOG_FILES_MAX)], 100, NOW)
    assert kept[RETENTION_OF_LOG] == HISTORY
    kept = retention([log(0, 100 * age) for age in range(LOG_FILES_MAX + 1)], 100, NOW)
    assert kept[RETENTION_OF_LOG] == timedelta(seconds=100 * LOG_FILES_MAX)


def test_whoever_reads_a_version_has_time_to_end() -> None:
    files = [data(1_000, 3), log(1_000, 3)]
    assert retention(files, 100, NOW) == {RETENTION_OF_DATA: DATA_AT_LEAST, RETENTION_OF_LOG: LOG_AT_LEAST}


def test_a_clock_that_is_ahead_of_the_stores_does_no_harm() -> None:
    assert retention([data(1_000, -50)], 100, NOW)[RETENTION_OF_DATA] == DATA_AT_LEAST


@pytest.mark.parametrize(
    ("present_s", "wanted_s", "due"), [(None, 9, True), (9, 8, True), (9, 9, False), (9, 17, False), (9, 18, True)]
)
def test_a_property_is_written_at_once_for_less_and_rarely_for_more(
    present_s: int | None, wanted_s: int, due: bool
) -> None:
    present = None if present_s is None else timedelta(seconds=present_s)
    assert is_due(present, timedelta(seconds=wanted_s)) is due


def test_what_a_property_says_is_read_as_it_is_written() -> None:
    assert from_interval(as_interval(HISTORY)) == HISTORY
    assert [from_interval(text) for text in (None, "", "interval 7 days", "interval x seconds", "7")] == [None] * 5
