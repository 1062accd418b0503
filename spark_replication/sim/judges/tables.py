"""What must hold of topics' tables: the rows of each are those of the log, each offset once (TB1, TB5).

Everything that was ever in a table is there for good, whatever elections have cost the log since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from spark_replication.core.tables.table import RowRange
from spark_replication.model import Offset, PartitionNumber, TopicPartition
from spark_replication.sim.judges.story import Story
from spark_replication.sim.world.disk import LogImage, Record
from spark_replication.sim.world.world import InvariantBroken

TABLE_IS_THE_LOG = "table_is_the_log"
NO_OFFSET_TWICE = "no_offset_twice"
RETENTION_WAITS = "retention_waits_for_the_table"


class TableRows(NamedTuple):
    """What a table has of one partition."""

    start: Offset
    records: list[Record]

    @property
    def end(self) -> Offset:
        return self.start + len(self.records)


class TablesJudge:
    def __init__(self) -> None:
        #: By the topic_id that a table was made for.
        self._rows: dict[tuple[str, PartitionNumber], TableRows] = {}
        #: The same, by the topic_ids of those that restore it.
        self._made_for: dict[str, str] = {}

    def restored(self, topic_id: str, origin: str) -> None:
        """This topic goes on with the table of an earlier one, whether or not anybody has taken that over yet."""
        self._made_for[topic_id] = self._made_for.get(origin, origin)

    def rows(self, topic_id: str, partition: PartitionNumber) -> TableRows | None:
        return self._rows.get((self._made_for.get(topic_id, topic_id), partition))

    def added(self, story: Story, added: RowRange, records: Sequence[Record]) -> None:
        """A commit has added these records."""
        made_for = self._made_for.get(story.topic_id, story.topic_id)
        known = self._rows.setdefault((made_for, added.partition), TableRows(added.start, []))
        if known.end != added.start or len(records) != added.end - added.start:
            raise InvariantBroken(
                TABLE_IS_THE_LOG,
                f"the table of {story.partition} ends at {known.end}, and [{added.start}, {added.end}) was added with "
                f"{len(records)} rows",
            )
        known.records.extend(records)
        self._compare(story, story.committed[added.start : added.end], added.start)

    def committed(self, story: Story, start: Offset) -> None:
        """The log of the partition is committed further than `start`."""
        self._compare(story, story.committed[start:], start)

    def _compare(self, story: Story, committed: Sequence[Record | None], start: Offset) -> None:
        known = self.rows(story.topic_id, story.partition.partition)
        for offset, record in enumerate(committed, start):
            if known is None or not known.start <= offset < known.end or record is None:
                continue
            in_table = known.records[offset - known.start]
            if in_table != record:
                raise InvariantBroken(
                    NO_OFFSET_TWICE, f"{story.partition} at {offset}: {record} in the log, {in_table} in the table"
                )

    def starts_at(self, partition: TopicPartition, topic_id: str, log_start: Offset) -> None:
        """Some replica's log starts here."""
        known = self.rows(topic_id, partition.partition)
        end = 0 if known is None else known.end
        if log_start > end:
            raise InvariantBroken(
                RETENTION_WAITS, f"a log of {partition} starts at {log_start}, and its table has all below {end} alone"
            )

    def begins_to_lead(self, story: Story, image: LogImage) -> None:
        known = self.rows(story.topic_id, story.partition.partition)
        if known is not None and image.end < known.end:
            raise InvariantBroken(
                NO_OFFSET_TWICE,
                f"a leader of {story.partition} goes on at {image.end}, and its table has all below {known.end}",
            )
