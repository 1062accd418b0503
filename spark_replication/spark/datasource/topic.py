"""A topic, for planners and tasks: the process has one connection to the cluster, and keeps it for the next task."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from spark_replication.client.deadline import Deadline, back_off_s
from spark_replication.client.log_batch import LogBatch
from spark_replication.client.reader import Preference, Reader
from spark_replication.errors import InvalidRequest, OffsetOutOfRange
from spark_replication.messages.descriptions import TopicMetadata
from spark_replication.messages.ranges import FoundRange, WantedRange
from spark_replication.model import AtTime, Offset
from spark_replication.spark.datasource.options import LogOptions
from spark_replication.spark.datasource.positions import Place

HEARD_BY_ALL_MS = 3_000
ASK_AGAIN_S = 0.1

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class Topic:
    """A topic of a cluster, stateless except for the connection."""

    def __init__(self, options: LogOptions) -> None:
        self.name = options.topic
        self._options = options
        self._reader = _reader_of(options)

    def metadata(self, topic_id: str | None = None) -> TopicMetadata:
        """The topic's metadata. With `topic_id`, raises InvalidRequest if another topic has its name."""
        if topic_id is None:
            return self._reader.topic(self.name)
        return self._of(topic_id, lambda: self._reader.topic(self.name), lambda found: [found.topic_id])

    def found(
        self,
        starts: Mapping[int, Place | AtTime],
        *,
        topic_id: str,
        ends: Mapping[int, Offset] | None = None,
        piece_bytes: Mapping[int, int] | None = None,
    ) -> dict[int, FoundRange]:
        """The ranges of these partitions, [start, end); without an end, up to what is committed. Raises InvalidRequest
        if another topic has its name."""
        wanted = [
            WantedRange(
                topic=self.name,
                partition=partition,
                start=0 if isinstance(start, AtTime) else start,
                from_time=start.time_ms if isinstance(start, AtTime) else None,
                to=None if ends is None else ends[partition],
                piece_bytes=(piece_bytes or {}).get(partition, 0),
            )
            for partition, start in starts.items()
        ]

        def ask() -> dict[int, FoundRange]:
            return {each.partition: each for each in self._reader.ranges(wanted).values()}

        return self._of(topic_id, ask, lambda found: [each.topic_id for each in found.values()])

    def _of(self, topic_id: str, ask: Callable[[], Answer], ids: Callable[[Answer], Iterable[str]]) -> Answer:
        """The answer, once it is about this topic. Raises InvalidRequest if a broker still answers about another one
        after HEARD_BY_ALL_MS: until then, some may not have heard yet that a topic was made again."""
        deadline = Deadline(HEARD_BY_ALL_MS)
        while True:
            answer = ask()
            others = sorted(set(ids(answer)) - {topic_id})
            if not others:
                return answer
            if deadline.passed:
                raise InvalidRequest(
                    f"{self.name} was deleted and made again (topic_id {topic_id} before, {others[0]} at present): its "
                    "offsets begin anew. Read it with a new query, and a stream with a new checkpoint"
                )
            time.sleep(ASK_AGAIN_S)

    def kept_from(self, found: FoundRange) -> Offset:
        """The offset to begin at: the log's start, if retention has removed the one wanted. Raises OffsetOutOfRange
        instead if failOnDataLoss is set."""
        if found.start >= found.log_start:
            return found.start
        name = found.topic_partition
        if self._options.fail_on_data_loss:
            raise OffsetOutOfRange(
                f"{name}: offset {found.start} was next, and the log begins at {found.log_start}: retention has "
                f"removed {found.log_start - found.start} records. Read on without them by failOnDataLoss=false, "
                "and keep records for longer (retention.ms, retention.bytes)"
            )
        log.warning(
            "%s: records from offset %d to %d are gone, removed by retention: they are left out",
            name,
            found.start,
            found.log_start - 1,
        )
        return found.log_start

    def read(
        self, partition: int, start: Offset, end: Offset, columns: Sequence[str], *, topic_id: str
    ) -> Iterator[LogBatch]:
        """Read all of [start, end), which was committed when the read was planned, whoever leads meanwhile. A new
        leader may show a lower high watermark for a while."""
        offset, deadline, failures = start, Deadline(self._options.deadline_ms), 0
        while True:
            (found,) = self.found({partition: offset}, topic_id=topic_id).values()
            before = offset = min(end, self.kept_from(found))
            try:
                for batch in self._reader.read(self.name, partition, offset, end, columns=columns, topic_id=topic_id):
                    offset = batch.last_offset + 1
                    yield batch
            except OffsetOutOfRange:  # retention was faster: the next turn finds out
                pass
            if offset >= end:
                return
            if offset > before:
                deadline, failures = Deadline(self._options.deadline_ms), 0
            if deadline.passed:
                raise OffsetOutOfRange(
                    f"{self.name}-{partition} has no records from offset {offset} to {end - 1}, which were committed "
                    f"when this read was planned, for {self._options.deadline_ms} ms: an unclean election has lost "
                    "them. Read it anew"
                )
            failures += 1
            time.sleep(min(back_off_s(failures), deadline.remaining_s))


_readers: dict[tuple[object, ...], Reader] = {}


def _reader_of(options: LogOptions) -> Reader:
    """The process's reader for these options. Spark gives the next task to the same process, and to connect anew would
    take longer than a small task. A forked process makes its own reader."""
    prefer: Preference = "near" if options.local_reads else "leader"
    key = (os.getpid(), options.bootstrap, prefer, options.deadline_ms, *sorted(options.security.items()))
    if key not in _readers:
        _readers[key] = Reader(
            options.bootstrap, security=options.security or None, prefer=prefer, deadline_ms=options.deadline_ms
        )
    return _readers[key]
