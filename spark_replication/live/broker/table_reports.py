"""What a broker tells of topics' tables: how far each is behind what this broker leads, and what the writer of tables
beside it does.

`look` finds all of it, on a thread that may wait for a disk. A scrape tells of the last look, and waits for none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from prometheus_client.metrics_core import Metric

from spark_replication.engine.broker.tables_behind import TablesBehind
from spark_replication.engine.replica.partition import Partition
from spark_replication.errors import StorageFailed
from spark_replication.live.exposition import counter, gauge, gauges
from spark_replication.live.guarding.table_writer import FOLDER
from spark_replication.live.tables.writer_status import WriterStatus, read_status
from spark_replication.model import TimeMs
from spark_replication.process.processes import LockedProcess
from spark_replication.view.table_lags import TopicTableLag, topic_table_lag

TABLES_MAX = 1_000  # series of each metric

log = logging.getLogger(__name__)


class TableReports:
    """One thread looks; any may ask."""

    def __init__(self, directory: Path, now_ms: Callable[[], TimeMs]) -> None:
        """directory: the broker's."""
        self._writer = LockedProcess(directory / FOLDER)
        self._now_ms = now_ms
        self.behind = TablesBehind()
        #: None: no writer lives, or it has told nothing that can be read.
        self._status: WriterStatus | None = None
        self._is_writer_alive = False

    def look(self, replicas: Iterable[Partition]) -> None:
        try:
            self.behind.look(replicas, self._now_ms())
        except StorageFailed as error:
            log.error("%s", error)
        try:
            self._is_writer_alive = self._writer.alive()
        except OSError as error:
            log.error("whether a writer of tables lives in %s cannot be seen: %s", self._writer.directory, error)
            self._is_writer_alive = False
        self._status = read_status(self._writer.directory) if self._is_writer_alive else None

    def metrics(self) -> Iterator[Metric]:
        yield from self._of_topics()
        yield gauge(
            "table_writer_alive",
            "1 while a process beside this broker writes tables: there is one once a topic is a table, unless "
            "table.writer.enabled is false.",
            self._is_writer_alive,
        )
        if self._status is not None:
            yield from _of_writer(self._status, self._now_ms())

    def _of_topics(self) -> Iterator[Metric]:
        found = {topic: topic_table_lag(lags) for topic, lags in self.behind.lags.items()}
        told = dict(sorted(found.items(), key=lambda each: (_rank(each[1]), each[0]))[:TABLES_MAX])
        yield gauge(
            "tables_behind",
            "Tables that have lacked rows older than table.flush.ms for a minute, as health names them: 20 at most.",
            len(self.behind.told),
        )
        yield gauge("tables", "Topics that are tables, of which this broker leads partitions.", len(found))
        yield gauges(
            "table_rows_behind",
            "Committed rows that a topic's table lacks of what this broker leads, of the 1,000 that are most behind. A "
            "topic of which that is not known of each partition has no series.",
            ["topic"],
            {(topic,): lag.rows_behind for topic, lag in told.items() if lag.rows_behind is not None},
        )
        yield gauges(
            "table_seconds_behind",
            "How old the oldest of these rows is, of the same.",
            ["topic"],
            {(topic,): lag.seconds_behind for topic, lag in told.items() if lag.seconds_behind is not None},
        )
        yield gauges(
            "table_partitions_not_known",
            "Partitions that this broker leads, and of which no writer has told it yet where the table ends, of the "
            "same: each begins so as its leader is elected.",
            ["topic"],
            {(topic,): lag.not_known for topic, lag in told.items()},
        )
        yield gauges(
            "table_held_back_bytes",
            "What the logs that this broker leads keep for nothing but that the table is not known to have it, of the "
            "same.",
            ["topic"],
            {(topic,): lag.held_back_bytes for topic, lag in told.items() if lag.held_back_bytes is not None},
        )


def _rank(lag: TopicTableLag) -> tuple[bool, int, int]:
    """What is not known comes first, then what is most behind."""
    return lag.rows_behind is not None, -(lag.ms_behind or 0), -(lag.held_back_bytes or 0)


def _of_writer(status: WriterStatus, now_ms: TimeMs) -> Iterator[Metric]:
    def ago_s(at_ms: TimeMs) -> float:
        return max(0, now_ms - at_ms) / 1000

    yield gauge(
        "table_writer_silent_seconds",
        "For how long the writer of tables beside this broker has told nothing of itself: it does so every 5 s, though "
        "not in the midst of a commit. What follows is as of then.",
        ago_s(status.at_ms),
    )
    yield gauge("table_writer_tables", "Tables that it looks after.", status.tables)
    yield gauge(
        "table_writer_troubled_tables",
        "Those whose last step failed, or of which it leaves a partition alone: table status says why.",
        status.troubled,
    )
    yield counter("table_writer_commits", "Commits of rows that it has made since it began.", status.commits)
    yield counter("table_writer_rows", "Rows that are in these commits.", status.rows)
    yield counter(
        "table_writer_refused_commits", "Commits that were refused, since others had written.", status.refused
    )
    yield counter(
        "table_writer_given_up_files",
        "Files that it has removed from tables, since table.retention.* no longer keep them.",
        status.given_up_files,
    )
    yield counter("table_writer_joined_files", "Small files that became part of larger ones.", status.joined_files)
    yield counter(
        "table_writer_swept_files",
        "Files that it has removed, since no version that is kept has them: orphans, and what was given up or joined.",
        status.swept_files,
    )
    if status.committed_ms is not None:
        yield gauge(
            "table_writer_last_commit_seconds", "How long ago its last commit was made.", ago_s(status.committed_ms)
        )
    if status.failed_ms is not None:
        yield gauge(
            "table_writer_last_trouble_seconds", "How long ago a step of it last failed.", ago_s(status.failed_ms)
        )
