"""Writes all topics that are tables, or those that are named, one after the other: TopicTableWriter does each.

Rules:
- Which topics are tables is asked of brokers every LOOK_S seconds.
- One thread writes, so that what is held in memory is one group of rows, however many topics there are. A topic that
  fails holds up the others for as long as its questions take.
- A table is tidied after so many commits of this writer, and once an hour: one at a time, by a process of its own
  (tables.aside), while rows are written. That process ends by itself, and may outlive this one.
"""

from __future__ import annotations

import heapq
import logging
import threading
import time
from collections.abc import Callable, Collection
from typing import NamedTuple

from msgspec.structs import replace

from spark_replication.client.finding.routes import Routes
from spark_replication.client.reading.reader import Reader
from spark_replication.errors import ReplicationError, RequestTimedOut
from spark_replication.live.tables.table_topics import TableTopic, table_topics
from spark_replication.live.tables.topic_writer import TopicTableWriter, WriterProgress, together
from spark_replication.live.tables.writer_status import WriterStatus
from spark_replication.mirror.delta.object_store import StoreOptions
from spark_replication.model import BrokerId, TimeMs
from spark_replication.tables.aside import UpkeepTask, tidied_aside
from spark_replication.tables.upkeep import TidiedFiles

LOOK_S = 10.0
TIDY_S = 3_600.0
TIDY_COMMITS = 60
REST_S_MAX = 1.0

log = logging.getLogger(__name__)

#: Waits for so many seconds, and returns whether to stop.
Wait = Callable[[float], bool]


class TableWriters:
    def __init__(
        self,
        routes: Routes,
        reader: Reader,
        store: StoreOptions,
        *,
        topics: Collection[str] = (),
        broker: BrokerId | None = None,
        at_once: bool = False,
    ) -> None:
        """topics: those to write; all that are tables if there are none. broker: whose partitions are written when they
        are due; all, if it is None. at_once: everything is due."""
        self._routes, self._reader, self._store = routes, reader, store
        self._topics = frozenset(topics)
        self._broker = broker
        self._at_once = at_once
        #: By topic_id.
        self._writers: dict[str, TopicTableWriter] = {}
        self._upkeep: dict[str, _Upkeep] = {}
        self._tidying: threading.Thread | None = None
        self._due: list[tuple[float, str]] = []
        self._tidied = TidiedFiles(0, 0, 0)
        #: Of topics that are tables no longer.
        self._gone = WriterProgress()

    @property
    def all(self) -> list[TopicTableWriter]:
        return list(self._writers.values())

    def status(self, at_ms: TimeMs) -> WriterStatus:
        """Cost: a look at each topic."""
        done = together(self._gone, *(each.written for each in self._writers.values()))
        return WriterStatus(
            at_ms=at_ms,
            tables=len(self._writers),
            troubled=sum(bool(each.why_not()) for each in self._writers.values()),
            commits=done.commits,
            rows=done.rows,
            refused=done.refused,
            given_up_files=self._tidied.given_up,
            joined_files=self._tidied.joined,
            swept_files=self._tidied.swept,
            committed_ms=done.committed_ms,
            failed_ms=done.failed_ms,
        )

    def run(self, wait: Wait, progress: Callable[[], None] = lambda: None) -> None:
        """Write until `wait` says that it is enough. What cannot be done is logged, and tried again."""
        looks_at_s = 0.0
        while True:
            now_s = time.monotonic()
            if now_s >= looks_at_s:
                looks_at_s = now_s + LOOK_S
                try:
                    self.look()
                except ReplicationError as error:
                    log.warning("nobody could say which topics are tables: %s", error)
            due_s = min(looks_at_s, self._due[0][0] if self._due else looks_at_s)
            if wait(min(REST_S_MAX, max(0.0, due_s - now_s))):
                break
            now_s = time.monotonic()
            while self._due and self._due[0][0] <= now_s:  # one turn each: some may always have more to do
                self._turn(heapq.heappop(self._due)[1])
                progress()
            progress()
        self.close()

    def write_once(self, patience_s: float, wait: Wait, progress: Callable[[], None] = lambda: None) -> None:
        """Write all that is committed by now, or until `wait` says that it is enough. RequestTimedOut names what could
        not be written: nothing was committed for so many seconds."""
        self.look()
        for writer in self.all:
            writer.aim()
            until_s = time.monotonic() + patience_s
            while not writer.has_written():
                if time.monotonic() > until_s:
                    raise RequestTimedOut(
                        f"the table of {writer.topic} is not up to date after {patience_s:.0f} s: "
                        f"{writer.why_not() or 'others write it'}"
                    )
                commits = writer.written.commits
                rest_s = writer.go_on()
                progress()
                if writer.written.commits > commits:
                    until_s = time.monotonic() + patience_s
                if not writer.has_written() and wait(rest_s):
                    self.close()
                    return
        self.close()

    def look(self) -> None:
        """Ask which topics are tables."""
        found = {each.metadata.topic_id: each for each in table_topics(self._routes, self._topics)}
        for topic_id in self._writers.keys() - found.keys():
            gone = self._writers.pop(topic_id)
            gone.close()
            self._gone = together(self._gone, gone.written)
            self._upkeep.pop(topic_id)
        for topic_id, topic in found.items():
            try:
                self._heed(topic_id, topic)
            except ReplicationError as error:
                if topic.name in self._topics:
                    raise
                log.warning("topic %s can be no table: %s", topic.name, error)

    def _heed(self, topic_id: str, topic: TableTopic) -> None:
        rules = replace(topic.rules, flush_ms=0) if self._at_once else topic.rules
        table = topic.table(self._store)
        known, task = self._writers.get(topic_id), topic.upkeep_task(self._store)
        if known is not None:
            known.heed(topic.metadata, table, rules)
            self._upkeep[topic_id] = self._upkeep[topic_id]._replace(task=task)
            return
        writer = TopicTableWriter(topic.metadata, self._routes, self._reader, table, rules, broker=self._broker)
        self._writers[topic_id] = writer
        self._upkeep[topic_id] = _Upkeep(task, TIDY_COMMITS, time.monotonic() + TIDY_S)
        heapq.heappush(self._due, (time.monotonic(), topic_id))

    def _turn(self, topic_id: str) -> None:
        writer = self._writers.get(topic_id)
        if writer is not None:  # else the topic is gone
            rest_s = writer.go_on()
            self._tidy(topic_id, writer.written.commits)
            heapq.heappush(self._due, (time.monotonic() + rest_s, topic_id))

    def _tidy(self, topic_id: str, commits: int) -> None:
        due, now_s = self._upkeep[topic_id], time.monotonic()
        is_busy = self._tidying is not None and self._tidying.is_alive()
        if is_busy or (commits < due.commits and now_s < due.at_s):
            return
        self._upkeep[topic_id] = due._replace(commits=commits + TIDY_COMMITS, at_s=now_s + TIDY_S)
        self._tidying = threading.Thread(target=self._tidy_aside, args=(due.task,), name="tidies-table", daemon=True)
        self._tidying.start()

    def _tidy_aside(self, task: UpkeepTask) -> None:
        try:
            done = tidied_aside(task)
        except ReplicationError as error:
            log.warning("%s", error)
        else:
            self._tidied = TidiedFiles(*(before + now for before, now in zip(self._tidied, done, strict=True)))

    def close(self) -> None:
        for writer in self.all:
            writer.close()


class _Upkeep(NamedTuple):
    """How, and when, a table is to be tidied."""

    task: UpkeepTask
    #: Of this writer, since it began.
    commits: int
    at_s: float
