"""Writes one topic's table: does what engine.client.table_writing says, over connections, from files, and by delta-rs.

One thread uses it. What it holds in memory is one group of rows, whatever the topic has (tables.parquet_files).
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from typing import NamedTuple

from spark_replication.client.finding.deadline import Deadline
from spark_replication.client.finding.ranges import answered_ranges
from spark_replication.client.finding.routes import Routes
from spark_replication.client.reading.reader import Reader
from spark_replication.core.tables.flushing import FlushRules, LogTold, PlannedRange
from spark_replication.core.tables.table import TableVersion
from spark_replication.engine.client.table_writing import (
    AskLeaders,
    CommitRows,
    ConfirmRows,
    Doing,
    LoadTable,
    ReadPlanned,
    Rest,
    TableWriting,
    TellEnds,
    ends_of,
    told_by,
    wanted_of,
)
from spark_replication.errors import NotController, ReplicationError, StorageFailed, TableChanged
from spark_replication.messages.actions import OPEN_TABLE, TABLE_ENDS
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.ranges import WantedRange
from spark_replication.messages.tables import OpenTable, TellTableEnds, ToldTableEnd
from spark_replication.model import BrokerId, Epoch, Offset, PartitionNumber, TimeMs, TopicPartition
from spark_replication.process.threads import now_ms
from spark_replication.storage.format.batches import topic_schema
from spark_replication.tables.delta_table import DeltaTopicTable
from spark_replication.tables.parquet_files import StoredRows, TableFiles

ASK_MS = 5_000

log = logging.getLogger(__name__)


class WriterProgress(NamedTuple):
    """What a writer has done so far."""

    commits: int = 0
    rows: int = 0
    refused: int = 0
    #: When the last commit was made, and when a step was last not done. None: never.
    committed_ms: TimeMs | None = None
    failed_ms: TimeMs | None = None
    #: Why the last step was not done; empty if it was.
    trouble: str = ""


def together(*progress: WriterProgress) -> WriterProgress:
    """What writers have done in all; without their troubles."""
    return WriterProgress(
        commits=sum(each.commits for each in progress),
        rows=sum(each.rows for each in progress),
        refused=sum(each.refused for each in progress),
        committed_ms=max((each.committed_ms for each in progress if each.committed_ms is not None), default=None),
        failed_ms=max((each.failed_ms for each in progress if each.failed_ms is not None), default=None),
    )


class TopicTableWriter:
    def __init__(
        self,
        topic: TopicMetadata,
        routes: Routes,
        reader: Reader,
        table: DeltaTopicTable,
        rules: FlushRules,
        *,
        broker: BrokerId | None = None,
    ) -> None:
        """broker: whose partitions are this writer's own; None: all are."""
        self._routes, self._reader = routes, reader
        self._broker = broker
        self._writing = TableWriting(rules)
        self._files: TableFiles | None = None
        self._doing: Doing = self._writing.begin()
        #: Of each partition, how far its log was committed when leaders were asked first; None until all have answered.
        self._goal: Mapping[PartitionNumber, Offset] | None = None
        #: The outline that the table has, or that the controller was asked to write down.
        self._outlined = ""
        self.written = WriterProgress()
        self.heed(topic, table, rules)

    def heed(self, topic: TopicMetadata, table: DeltaTopicTable, rules: FlushRules) -> None:
        """Take over what the topic is by now."""
        self._topic, self._table, self._rules = topic, table, rules
        self._columns = frozenset(topic_schema(topic.config).newest.names)
        self._writing.configure(rules)

    @property
    def topic(self) -> str:
        return self._topic.name

    def why_not(self) -> str:
        """Why rows are not in the table, as far as this writer knows; empty if it knows nothing."""
        troubles = (f"partition {each}: {trouble.value}" for each, trouble in self._writing.plan.troubles.items())
        return "; ".join(filter(None, (self.written.trouble, *troubles)))

    def aim(self) -> None:
        """Begin anew: `has_written` is about what all leaders have when they are asked next."""
        self._drop()
        self._goal = None
        self._doing = self._writing.begin()

    def has_written(self) -> bool:
        """Whether the table has all that leaders had when they were asked first: they may have more by now."""
        return self._goal is not None and self._writing.has(self._goal) and not self.written.trouble

    def go_on(self) -> float:
        """Go on until there is nothing to do, but for one commit at most: under load there always is more. Returns for
        how many seconds there is nothing to do."""
        has_tried = False
        while not (has_tried and isinstance(self._doing, ReadPlanned)):
            if isinstance(self._doing, Rest):
                self._drop()
                rest_s = self._doing.ms / 1_000
                self._doing = self._writing.rested()
                return rest_s
            has_tried |= isinstance(self._doing, CommitRows)
            try:
                self._doing = self._done(self._doing)
                self.written = self.written._replace(trouble="")
            except ReplicationError as error:
                log.warning("the table of %s: %s", self._topic.name, error)
                self.written = self.written._replace(trouble=str(error), failed_ms=now_ms())
                self._drop()
                self._doing = self._writing.failed()
        return 0.0

    def _done(self, doing: Doing) -> Doing:
        match doing:
            case LoadTable():
                return self._writing.loaded(self._loaded())
            case AskLeaders(starts=starts):
                self._outline()
                wanted = wanted_of(self._topic.name, starts, self._topic.numbers, self._rules)
                told = self._asked(wanted)
                then = self._writing.told(told, mine=self._mine(), now_ms=now_ms())
                if self._goal is None and told.keys() >= {*self._topic.numbers} and not self._writing.plan.troubles:
                    self._goal = {
                        partition: known.high_watermark
                        for partition, known in told.items()
                        if known.high_watermark > known.log_start
                    }
                return then
            case TellEnds(ends=ends):
                return self._writing.ends_told(self._told(ends))
            case ReadPlanned(ranges=ranges):
                return self._writing.read(self._read(ranges))
            case ConfirmRows(ends=ends):
                return self._writing.vouched(self._asked(ends_of(self._topic.name, ends)))
            case CommitRows():
                return self._committed(doing)
            case _:
                raise AssertionError(doing)

    def _loaded(self) -> TableVersion:
        version = self._table.load()
        if version.number is None:
            self._open()
            version = self._table.load()
        if version.number is None:
            raise StorageFailed(
                f"the table of {self.topic} is not at {self._table.folder.uri}, where the controller has made it: name "
                "a folder that all hosts share, or an object store (table.path)"
            )
        if self._table.is_outlined:
            self._outlined = self._table.outline
        return version

    def _open(self) -> None:
        deadline = Deadline(ASK_MS)
        controller = self._routes.metadata((), deadline).controller
        if controller is None:
            raise NotController(f"the table of {self.topic} is made by a controller, and there is none: wait")
        self._routes.call(controller, OPEN_TABLE, OpenTable(topic=self.topic), deadline)

    def _outline(self) -> None:
        """Have the table say what its topic is by now (TB7). The controller writes it down, which knows best. Rows do
        not wait for that."""
        if self._table.outline == self._outlined:
            return
        try:
            self._open()
        except ReplicationError as error:
            log.warning("the table of %s does not say what the topic is by now: %s", self._topic.name, error)
            if error.retriable:
                return
        self._outlined = self._table.outline

    def _mine(self) -> frozenset[PartitionNumber]:
        led = ((each.partition, each.state.leader) for each in self._topic.partitions)
        return frozenset(partition for partition, leader in led if self._broker in (None, leader))

    def _asked(self, wanted: list[WantedRange]) -> dict[PartitionNumber, LogTold]:
        found = answered_ranges(self._routes, wanted, Deadline(ASK_MS))
        told = {each.partition: told_by(each) for each in found.values() if each.topic_id == self._topic.topic_id}
        return {partition: answer for partition, answer in told.items() if answer is not None}

    def _told(self, ends: Mapping[PartitionNumber, tuple[Epoch, Offset]]) -> set[PartitionNumber]:
        """Returns those whose leader has not taken it."""
        deadline = Deadline(ASK_MS)
        together: dict[str, list[ToldTableEnd]] = defaultdict(list)
        failed = set(ends)
        for partition, (leader_epoch, end) in ends.items():
            route = self._routes.known(TopicPartition(self._topic.name, partition))
            if route is not None:
                told = ToldTableEnd(partition=partition, leader_epoch=leader_epoch, end=end)
                together[route.address].append(told)
        for address, each in together.items():
            asked = TellTableEnds(topic=self._topic.name, topic_id=self._topic.topic_id, ends=tuple(each))
            try:
                refused = self._routes.call(address, TABLE_ENDS, asked, deadline.within_ms(ASK_MS)).errors
            except ReplicationError as error:
                if not error.retriable:
                    raise
            else:
                failed -= {told.partition for told in each} - refused.keys()
        return failed

    def _read(self, ranges: tuple[PlannedRange, ...]) -> dict[PartitionNumber, Epoch]:
        layout = self._table.layout()
        files = self._files = TableFiles(self._table.folder, layout, file_bytes=self._rules.file_bytes, now_ms=now_ms)
        last_epochs = {}
        for planned in sorted(ranges, key=lambda each: each.partition):
            try:
                last_epochs[planned.partition] = self._read_into(files, planned)
            except ReplicationError as error:
                log.warning("rows of %s-%d for its table: %s", self._topic.name, planned.partition, error)
                break  # what is in the files is of no use any more
        return last_epochs

    def _read_into(self, files: TableFiles, planned: PlannedRange) -> Epoch:
        last_epoch, at = -1, planned.start
        topic, partition = self._topic.name, planned.partition
        with closing(
            self._reader.read(topic, partition, planned.start, planned.end, topic_id=self._topic.topic_id)
        ) as batches:
            for found in batches:
                if not self._columns.issuperset(found.batch.schema.names):
                    raise TableChanged(f"topic {topic} was widened: its table is, too, and its rows are read again")
                rows = StoredRows(partition, found.base_offset, found.timestamp, found.leader_epoch, found.batch)
                files.add(rows)
                last_epoch, at = found.leader_epoch, found.last_offset + 1
        if at != planned.end:
            raise TableChanged(
                f"{topic}-{partition} was to be read from {planned.start} to {planned.end}, and ends at {at}"
            )
        return last_epoch

    def _committed(self, doing: CommitRows) -> Doing:
        files, self._files = self._files, None
        assert files is not None, "rows were read"
        try:
            version = self._table.commit(doing.on, doing.added, files.close())
        except TableChanged:
            files.drop()
            self.written = self.written._replace(refused=self.written.refused + 1)
            return self._writing.changed()
        rows = sum(each.end - each.start for each in doing.added)
        self.written = self.written._replace(
            commits=self.written.commits + 1, rows=self.written.rows + rows, committed_ms=now_ms()
        )
        return self._writing.committed(version)

    def _drop(self) -> None:
        files, self._files = self._files, None
        if files is not None:
            files.drop()

    def close(self) -> None:
        self._drop()
