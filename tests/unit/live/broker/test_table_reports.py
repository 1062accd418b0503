"""What a broker's metrics tell of topics' tables, and of the writer beside it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from spark_replication.engine.broker.tables_behind import GRACE_MS
from spark_replication.engine.replica.partition import Partition
from spark_replication.live.broker import table_reports
from spark_replication.live.broker.table_reports import TableReports
from spark_replication.live.exposition import PREFIX, exposition
from spark_replication.live.guarding.table_writer import FOLDER
from spark_replication.live.tables.writer_status import STATUS_FILE, StatusFile, WriterStatus, read_status
from spark_replication.model import TopicPartition
from spark_replication.process.processes import LOCK_FILE
from tests.scrapes import Scrape
from tests.unit.engine.ports_in_memory import alone
from tests.unit.engine.replica.story import LED, Story

NOW_MS = 1_000_000
STATUS = WriterStatus(
    at_ms=NOW_MS - 2_000,
    tables=3,
    troubled=1,
    commits=7,
    rows=700,
    refused=2,
    given_up_files=4,
    joined_files=16,
    swept_files=5,
    committed_ms=NOW_MS - 9_000,
    failed_ms=NOW_MS - 4_000,
)


class Reports:
    """Of a broker, at a time."""

    def __init__(self, directory: Path) -> None:
        self.now_ms = NOW_MS
        self.folder = directory / FOLDER
        self.told = TableReports(directory, lambda: self.now_ms)

    def scraped(self, *partitions: Partition) -> Scrape:
        self.told.look(partitions)
        return self.as_looked()

    def as_looked(self) -> Scrape:
        return Scrape.of({"broker": exposition(self.told.metrics())})


@pytest.fixture
def reports(tmp_path: Path) -> Reports:
    return Reports(tmp_path)


@pytest.fixture
def writer(reports: Reports) -> Iterator[Callable[[bytes], None]]:
    """One that lives. Told bytes, it has written them as its status."""
    reports.folder.mkdir()
    with (reports.folder / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)

        def told(content: bytes) -> None:
            (reports.folder / STATUS_FILE).write_bytes(content)

        yield told


def led(topic: str = "foo", *, end: int | None = None, committed: int = 4, **given: Any) -> Partition:
    """A leader of so many committed records, each a ms old more than the next, of which the table has those below."""
    story = Story(**{"table": True, "table_flush_ms": 1_000, "retention_bytes": -1, **given}).told()
    for number in range(committed + 1):
        story.produce(now_ms=NOW_MS - 2_000 + number)
    story.fetch(2, committed)
    if end is not None:
        story.loop.told_of_table(LED.leader_epoch, end)
    found = alone(story.loop)
    found.topic_partition = TopicPartition(topic, 0)
    return found


TOPIC_SERIES = ("table_rows_behind", "table_seconds_behind", "table_partitions_not_known", "table_held_back_bytes")


def of_topic(found: Scrape, topic: str = "foo") -> list[float | None]:
    told = [[each for each in found.named(PREFIX + name) if ("topic", topic) in each.labels] for name in TOPIC_SERIES]
    return [each[0].value if each else None for each in told]


def test_rows_and_seconds_that_a_table_is_behind(reports: Reports) -> None:
    found = reports.scraped(led(end=1), led(end=4), led("bar", end=4))
    assert of_topic(found) == [3, 1.999, 0, 0]
    assert of_topic(found, "bar") == [0, 0, 0, 0]
    assert (found.value("tables"), found.value("tables_behind")) == (2, 0)


def test_what_retention_holds_back_for_a_table(reports: Reports) -> None:
    partition = led(end=2, retention_bytes=0)
    lag = partition.unguarded.table_lag(NOW_MS)
    assert lag is not None
    assert of_topic(reports.scraped(partition))[3] == lag.held_back_bytes


def test_an_end_that_no_writer_has_told_yet_is_not_known_and_is_not_0(reports: Reports) -> None:
    assert of_topic(reports.scraped(led())) == [None, None, 1, 0]
    assert of_topic(reports.scraped(led(), led(end=4))) == [None, None, 1, 0], "nor is what the whole topic lacks"


def test_a_topic_that_is_no_table_has_no_series(reports: Reports) -> None:
    found = reports.scraped(led(table=False))
    assert of_topic(found) == [None] * 4
    assert found.value("tables") == 0


def test_what_a_follower_has_is_its_leaders_to_tell(reports: Reports) -> None:
    partition = led(end=1)
    partition.unguarded.resign("it has lost its session")
    assert of_topic(reports.scraped(partition)) == [None] * 4


def test_a_table_that_is_late_counts_as_behind_once_health_says_so(reports: Reports) -> None:
    partition = led(end=1)
    assert reports.scraped(partition).value("tables_behind") == 0
    reports.now_ms += GRACE_MS
    assert reports.scraped(partition).value("tables_behind") == 1


def test_the_tables_that_are_most_behind_are_told_of(reports: Reports, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reports, "TABLES_MAX", 2)
    found = reports.scraped(led("whole", end=4), led("late", end=1), led("not-known"), led("later", end=0))
    assert found.value("tables") == 4
    told = {dict(each.labels)["topic"] for each in found.named(f"{PREFIX}table_partitions_not_known")}
    assert told == {"not-known", "later"}


def test_a_scrape_looks_at_no_partition(reports: Reports) -> None:
    reports.scraped(led(end=1))
    reports.now_ms += 60_000
    assert of_topic(reports.as_looked()) == [3, 1.999, 0, 0], "as of the last look"


# The writer

WRITER = {
    "table_writer_silent_seconds": 2,
    "table_writer_tables": 3,
    "table_writer_troubled_tables": 1,
    "table_writer_commits_total": 7,
    "table_writer_rows_total": 700,
    "table_writer_refused_commits_total": 2,
    "table_writer_given_up_files_total": 4,
    "table_writer_joined_files_total": 16,
    "table_writer_swept_files_total": 5,
    "table_writer_last_commit_seconds": 9,
    "table_writer_last_trouble_seconds": 4,
}


def of_writer(found: Scrape) -> dict[str, float]:
    told = {each.name.removeprefix(PREFIX): each.value for each in found.samples}
    return {name: value for name, value in told.items() if name.startswith("table_writer_")}


def test_what_the_writer_has_done(reports: Reports, writer: Callable[[bytes], None]) -> None:
    writer(msgspec.json.encode(STATUS))
    assert of_writer(reports.scraped()) == {"table_writer_alive": 1, **WRITER}


def test_a_writer_that_has_done_nothing_yet(reports: Reports, writer: Callable[[bytes], None]) -> None:
    writer(msgspec.json.encode(replace(STATUS, committed_ms=None, failed_ms=None)))
    found = of_writer(reports.scraped())
    assert WRITER.keys() - found.keys() == {"table_writer_last_commit_seconds", "table_writer_last_trouble_seconds"}


def test_a_writer_that_is_silent_is_seen_as_that_and_as_it_was(
    reports: Reports, writer: Callable[[bytes], None]
) -> None:
    writer(msgspec.json.encode(STATUS))
    reports.now_ms += 3_600_000
    found = of_writer(reports.scraped())
    assert found["table_writer_silent_seconds"] == 3_602
    assert found["table_writer_commits_total"] == 7
    reports.now_ms = NOW_MS - 60_000
    assert of_writer(reports.scraped())["table_writer_silent_seconds"] == 0, "a clock went back"


def test_what_a_dead_writer_has_left_is_not_told(reports: Reports) -> None:
    assert of_writer(reports.scraped()) == {"table_writer_alive": 0}
    reports.folder.mkdir()
    (reports.folder / LOCK_FILE).touch()
    (reports.folder / STATUS_FILE).write_bytes(msgspec.json.encode(STATUS))
    assert of_writer(reports.scraped()) == {"table_writer_alive": 0}


def changed(**given: object) -> bytes:
    return json.dumps({**msgspec.to_builtins(STATUS), **given}).encode()


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\0" * 300, id="zeros, as after a crash of its host"),
        pytest.param(msgspec.json.encode(STATUS)[:-9], id="torn"),
        pytest.param(b"[]", id="another kind"),
        pytest.param(b'{"at_ms": 1}', id="of an older writer"),
        pytest.param(changed(rows=-1), id="below 0"),
        pytest.param(changed(rows=10**400), id="beyond every number"),
        pytest.param(changed(rows=1.5), id="no count"),
        pytest.param(changed(committed_ms="today"), id="no time"),
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"at_ms": "\xff"}', id="no text"),
        pytest.param(b" " * (2 << 20), id="far too large"),
    ],
)
def test_a_status_that_is_none_breaks_nothing(
    reports: Reports, writer: Callable[[bytes], None], content: bytes
) -> None:
    writer(msgspec.json.encode(STATUS))
    assert len(of_writer(reports.scraped())) > 1
    writer(content)
    found = reports.scraped(led(end=1))
    assert of_writer(found) == {"table_writer_alive": 1}
    assert of_topic(found) == [3, 1.999, 0, 0]


@pytest.mark.usefixtures("writer")
def test_nor_does_what_is_no_file_in_its_place(reports: Reports) -> None:
    path = reports.folder / STATUS_FILE
    path.mkdir()
    assert of_writer(reports.scraped()) == {"table_writer_alive": 1}
    path.rmdir()
    os.mkfifo(path)
    assert of_writer(reports.scraped()) == {"table_writer_alive": 1}, "nobody writes to it, and nobody waits for that"


def test_a_folder_whose_lock_cannot_be_opened_has_no_writer(reports: Reports) -> None:
    (reports.folder / LOCK_FILE).mkdir(parents=True)
    assert of_writer(reports.scraped(led(end=1))) == {"table_writer_alive": 0}


# Its file


def test_it_tells_at_once_and_then_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def status() -> WriterStatus:
        asked.append(1)
        return replace(STATUS, commits=len(asked))

    file = StatusFile(tmp_path, status)
    file.tell()
    assert read_status(tmp_path) == replace(STATUS, commits=1)
    file.tell()
    assert len(asked) == 1
    monkeypatch.setattr("spark_replication.live.tables.writer_status.WRITE_S", 0.0)
    file = StatusFile(tmp_path, status)
    file.tell()
    file.tell()
    assert read_status(tmp_path) == replace(STATUS, commits=3)


def test_a_disk_that_refuses_keeps_no_writer_from_writing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    StatusFile(tmp_path / "gone", lambda: STATUS).tell()
    assert "cannot be written" in caplog.text
    assert read_status(tmp_path / "gone") is None
